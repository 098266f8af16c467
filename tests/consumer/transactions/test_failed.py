"""Publishing after a transaction has failed, which nothing acknowledges any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gazette_aio.consumer.transactions import finisher
from gazette_aio.message import Publisher, json_adapter
from gazette_aio.protocol.errors import DependencyError, TransactionError
from tests.consumer.transactions.clocked import Clocked, ClockLoop, run_clocked
from tests.consumer.transactions.world import to_out

MIN = 0.001
FAILED = "the transaction of shard shard-A has failed: nothing more is published"


async def refuse(*_: Any) -> Any:
    raise ValueError("an error")


def fail_to_consume(world: Clocked) -> None:
    world.application.errors["consume"] = ValueError("an error")


def fail_to_finalize(world: Clocked) -> None:
    world.application.errors["finalize"] = ValueError("an error")


def fail_to_commit(world: Clocked) -> None:
    world.store.error = ValueError("an error")


def fail_to_acknowledge(world: Clocked) -> None:
    world.appends.start_append = refuse  # type: ignore[method-assign]


FAILURES = [fail_to_consume, fail_to_finalize, fail_to_commit, fail_to_acknowledge]


async def publish_nowait(publisher: Publisher[Any]) -> None:
    publisher.publish_uncommitted_nowait(to_out, {})


async def publish_by_view(publisher: Publisher[Any]) -> None:
    await publisher.view(json_adapter()).publish_uncommitted(to_out, {})


async def publish_batch(publisher: Publisher[Any]) -> None:
    await publisher.publish_uncommitted_batch(to_out, [{}])


CALLS: list[Callable[[Publisher[Any]], Any]] = [
    lambda publisher: publisher.publish_uncommitted(to_out, {}),
    lambda publisher: publisher.publish_committed(to_out, {}),
    publish_by_view,
    publish_batch,
    publish_nowait,
]


@pytest.mark.parametrize("fail", FAILURES)
@pytest.mark.parametrize("call", range(len(CALLS)))
def test_a_hook_that_publishes_after_a_failure_fails_at_once(
    fail: Callable[[Clocked], None], call: int
):
    failures: list[TransactionError] = []

    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:

            async def finished_txn(shard: Any, store: Any, commit: Any) -> None:
                with pytest.raises(TransactionError) as failed:
                    await CALLS[call](shard.publisher)
                failures.append(failed.value)

            world.application.finished_txn = finished_txn
            fail(world)
            await world.send(world.content.outside())
            published = len(world.appends.messages)
            await loop.advance(MIN)  # Far less than the time that the hook has.
            assert world.task.done()
            assert "an error" in str(world.task.exception())
            [failure] = failures
            assert str(failure) == FAILED
            assert "an error" in str(failure.__cause__)
            assert len(world.appends.messages) == published
            # It stays so after the end of the hook, for tasks that go on.
            with pytest.raises(TransactionError, match=FAILED):
                await CALLS[call](world.shard.publisher)

    run_clocked(test)


@pytest.mark.parametrize("fail", [fail_to_commit, fail_to_acknowledge])
def test_tasks_that_wait_to_publish_fail_with_the_transaction(fail: Callable[[Clocked], None]):
    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:
            publisher, waiting = world.shard.publisher, list[asyncio.Task[Any]]()
            started = world.store.start_commit

            def start_commit(*args: Any) -> Any:
                for call in CALLS[:4]:
                    waiting.append(asyncio.ensure_future(call(publisher)))
                publisher.publish_uncommitted_nowait(to_out, {})
                return started(*args)

            world.store.start_commit = start_commit
            fail(world)
            await world.send(world.content.outside())
            await loop.advance(MIN)
            assert world.task.done()
            await asyncio.wait(waiting)
            for task in waiting:
                assert str(task.exception()) == FAILED
            with pytest.raises(DependencyError, match=FAILED):
                await publisher.drain()

    run_clocked(test)


def test_the_time_of_a_hook_after_a_failure_is_bounded(caplog: pytest.LogCaptureFixture):
    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:

            async def finished_txn(shard: Any, store: Any, commit: Any) -> None:
                await asyncio.Event().wait()

            world.application.finished_txn = finished_txn
            fail_to_consume(world)
            await world.send(world.content.outside())
            await loop.advance(finisher.FINISHED_SECONDS - 1)
            assert not world.task.done()
            await loop.advance(1)
            text = str(await world.failure())
            assert text.endswith(": consume_message(): ValueError: an error")

    run_clocked(test)
    assert "finished_txn() failed after its transaction: TimeoutError()" in caplog.text
