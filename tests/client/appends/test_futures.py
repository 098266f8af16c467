from __future__ import annotations

import asyncio

import pytest

from gazette_aio.client import AsyncOperation, finished_operation


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
    assert "failed: an error" in repr(finished_operation(OSError("an error")))


async def test_giving_up_time_and_again_leaves_nothing() -> None:
    operation = AsyncOperation()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await operation
    assert repr(operation) == "<AsyncOperation pending, 0 waiting>"
    late = asyncio.ensure_future(_await(operation))
    await asyncio.sleep(0)
    operation.resolve()
    late.cancel()  # It has been woken already.
    with pytest.raises(asyncio.CancelledError):
        await late
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
