"""The client with a broker: an embedded one, or the one which BROKER_ADDRESS names."""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import (
    AsyncAppend,
    BufferedRetryReader,
    JournalClient,
    RetryPolicy,
    connect,
    get_journal,
)
from tests.client.support import spec
from tests.waiting import eventually

pytestmark = pytest.mark.interop


@pytest.fixture
async def conforming(tmp_path: Path) -> AsyncIterator[JournalClient]:
    address = os.environ.get("BROKER_ADDRESS")
    if address:
        async with connect(address) as client:
            yield client
    else:
        async with (
            EmbeddedBroker(fsync="off", file_root=tmp_path) as broker,
            connect(broker.endpoint, file_root=tmp_path) as client,
        ):
            yield client


@pytest.fixture
async def prefix(conforming: JournalClient) -> AsyncIterator[str]:
    """A prefix of journal names of this test's own, whose journals are deleted at its end."""
    prefix = f"conformance/{uuid.uuid4().hex[:12]}/"
    yield prefix
    listing = await conforming.list(f"prefix={prefix}")
    await conforming.apply(
        [
            pb.ApplyRequest.Change(
                delete=journal.spec.name, expect_mod_revision=journal.mod_revision
            )
            for journal in listing.journals
        ]
    )


async def create(client: JournalClient, *names: str) -> None:
    """Create journals, and wait until they may be appended to."""
    await client.apply(
        [pb.ApplyRequest.Change(upsert=spec(name)) for name in names], batch_size=100
    )
    policy = RetryPolicy(retry_not_found=True)
    for name in names:
        await client.append(name, retry_policy=policy)


async def read_all(client: JournalClient, journal: str, offset: int = 0) -> bytes:
    read = b""
    async with client.read(journal, offset=offset) as reader:
        try:
            async for chunk in reader:
                assert reader.offset == offset + len(read) + len(chunk)
                read += chunk
        except pb.OffsetNotYetAvailableError:
            return read
    raise AssertionError("a read without end ended")


async def test_append_and_read(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)
    first = await conforming.append(journal, b"hello, ", b"world")
    assert (first.commit.begin, first.commit.end) == (0, 12)
    assert pb.sum_to_digest(first.commit.sum).hex() == "b7e23ec29af22b0b4e41da31e868d57226121c84"
    second = await conforming.append(f"{journal};meta/data", b"!" * 300_000)
    assert (second.commit.begin, second.commit.end) == (12, 300_012)
    barrier = await conforming.append(journal)
    assert (barrier.commit.begin, barrier.commit.end) == (300_012, 300_012)

    assert await read_all(conforming, journal) == b"hello, world" + b"!" * 300_000
    assert await read_all(conforming, journal, 300_000) == b"!" * 12
    async with conforming.read(journal, offset=7, end_offset=12) as reader:
        assert b"".join([chunk async for chunk in reader]) == b"world"
        assert [chunk async for chunk in reader] == []
    async with conforming.read(journal, offset=-1) as reader:
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await reader.read()
        assert reader.offset == 300_012


async def test_a_blocking_read_follows_appends(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)
    async with conforming.read(journal, offset=0, block=True) as reader:
        reading = asyncio.create_task(reader.read())
        await conforming.append(journal, b"one")
        assert await reading == b"one"
        waiting = asyncio.create_task(reader.read())
        await conforming.append(journal)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await conforming.append(journal, b"two")
        assert await reader.read() == b"two"
        assert reader.offset == 6
        # A non-blocking read goes on from there.
        await reader.seek(3)
        assert await reader.read(2) == b"tw"


async def test_refusals(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    quick = RetryPolicy(backoff=lambda attempt: 0.0)
    with pytest.raises(pb.JournalNotFoundError):
        await conforming.append(journal, b"content", retry_policy=quick)
    async with conforming.read(journal, retry_policy=quick) as reader:
        with pytest.raises(pb.JournalNotFoundError):
            await reader.read()
    with pytest.raises(pb.JournalNotFoundError, match="does not exist"):
        await get_journal(conforming, journal)

    await create(conforming, journal)
    await conforming.append(journal, b"content")
    with pytest.raises(pb.WrongAppendOffsetError):
        await conforming.append(pb.AppendRequest(journal=journal, offset=100), b"content")
    await conforming.append(pb.AppendRequest(journal=journal, offset=7), b"!")
    with pytest.raises(pb.EtcdTransactionFailedError):
        await conforming.apply([pb.ApplyRequest.Change(upsert=spec(journal))])


async def test_registers(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)
    request = pb.AppendRequest(
        journal=journal,
        check_registers=pb.LabelSelector(include=pb.label_set("owner", "me")),
        union_registers=pb.label_set("owner", "me"),
    )
    response = await conforming.append(request, b"mine")
    assert pb.value_of(response.registers, "owner") == "me"
    await conforming.append(request, b"mine")
    request.check_registers.include.labels[0].value = "you"
    with pytest.raises(pb.RegisterMismatchError, match="owner=you"):
        await conforming.append(request, b"yours")
    append = await conforming.appends.start_append(request)
    append.write(b"yours")
    append.release()
    with pytest.raises(pb.RegisterMismatchError):
        await append
    conforming.appends.clear_error(journal)
    assert await read_all(conforming, journal) == b"minemine"


async def test_failing_content_appends_nothing(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)

    async def fail() -> AsyncIterator[bytes]:
        yield b"some of it"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await conforming.append(journal, b"content", fail)
    assert (await conforming.append(journal)).commit.end == 0


async def test_listing(conforming: JournalClient, prefix: str) -> None:
    names = [f"{prefix}{number:03}" for number in range(120)]
    await conforming.apply(
        (pb.ApplyRequest.Change(upsert=spec(name)) for name in names), batch_size=50
    )
    listed: list[str] = []

    async def all_listed() -> bool:
        listing = await conforming.list(f"prefix={prefix}")
        listed[:] = [journal.spec.name for journal in listing.journals]
        return listed == names

    while not await all_listed():
        assert len(listed) <= len(names)
    journal = await get_journal(conforming, names[7])
    assert journal.spec.name == names[7]
    assert journal.mod_revision > 0
    assert [
        j.spec.name for j in (await conforming.list(f"name:prefix={prefix}00")).journals
    ] == names[:10]


async def test_appends_in_the_background(conforming: JournalClient, prefix: str) -> None:
    """Many tasks append to a few journals; each finds its own content where it was told."""
    journals = [f"{prefix}{number}" for number in range(4)]
    await create(conforming, *journals)
    chance = random.Random(7)
    appends: list[tuple[AsyncAppend, bytes]] = []

    async def work(number: int) -> None:
        for step in range(25):
            journal = journals[(number + step) % len(journals)]
            data = f"<{number}:{step}>".encode() * chance.choice([1, 10, 1000])
            append = conforming.appends.try_append(journal, data) if step % 2 else None
            if append is None:
                dependencies = conforming.appends.pending_except(journal) if step % 5 == 0 else ()
                async with conforming.appends.append(journal, dependencies) as append:
                    append.write(data)
                    if step % 7 == 0:
                        await asyncio.sleep(0)
            appends.append((append, data))
            if step % 10 == 0:
                await append

    await asyncio.gather(*(work(number) for number in range(8)))
    await conforming.appends.flush()
    contents = {journal: await read_all(conforming, journal) for journal in journals}
    assert sum(map(len, contents.values())) == sum(len(data) for _, data in appends)
    for append, data in appends:
        begin, end = append.commit_range
        assert contents[append.request.journal][begin:end] == data
    await eventually(lambda: conforming.appends.status().journals == 0)


async def test_large_appends(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)
    data = random.Random(1).randbytes(3 << 20)
    async with conforming.appends.append(journal) as append:
        for begin in range(0, len(data), 100_000):
            append.write(data[begin : begin + 100_000])
            await append.drain()
    await append
    assert await read_all(conforming, journal) == data
    response = await conforming.append(journal, data)
    assert response.commit.end == 2 * len(data)


async def test_fragments(conforming: JournalClient, prefix: str) -> None:
    journal = f"{prefix}journal"
    await create(conforming, journal)
    await conforming.append(journal, b"content")
    fragments = (await conforming.list_fragments(journal)).fragments
    assert [(f.spec.begin, f.spec.end) for f in fragments if f.spec.end] == [(0, 7)]


async def test_a_watch_follows_changes(conforming: JournalClient, prefix: str) -> None:
    first, second = f"{prefix}first", f"{prefix}second"
    await create(conforming, first)
    # Releases up to v0.99 have no watches, and are polled.
    async with conforming.watch(f"prefix={prefix}", poll_interval=0.1) as watched:
        await watched.ready()
        changes = aiter(watched.changes())
        assert [journal.spec.name for journal in (await anext(changes)).added] == [first]
        await create(conforming, second)
        assert [journal.spec.name for journal in (await anext(changes)).added] == [second]
        listed = await get_journal(conforming, first)
        update = pb.ApplyRequest.Change(upsert=listed.spec, expect_mod_revision=listed.mod_revision)
        pb.set_value(update.upsert.labels, "tier", "cold")
        await conforming.apply([update])
        ((before, after),) = (await anext(changes)).changed
        assert (before.mod_revision, after.spec) == (listed.mod_revision, update.upsert)
        deletion = pb.ApplyRequest.Change(delete=first, expect_mod_revision=after.mod_revision)
        await conforming.apply([deletion])
        assert [journal.spec.name for journal in (await anext(changes)).removed] == [first]
        assert [journal.spec.name for journal in (await watched.ready()).journals] == [second]


@pytest.mark.parametrize("codec", ["NONE", "GZIP", "SNAPPY"])
async def test_stored_fragments_are_read_directly(
    conforming: JournalClient, prefix: str, codec: str
) -> None:
    if "BROKER_ADDRESS" in os.environ and "BROKER_FILE_ROOT" not in os.environ:
        pytest.skip("BROKER_FILE_ROOT doesn't tell where the broker's fragments are")
    journal = f"{prefix}journal"
    stored = spec(journal)
    stored.fragment.length = 1024
    stored.fragment.stores.append("file:///")
    stored.fragment.compression_codec = pb.CompressionCodec.Value(codec)
    stored.fragment.refresh_interval.FromSeconds(1)  # Brokers notice what they store by listing it.
    await conforming.apply([pb.ApplyRequest.Change(upsert=stored)])
    policy = RetryPolicy(retry_not_found=True)
    lines = [b"%05d %s\n" % (number, b"x" * (number % 97)) for number in range(200)]
    for begin in range(0, len(lines), 20):
        await conforming.append(journal, *lines[begin : begin + 20], retry_policy=policy)

    async def is_stored() -> bool:
        listing = await conforming.list_fragments(journal)
        return sum(bool(fragment.spec.mod_time) for fragment in listing.fragments) >= 5

    await eventually(is_stored)
    content = b"".join(lines)
    for offset in (0, 1, 1500, len(content) - 1):
        read, files = b"", 0
        async with conforming.read(journal, offset=offset, direct=True, verify=True) as reader:
            with pytest.raises(pb.OffsetNotYetAvailableError):  # noqa: PT012
                async for chunk in reader:
                    read += chunk
                    files += bool(reader.response.fragment_url)
        assert read == content[offset:]
        assert files or offset
    source = conforming.read(journal, end_offset=len(content), direct=True)
    async with BufferedRetryReader(source) as buffered:
        assert [line async for line in buffered] == lines
        await buffered.seek(len(lines[0]))
        assert await buffered.readline() == lines[1]
