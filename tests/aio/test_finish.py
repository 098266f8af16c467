from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread

Gate = Callable[[], None]


def in_a_task() -> tuple[Awaitable[int], Gate]:
    opened = asyncio.Event()

    async def work() -> int:
        await opened.wait()
        return 7

    return finish(work()), opened.set


def of_a_future() -> tuple[Awaitable[int], Gate]:
    future = asyncio.get_running_loop().create_future()
    return finish(future), lambda: future.set_result(7)


def of_a_thread() -> tuple[Awaitable[int], Gate]:
    opened = threading.Event()

    def work() -> int:
        opened.wait(30)
        return 7

    return in_thread(work), opened.set


WORK = (in_a_task, of_a_future, of_a_thread)


@pytest.mark.parametrize("begin", WORK)
async def test_the_result(begin: Callable[[], tuple[Awaitable[int], Gate]]) -> None:
    work, open_gate = begin()
    asyncio.get_running_loop().call_soon(open_gate)
    assert await work == 7


@pytest.mark.parametrize("cancels", [1, 2, 5])
@pytest.mark.parametrize("begin", WORK)
async def test_cancelled_by_a_task(
    begin: Callable[[], tuple[Awaitable[int], Gate]], cancels: int
) -> None:
    """`Task.cancel()`, however often, is raised only after the end."""
    work, open_gate = begin()
    task = asyncio.ensure_future(work)
    for _ in range(cancels):
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    open_gate()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert task.cancelling() == cancels


@pytest.mark.parametrize("begin", WORK)
async def test_cancelled_by_a_timeout(begin: Callable[[], tuple[Awaitable[int], Gate]]) -> None:
    work, open_gate = begin()
    asyncio.get_running_loop().call_later(0.01, open_gate)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await work


async def test_an_error_is_raised_or_dropped() -> None:
    opened = asyncio.Event()

    async def fail() -> None:
        await opened.wait()
        raise ValueError("no")

    task = asyncio.create_task(finish(fail()))
    await asyncio.sleep(0)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ValueError, match="no"):
        await finish(fail())


async def test_work_which_is_cancelled_itself() -> None:
    work = asyncio.create_task(asyncio.Event().wait())
    task = asyncio.create_task(finish(work))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 0
