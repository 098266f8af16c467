from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from tests.waiting import eventually, turns

Gate = Callable[[], None]
Begun = tuple[Awaitable[int], Gate, Callable[[], bool]]
"""Work, what lets it end, and whether it's under way."""


def in_a_task() -> Begun:
    opened, begun = asyncio.Event(), asyncio.Event()

    async def work() -> int:
        begun.set()
        await opened.wait()
        return 7

    return finish(work()), opened.set, begun.is_set


def of_a_future() -> Begun:
    future = asyncio.get_running_loop().create_future()
    return finish(future), lambda: future.set_result(7), lambda: True


def of_a_thread() -> Begun:
    opened, begun = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        opened.wait(30)
        return 7

    return in_thread(work), opened.set, begun.is_set


WORK = (in_a_task, of_a_future, of_a_thread)


@pytest.mark.parametrize("begin", WORK)
async def test_the_result(begin: Callable[[], Begun]) -> None:
    work, open_gate, _ = begin()
    asyncio.get_running_loop().call_soon(open_gate)
    assert await work == 7


@pytest.mark.parametrize("cancels", [1, 2, 5])
@pytest.mark.parametrize("begin", WORK)
async def test_cancelled_by_a_task(begin: Callable[[], Begun], cancels: int) -> None:
    """`Task.cancel()`, however often, is raised only after the end."""
    work, open_gate, has_begun = begin()
    task = asyncio.ensure_future(work)
    await eventually(has_begun)
    for _ in range(cancels):
        await turns(5)
        task.cancel()
    await turns()
    assert not task.done()
    open_gate()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert task.cancelling() == cancels


@pytest.mark.parametrize("begin", WORK)
async def test_cancelled_by_a_timeout(begin: Callable[[], Begun]) -> None:
    work, open_gate, has_begun = begin()

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await work

    limits: list[asyncio.Timeout] = []
    task = asyncio.create_task(limited())
    await eventually(has_begun)
    await eventually(lambda: bool(limits))
    limits[0].reschedule(0)
    await eventually(limits[0].expired)
    await turns()
    assert not task.done()
    open_gate()
    with pytest.raises(TimeoutError):
        await task


async def test_an_error_is_raised_or_dropped() -> None:
    opened = asyncio.Event()

    async def fail() -> None:
        await opened.wait()
        raise ValueError("no")

    task = asyncio.create_task(finish(fail()))
    await asyncio.sleep(0)
    task.cancel()
    await turns(5)
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


@pytest.mark.parametrize("begin", WORK)
async def test_cancelled_by_a_scope_of_anyio(
    begin: Callable[[], Begun],
) -> None:
    """Which cancels in each turn: the wait neither ends early nor spins."""
    work, open_gate, has_begun = begin()
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await work

    task = asyncio.create_task(scoped())
    await eventually(has_begun)
    scope.cancel()
    try:
        await turns()
        before = task.cancelling()
        await turns()
        assert task.cancelling() == before
        assert not task.done()
    finally:
        open_gate()
        await task
    # A thread is waited for by anyio itself, which then tells at the next checkpoint.
    assert scope.cancelled_caught or begin is of_a_thread


async def test_a_call_which_has_not_begun_is_never_made() -> None:
    """All threads are taken, so that it still waits for one when it's cancelled."""
    opened = threading.Event()
    made: list[int] = []
    busy = [asyncio.create_task(in_thread(opened.wait, 30)) for _ in range(64)]
    await turns()
    waiting = asyncio.create_task(in_thread(made.append, 1))
    await turns()
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()
    opened.set()
    assert await asyncio.gather(*busy) == [True] * 64
    assert made == []


async def test_errors_of_a_thread() -> None:
    def fail(text: str, *, code: int) -> None:
        raise ValueError(text, code)

    with pytest.raises(ValueError, match="no") as raised:
        await in_thread(fail, "no", code=7)
    assert raised.value.args == ("no", 7)


def test_each_loop_has_threads_of_its_own() -> None:
    async def hop() -> int:
        return await in_thread(threading.get_ident)

    assert asyncio.run(hop()) != threading.get_ident()
    assert asyncio.run(hop()) != threading.get_ident()
