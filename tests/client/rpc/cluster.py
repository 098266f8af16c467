"""A cluster of scripted brokers which tell of each other."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import JOURNAL, committed, content, fragment, metadata, refusal, refused
from tests.waiting import eventually

INSTANT = RetryPolicy(backoff=lambda _: 0.0)
UNAVAILABLE = StubError(grpc.StatusCode.UNAVAILABLE, "going down")
NOT_BROKER = pb.Status.NOT_JOURNAL_BROKER
NOT_PRIMARY = pb.Status.NOT_JOURNAL_PRIMARY_BROKER


class Cluster:
    """Brokers which tell of each other, all of them proxying."""

    def __init__(self) -> None:
        self.brokers: dict[str, StubBroker] = {}
        self.zones: dict[str, str] = {}
        self.endpoints: dict[str, str] = {}
        """What members advertise, if it isn't where they listen."""
        self.primary = ""
        self.replicas: list[str] = []
        """Members of the route, or all."""
        self.failures: dict[str, list[StubError | pb.Status.ValueType]] = {}
        self.requests: list[tuple[str, Any]] = []
        self.content = b""
        self.on_read: Any = None

    async def add(self, name: str, zone: str = "local", address: str = "") -> None:
        broker = StubBroker()
        # Race: nobody else gets the port, while tests stop the broker and start it again.
        await broker.start(address or f"127.0.0.1:{free_port()}")
        self.brokers[name], self.zones[name] = broker, zone

        async def append(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
            return await self._append(name, requests)

        def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            return self._read(name, request)

        def fragments(request: pb.FragmentsRequest) -> pb.FragmentsResponse:
            self._fail(name)
            self.requests.append((name, request))
            return pb.FragmentsResponse(header=self.header(name))

        broker.append_handler = append
        broker.read_handler = read
        broker.fragments_handler = fragments

    def endpoint(self, name: str) -> str:
        return self.endpoints.get(name) or self.brokers[name].endpoint

    def process_id(self, name: str) -> pb.ProcessSpec.ID:
        return pb.ProcessSpec.ID(zone=self.zones[name], suffix=f"broker-{name}")

    def route(self) -> pb.Route:
        members = sorted(self.replicas or self.zones, key=lambda name: (self.zones[name], name))
        return pb.Route(
            members=[self.process_id(name) for name in members],
            endpoints=[self.endpoint(name) for name in members],
            primary=members.index(self.primary) if self.primary in members else -1,
        )

    def header(self, name: str) -> pb.Header:
        return pb.Header(
            process_id=self.process_id(name),
            route=self.route(),
            etcd=pb.Header.Etcd(cluster_id=12, member_id=34, revision=56, raft_term=78),
        )

    def served(self) -> dict[str, int]:
        """Return the number of RPCs since the last call, by broker."""
        counts = {name: len(broker.metadata) for name, broker in self.brokers.items()}
        for broker in self.brokers.values():
            broker.metadata.clear()
        return {name: count for name, count in counts.items() if count}

    def _fail(self, name: str) -> pb.Status.ValueType:
        failures = self.failures.get(name)
        failure = failures.pop(0) if failures else pb.Status.OK
        if isinstance(failure, StubError):
            raise failure
        return failure

    async def _append(
        self, name: str, requests: AsyncIterator[pb.AppendRequest]
    ) -> pb.AppendResponse:
        data = b""
        async for request in requests:
            if request.journal:
                self.requests.append((name, request))
            data += request.content
        if status := self._fail(name):
            response = refused(status)
        else:
            begin = len(self.content)
            self.content += data
            response = committed(begin, len(self.content), data)
        response.header.CopyFrom(self.header(name))
        return response

    async def _read(self, name: str, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        self.requests.append((name, request))
        if status := self._fail(name):
            response = refusal(status, request.offset)
            response.header.CopyFrom(self.header(name))
            yield response
            return
        first = metadata(request.offset)
        first.header.CopyFrom(self.header(name))
        first.fragment.CopyFrom(fragment(0, max(len(self.content), request.offset + 1)))
        yield first
        if self.on_read is not None:
            async for response in self.on_read(name, request):
                yield response
            return
        if data := self.content[request.offset : request.end_offset or None]:
            yield content(request.offset, data)

    async def aclose(self) -> None:
        for broker in self.brokers.values():
            await broker.aclose()


def connected(cluster: Cluster, **options: Any) -> JournalClient:
    options = {"retry": INSTANT, "zone": "local", "strict": True, **options}
    return connect(cluster.brokers["one"].endpoint, **options)


def states(client: JournalClient) -> dict[str, str]:
    return {member.endpoint: member.connection for member in client.status().members}


async def until_ready(client: JournalClient, *endpoints: str) -> None:
    await eventually(lambda: all(states(client).get(endpoint) == "ready" for endpoint in endpoints))


async def read_all(client: JournalClient, end: int) -> bytes:
    async with client.read(JOURNAL, end_offset=end) as reader:
        return b"".join([chunk async for chunk in reader])


@contextlib.contextmanager
def silent_port() -> Any:
    """Yield the endpoint of one which takes connections, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
