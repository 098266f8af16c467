"""Many small appends at a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Measure, Subject, register
from benchmarks.measures.events import served_journals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

JOURNALS = [f"bench/appends/part-{number}" for number in range(4)]
CONTENT = b"x" * 99 + b"\n"
TASKS = 50
APPENDS_PER_TASK = 100
ONE_SHOT_APPENDS = 300


@asynccontextmanager
async def setup() -> AsyncIterator[Subject]:
    async with served_journals(*JOURNALS) as client:

        async def append_in_service(number: int) -> None:
            journal = JOURNALS[number % len(JOURNALS)]
            for _ in range(APPENDS_PER_TASK):
                async with client.appends.append(journal) as pending:
                    pending.write(CONTENT)
                await pending

        async def figure() -> float:
            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    group.create_task(append_in_service(number))
            return TASKS * APPENDS_PER_TASK / (time.perf_counter() - begun)

        async def yardstick() -> float:
            begun = time.perf_counter()
            for number in range(ONE_SHOT_APPENDS):
                await client.append(JOURNALS[number % len(JOURNALS)], CONTENT)
            return ONE_SHOT_APPENDS / (time.perf_counter() - begun)

        yield Subject(figure, yardstick)


register(
    Measure(
        name="append_service.small",
        goal=5.0,
        unit="/s",
        setup=setup,
        about="appends of 100 bytes by 50 tasks through the append service, each awaited, against "
        "one append() after the other",
    )
)
