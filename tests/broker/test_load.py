"""Many clients at a time, and clients which behave badly: the others don't notice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.testing import BrokerProcess
from tests.broker.caller import Caller, calling, journal_spec
from tests.waiting import eventually

pytestmark = pytest.mark.slow

MIB = 1 << 20
STATUS = Path("/proc/self/status")
needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="reads memory use from /proc")
APPLY_BATCH = 128
OPTIONS = ["--fsync=off", "--min-append-rate=0"]


def processor_seconds(pid: int) -> float:
    """Return for how long a process was run."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return how much memory a process holds."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def create_many(caller: Caller, names: list[str]) -> None:
    for start in range(0, len(names), APPLY_BATCH):
        await caller.create(*(journal_spec(name) for name in names[start : start + APPLY_BATCH]))


# Many


async def test_a_thousand_readers_and_two_hundred_appenders(broker: EmbeddedBroker) -> None:
    journals, readers, appenders, rounds = 500, 1000, 200, 5
    names = [f"test/part-{number:03}" for number in range(journals)]
    appends = dict.fromkeys(names, appenders * rounds // journals)
    content = b"0123456789" * 10
    async with calling(broker.endpoint) as reading, calling(broker.endpoint) as appending:
        await create_many(appending, names)

        async def read(number: int) -> list[bytes]:
            name = names[number % journals]
            end = appends[name] * len(content)
            call = reading.read_call(pb.ReadRequest(journal=name, block=True, end_offset=end))
            return [message.content async for message in call if message.content]

        async def append(number: int) -> list[tuple[str, int]]:
            taken: list[tuple[str, int]] = []
            for turn in range(rounds):
                name = names[(number + turn * appenders) % journals]
                taken.append((name, await appending.commit(content, name)))
            return taken

        reads = [asyncio.ensure_future(read(number)) for number in range(readers)]

        async def all_wait() -> bool:
            return sum(replica.index.waiters for replica in broker.core.replicas) == readers

        await eventually(all_wait)
        ranges = await asyncio.gather(*(append(number) for number in range(appenders)))
        begins: dict[str, list[int]] = {}
        for name, begin in itertools.chain.from_iterable(ranges):
            begins.setdefault(name, []).append(begin)
        for name, count in appends.items():
            assert sorted(begins[name]) == [index * len(content) for index in range(count)]
        async with asyncio.timeout(60):
            received = await asyncio.gather(*reads)
    assert all(b"".join(parts) == content * (appenders * rounds // journals) for parts in received)
    await eventually(lambda: _are_idle(broker))


async def _are_idle(broker: EmbeddedBroker) -> bool:
    return not any(
        replica.index.waiters or replica.head.is_busy for replica in broker.core.replicas
    )


async def test_more_requests_at_once_than_are_begun(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec())
    await caller.commit(b"content")
    requests = 1500  # The library looks at them one by one, and by default drops some of so many.
    assert (
        await asyncio.gather(*(caller.read() for _ in range(requests))) == [b"content"] * requests
    )


@needs_proc
async def test_ten_thousand_journals(tmp_path: Path) -> None:
    names = [f"test/part-{number:05}" for number in range(10_000)]
    process = BrokerProcess(tmp_path, options=OPTIONS)
    async with process, calling(process.endpoint) as caller:
        await create_many(caller, names)
    async with process, calling(process.endpoint) as caller:
        begun = processor_seconds(process.pid)
        assert begun < 9.0
        listed = await caller.journals()
        assert processor_seconds(process.pid) - begun < 6.0
        assert [journal.spec.name for journal in listed] == names
        assert resident_bytes(process.pid) < 300 * MIB


# Slow


@needs_proc
async def test_readers_which_stop_to_read_hold_no_memory(tmp_path: Path) -> None:
    readers, size = 16, 64 * MIB
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(BrokerProcess(tmp_path, options=OPTIONS))
        caller = await stack.enter_async_context(calling(process.endpoint))
        await caller.create(journal_spec(length=1 << 30), journal_spec("test/other"))
        content = random.Random(5).randbytes(MIB)
        await caller.commit(content * (size // MIB))
        assert await caller.read(end_offset=size // 4) == content * (size // 4 // MIB)
        before = resident_bytes(process.pid)
        calls: list[Any] = []
        for _ in range(readers):
            slow = await stack.enter_async_context(calling(process.endpoint))
            call = slow.read_call(pb.ReadRequest(journal="test/journal", block=True))
            for _ in range(3):
                await call.read()
            calls.append(call)
        # The others are served all along, and memory has the time to grow.
        for number in range(200):
            assert await caller.commit(b"0123456789", "test/other") == number * 10
        assert await caller.read(end_offset=size) == content * (size // MIB)
        grown = resident_bytes(process.pid) - before
        assert grown < readers * 8 * MIB, f"{readers} readers hold {grown / MIB:.0f} MiB"
        # They may go on at any time.
        assert len((await calls[0].read()).content) > 0
        for call in calls:
            call.cancel()


# Bad


async def _drain(reader: asyncio.StreamReader, seconds: float = 0.5) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass


async def _garbage(endpoint: str, data: bytes) -> None:
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        await _drain(reader)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def others(endpoint: str) -> AsyncGenerator[dict[str, int]]:
    """Append to a journal and read it back all along, and count how often."""
    count = {"turns": 0}

    async def work(caller: Caller) -> None:
        while True:
            begin = await caller.commit(b"0123456789", "test/other")
            assert begin == count["turns"] * 10
            assert await caller.read("test/other", offset=begin) == b"0123456789"
            count["turns"] += 1

    async with calling(endpoint) as caller:
        task = asyncio.ensure_future(work(caller))
        try:
            yield count
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_garbage_does_not_stop_the_others(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec(), journal_spec("test/other"))
    rng = random.Random(7)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes.fromhex("000000040000000000")
    attempts = [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        rng.randbytes(100_000),
        preface + rng.randbytes(100_000),
        preface + settings + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + rng.randbytes(1 << 20),
        preface + settings + bytes.fromhex("000004080000000000ffffffff") * 1000,
        *(preface + settings + rng.randbytes(rng.randrange(1, 5000)) for _ in range(30)),
    ]
    async with others(broker.endpoint) as count:
        await asyncio.gather(*(_garbage(broker.endpoint, data) for data in attempts))
        before = count["turns"]

        async def went_on() -> bool:
            return count["turns"] > before + 5

        await eventually(went_on)
    assert await caller.commit(b"still there") == 0


async def test_invalid_messages_do_not_stop_the_others(
    broker: EmbeddedBroker, caller: Caller
) -> None:
    await caller.create(journal_spec(), journal_spec("test/other"))
    target = broker.endpoint.removeprefix("http://")
    first = pb.AppendRequest(journal="test/journal").SerializeToString()
    oversized = pb.AppendRequest(content=bytes(5 * MIB)).SerializeToString()
    rng = random.Random(11)
    async with others(broker.endpoint) as count, grpc.aio.insecure_channel(target) as channel:
        append: Any = cast("Any", channel).stream_unary("/protocol.Journal/Append")

        async def send(*messages: bytes) -> grpc.StatusCode:
            call = append()
            ended = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
            with contextlib.suppress(*ended):
                for message in messages:
                    await call.write(message)
                await call.done_writing()
            code: grpc.StatusCode = await call.code()
            return code

        codes = await asyncio.gather(*(send(first, oversized, b"") for _ in range(5)))
        # A client whose write fails may see that in place of the answer.
        expected = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL}
        assert set(codes) <= expected
        codes = await asyncio.gather(*(send(first, b"\xff" * 50, b"") for _ in range(20)))
        assert set(codes) == {grpc.StatusCode.INTERNAL}
        for name in ("Read", "List", "Apply", "ListFragments", "FragmentStoreHealth", "Replicate"):
            stub: Any = cast("Any", channel).stream_stream(f"/protocol.Journal/{name}")
            for _ in range(5):
                call = stub(iter([b"\xff" + rng.randbytes(200)]))
                assert await call.code() is grpc.StatusCode.INTERNAL, name
        before = count["turns"]

        async def went_on() -> bool:
            return count["turns"] > before + 5

        await eventually(went_on)
    assert await caller.commit(b"still there") == 0
    assert await caller.read() == b"still there"


async def test_streams_which_never_end_do_not_stop_the_others(tmp_path: Path) -> None:
    unfinished = [
        [pb.AppendRequest(journal="test/journal")],
        [pb.AppendRequest(journal="test/journal"), pb.AppendRequest(content=b"never")],
        [
            pb.AppendRequest(journal="test/journal"),
            pb.AppendRequest(content=b"n"),
            pb.AppendRequest(),
        ],
    ]
    async with (
        EmbeddedBroker(tmp_path, fsync="off", min_append_rate=1 << 16) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(), journal_spec("test/other"))
        async with others(broker.endpoint) as count, calling(broker.endpoint) as bad:
            calls: list[Any] = []
            for messages in unfinished:
                call = bad.append_call()
                for message in messages:
                    await call.write(message)
                calls.append(call)
            before = count["turns"]

            async def went_on() -> bool:
                return count["turns"] > before + 5

            await eventually(went_on)
            # Even the same journal is only held up for as long as each is waited for.
            async with asyncio.timeout(30):
                assert await caller.commit(b"its turn") == 0
                for call in calls:
                    with pytest.raises(grpc.aio.AioRpcError, match="minimum append data rate"):
                        await call
        assert await caller.read() == b"its turn"
