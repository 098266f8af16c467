"""Memory and processor time of a member whose shards have nothing to do."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Subject, constant, measure
from benchmarks.idle_member import source_of
from benchmarks.measures.events import served_journals

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SHARDS = 1_000
MOST_BYTES = 300_000_000
MOST_OF_A_CORE = 0.05


async def setup(number: int, most: float) -> AsyncGenerator[Subject]:
    async with served_journals(*map(source_of, range(SHARDS))) as client:

        async def figure() -> float:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.idle_member", client.endpoint, str(SHARDS)),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            assert process.returncode == 0, f"exit code {process.returncode}"
            return float(json.loads(out)[number])

        yield Subject(figure, constant(most))


for number, (name, most, unit, what) in enumerate(
    [
        ("consumer.idle_memory", MOST_BYTES, "B", "memory"),
        ("consumer.idle_cpu", MOST_OF_A_CORE, "core", "part of a core"),
    ]
):
    measure(
        name,
        goal=1.0,
        unit=unit,
        better="less",
        rounds=1,
        about=f"{what} of a member with 1,000 idle shards, each of a journal of its own, against "
        "what it may take",
    )(partial(setup, number, most))
