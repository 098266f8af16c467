"""Each committed message has its effects once, whatever ends an assignment, and wherever."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from gazette_aio.client import AppendService
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.message import ReadCommittedIter, json_adapter
from gazette_aio.protocol.errors import TransactionError
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
    """Has each acknowledgement of a transaction wait for the one before."""

    crashing: Crashing
    before: tuple[Any, ...] = ()

    async def start_append(self, request: Any, dependencies: Any = ()) -> Any:
        self.crashing.point("before an append")
        if not dependencies:
            return await super().start_append(request)
        append = await super().start_append(request, (*dependencies, *self.before))
        may_follow = AsyncOperation()
        # It's released in this turn of the loop; only then it can be watched.
        watch = partial(append.add_done_callback, partial(self.acknowledged, may_follow))
        asyncio.get_running_loop().call_soon(watch)
        self.before = (may_follow,)
        return append

    def acknowledged(self, may_follow: AsyncOperation, _append: Any) -> None:
        with contextlib.suppress(Crash):
            self.crashing.point("after an acknowledgement")
            may_follow.resolve()


class CrashingCounter(Counter):
    """Counts two messages a transaction, echoes them to journals, and then defers."""

    def __init__(self, crashing: Crashing, outs: list[str]) -> None:
        super().__init__()
        self.crashing = crashing
        self.outs = outs
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
            for out in self.outs:
                await publisher.publish_uncommitted(
                    lambda _, out=out: (out, NDJSON), {"v": env.message["v"]}
                )
        self.crashing.point("consumed")

    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        self.crashing.point("finalize")

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        if not self.crashing.is_dead:
            self.crashing.point("finished")


class CrashingMember(Member):
    """A member whose process may end at any step of a commit."""

    def __init__(
        self, client: Any, disk: Disk, crashing: Crashing, source: str, outs: list[str]
    ) -> None:
        self.appends = CrashingAppends(client, drain_timeout=0.01)
        self.appends.crashing = crashing
        crashing.appends = self.appends
        spec = shard_spec(source, max_ms=50)
        super().__init__(client, disk, CrashingCounter(crashing, outs), spec, self.appends)
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


STEPS = {
    "begin",
    "consume",
    "consumed",
    "finalize",
    "before the commit",
    "after the start of the commit",
    "before an append",
    "finished",
    "before the commit is durable",
    "after the commit is durable",
    "after an acknowledgement",
}


async def test_a_crash_between_any_two_steps(client: Any):
    at, names = 0, set[str]()
    while True:
        source, outs = f"crash/source-{at:03}", [f"crash/out-{at:03}-{n}" for n in range(2)]
        await client.apply([journal_change(name) for name in (source, *outs)])
        await publish(client, source, 1, 2, 3)
        await publish(client, source, 4)
        disk, crashing = Disk(), Crashing(at)
        async with CrashingMember(client, disk, crashing, source, outs) as member:
            crashed = asyncio.create_task(crashing.crashed.wait())
            through = asyncio.create_task(member.through(await heads(client, source)))
            await asyncio.wait((crashed, through), return_when=asyncio.FIRST_COMPLETED)
            crashed.cancel()
            through.cancel()
            with contextlib.suppress(Crash, TransactionError, asyncio.CancelledError):
                await through
        crashing.is_dead = True
        names.update(crashing.points)
        async with CrashingMember(client, disk, Crashing(-1), source, outs) as member:
            await publish(client, source, 5)
            await member.through(await heads(client, source))
        assert disk.state["values"] == [1, 2, 3, 4, 5], crashing.points
        for out in outs:
            assert await committed(client, out) == [1, 2, 3, 4, 5], crashing.points
        if len(crashing.points) <= at:
            break
        at += 1
    assert names == STEPS
    assert at > 20
