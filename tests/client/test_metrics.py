from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import Appender, JournalClient, Reader, RetryPolicy, connect
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import (
    JOURNAL,
    MemoryJournals,
    gzipped,
    metadata,
    refused,
    script_read,
)


class Counted:
    """Metrics which remember what they were told."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, int]] = []
        self.read: list[tuple[str, int]] = []
        self.opened: list[tuple[str, str, int, int | None]] = []
        self.read_of_fragments: list[tuple[str, str, int]] = []
        self.discarded: list[tuple[str, str, int]] = []

    def append_bytes(self, journal: str, count: int) -> None:
        self.appended.append((journal, count))

    def read_bytes(self, journal: str, count: int) -> None:
        self.read.append((journal, count))

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        self.opened.append((journal, codec, fragment_bytes, content_length))

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        self.read_of_fragments.append((journal, codec, count))

    def discard_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        self.discarded.append((journal, codec, count))


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def client(
    broker: StubBroker, instant: RetryPolicy, counted: Counted, tmp_path: Path
) -> AsyncIterator[JournalClient]:
    async with connect(
        broker.endpoint, retry=instant, metrics=counted, file_root=tmp_path
    ) as client:
        yield client


async def test_appends_count_once_they_are_committed(
    broker: StubBroker, client: JournalClient, counted: Counted
) -> None:
    journals = MemoryJournals(broker)
    async with Appender(client, pb.AppendRequest(journal=JOURNAL)) as appender:
        await appender.write(b"con")
        await appender.write(b"tent")
        assert counted.appended == []
    assert counted.appended == [(JOURNAL, 7)]
    await client.append(JOURNAL)  # A barrier appends nothing.
    assert counted.appended == [(JOURNAL, 7)]
    assert bytes(journals.contents[JOURNAL]) == b"content"


async def test_failed_attempts_do_not_count(
    broker: StubBroker, client: JournalClient, counted: Counted
) -> None:
    journals = MemoryJournals(broker)
    journals.failures += [
        StubError(grpc.StatusCode.UNAVAILABLE, "an error"),
        refused(pb.Status.NOT_JOURNAL_PRIMARY_BROKER),
    ]
    await client.append(JOURNAL, b"content")
    assert counted.appended == [(JOURNAL, 7)]

    journals.failures.append(refused(pb.Status.WRONG_APPEND_OFFSET))
    with pytest.raises(pb.WrongAppendOffsetError):
        await client.append(JOURNAL, b"content")
    appender = Appender(client, pb.AppendRequest(journal=JOURNAL))
    await appender.write(b"rolled back")
    await appender.abort()
    assert counted.appended == [(JOURNAL, 7)]


async def test_a_batch_of_the_service_counts_as_one(
    broker: StubBroker, client: JournalClient, counted: Counted
) -> None:
    MemoryJournals(broker)
    for _ in range(3):
        async with client.appends.append(JOURNAL) as append:
            append.write(b"content")
    await append
    assert counted.appended == [(JOURNAL, 21)]


async def test_reads_count_what_is_returned(
    broker: StubBroker, client: JournalClient, counted: Counted
) -> None:
    script_read(broker, 0, b"content, and more")
    request = pb.ReadRequest(journal=JOURNAL, end_offset=11)
    async with Reader(client, request) as reader:
        assert [await reader.read(limit) for limit in (3, -1, -1, -1)] == [
            b"con",
            b"tent,",
            b" an",
            b"",
        ]
    assert counted.read == [(JOURNAL, 3), (JOURNAL, 5), (JOURNAL, 3)]
    await broker.read_requests.get()


async def test_of_a_fragment_file(
    broker: StubBroker, client: JournalClient, counted: Counted, tmp_path: Path
) -> None:
    packed = gzipped(b"XXXXXhello, world!!!")
    (tmp_path / "fragment").write_bytes(packed)
    fragment = pb.Fragment(
        journal=JOURNAL, begin=100, end=120, compression_codec=pb.CompressionCodec.GZIP
    )
    broker.read_responses.put_nowait(
        pb.ReadResponse(
            header=metadata(0).header,
            offset=105,
            write_head=1024,
            fragment=fragment,
            fragment_url="file:///fragment",
        )
    )
    broker.finish()
    request = pb.ReadRequest(journal=JOURNAL, offset=105, do_not_proxy=True)
    async with Reader(client, request) as reader:
        assert await reader.read() == b"hello, world!!!"
        (stream,) = client.status().streams
        assert (stream.is_direct, stream.offset, stream.lag) == (True, 120, 904)
        assert await reader.read() == b""
        assert client.status().streams == ()
    assert counted.opened == [(JOURNAL, "GZIP", 20, len(packed))]
    assert counted.discarded == [(JOURNAL, "GZIP", 5)]
    assert counted.read_of_fragments == [(JOURNAL, "GZIP", 15)]
    assert counted.read == [(JOURNAL, 15)]
    await broker.read_requests.get()


@pytest.mark.parametrize("package", ["gazette_aio", "gazette_aio.client", "gazette_aio.contrib"])
async def test_what_is_not_needed_is_not_imported(package: str) -> None:
    code = f"import sys, {package}; print([n for n in ('aiohttp', 'prometheus_client', 'zstandard', 'numpy', 'pydantic') if n in sys.modules])"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert (process.returncode, out.strip()) == (0, b"[]")
