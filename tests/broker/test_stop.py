"""The planned end of a broker: nothing is lost, and no client meets what it wouldn't repeat."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy
from gazette_aio.serving.process import flush_within
from gazette_aio.testing import BrokerProcess
from tests.broker.caller import Caller, calling, journal_spec
from tests.broker.journal.faulty_files import FaultyFiles
from tests.waiting import eventually

Level = pb.JournalSpec.Suspend.Level
JOURNALS = [f"test/journal-{number}" for number in range(3)]
STOPPED = "resolver has stopped serving local replicas"


class Written:
    """What was acknowledged, by journal and offset."""

    def __init__(self) -> None:
        self.pieces: dict[str, dict[int, bytes]] = {name: {} for name in JOURNALS}
        self.refused: list[tuple[grpc.StatusCode, str]] = []

    def content(self, journal: str) -> bytes:
        """Return all content of a journal, asserting that it has no hole."""
        whole = b""
        for begin, piece in sorted(self.pieces[journal].items()):
            assert begin == len(whole)
            whole += piece
        return whole

    async def write(self, caller: Caller, writer: int) -> None:
        """Append until an append fails."""
        journal = JOURNALS[writer % len(JOURNALS)]
        for number in itertools.count():
            piece = f"{writer}.{number} ".encode() * 20
            try:
                response = await caller.append(piece, journal)
            except grpc.aio.AioRpcError as error:
                self.refused.append((error.code(), error.details() or ""))
                return
            self.pieces[journal][response.commit.begin] = piece


async def test_a_stop_refuses_appends_only_as_what_is_repeated(tmp_path: Path) -> None:
    written, writers = Written(), 12
    broker = EmbeddedBroker(tmp_path, fsync="off")
    async with broker, calling(broker.endpoint) as caller, calling(broker.endpoint) as reading:
        await caller.create(*map(journal_spec, JOURNALS))
        reads = [asyncio.create_task(reading.read(name, block=True)) for name in JOURNALS]
        tasks = [asyncio.create_task(written.write(caller, number)) for number in range(writers)]

        async def under_load() -> bool:
            return sum(map(len, written.pieces.values())) > 50

        await eventually(under_load)
        async with asyncio.timeout(30):  # It isn't the grace period which ends them.
            await broker.stop(3600.0)
        await asyncio.gather(*tasks)
        # Readers see the end of their streams.
        for name, content in zip(JOURNALS, await asyncio.gather(*reads), strict=True):
            assert written.content(name).startswith(content)
            assert content
    # Whatever fails so wasn't taken: nothing comes twice if it's repeated, as all clients do.
    assert {code for code, _ in written.refused} <= {grpc.StatusCode.UNAVAILABLE}
    async with EmbeddedBroker(tmp_path, fsync="off") as again, calling(again.endpoint) as caller:
        for journal in JOURNALS:
            assert await caller.read(journal) == written.content(journal)


async def test_appends_which_have_arrived_are_served(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    async with broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(), journal_spec("test/unopened"))
        first = caller.append_call()
        await first.write(pb.AppendRequest(journal="test/journal"))
        await first.write(pb.AppendRequest(content=b"first "))

        async def holds() -> bool:
            return any(replica.head.is_busy for replica in broker.core.replicas)

        await eventually(holds)
        behind = [asyncio.create_task(caller.append(b"behind ")) for _ in range(5)]
        unopened = caller.append_call()
        await unopened.write(pb.AppendRequest(journal="test/unopened"))

        async def arrived() -> bool:
            return broker.core.metrics.started["Append"] == 7

        await eventually(arrived)
        core = broker.core
        stopping = asyncio.create_task(broker.stop(10.0))

        async def ends() -> bool:
            return core.ending.is_set()

        await eventually(ends)
        with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping"):
            await caller.append(b"late ")
        for call in (first, unopened):
            await call.write(pb.AppendRequest())
            await call.done_writing()
            assert (await call).status == pb.Status.OK
        assert sorted([(await task).commit.begin for task in behind]) == [6, 13, 20, 27, 34]
        await stopping
    async with EmbeddedBroker(tmp_path, fsync="off") as again, calling(again.endpoint) as caller:
        assert await caller.read() == b"first " + b"behind " * 5


async def test_a_stop_refuses_what_it_cancels_and_acknowledges_what_is_committed(
    tmp_path: Path,
) -> None:
    gate, syncing = threading.Event(), threading.Event()

    class SlowFiles(FaultyFiles):
        def datasync(self, descriptor: int) -> None:
            if "journals" in self._paths[descriptor].parts:
                syncing.set()
                assert gate.wait(30)
            super().datasync(descriptor)

    broker = EmbeddedBroker(tmp_path, fsync="commit", files=SlowFiles())
    async with broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(), journal_spec("test/unfinished"))
        committed = asyncio.create_task(caller.append(b"committed"))
        assert await asyncio.to_thread(syncing.wait, 30)
        unfinished = caller.append_call()
        await unfinished.write(pb.AppendRequest(journal="test/unfinished"))
        await unfinished.write(pb.AppendRequest(content=b"unfinished"))

        async def holds() -> bool:
            return sum(replica.head.is_busy for replica in broker.core.replicas) == 2

        await eventually(holds)
        stopping = asyncio.create_task(broker.stop(0.05))
        # Unwinding may need threads which wait at the gate. It's opened after the grace at any rate.
        await asyncio.wait((stopping,), timeout=0.5)
        gate.set()
        with pytest.raises(grpc.aio.AioRpcError, match="the server is stopping") as caught:
            await unfinished
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await committed).status == pb.Status.OK
        await stopping
    async with EmbeddedBroker(tmp_path) as again, calling(again.endpoint) as caller:
        assert await caller.read() == b"committed"
        assert await caller.read("test/unfinished") == b""


async def test_a_further_stop_waits_for_the_one_under_way(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    async with broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        unfinished = caller.append_call()
        await unfinished.write(_request())

        async def serves() -> bool:
            return broker.core.metrics.started["Append"] == 1

        await eventually(serves)
        first = asyncio.create_task(broker.stop(30.0))
        await asyncio.sleep(0)
        further = asyncio.create_task(broker.aclose())
        await unfinished.write(pb.AppendRequest())
        await unfinished.done_writing()
        await further
        assert first.done()
        await first
        assert (await unfinished).status == pb.Status.OK


def _request() -> pb.AppendRequest:
    return pb.AppendRequest(journal="test/journal")


async def test_the_end_is_told_as_brokers_tell_it(broker: EmbeddedBroker, caller: Caller) -> None:
    full = {"level": Level.FULL, "offset": 5}
    await caller.create(journal_spec(), journal_spec("test/full", suspend=full))
    await caller.commit(b"content")
    stream = caller.append_call()
    await stream.write(_request())
    await stream.write(pb.AppendRequest(content=b"held"))

    async def holds() -> bool:
        return any(replica.head.is_busy for replica in broker.core.replicas)

    await eventually(holds)
    behind = asyncio.create_task(caller.append(b"behind"))

    async def arrived() -> bool:
        return broker.core.metrics.started["Append"] == 3

    await eventually(arrived)
    await broker.core.stop_serving()
    # Whoever holds the journal goes on, and no one else gets it.
    await stream.write(pb.AppendRequest())
    await stream.done_writing()
    assert (await stream).commit.end == 11
    assert await _failure(behind) == f"resolve: {STOPPED}"
    assert await _failure(caller.append(b"x")) == f"resolve: {STOPPED}"
    assert await _failure(caller.read()) == STOPPED
    assert await _failure(caller.fragments()) == STOPPED
    # What doesn't lead to this broker is answered as ever.
    keep = pb.AppendRequest.SUSPEND_KEEP
    assert (await caller.append(b"", "test/full", suspend=keep)).status == pb.Status.SUSPENDED
    assert (await caller.append(b"", "test/missing")).status == pb.Status.JOURNAL_NOT_FOUND


async def _failure(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details() or ""


async def test_an_append_which_opens_a_journal_as_all_ends_is_told(tmp_path: Path) -> None:
    class SlowFiles(FaultyFiles):
        gate = threading.Event()
        reached = threading.Event()

        def read_file(self, path: Path) -> bytes:
            if path.suffix == ".log" and "journals" in path.parts:
                self.reached.set()
                assert self.gate.wait(30)
            return super().read_file(path)

    async with EmbeddedBroker(tmp_path, fsync="off") as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.commit(b"content")
    files = SlowFiles()
    async with EmbeddedBroker(tmp_path, fsync="off", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            append = caller.append_call()
            for message in (_request(), pb.AppendRequest(content=b"x"), pb.AppendRequest()):
                await append.write(message)
            await append.done_writing()
            assert await asyncio.to_thread(files.reached.wait, 30)
            stopping = asyncio.create_task(broker.core.stop_serving())

            async def ends() -> bool:
                return broker.core.stopped

            await eventually(ends)
            files.gate.set()
            await stopping
            assert await _failure(append) == f"resolve: {STOPPED}"


async def test_a_store_which_hangs_does_not_keep_a_broker(tmp_path: Path) -> None:
    gate = threading.Event()

    class HangingFiles(FaultyFiles):
        def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
            if "fragments/test/journal" in str(self._paths[descriptor]):
                assert gate.wait(30)
            super().pwrite(descriptor, data, offset)

    files = HangingFiles()
    async with EmbeddedBroker(tmp_path, fsync="off", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///"]))
            await caller.commit(b"content")
            asyncio.get_running_loop().call_later(0.5, gate.set)
            begun = time.monotonic()
            await flush_within(broker.flush(), 0.1, asyncio.Queue[int]().get())
            # A slice which is being written is waited for, and nothing more.
            assert 0.1 <= time.monotonic() - begun < 20.0
            assert await caller.read() == b"content"
    async with EmbeddedBroker(tmp_path, fsync="off") as again, calling(again.endpoint) as caller:
        assert await caller.read() == b"content"


def _unpacked(files: Iterable[Path], journal: str) -> list[tuple[int, int, bytes]]:
    found: list[tuple[int, int, bytes]] = []
    for path in files:
        fragment = pb.parse_fragment(journal, path.name)
        content = b"".join(pb.decompress_all(fragment.compression_codec, path.read_bytes()))
        assert hashlib.sha1(content).digest() == pb.sum_to_digest(fragment.sum)
        found.append((fragment.begin, fragment.end, content))
    return sorted(found)


@pytest.fixture
async def process(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[BrokerProcess]:
    """A broker of a fixed port, killed in the end."""
    process = BrokerProcess(
        tmp_path / "data", port=unused_tcp_port, options=["--min-append-rate=0"]
    )
    await process.start()
    yield process
    await process.kill()


@pytest.mark.slow
@pytest.mark.crash
async def test_terminated_under_load(tmp_path: Path, process: BrokerProcess) -> None:
    written, rounds = Written(), 2
    codecs = (pb.CompressionCodec.NONE, pb.CompressionCodec.GZIP, pb.CompressionCodec.SNAPPY)
    policy = RetryPolicy(backoff=lambda _: 0.05)
    async with (
        connect(process.endpoint, retry=policy) as client,
        calling(process.endpoint) as caller,
    ):
        specs = [
            journal_spec(name, stores=["file:///"], length=2048, compression_codec=codec)
            for name, codec in zip(JOURNALS, codecs, strict=True)
        ]
        await caller.create(*specs)

        async def write(writer: int) -> None:
            journal = JOURNALS[writer % len(JOURNALS)]
            for number in itertools.count():
                piece = f"{writer}.{number} ".encode() * 20
                response = await client.append(journal, piece)
                written.pieces[journal][response.commit.begin] = piece

        writers = [asyncio.create_task(write(number)) for number in range(9)]
        for _ in range(rounds):
            before = sum(map(len, written.pieces.values()))

            async def under_load(before: int = before) -> bool:
                assert not any(writer.done() for writer in writers)
                return sum(map(len, written.pieces.values())) > before + 100

            await eventually(under_load)
            await process.stop()
            for journal in JOURNALS:
                # Each append was acknowledged, or refused and not taken.
                whole = written.content(journal)
                files = (tmp_path / "data" / "fragments" / journal).iterdir()
                persisted = _unpacked(files, journal)
                assert persisted, journal
                for begin, end, content in persisted:
                    assert content == whole[begin:end]
            await process.start()
        for writer in writers:
            writer.cancel()
        await asyncio.wait(writers)
    async with calling(process.endpoint) as caller:
        for journal in JOURNALS:
            content = await caller.read(journal)
            # The last ones were cancelled, and may be there.
            assert content.startswith(written.content(journal))
