"""Turns of a member's event loop while all of its shards change."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, constant, measure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SHARDS = 2_000
MOST_SECONDS = 0.1


async def longest_turn(shards: int) -> float:
    """Return the seconds of processor time of the longest turn."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.busy_member", str(shards)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, f"exit code {process.returncode}"
    turns: dict[str, tuple[float, float]] = json.loads(out)
    return max(processor for processor, _ in turns.values())


async def setup(shards: int) -> AsyncGenerator[Subject]:
    yield Subject(partial(longest_turn, shards), constant(MOST_SECONDS))


for name, count in (("consumer.longest_turn", SHARDS), ("consumer.longest_turn_10k", 10_000)):
    measure(
        name,
        goal=1.0,
        unit="s",
        better="less",
        rounds=1,
        about=f"processor time of the longest turn of a member's event loop while {count:,} shards "
        "are applied, unassigned and deleted, and while the broker restarts, against 0.1 s",
    )(partial(setup, count))
