"""A member in a process of its own, whose shards all change at once.

`python -m benchmarks.busy_member SHARDS`: it starts a broker and a member, and prints the seconds
of the longest turn of the event loop while shards are applied, unassigned and deleted, and while
the broker restarts. A turn is what runs between two waits for events. It's measured in processor
time of its thread, which other processes change less, and by the clock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import selectors
import sys
import tempfile
import time
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.idle_member import Idle, primaries, shards_of, source_of
from gazette_aio import connect
from gazette_aio.aio.garbage import collected_in_parts
from gazette_aio.consumer import ConsumerOptions, EmbeddedStore, Service
from gazette_aio.consumer.api import apply_shards, connect_shards, unassign_shards
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from gazette_aio.consumer.api import ShardClient

CHANGES = 100
_SETTLED_SECONDS = 5.0


class TimedSelector(selectors.DefaultSelector):
    """Tells the longest time between two waits of an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: tuple[float, float] | None = None
        self.longest = (0.0, 0.0)

    def select(self, timeout: float | None = None) -> Any:
        """Wait for events."""
        if self._begun is not None:
            processor, clock = self._begun
            turn = time.thread_time() - processor, time.perf_counter() - clock
            self.longest = max(self.longest[0], turn[0]), max(self.longest[1], turn[1])
        events = super().select(timeout)
        self._begun = time.thread_time(), time.perf_counter()
        return events


Turns = dict[str, tuple[float, float]]


class Member:
    """The member, and the longest turns of its phases."""

    def __init__(self, selector: TimedSelector, shards: ShardClient, count: int) -> None:
        self._selector = selector
        self._shards = shards
        self._specs = shards_of(count)
        self.turns: Turns = {}

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Measure the turns of the block."""
        self._selector.longest = 0.0, 0.0
        yield
        self.turns[name] = self._selector.longest

    async def apply(self) -> None:
        """Create the shards."""
        await self._change(pc.ApplyRequest.Change(upsert=spec) for spec in self._specs)

    async def delete(self) -> None:
        """Delete the shards."""
        await self._change(
            pc.ApplyRequest.Change(delete=spec.id, expect_mod_revision=-1) for spec in self._specs
        )

    async def unassign(self) -> None:
        """Have the shards assigned anew."""
        await unassign_shards(self._shards, [spec.id for spec in self._specs])

    async def settled(self, count: int) -> None:
        """Wait until so many shards are primaries, and some seconds more.

        It asks rarely, by RPCs, because the answers are turns of the member, too.
        """
        await asyncio.sleep(_SETTLED_SECONDS)
        while await primaries(self._shards) != count:  # noqa: ASYNC110 - It's asked by an RPC.
            await asyncio.sleep(_SETTLED_SECONDS)

    async def _change(self, changes: Iterable[pc.ApplyRequest.Change]) -> None:
        await apply_shards(self._shards, changes, batch_size=CHANGES)


async def run(selector: TimedSelector, count: int) -> Turns:
    """Run a member, and return the longest turns of each phase: of the processor, by the clock."""
    options = ConsumerOptions(prefix="/bench", host="127.0.0.1", bind="127.0.0.1", limit=count)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(collected_in_parts())  # As `run_consumer()` does.
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        broker = await stack.enter_async_context(BrokerProcess(directory))
        client = await stack.enter_async_context(connect(broker.endpoint))
        broker.port = int(broker.endpoint.rpartition(":")[2])
        labels = {"content-type": "application/x-ndjson"}
        journals = [journal_spec(source_of(number), labels=labels) for number in range(count)]
        for begin in range(0, count, CHANGES):
            await create_journals(client, *journals[begin : begin + CHANGES])
        store = await stack.enter_async_context(EmbeddedStore())
        service = await stack.enter_async_context(Service(Idle(), store, client, options))
        shards = await stack.enter_async_context(connect_shards(service.endpoint))
        member = Member(selector, shards, count)
        await asyncio.sleep(0)  # The specs were made in a turn of their own.
        with member.phase("apply"):
            await member.apply()
            await member.settled(count)
        with member.phase("unassign"):
            await member.unassign()
            await member.settled(count)
        with member.phase("restart"):
            await broker.stop()
            await broker.start()
            await member.settled(count)
        with member.phase("delete"):
            await member.delete()
            await member.settled(0)
        return member.turns


if __name__ == "__main__":
    timed = TimedSelector()
    logging.basicConfig(level=logging.ERROR)  # Thousands of reads fail, and are retried.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(timed)) as runner:
        print(json.dumps(runner.run(run(timed, int(sys.argv[1])))))
