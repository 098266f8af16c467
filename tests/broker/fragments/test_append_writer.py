"""Content of appends goes to the spool in order, in bounded memory, and nothing is written behind
the one who holds the journal.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.append_writer import (
    BATCH_BYTES,
    INLINE_BYTES,
    LEAST_BYTES,
    MAX_PENDING_BYTES,
    AppendWriter,
)
from gazette_aio.broker.fragments.spool import Spool
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.workers import Workers
from tests.waiting import turns

KIB = 1 << 10
MIB = 1 << 20
PATTERNS = {
    "one small": [1000],
    "all at once": [INLINE_BYTES - KIB],
    "one more": [INLINE_BYTES - KIB, 2 * KIB],
    "one which is long": [3 * MIB],
    "longer than may be pending": [5 * MIB, 1],
    "bytes": [1] * 3000,
    "usual": [32 * KIB] * 100,
    "a batch each": [BATCH_BYTES] * 6,
    "just not two in a batch": [BATCH_BYTES // 2 + 1] * 6,
    "long and short": [1, 700 * KIB, 3, 400 * KIB, 0, 2 * MIB, 100, BATCH_BYTES, 1] * 2,
}


class FakeSpool:
    """Notes what it's given, and fails if it's used in a way which loses content."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.writes: list[int] = []
        self.rolled_back = False
        self.fail_at = -1
        """Which write fails."""
        self.gate: threading.Semaphore | None = None
        """What each write waits for."""
        self.entered = threading.Semaphore(0)
        self._in_use = threading.Lock()

    def begin_append(self) -> None:
        assert not self.content

    def write(self, chunk: bytes | memoryview) -> None:
        assert self._in_use.acquire(blocking=False), "written to by two"
        try:
            assert not self.rolled_back, "written to by nobody who holds it"
            self.entered.release()
            if self.gate is not None:
                before = bytes(chunk)
                assert self.gate.acquire(timeout=30)
                assert before == chunk, "changed meanwhile"
            if len(self.writes) == self.fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            assert self.fail_at < 0 or len(self.writes) < self.fail_at, "written to behind a gap"
            self.content += chunk
            self.writes.append(len(chunk))
        finally:
            self._in_use.release()

    def open_gate(self, writes: int) -> None:
        """Let some writes pass."""
        assert self.gate is not None
        self.gate.release(writes)

    def rollback(self) -> int:
        assert self._in_use.acquire(blocking=False), "rolled back while it's written to"
        self.rolled_back = True
        self._in_use.release()
        return len(self.content)


class FakeWorkers:
    """Runs jobs when it's told to."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        assert not self.jobs, "two jobs of one append"
        future = asyncio.get_running_loop().create_future()
        self.jobs.append((future, function))
        return future

    def run(self) -> None:
        future, function = self.jobs.popleft()
        try:
            future.set_result(function())
        except OSError as error:
            future.set_exception(error)


def writer_of(spool: FakeSpool, workers: FakeWorkers | Workers) -> AppendWriter:
    return AppendWriter(cast("Spool", spool), cast("Workers", workers))


def chunks_of(sizes: list[int]) -> Iterator[bytes | memoryview]:
    """Return chunks of all kinds, whose order shows."""
    for number, size in enumerate(sizes):
        chunk = (number.to_bytes(4, "big") * (size // 4 + 1))[:size]
        yield memoryview(chunk) if number % 2 else chunk


def joined(sizes: list[int]) -> bytes:
    return b"".join(chunks_of(sizes))


async def is_blocked(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has something to wait for which only the test can bring about."""
    await turns(5)
    return not task.done()


async def finish(task: asyncio.Task[Any], workers: FakeWorkers) -> None:
    while await is_blocked(task):
        workers.run()
    await task


@pytest.fixture
def threads() -> Iterator[Workers]:
    workers = Workers(4, "test")
    yield workers
    workers.close()


# Memory


async def test_small_chunks_count_for_the_memory_which_they_take() -> None:
    workers = FakeWorkers()
    writer = writer_of(FakeSpool(), workers)
    for number in range(MAX_PENDING_BYTES // 100):
        task = asyncio.create_task(writer.write(memoryview(b"ab")[1:]))
        await asyncio.sleep(0)
        if not task.done():
            assert number > 1000
            break
    else:
        pytest.fail("tiny chunks without number are pending")
    await finish(task, workers)


# Cancellation


@asynccontextmanager
async def running_job(threads: Workers) -> AsyncGenerator[tuple[AppendWriter, FakeSpool]]:
    """A writer with much pending, whose job is in its first write of several."""
    spool = FakeSpool()
    spool.gate = threading.Semaphore(0)
    writer = writer_of(spool, threads)
    for _ in range(3):
        await writer.write(bytes(BATCH_BYTES))
    await asyncio.to_thread(spool.entered.acquire)
    yield writer, spool
    spool.open_gate(100)


async def test_abort_waits_for_the_batch_and_no_further_one(threads: Workers) -> None:
    async with running_job(threads) as (writer, spool):
        task = asyncio.create_task(writer.abort())
        assert await is_blocked(task)
        assert not spool.rolled_back
        spool.open_gate(1)
        assert await task == BATCH_BYTES
        assert spool.writes == [BATCH_BYTES]


async def test_cancelled_aborts_roll_back_nonetheless(threads: Workers) -> None:
    async with running_job(threads) as (writer, spool):
        task = asyncio.create_task(writer.abort())
        for _ in range(2):
            assert await is_blocked(task)
            task.cancel()
        assert await is_blocked(task)
        spool.open_gate(1)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert spool.rolled_back
    assert spool.writes == [BATCH_BYTES]


# Any of it


STEPS = st.one_of(
    st.integers(0, 2000),
    st.sampled_from([0, 1, INLINE_BYTES, LEAST_BYTES, BATCH_BYTES, BATCH_BYTES + 1]),
    st.just("run"),
)


@given(
    st.lists(STEPS, max_size=30),
    st.integers(1, 8),
    st.integers(-1, 6),
    st.sampled_from(["flush", "abort"]),
)
def test_any_append(steps: list[int | str], repeat: int, fail_at: int, end: str) -> None:
    async def append() -> None:
        spool, workers = FakeSpool(), FakeWorkers()
        spool.fail_at = fail_at
        writer = writer_of(spool, workers)
        taken = bytearray()
        try:
            for number, step in enumerate(steps * repeat):
                if isinstance(step, str):
                    if workers.jobs:
                        workers.run()
                    continue
                chunk = bytes([number % 251]) * step
                taken += chunk
                await finish(asyncio.create_task(writer.write(chunk)), workers)
                assert len(taken) - len(spool.content) <= MAX_PENDING_BYTES
            if end == "flush":
                await finish(asyncio.create_task(writer.flush()), workers)
                assert spool.content == taken
                return
        except OSError:
            assert len(spool.writes) == fail_at
        task = asyncio.create_task(writer.abort())
        await finish(task, workers)
        assert task.result() == len(spool.content)
        assert taken.startswith(spool.content)
        assert not workers.jobs

    asyncio.run(append())


# With a spool and threads


def real_spool(directory: Path, files: FileOps | None = None) -> Spool:
    spool = Spool(
        files or FileOps(),
        directory,
        journal="test/journal",
        begin=0,
        codec=pb.CompressionCodec.NONE,
        registers=pb.LabelSet(),
    )
    spool.create()
    spool.open()
    return spool


async def test_sums_are_those_of_the_content(tmp_path: Path, threads: Workers) -> None:
    spool = real_spool(tmp_path / "journal")
    content = b""
    for number, sizes in enumerate(PATTERNS.values()):
        writer = AppendWriter(spool, threads)
        for chunk in chunks_of(sizes):
            await writer.write(chunk)
        if number % 3 == 1:
            await writer.abort()
            continue
        await writer.flush()
        added = joined(sizes)
        content += added
        assert spool.commit(None, 1.0) == hashlib.sha1(added).digest()
        assert spool.digest == hashlib.sha1(content).digest()
    spool.close()
    assert spool.content.path.read_bytes()[: len(content)] == content


class FewDescriptors(FileOps):
    """Has no descriptors left after some duplicates."""

    def __init__(self) -> None:
        self.left = 1
        self.duplicates: list[int] = []
        self.closed: list[int] = []

    def duplicate(self, descriptor: int) -> int:
        if not self.left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.left -= 1
        self.duplicates.append(super().duplicate(descriptor))
        return self.duplicates[-1]

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)
        super().close(descriptor)


def test_no_duplicate_is_left_if_there_can_be_one_only(tmp_path: Path) -> None:
    files = FewDescriptors()
    spool = real_spool(tmp_path / "journal", files)
    with pytest.raises(OSError, match="Too many open files"):
        spool.duplicate()
    assert files.closed == files.duplicates
    spool.close()


@pytest.mark.parametrize("steps", [[3, 4, 3], [10], [1] * 10, [9, 1]])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_write_may_take_several_calls(
    tmp_path: Path,
    steps: list[int],
    kind: Callable[[bytes], bytes | memoryview],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pwrite, left = os.pwrite, deque(steps)

    def some(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        return pwrite(descriptor, data[: left.popleft()], offset)

    files = FileOps()
    descriptor = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "pwrite", some)
    files.pwrite(descriptor, kind(b"0123456789"), 5)
    assert not left
    left.extend([4, 0])
    with pytest.raises(OSError, match="Input/output error"):
        files.pwrite(descriptor, kind(b"abcdefghij"), 15)
    files.close(descriptor)
    assert (tmp_path / "file").read_bytes() == bytes(5) + b"0123456789abcd"


class PartialFiles(FileOps):
    """Runs out of space in the middle of a write."""

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        super().pwrite(descriptor, memoryview(data)[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_an_append_overwrites_what_a_failed_one_left(
    tmp_path: Path, threads: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = real_spool(tmp_path / "journal")
    writer = AppendWriter(spool, threads)
    # Private: the disk is full only after the spool was opened.
    monkeypatch.setattr(spool, "_files", PartialFiles())
    with pytest.raises(OSError, match="No space left"):
        await writer.write(b"lost")
    assert await writer.abort() == 0
    monkeypatch.undo()
    writer = AppendWriter(spool, threads)
    await writer.write(b"ok")
    await writer.flush()
    assert spool.commit(None, 1.0) == hashlib.sha1(b"ok").digest()
    spool.close()
