"""Calls to publish that a hook doesn't await, or leaves to tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gazette_aio.message import ACK_TXN, json_adapter
from gazette_aio.protocol.errors import NotAwaitedError, TransactionError
from tests.consumer.transactions.test_driver import Restarting, echoed
from tests.consumer.transactions.world import (
    OUT,
    SOURCES,
    Counter,
    Disk,
    Member,
    heads,
    publish,
    to_out,
)
from tests.waiting import turns

METHODS = [
    "publish_uncommitted",
    "publish_committed",
    "publish_uncommitted_batch",
    "publish_committed_batch",
]


class Forgetful(Counter):
    """Counts messages, and forgets to await what it publishes."""

    def __init__(self, method: str = "publish_uncommitted") -> None:
        super().__init__()
        self.method = method
        self.calls: list[Any] = []

    def forget(self, publisher: Any) -> None:
        message: Any = {"v": 1}
        if self.method.endswith("batch"):
            message = [message]
        self.calls.append(getattr(publisher, self.method)(to_out, message))

    def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> Any:
        if env.flags != ACK_TXN:
            store.state["v"] = env.message["v"]


class Plainly(Forgetful):
    def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> Any:
        self.forget(publisher)


class Asynchronously(Forgetful):
    async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> Any:
        self.forget(publisher)


class ByView(Forgetful):
    def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> Any:
        self.forget(publisher.view(json_adapter()))


class InTask(Forgetful):
    async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> Any:
        async def forget() -> None:
            self.forget(publisher)

        await asyncio.create_task(forget())


class InBatch(Forgetful):
    def consume_batch(self, shard: Any, store: Any, envelopes: Any, publisher: Any) -> int:
        self.forget(publisher)
        return len(envelopes)


class Beginning(Forgetful):
    def begin_txn(self, shard: Any, store: Any) -> None:
        self.forget(shard.publisher)

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        pass


class Finalizing(Forgetful):
    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        self.forget(publisher)


class Reading(Restarting, Forgetful):
    """Publishes while it reads."""

    def __init__(self, method: str = "publish_uncommitted") -> None:
        Restarting.__init__(self)
        Forgetful.__init__(self, method)
        self.may_read.release()

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        self.forget(shard.publisher)
        await super().read_messages(shard, store, checkpoint, sink)

    consume_message = Forgetful.consume_message


FORMS = [
    Plainly,
    Asynchronously,
    ByView,
    InTask,
    InBatch,
    Beginning,
    Finalizing,
    Reading,
]


async def failure(client: Any, disk: Disk, application: Forgetful) -> TransactionError:
    """Run an application, and return the error that its transaction failed with."""
    await publish(client, SOURCES[0], 1)
    async with Member(client, disk, application) as member:
        with pytest.raises(TransactionError) as failed:
            await member.task
    for call in application.calls:
        call.close()
    return failed.value


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def not_awaited(error: TransactionError) -> NotAwaitedError:
    return next(cause for cause in causes(error) if isinstance(cause, NotAwaitedError))


@pytest.mark.parametrize("form", FORMS)
async def test_a_publish_that_a_hook_forgets_fails_the_transaction(
    client: Any, form: type[Forgetful]
):
    disk = Disk()
    error = await failure(client, disk, form())
    assert "publish_uncommitted()" in str(not_awaited(error))
    assert "the transaction of shard shard-A is abandoned" in str(error)
    assert disk.commits == []
    assert await echoed(client) == []


@pytest.mark.parametrize("method", METHODS)
async def test_the_error_names_the_calls(client: Any, method: str):
    error = await failure(client, Disk(), Plainly(method))
    assert str(error) == (
        "publishing: NotAwaitedError: calls to publish were not "
        f"awaited: {method}() 2 times; the transaction of shard shard-A is abandoned"
    )


async def test_a_publish_that_finished_txn_forgets_fails_the_shard(client: Any):
    """Its transaction commits already, and a later one may never begin."""

    class Finishing(Beginning):
        def begin_txn(self, shard: Any, store: Any) -> None:
            pass

        def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            self.forget(shard.publisher)

    error = await failure(client, Disk(), Finishing())
    assert str(error).startswith("finished_txn(): NotAwaitedError: calls to publish were not")


async def test_a_task_that_still_publishes_is_part_of_the_transaction(client: Any):
    class Leaving(Counter):
        """Leaves the publishing to tasks, the second of which waits for its journal."""

        async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
            if env.flags == ACK_TXN:
                return
            self.tasks = [asyncio.create_task(publisher.publish_uncommitted(to_out, {"v": 1}))]
            await self.tasks[0]
            held = await shard.appends.start_append(OUT)
            self.tasks.append(asyncio.create_task(publisher.publish_uncommitted(to_out, {"v": 2})))
            await turns()
            self.tasks.append(asyncio.create_task(self.release(held)))

        async def release(self, held: Any) -> None:
            await turns(50)
            held.release()

    disk, application = Disk(), Leaving()
    await publish(client, SOURCES[0], 1)
    async with Member(client, disk, application) as member:
        await member.through(await heads(client))
        assert await echoed(client) == [1, 2]
        await asyncio.gather(*application.tasks)


async def test_a_hook_cannot_commit_messages_before_its_transaction(client: Any):
    class Committing(Counter):
        async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
            async with publisher.transaction():
                await publisher.publish_uncommitted(to_out, {"v": 1})

    await publish(client, SOURCES[0], 1)
    async with Member(client, Disk(), Committing()) as member:
        with pytest.raises(TransactionError, match="commits what is published"):
            await member.task
    assert await echoed(client) == []
