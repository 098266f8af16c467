"""Messages which tests of the client share."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient
from gazette_aio.testing.stub_broker import StubBroker, StubError

JOURNAL = "a/journal"


def header(revision: int = 56) -> pb.Header:
    return pb.Header(
        process_id=pb.ProcessSpec.ID(zone="a", suffix="broker"),
        route=pb.Route(
            members=[pb.ProcessSpec.ID(zone="a", suffix="broker")],
            primary=0,
            endpoints=["http://127.0.0.1:1"],
        ),
        etcd=pb.Header.Etcd(cluster_id=12, member_id=34, revision=revision, raft_term=78),
    )


def spec(name: str, **fields: Any) -> pb.JournalSpec:
    spec = pb.JournalSpec(
        name=name,
        replication=1,
        fragment=pb.JournalSpec.Fragment(
            length=1 << 20, compression_codec=pb.CompressionCodec.NONE
        ),
        **fields,
    )
    spec.fragment.refresh_interval.FromSeconds(60)
    return spec


def listing(*names: str, revision: int = 56) -> pb.ListResponse:
    return pb.ListResponse(
        header=header(revision),
        journals=[
            pb.ListResponse.Journal(
                spec=spec(name), mod_revision=12, create_revision=3, route=header().route
            )
            for name in names
        ],
    )


def fragment(begin: int = 0, end: int = 1024, journal: str = JOURNAL) -> pb.Fragment:
    return pb.Fragment(
        journal=journal, begin=begin, end=end, compression_codec=pb.CompressionCodec.NONE
    )


def metadata(offset: int, *, first: bool = True, **fields: Any) -> pb.ReadResponse:
    response = pb.ReadResponse(
        status=pb.Status.OK, offset=offset, write_head=1024, fragment=fragment(), **fields
    )
    if first:
        response.header.CopyFrom(header())
    return response


def content(offset: int, data: bytes) -> pb.ReadResponse:
    return pb.ReadResponse(offset=offset, content=data)


def refusal(status: pb.Status.ValueType, offset: int = 0) -> pb.ReadResponse:
    at_head = status == pb.Status.OFFSET_NOT_YET_AVAILABLE
    return pb.ReadResponse(
        status=status, header=header(), offset=offset, write_head=offset if at_head else 1024
    )


def script_read(
    broker: StubBroker,
    offset: int,
    data: bytes = b"",
    *,
    status: pb.Status.ValueType = pb.Status.OK,
    error: StubError | None = None,
) -> None:
    """Have a Read RPC answered by metadata, content in two halves, a status, and an end."""
    broker.read_responses.put_nowait(metadata(offset))
    half = len(data) // 2
    for begin, end in ((0, half), (half, len(data))):
        if begin < end:
            broker.read_responses.put_nowait(content(offset + begin, data[begin:end]))
    if status != pb.Status.OK:
        broker.read_responses.put_nowait(refusal(status, offset + len(data)))
    broker.finish(error)


def committed(begin: int = 100, end: int = 106, data: bytes = b"foobar") -> pb.AppendResponse:
    return pb.AppendResponse(
        status=pb.Status.OK,
        header=header(),
        commit=pb.Fragment(
            journal=JOURNAL,
            begin=begin,
            end=end,
            sum=pb.sha1_sum(data),
            compression_codec=pb.CompressionCodec.NONE,
        ),
        registers=pb.LabelSet(),
    )


def refused(status: pb.Status.ValueType, text: str = "") -> pb.AppendResponse:
    return pb.AppendResponse(
        status=status, header=header(), registers=pb.LabelSet(), store_health_error=text
    )


class Garbage:
    """A response which isn't a message."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        return b"\xff\xff\xff"


class MemoryJournals:
    """Answers appends as a broker does, and remembers them.

    Args:
        broker: The stub which it answers for.
    """

    def __init__(self, broker: StubBroker) -> None:
        self.contents: dict[str, bytearray] = {}
        self.appended: list[tuple[str, bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[StubError | pb.AppendResponse] = []
        self.begun = 0
        broker.append_handler = self.answer

    async def answer(self, requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        self.begun += 1
        first = await anext(requests)
        data, is_committed = bytearray(), False
        async for request in requests:
            assert not is_committed, "content behind the commit"
            is_committed = not request.content
            data += request.content
        await self.gate.wait()
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, StubError):
                raise failure
            return failure
        assert is_committed, "an append without commit"
        whole = self.contents.setdefault(first.journal, bytearray())
        begin = len(whole)
        whole += data
        self.appended.append((first.journal, bytes(data)))
        response = committed(begin, len(whole), bytes(data))
        response.commit.journal = first.journal
        return response


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def digest(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()


async def drain(reader: AsyncIterator[bytes]) -> tuple[bytes, BaseException | None]:
    """Return the content of a reader until its end or its error, and the error."""
    read = b""
    try:
        async for chunk in reader:
            assert chunk
            read += chunk
    except pb.GazetteError as error:
        return read, error
    return read, None


async def held_up(client: JournalClient, sent: Callable[[], int]) -> None:
    """Wait until flow control holds up a stream of the client's connection.

    Round trips of the same connection pass beside the stream, and so would more of its content.

    Args:
        client: Client of a stub broker with a `list_handler`.
        sent: How much content the broker has sent.
    """
    before, trips = -1, 0
    while trips < 20:
        trips = trips + 1 if sent() == before else 0
        before = sent()
        await client.list()
