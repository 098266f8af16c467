"""A scripted member of a consumer, on a real gRPC server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.auth.claims import REQUIRED_CAPABILITIES
from gazette_aio.protocol.service import SHARD_METHODS, SHARD_SERVICE_NAME

Answer = Callable[[Any, Any], Awaitable[Any]]


class StubMember(Owner):
    """Answers the RPCs of the Shard service by scripted functions.

    Args:
        verifier: Verifies requests; None passes all.
    """

    def __init__(self, verifier: pb.Verifier | None = None) -> None:
        self.requests: list[Any] = []
        """Requests, in the order of their arrival."""
        self.claims: list[pb.Claims] = []
        """Claims of these requests, if they're verified."""
        self.answers: dict[str, Answer] = {}
        """Functions from a request and its context to the response, by the name of the method."""
        self.endpoint = ""
        self._verifier = verifier
        self._server = grpc.aio.server()
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(method.name, path),
                method.request.FromString,
                method.response.SerializeToString,
            )
            for path, method in SHARD_METHODS.items()
        }
        generic = grpc.method_handlers_generic_handler(SHARD_SERVICE_NAME, handlers)
        self._server.add_generic_rpc_handlers((generic,))

    async def __aenter__(self) -> Self:
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoint = f"http://127.0.0.1:{port}"
        await self._server.start()
        return self

    async def aclose(self) -> None:
        """Stop the server."""
        await self._server.stop(None)

    def answer(self, method: str, *responses: Any) -> None:
        """Answer calls of a method by these responses, one after another, then by the last one.

        A gRPC code in place of a response ends the RPC.
        """
        left = list(responses)

        async def respond(_: Any, context: Any) -> Any:
            response = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(response, grpc.StatusCode):
                await context.abort(response, "scripted")
            return response

        self.answers[method] = respond

    def header(self) -> pb.Header:
        """Return a header whose route has this member as primary."""
        return header(self.endpoint)

    def _handler(self, name: str, path: str) -> Answer:
        async def handle(request: Any, context: Any) -> Any:
            self.requests.append(request)
            if self._verifier is not None:
                metadata = dict(context.invocation_metadata())
                require = REQUIRED_CAPABILITIES[path]
                claims = self._verifier.verify(metadata.get("authorization"), require, 0.0)
                self.claims.append(claims)
            return await self.answers[name](request, context)

        return handle


def header(endpoint: str = "") -> pb.Header:
    """Return a header, whose route has one member if there is an endpoint."""
    route = pb.Route(primary=-1)
    if endpoint:
        member = pb.ProcessSpec.ID(zone="local", suffix="member")
        route = pb.Route(members=[member], endpoints=[endpoint], primary=0)
    return pb.Header(
        route=route, etcd=pb.Header.Etcd(cluster_id=12, member_id=34, revision=56, raft_term=78)
    )


def listed(shard: str, route: pb.Route) -> pc.ListResponse.Shard:
    """Return a listed shard, of which each member of the route is primary."""
    spec = pc.ShardSpec(id=shard, max_txn_duration=pb.duration_proto(10**9))
    status = [pc.ReplicaStatus(code=pc.ReplicaStatus.PRIMARY)] * len(route.members)
    return pc.ListResponse.Shard(
        spec=spec, mod_revision=3, create_revision=2, route=route, status=status
    )
