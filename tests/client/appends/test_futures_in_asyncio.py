"""Operations and appends in the functions of asyncio, beside tasks and futures."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import AppendService, AsyncAppend, AsyncOperation, OpFuture
from tests.client.appends.support import write
from tests.client.support import JOURNAL, MemoryJournals
from tests.waiting import turns


class Pending:
    """A future of either kind that completes when told to."""

    def __init__(self, future: OpFuture[Any], complete: Callable[[], None], result: Any) -> None:
        self.future = future
        self.complete = complete
        self.result = result


@pytest.fixture(params=["operation", "append"])
async def pending(
    request: pytest.FixtureRequest, journals: MemoryJournals, service: AppendService
) -> AsyncIterator[Pending]:
    if request.param == "operation":
        operation = AsyncOperation()
        yield Pending(operation, operation.resolve, None)
        return
    journals.gate.clear()
    append = await write(service, JOURNAL, b"content")
    yield Pending(append, journals.gate.set, b"content")
    journals.gate.set()
    await append


def returned(value: Pending, result: Any) -> bool:
    if isinstance(value.future, AsyncAppend):
        return result is value.future.response
    return result is value.result


async def some_task(gate: asyncio.Event | None = None) -> str:
    if gate is not None:
        await gate.wait()
    return "task"


async def starts_waiting(waiting: Awaitable[Any]) -> asyncio.Task[Any]:
    async def wait() -> Any:
        return await waiting

    task = asyncio.create_task(wait())
    await turns(3)
    assert not task.done()
    return task


async def is_untouched(pending: Pending) -> None:
    """The operation goes on, and whoever awaits it gets its result."""
    assert not pending.future.done()
    later = await starts_waiting(pending.future)
    pending.complete()
    assert returned(pending, await later)
    assert pending.future.done()
    assert not pending.future.cancelled()
    assert returned(pending, pending.future.result())


async def test_it_is_a_future(pending: Pending) -> None:
    assert asyncio.isfuture(pending.future)
    assert asyncio.ensure_future(pending.future) is pending.future
    assert pending.future.get_loop() is asyncio.get_running_loop()
    with pytest.raises(asyncio.InvalidStateError):
        pending.future.result()
    assert not pending.future.cancelled()
    assert not pending.future.cancel()
    await is_untouched(pending)


@pytest.mark.parametrize("when", ["FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"])
async def test_wait(pending: Pending, when: str) -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(some_task(gate))
    waiting = await starts_waiting(asyncio.wait([pending.future, task], return_when=when))
    pending.complete()
    if when == "FIRST_COMPLETED":
        done, left = await waiting
        assert (done, left) == ({pending.future}, {task})
        gate.set()
        await task
    else:
        await pending.future
        gate.set()
        done, left = await waiting
        assert (done, left) == ({pending.future, task}, set())
    assert returned(pending, pending.future.result())


async def test_wait_for_the_first_failure() -> None:
    failing, other = AsyncOperation(), AsyncOperation()
    waiting = await starts_waiting(
        asyncio.wait([failing, other], return_when=asyncio.FIRST_EXCEPTION)
    )
    failing.resolve(OSError("an error"))
    assert await waiting == ({failing}, {other})


async def test_wait_with_time_out(pending: Pending) -> None:
    done, left = await asyncio.wait([pending.future], timeout=0)
    assert (done, left) == (set(), {pending.future})
    await is_untouched(pending)


async def test_wait_for_what_is_done(pending: Pending) -> None:
    pending.complete()
    await pending.future
    done, left = await asyncio.wait([pending.future])
    assert (done, left) == ({pending.future}, set())


async def test_as_completed(pending: Pending) -> None:
    gate = asyncio.Event()
    task = asyncio.create_task(some_task(gate))
    pending.complete()
    results: list[Any] = []
    for earliest in asyncio.as_completed([task, pending.future]):
        results.append(await earliest)
        gate.set()
    assert returned(pending, results[0])
    assert results[1:] == ["task"]


async def test_gather(pending: Pending) -> None:
    task = asyncio.create_task(some_task())
    waiting = await starts_waiting(asyncio.gather(pending.future, task, pending.future))
    pending.complete()
    first, second, third = await waiting
    assert second == "task"
    assert returned(pending, first)
    assert returned(pending, third)


async def test_gather_failures() -> None:
    failing = AsyncOperation()
    error = OSError("an error")
    waiting = await starts_waiting(asyncio.gather(failing))
    exceptions = await starts_waiting(asyncio.gather(failing, return_exceptions=True))
    failing.resolve(error)
    with pytest.raises(OSError, match="an error"):
        await waiting
    assert await exceptions == [error]


@pytest.mark.parametrize("return_exceptions", [False, True])
async def test_cancelling_who_gathers(pending: Pending, return_exceptions: bool) -> None:
    second = AsyncOperation()
    other = await starts_waiting(asyncio.gather(pending.future, second))
    waiting = await starts_waiting(
        asyncio.gather(pending.future, second, return_exceptions=return_exceptions)
    )
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not other.done()
    second.resolve()
    await is_untouched(pending)
    await other


async def calls_to_break_off(functions: list[Callable[[], Awaitable[Any]]]) -> int:
    """Count the calls that it takes to cancel tasks, each of which waits in one function."""
    tasks = [await starts_waiting(function()) for function in functions]
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    finally:
        sys.setprofile(None)
    assert all(task.cancelled() for task in tasks)
    return calls


@pytest.mark.parametrize("form", ["gather", "wait", "tasks"])
async def test_breaking_off_thousands_of_waits_takes_time_in_proportion(
    journals: MemoryJournals, service: AppendService, form: str
) -> None:
    journals.gate.clear()
    appends = [await write(service, JOURNAL, b"content") for _ in range(800)]

    async def calls(part: list[AsyncAppend]) -> int:
        if form == "gather":
            return await calls_to_break_off([lambda: asyncio.gather(*part)])
        if form == "wait":
            return await calls_to_break_off([lambda: asyncio.wait(part)])
        return await calls_to_break_off([partial(asyncio.shield, each) for each in part])

    # Four times as many; sixteen times if each looked through all. What else runs is counted too.
    assert await calls(appends) < 8 * await calls(appends[:200])
    journals.gate.set()
    await asyncio.gather(*appends)


async def test_cancelling_who_waits(pending: Pending) -> None:
    for function in (
        lambda: asyncio.wait([pending.future]),
        lambda: asyncio.shield(pending.future),
        lambda: asyncio.wait_for(pending.future, 60),
        lambda: next(iter(asyncio.as_completed([pending.future]))),
        lambda: pending.future,
    ):
        other = await starts_waiting(asyncio.wait_for(pending.future, 60))
        waiting = await starts_waiting(function())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not other.done()
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
    await is_untouched(pending)


async def test_shield(pending: Pending) -> None:
    waiting = await starts_waiting(asyncio.shield(pending.future))
    pending.complete()
    assert returned(pending, await waiting)


async def test_wait_for(pending: Pending) -> None:
    waiting = await starts_waiting(asyncio.wait_for(pending.future, 60))
    pending.complete()
    assert returned(pending, await waiting)


async def test_time_outs_leave_it_alone(pending: Pending) -> None:
    other = await starts_waiting(asyncio.gather(pending.future))
    for seconds in (0, 0.001):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pending.future, seconds)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await asyncio.gather(pending.future)
    assert not other.done()
    await is_untouched(pending)
    await other


async def test_a_task_group_which_is_aborted(pending: Pending) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.wait_for(pending.future, 60))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await group()
    await is_untouched(pending)


async def test_callbacks_get_the_future_and_a_context(pending: Pending) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")
    seen: asyncio.Queue[tuple[Any, str]] = asyncio.Queue()

    def callback(future: Any) -> None:
        seen.put_nowait((future, variable.get()))

    def unwanted(_future: Any) -> None:
        raise AssertionError

    token = variable.set("registered")
    pending.future.add_done_callback(callback)
    variable.reset(token)
    pending.future.add_done_callback(callback, context=contextvars.Context())
    pending.future.add_done_callback(unwanted)
    assert pending.future.remove_done_callback(unwanted) == 1
    assert pending.future.remove_done_callback(unwanted) == 0
    pending.complete()
    await pending.future
    pending.future.add_done_callback(callback)
    calls = [await seen.get() for _ in range(3)]
    assert [future for future, _ in calls] == [pending.future] * 3
    assert [value for _, value in calls] == ["registered", "outside", "outside"]


async def test_one_which_is_held_cannot_be_waited_for(
    journals: MemoryJournals, service: AppendService
) -> None:
    append = await service.start_append(JOURNAL)
    with pytest.raises(RuntimeError, match="must be released"):
        await asyncio.wait([append])
    append.release()
    await asyncio.wait([append])


@pytest.mark.parametrize("kind", ["future", "task"])
async def test_futures_of_users_as_dependencies(
    journals: MemoryJournals, service: AppendService, kind: str
) -> None:
    gate = asyncio.Event()
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(some_task(gate))
    dependency = task if kind == "task" else future
    append = await write(service, JOURNAL, b"content", {dependency})
    await turns()
    done, _ = await asyncio.wait([append], timeout=0)
    assert not done
    assert JOURNAL not in journals.contents
    gate.set()
    future.set_result(None)
    await append
    assert journals.contents[JOURNAL] == b"content"
    await task


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_dependencies_which_fail_or_are_cancelled(
    journals: MemoryJournals, service: AppendService, is_cancelled: bool
) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    append = await write(service, JOURNAL, b"content", {future})
    if is_cancelled:
        future.cancel()
    else:
        future.set_exception(OSError("an error"))
    expected = "it was cancelled" if is_cancelled else "an error"
    with pytest.raises(pb.DependencyError, match=f"dependency failed: {expected}"):
        await append
    assert JOURNAL not in journals.contents
    service.clear_error(JOURNAL)


async def test_what_is_no_dependency(service: AppendService) -> None:
    waiting = some_task()
    with pytest.raises(TypeError, match="dependencies: expected futures, not coroutine"):
        await service.start_append(JOURNAL, [waiting])  # type: ignore[list-item]
    waiting.close()
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(ValueError, match="another event loop"):
            await service.start_append(JOURNAL, [loop.create_future()])
    finally:
        loop.close()
