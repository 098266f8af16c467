"""A member that serves the Shard service on a real server."""

from __future__ import annotations

from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.consumer.api import connect_shards
from gazette_aio.consumer.handlers import Peers, shard_service
from gazette_aio.serving.calls import CallCounts
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer
from tests.consumer.shards.group import Group

KEYED = pb.KeyedAuth("c2VjcmV0")


class ServedGroup(Group):
    """A member on a real server, and a client of it."""

    def __init__(self, client: Any, *, auth: Any = KEYED, **options: Any) -> None:
        self.auth = auth
        drain = Drain()
        self.server = GrpcServer([], drain)
        port = self.server.bind("127.0.0.1", 0)
        super().__init__(client, endpoint=f"http://127.0.0.1:{port}", peers=Peers(auth), **options)
        self.api = self.service.shard_api
        served = shard_service(self.service, verifier=auth, counts=CallCounts())
        self.server.add([served.handlers(drain)])
        self.key_space.observers.append(self.peers.observe)
        self.client = connect_shards(self.endpoint, auth=auth)

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.aclose()
        self.shards.stop()
        await self.server.stop(1)
        await self.peers.aclose()
        await super().__aexit__(*error)


def claims(capability: pb.Capability, selector: str) -> pb.Claims:
    return pb.Claims(capability, pb.parse_label_selector(selector))
