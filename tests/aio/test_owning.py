"""Owned tasks, and things which are to be closed."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.aio.closing import Closing
from gazette_aio.aio.task import OwnedTask
from tests.cancellation import cancel_at, cancel_at_every_await
from tests.waiting import turns


async def wait_forever() -> None:
    await asyncio.Event().wait()


class Slow:
    """Takes a few turns to close."""

    def __init__(self) -> None:
        self.closes = 0
        self.is_closed = False

    async def aclose(self) -> None:
        self.closes += 1
        await turns(3)
        self.is_closed = True


async def test_closing_forgets_nothing() -> None:
    closing, things = Closing(), [Slow() for _ in range(3)]

    async def check() -> None:
        await closing.aclose()
        assert not len(closing)
        assert all(thing.is_closed for thing in things)
        for thing in things:
            thing.__init__()  # type: ignore[misc]

    async def operation() -> None:
        for thing in things:
            closing.add(thing)
        await closing.aclose()

    assert await cancel_at_every_await(operation, check) == 9


async def test_two_tasks_close_the_same() -> None:
    closing, things = Closing(), [Slow() for _ in range(3)]
    for thing in things:
        closing.add(thing)
    await asyncio.gather(closing.aclose(), closing.aclose())
    assert all(thing.is_closed for thing in things)
    await closing.aclose()
    assert sum(thing.closes for thing in things) <= 2 * len(things)


async def test_a_failed_close_is_repeated() -> None:
    class Failing(Slow):
        async def aclose(self) -> None:
            await super().aclose()
            if self.closes == 1:
                raise ValueError("no")

    closing, thing = Closing(), Failing()
    closing.add(thing)
    with pytest.raises(ValueError, match="no"):
        await closing.aclose()
    await closing.aclose()
    assert thing.closes == 2


async def test_a_task_is_cancelled_once() -> None:
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(5)
            ended.append(True)

    owned = OwnedTask()

    async def operation() -> None:
        owned.start(work(), "work")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        owned.cancel()
        await owned.aclose()

    async def check() -> None:
        await cancel_at(owned.aclose(), 0)
        await owned.aclose()
        assert not owned.running
        assert ended in ([], [True])
        ended.clear()

    assert await cancel_at_every_await(operation, check) == 3
    assert owned.has_begun
    owned.start(work(), "again")
    assert owned.running
    await owned.aclose()


async def test_a_task_which_is_cancelled_before_it_begins_ends() -> None:
    ends: list[bool] = []
    owned = OwnedTask()
    await owned.aclose()
    assert not owned.has_begun
    owned.start(wait_forever(), "work", on_end=lambda: ends.append(True))
    await owned.aclose()
    await asyncio.sleep(0)
    assert ends == [True]


async def test_a_task_is_cancelled_from_a_thread() -> None:
    owned = OwnedTask()
    owned.cancel_from_anywhere()
    owned.start(wait_forever(), "work")
    await asyncio.to_thread(owned.cancel_from_anywhere)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not owned.running


def test_a_task_of_a_closed_loop() -> None:
    owned = OwnedTask()

    async def start() -> None:
        owned.start(wait_forever(), "work")
        await asyncio.sleep(0)

    asyncio.run(start())
    assert owned.is_orphaned
    owned.cancel_from_anywhere()
