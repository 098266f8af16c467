"""Waits for operations that end while the operation goes on: each ends none but itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.client import AsyncOperation
from tests.waiting import turns


async def gathers(operation: AsyncOperation) -> None:
    await asyncio.gather(operation)


async def started(work: Any) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(work)
    await turns(3)
    assert not task.done()
    return task


async def test_tasks_that_gather_the_same_are_cancelled_one_by_one() -> None:
    operation = AsyncOperation()
    tasks = [await started(gathers(operation)) for _ in range(4)]
    for task in (tasks[1], tasks[0], tasks[3]):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await turns(3)
    assert not tasks[2].done()
    operation.resolve()
    await tasks[2]


async def test_time_outs_of_tasks_that_gather_the_same_end_one_wait_each() -> None:
    operation = AsyncOperation()

    async def gathers_within(seconds: float) -> None:
        await asyncio.wait_for(asyncio.gather(operation), seconds)

    waiting = [await started(gathers_within(seconds)) for seconds in (0.01, 60)]
    with pytest.raises(TimeoutError):
        await waiting[0]
    assert not waiting[1].done()
    operation.resolve()
    await waiting[1]


async def test_a_task_that_is_cancelled_and_still_waits_for_it_is_left_alone() -> None:
    operation = AsyncOperation()

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(operation)

    cleaning = await started(cleans_up())
    cleaning.cancel()
    await turns(3)
    for seconds in (0, 0.001):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gathers(operation), seconds)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(operation, seconds)
    assert not cleaning.done()
    operation.resolve()
    with pytest.raises(asyncio.CancelledError):
        await cleaning


async def test_a_gather_may_be_cancelled_by_the_task_that_made_it() -> None:
    operation = AsyncOperation()
    gathered = asyncio.gather(operation)
    other = await started(gathers(operation))
    assert gathered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gathered
    assert not other.done()
    operation.resolve()
    await other


async def test_a_gather_that_another_task_cancels_ends_with_the_operation() -> None:
    operation = AsyncOperation()
    gathered = asyncio.gather(operation)

    async def cancels() -> bool:
        return gathered.cancel()

    assert not await asyncio.create_task(cancels())
    operation.resolve()
    await gathered


async def test_callbacks_of_any_kind_may_be_registered() -> None:
    """Functions that refer to a variable without a value, for example."""
    operation = AsyncOperation()

    def callback(future: Any) -> None:
        seen.append(future)

    operation.add_done_callback(callback)
    waiting = await started(gathers(operation))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    seen: list[Any] = []
    operation.resolve()
    await turns(3)
    assert seen == [operation]
