from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.client import AsyncOperation, OpFuture, finished_operation


async def test_operations_complete_once() -> None:
    operation = AsyncOperation()
    calls: list[int] = []
    operation.when_done(lambda: calls.append(1))
    operation.when_done(lambda: calls.append(2))
    assert not operation.done()
    assert "pending" in repr(operation)
    with pytest.raises(asyncio.InvalidStateError):
        operation.exception()
    operation.resolve()
    assert operation.done()
    assert operation.exception() is None
    assert calls == [1, 2]
    operation.when_done(lambda: calls.append(3))
    assert calls == [1, 2, 3]
    await operation
    with pytest.raises(asyncio.InvalidStateError):
        operation.resolve(OSError())
    assert "succeeded" in repr(operation)


async def test_failures_reach_all_who_await() -> None:
    operation = AsyncOperation()

    async def observe() -> None:
        await operation

    tasks = [asyncio.create_task(observe()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    error = OSError("an error")
    operation.resolve(error)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[0] is outcomes[2] is error
    assert isinstance(outcomes[1], asyncio.CancelledError)
    with pytest.raises(OSError, match="an error"):
        await finished_operation(error)
    assert "failed: an error" in repr(operation)


def test_sets_of_operations() -> None:
    """Dependencies are compared by identity."""
    one, two, done = AsyncOperation(), AsyncOperation(), finished_operation()
    empty: frozenset[OpFuture[Any]] = frozenset()
    assert empty <= empty
    assert not {done} <= empty
    assert empty <= {done}
    assert {one} <= {one}
    assert not {one} <= {two}
    assert {one, done} <= {two, one, done}
    assert not {one, finished_operation()} <= {one, two, done}


async def test_giving_up_time_and_again_leaves_nothing() -> None:
    operation = AsyncOperation()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await operation
    assert repr(operation) == "<AsyncOperation pending, 0 waiting>"
    operation.resolve()
    await operation


async def test_a_failing_callback_concerns_no_other(caplog: pytest.LogCaptureFixture) -> None:
    operation = AsyncOperation()

    def fail() -> None:
        raise ZeroDivisionError

    operation.when_done(fail)
    waiting = asyncio.ensure_future(_await(operation))
    await asyncio.sleep(0)
    operation.resolve()
    await waiting
    assert "callback" in caplog.text


async def _await(operation: AsyncOperation) -> None:
    await operation
