"""Calls of aiofiles, left by their callers only after their threads."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import aiofiles
import aiofiles.threadpool
import anyio
import pytest
from aiofiles.threadpool.binary import AsyncFileIO

from gazette_aio.aio.file_calls import FileCalls
from gazette_aio.aio.threads import in_thread


class Gate:
    """Holds up opening a file in its thread."""

    def __init__(self) -> None:
        self.entered, self.left = threading.Event(), threading.Event()
        self.descriptors: list[int] = []

    def __call__(self, path: str, flags: int) -> int:
        self.entered.set()
        assert self.left.wait(30)
        self.descriptors.append(os.open(path, flags))
        return self.descriptors[-1]


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def calls() -> FileCalls:
    return FileCalls()


class SlowFile(io.FileIO):
    """A file whose reads wait in their thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.entered, self.left = threading.Event(), threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        self.entered.set()
        assert self.left.wait(30)
        return super().read(size)


@pytest.fixture
def slow(path: Path) -> Iterator[SlowFile]:
    with SlowFile(path) as slow:
        yield slow


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_file(path: Path, calls: FileCalls) -> None:
    file = await calls.open(aiofiles.open(path, "rb", buffering=0, executor=calls))
    assert await calls.run(file.read()) == b"content"
    assert not calls.busy
    await calls.close(file)
    await calls.close(file)
    assert file.closed
    with pytest.raises(FileNotFoundError):
        await calls.open(aiofiles.open(path.parent / "no", "rb", executor=calls))


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_call_is_not_left_by_a_cancelled_task(
    slow: SlowFile, calls: FileCalls, cancellations: int
) -> None:
    file: AsyncFileIO = aiofiles.threadpool.wrap(slow, executor=calls)  # type: ignore[call-overload]
    task = asyncio.create_task(calls.run(file.read(3)))
    await in_thread(slow.entered.wait, 30)
    for _ in range(cancellations):
        task.cancel()
        await turns()
    assert calls.busy
    assert not task.done()
    slow.left.set()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not calls.busy
    assert await calls.run(file.read()) == b"tent"


@pytest.mark.parametrize("scope", ["asyncio.timeout", "anyio"])
async def test_a_call_is_not_left_by_a_deadline(
    slow: SlowFile, calls: FileCalls, scope: str
) -> None:
    file: AsyncFileIO = aiofiles.threadpool.wrap(slow, executor=calls)  # type: ignore[call-overload]
    has_ended = False

    async def read() -> None:
        nonlocal has_ended
        try:
            await calls.run(file.read())
        finally:
            has_ended = True
            assert not calls.busy

    async def leave() -> None:
        await in_thread(slow.entered.wait, 30)
        deadline.reschedule(0) if scope == "asyncio.timeout" else limit.cancel()
        await turns()
        assert not has_ended
        slow.left.set()

    leaving = asyncio.create_task(leave())
    if scope == "anyio":
        with anyio.CancelScope() as limit:
            await read()
        assert limit.cancelled_caught
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as deadline:
                await read()
    await leaving
    assert has_ended


@pytest.mark.parametrize("cancel", ["task", "scope"])
async def test_a_file_which_is_opened_in_vain_is_closed(
    path: Path, calls: FileCalls, cancel: str
) -> None:
    gate = Gate()
    scope = anyio.CancelScope()

    async def work() -> None:
        with scope:
            await calls.open(aiofiles.open(path, "rb", buffering=0, opener=gate, executor=calls))

    task = asyncio.create_task(work())
    await in_thread(gate.entered.wait, 30)
    (task if cancel == "task" else scope).cancel()
    await turns()
    assert not task.done()
    gate.left.set()
    await asyncio.wait((task,))
    assert len(gate.descriptors) == 1
    assert not is_open(gate.descriptors[0])


async def test_a_call_which_no_thread_has_begun_is_never_made(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    held, calls = FileCalls(), FileCalls()
    gate, never = Gate(), Gate()
    holding = asyncio.create_task(held.open(aiofiles.open(path, "rb", opener=gate, executor=held)))
    waiting = asyncio.create_task(
        calls.open(aiofiles.open(path, "rb", opener=never, executor=calls))
    )
    await in_thread(gate.entered.wait, 30)
    await turns()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    gate.left.set()
    file = await holding
    await held.run(file.close())
    assert not never.entered.is_set()


async def close_it(file: AsyncFileIO, calls: FileCalls) -> None:
    await calls.close(file)


@pytest.mark.parametrize("cancellations", range(1, 4))
async def test_a_cancelled_close_closes(path: Path, calls: FileCalls, cancellations: int) -> None:
    file = await calls.open(aiofiles.open(path, "rb", buffering=0, executor=calls))
    descriptor = file.fileno()
    task = asyncio.create_task(close_it(file, calls))
    await asyncio.sleep(0)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not is_open(descriptor)


async def test_a_close_in_a_cancelled_scope_closes(path: Path, calls: FileCalls) -> None:
    file = await calls.open(aiofiles.open(path, "rb", buffering=0, executor=calls))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await calls.close(file)
    assert file.closed


async def test_a_loop_which_ends(path: Path) -> None:
    """`asyncio.run()` cancels all tasks at its end, and waits for their threads."""
    gate = Gate()
    outcomes: list[Callable[[], bool]] = []

    async def main() -> None:
        calls = FileCalls()
        task = asyncio.create_task(
            calls.open(aiofiles.open(path, "rb", opener=gate, executor=calls))
        )
        outcomes.append(task.cancelled)
        await in_thread(gate.entered.wait, 30)
        asyncio.get_running_loop().call_later(0.02, gate.left.set)

    await asyncio.to_thread(asyncio.run, main())
    assert [outcome() for outcome in outcomes] == [True]
    assert not is_open(gate.descriptors[0])
