"""Allocation of a large group of consumers, by the solver of its leader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, constant, measure
from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.allocator import solver
from gazette_aio.consumer.allocator.model import Allocation, Item, Member, MemberID
from gazette_aio.consumer.keyspace.operations import KeyValue
from gazette_aio.protocol.consumer import ConsumerSpec, ShardSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SHARDS = 10_000
MEMBERS = 100
REPLICAS = 3
ZONES = 3
ALLOWED_SECONDS = 2.0
_RAW = KeyValue("", b"", 1, 1, 1)


def group(shards: int) -> Allocation:
    """Return a group without assignments, whose members have half as many slots to spare."""
    limit = shards * REPLICAS * 3 // (2 * MEMBERS) + 1
    spec = ConsumerSpec(shard_limit=limit)
    return Allocation.of(
        [
            Member(_RAW, spec, MemberID(f"zone-{number % ZONES}", f"member-{number:03}"))
            for number in range(MEMBERS)
        ],
        [Item(_RAW, ShardSpec(), f"shard-{number:05}", REPLICAS) for number in range(shards)],
    )


async def solve(shards: int) -> int:
    """Solve a group as its leader does, in a thread, and return the number of replicas."""
    return len(await in_thread(solver.solve, group(shards)))


@measure(
    "consumer.allocation",
    goal=1.0,
    unit="s",
    better="less",
    about="solving which of 100 members hold 10,000 shards of three replicas, by a thread, "
    "against 2 s",
)
async def setup() -> AsyncGenerator[Subject]:
    await solve(1)

    async def figure() -> float:
        begun = time.perf_counter()
        count = await solve(SHARDS)
        elapsed = time.perf_counter() - begun
        assert count == SHARDS * REPLICAS, count
        return elapsed

    yield Subject(figure, constant(ALLOWED_SECONDS))
