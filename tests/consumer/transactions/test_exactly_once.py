"""Each committed message has its effects once, whatever ends an assignment, and wherever."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gazette_aio.client import AppendService
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.consumer.transactions.checkpoints import flatten_read_through
from gazette_aio.message import Envelope, ReadCommittedIter, json_adapter
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import TransactionError
from tests.cancellation import cancel_at
from tests.consumer.transactions.clocked import Clocked, ClockLoop, run_clocked
from tests.consumer.transactions.journals import Content
from tests.consumer.transactions.world import (
    NDJSON,
    Counter,
    Disk,
    Member,
    heads,
    journal_change,
    publish,
    shard_spec,
)


class Crash(BaseException):
    """The process ended."""


class Crashing:
    """A process that ends at a point, after which nothing of it has an effect."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.points: list[str] = []
        self.is_dead = False
        self.crashed = asyncio.Event()
        self.appends: Any = None

    def point(self, name: str) -> None:
        if self.is_dead:
            raise Crash
        self.points.append(name)
        if len(self.points) - 1 == self.at:
            self.is_dead = True
            self.crashed.set()
            self.appends.cancel()
            raise Crash(name)


class CrashingAppends(AppendService):
    crashing: Crashing

    async def start_append(self, request: Any, dependencies: Any = ()) -> Any:
        self.crashing.point("before an acknowledgement")
        return await super().start_append(request, dependencies)


class CrashingCounter(Counter):
    """Counts and echoes two messages a transaction, and then defers."""

    def __init__(self, crashing: Crashing, source: str, out: str) -> None:
        super().__init__()
        self.crashing = crashing
        self.out = out
        self.count = 0

    def begin_txn(self, shard: Any, store: Any) -> None:
        self.crashing.point("begin")
        self.count = 0

    async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
        if self.count == 2:
            raise DeferToNextTransaction
        self.count += 1
        self.crashing.point("consume")
        if env.message is not None and "v" in env.message:
            store.state.setdefault("values", []).append(env.message["v"])
            await publisher.publish_uncommitted(
                lambda _: (self.out, NDJSON), {"v": env.message["v"]}
            )
        self.crashing.point("consumed")

    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        self.crashing.point("finalize")

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        if not self.crashing.is_dead:
            self.crashing.point("finished")


class CrashingMember(Member):
    """A member whose process may end at any step of a commit."""

    def __init__(self, client: Any, disk: Disk, crashing: Crashing, source: str, out: str) -> None:
        self.appends = CrashingAppends(client, drain_timeout=0.01)
        self.appends.crashing = crashing
        crashing.appends = self.appends
        spec = shard_spec(source, max_ms=50)
        super().__init__(client, disk, CrashingCounter(crashing, source, out), spec, self.appends)
        start, commit = self.store.start_commit, self.store.commit

        def start_commit(*args: Any) -> Any:
            crashing.point("before the commit")
            operation = start(*args)
            crashing.point("after the start of the commit")
            return operation

        def durable(*args: Any) -> None:
            try:
                crashing.point("before the commit is durable")
                commit(*args)
                crashing.point("after the commit is durable")
            except Crash:
                raise asyncio.CancelledError from None  # The commit is never heard of.

        self.store.start_commit = start_commit  # type: ignore[method-assign]
        self.store.commit = durable  # type: ignore[method-assign]


async def committed(client: Any, journal: str) -> list[int]:
    source = ReadCommittedIter(journal, json_adapter(), client=client, skip_acks=True)
    async with source as messages:
        return [env.message["v"] async for env in messages]


async def test_a_crash_between_any_two_steps(client: Any):
    at, names = 0, set[str]()
    while True:
        source, out = f"crash/source-{at:03}", f"crash/out-{at:03}"
        await client.apply([journal_change(source), journal_change(out)])
        await publish(client, source, 1, 2, 3)
        await publish(client, source, 4)
        disk, crashing = Disk(), Crashing(at)
        async with CrashingMember(client, disk, crashing, source, out) as member:
            crashed = asyncio.create_task(crashing.crashed.wait())
            through = asyncio.create_task(member.through(await heads(client, source)))
            await asyncio.wait((crashed, through), return_when=asyncio.FIRST_COMPLETED)
            crashed.cancel()
            through.cancel()
            with contextlib.suppress(Crash, TransactionError, asyncio.CancelledError):
                await through
        crashing.is_dead = True
        names.update(crashing.points)
        async with CrashingMember(client, disk, Crashing(-1), source, out) as member:
            await publish(client, source, 5)
            await member.through(await heads(client, source))
        assert disk.state["values"] == [1, 2, 3, 4, 5], crashing.points
        assert await committed(client, out) == [1, 2, 3, 4, 5], crashing.points
        if len(crashing.points) <= at:
            break
        at += 1
    assert len(names) == 10
    assert at > 20


class EveryHookWaits:
    """Has an await in each hook."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.calls: list[str] = []
        self.values: list[int] = []
        self.committed: tuple[Checkpoint, list[int]] = Checkpoint(), []
        self.error = ValueError("the end")

    def adapter(self, spec: Any) -> Any:
        raise NotImplementedError

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    async def begin_txn(self, shard: Any, store: Any) -> None:
        await asyncio.sleep(0)
        self.calls.append("begin")

    async def consume_message(
        self, shard: Any, store: Any, envelope: Envelope[Any], publisher: Any
    ) -> None:
        if len(self.values) % 3 == 2 and self.calls[-1] == "consume":
            self.calls.append("defer")
            raise DeferToNextTransaction
        await asyncio.sleep(0)
        self.calls.append("consume")
        self.values.append(envelope.begin)
        await publisher.publish_uncommitted(lambda _: ("echo/out", NDJSON), {"v": 1})

    async def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        await asyncio.sleep(0)

    async def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        self.calls.append("finish")
        await asyncio.sleep(0)
        self.calls.append("finished")

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        offset = flatten_read_through(checkpoint).get("source/A", 0)
        for envelope in self.content.read(offset):
            await sink.send([envelope])

    async def replay_range(self, shard: Any, store: Any, journal: str, begin: int, end: int) -> Any:
        for envelope in self.content.read(begin, end):
            await asyncio.sleep(0)
            yield envelope

    def read_through(self, shard: Any, store: Any, offsets: Any) -> Any:
        return offsets

    # The store.

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
        self.committed = checkpoint, self.values.copy()
        return finished_operation()

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        await asyncio.sleep(0)
        raise self.error


def life(loop: ClockLoop, content: Content, committed: tuple[Checkpoint, list[int]]) -> Clocked:
    """Return an assignment that resumes from what was committed, and ends with all messages."""
    spec = shard_spec(max_ms=10, ring_buffer_size=2, read_channel_size=1)
    world = Clocked(loop, spec, committed[0])
    world.application = world.store = EveryHookWaits(content)
    world.application.values = list(committed[1])
    world.application.committed = committed
    start = world.appends.start_append

    async def start_append(*args: Any) -> Any:
        await asyncio.sleep(0)
        append = await start(*args)
        append.resolve()
        return append

    world.appends.start_append = start_append  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("by_scope", [False, True])
def test_a_cancellation_at_any_await(by_scope: bool):
    content = Content()
    for size in (1, 2, 6, 3):
        for _ in range(size - 1):
            content.pending()
        content.ack()

    async def test(loop: ClockLoop) -> None:
        number, was_cancelled = 0, True
        while was_cancelled:
            before = asyncio.all_tasks()
            world = life(loop, content, (Checkpoint(), []))

            async def run(world: Clocked = world) -> None:
                with pytest.raises(TransactionError, match="the end"):
                    await world.primary().run(world.checkpoint)

            was_cancelled = await cancel_at(run(), number, by_scope=by_scope)
            assert asyncio.all_tasks() == before
            calls = world.application.calls
            assert calls.count("begin") == calls.count("finish"), number
            again = life(loop, content, world.application.committed)
            with pytest.raises(TransactionError, match="the end"):
                await again.primary().run(again.checkpoint)
            assert again.application.values == [each.begin for each in content.messages], number
            number += 1
        assert number > 40

    run_clocked(test)
