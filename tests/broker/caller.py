"""Plain gRPC calls of the Journal service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.client.rpc.errors import FirstStatus
from tests.waiting import eventually

__all__ = ["Caller", "calling", "eventually", "journal_spec"]

WRITE_FAILURES = (asyncio.InvalidStateError, grpc.aio.InternalError, grpc.aio.AioRpcError)
"""Errors of a write to a call that has ended, or does so."""
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def journal_spec(name: str = "test/journal", **fields: Any) -> pb.JournalSpec:
    """Return a spec with defaults for tests; `stores`, `length`, … go to its fragment."""
    fragment = {
        "length": 1 << 20,
        "compression_codec": pb.CompressionCodec.NONE,
        "refresh_interval": {"seconds": 3600},
    }
    own = {field.name for field in pb.JournalSpec.Fragment.DESCRIPTOR.fields}
    fragment.update({key: fields.pop(key) for key in list(fields) if key in own})
    return pb.JournalSpec(name=name, replication=1, fragment=fragment, **fields)  # type: ignore[arg-type]


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class AppendCall:
    """A call of Append that tells the status with which it ended first, also amid a write."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._status = FirstStatus(call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __await__(self) -> Generator[Any, None, pb.AppendResponse]:
        try:
            response: pb.AppendResponse = yield from self._call.__await__()
        except grpc.aio.AioRpcError as error:
            raise self._status.unmasked(error) from None
        return response


class Caller:
    """Calls a broker over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        def stub(kind: str, name: str, response: Any) -> Any:
            return getattr(channel, kind)(
                f"/protocol.Journal/{name}",
                request_serializer=_serialize,
                response_deserializer=response.FromString,
            )

        self.list_call = stub("unary_stream", "List", pb.ListResponse)
        self.apply_call = stub("unary_unary", "Apply", pb.ApplyResponse)
        self.read_call = stub("unary_stream", "Read", pb.ReadResponse)
        append_call = stub("stream_unary", "Append", pb.AppendResponse)

        def unmasked(*requests: Any, **options: Any) -> Any:
            return AppendCall(append_call(*requests, **options))

        self.append_call: Any = unmasked
        self.fragments_call = stub("unary_unary", "ListFragments", pb.FragmentsResponse)
        self.health_call = stub(
            "unary_unary", "FragmentStoreHealth", pb.FragmentStoreHealthResponse
        )

    async def create(self, *specs: pb.JournalSpec) -> pb.ApplyResponse:
        changes = [pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1) for spec in specs]
        response = await self.apply_call(pb.ApplyRequest(changes=changes))
        assert response.status == pb.Status.OK
        return response

    async def delete(self, name: str) -> None:
        change = pb.ApplyRequest.Change(delete=name, expect_mod_revision=-1)
        response = await self.apply_call(pb.ApplyRequest(changes=[change]))
        assert response.status == pb.Status.OK

    async def append(
        self, content: bytes = b"", journal: str = "test/journal", **fields: Any
    ) -> pb.AppendResponse:
        call = self.append_call()
        # Race: a call which is answered already takes no more, and the answer tells why.
        with contextlib.suppress(*WRITE_FAILURES):
            await call.write(pb.AppendRequest(journal=journal, **fields))
            for start in range(0, len(content), 1 << 18):
                await call.write(pb.AppendRequest(content=content[start : start + (1 << 18)]))
            await call.write(pb.AppendRequest())
            await call.done_writing()
        response: pb.AppendResponse = await call
        return response

    async def commit(self, content: bytes, journal: str = "test/journal", **fields: Any) -> int:
        """Append and return the begin offset, asserting that it was committed."""
        response = await self.append(content, journal, **fields)
        assert response.status == pb.Status.OK, response
        assert response.commit.end - response.commit.begin == len(content)
        return response.commit.begin

    async def read(self, journal: str = "test/journal", **fields: Any) -> bytes:
        """Read to the write head, without blocking."""
        responses = [r async for r in self.read_call(pb.ReadRequest(journal=journal, **fields))]
        return b"".join(response.content for response in responses)

    async def fragments(self, journal: str = "test/journal") -> list[pb.Fragment]:
        response = await self.fragments_call(pb.FragmentsRequest(journal=journal))
        assert response.status == pb.Status.OK, response
        return [fragment.spec for fragment in response.fragments]

    async def journals(self) -> list[pb.ListResponse.Journal]:
        found: list[pb.ListResponse.Journal] = []
        async for response in self.list_call(pb.ListRequest()):
            found += response.journals
        return found


@asynccontextmanager
async def calling(endpoint: str) -> AsyncGenerator[Caller]:
    """Yield a caller of an endpoint."""
    target = endpoint.removeprefix("http://")
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        yield Caller(channel)
