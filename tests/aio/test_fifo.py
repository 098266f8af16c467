"""Amounts which tasks get in the order they ask for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gazette_aio.aio.fifo import FIFOBudget

if TYPE_CHECKING:
    from collections.abc import Coroutine


async def start(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_turns_are_in_order() -> None:
    budget = FIFOBudget(10)
    await budget.acquire(20)  # Alone, one may have more.
    big = await start(budget.acquire(8))
    small = await start(budget.acquire(1))
    assert budget.is_contended
    budget.release(15)
    await asyncio.sleep(0)
    # The small one would fit, but isn't the first.
    assert not big.done()
    assert not small.done()
    budget.release(4)
    await asyncio.gather(big, small)
    assert budget.held == 10
    budget.hold(5)
    late = await start(budget.acquire(1))
    budget.release(6)
    await late
    assert (budget.held, budget.is_contended) == (10, False)


async def test_cancelled_waits_hold_nothing() -> None:
    budget = FIFOBudget(10)
    await budget.acquire(10)
    first, second = await start(budget.acquire(8)), await start(budget.acquire(2))
    budget.release(2)
    await cancel(first)
    await second
    assert budget.held == 10

    # At the moment when it's one's turn.
    third, fourth = await start(budget.acquire(5)), await start(budget.acquire(5))
    budget.release(5)
    third.cancel()
    await asyncio.wait([third, fourth])
    assert third.cancelled()
    assert not fourth.cancelled()
    assert budget.held == 10
    fifth = await start(budget.acquire(1))
    fifth.cancel()
    budget.release(10)
    with pytest.raises(asyncio.CancelledError):
        await fifth
    assert (budget.held, budget.is_contended) == (0, False)


async def test_the_lock_is_fair() -> None:
    lock = FIFOBudget(1)
    order: list[int] = []

    async def hold(number: int) -> None:
        await lock.acquire()
        order.append(number)
        await asyncio.sleep(0)
        lock.release()

    assert lock.try_acquire()
    tasks = [asyncio.create_task(hold(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert lock.is_contended
    lock.release()
    # It's handed over, and not up for grabs.
    assert not lock.try_acquire()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    assert not lock.held


async def test_leaving_the_line() -> None:
    lock = FIFOBudget(1)
    assert lock.try_acquire()
    first, second = (asyncio.create_task(lock.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    lock.release()
    await asyncio.wait((first, second))
    assert first.cancelled()
    assert not second.cancelled()
    lock.release()
    assert not lock.held
    assert not lock.is_contended
