"""Tasks of applications, and their ends."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.consumer.service.work import SpawnedWork
from tests.cancellation import close_at_every_await
from tests.waiting import turns


async def forever() -> None:
    await asyncio.Event().wait()


async def test_the_first_failure_is_told_and_later_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail = asyncio.Event()

    async def failing(text: str) -> None:
        try:
            await fail.wait()
        finally:
            raise ValueError(text)

    async with SpawnedWork() as work:
        for text in ("first", "second"):
            work.spawn(failing(text))
        failure = work.begin()
        fail.set()
        await asyncio.wait((failure,))
        assert str(failure.exception()) == "first"
        fail.clear()
        work.spawn(failing("third"))
        await turns()
    for text in ("second", "third"):
        assert text in caplog.text
    assert "failing of the application failed after the member's end began" in caplog.text


async def test_a_task_that_goes_on_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    work = SpawnedWork(stop_seconds=0.01)
    work.spawn(stubborn())
    work.begin()
    await turns()
    await work.aclose()
    assert "stubborn of the application is still running 0.01 s after its" in caplog.text
    may_end.set()
    await work.aclose()
    assert "0 tasks" in repr(work)


async def test_tasks_that_end_or_are_cancelled_end_no_member() -> None:
    async with SpawnedWork() as work:
        failure = work.begin()
        work.spawn(asyncio.sleep(0))

        async def cancelled() -> None:
            raise asyncio.CancelledError

        work.spawn(cancelled())
        await turns()
        assert not failure.done()
        assert "0 tasks" in repr(work)


async def test_ends_cancelled_at_each_await() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    async def opened() -> SpawnedWork:
        ended.clear()
        work = SpawnedWork()
        work.begin()
        work.spawn(slow())
        work.spawn(forever())
        await turns()
        return work

    def check() -> None:
        assert ended == ["slow"]

    assert await close_at_every_await(opened, check) >= 1
