"""Shared parts of the fault tests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

from gazette_aio.client import RetryPolicy
from gazette_aio.testing import Direction, FaultProxy

JOURNALS = ("a/journal", "b/journal")
JOURNAL = JOURNALS[0]
CONTENT_TYPE = "application/x-ndjson"
SWIFT = RetryPolicy(backoff=lambda attempt: 0.01 if attempt >= 0 else 0.0)

FAULTS = (
    "cut",
    "reset",
    "half-close to client",
    "half-close to server",
    "half-close both",
    "stall",
    "trickle",
    "delay",
    "cut after",
    "refuse",
)


async def strike(proxy: FaultProxy, fault: str, seconds: float = 0.05) -> None:
    """Have a fault. One which lasts does so for a while, and isn't waited for."""
    loop = asyncio.get_running_loop()
    match fault:
        case "cut":
            await proxy.cut()
        case "reset":
            await proxy.reset()
        case "half-close to client":
            proxy.half_close(Direction.TO_CLIENT)
        case "half-close to server":
            proxy.half_close(Direction.TO_SERVER)
        case "half-close both":
            proxy.half_close(Direction.BOTH)
        case "stall":
            proxy.stall()
            loop.call_later(seconds, proxy.heal)
        case "trickle":
            proxy.trickle(1)
            loop.call_later(seconds * 4, proxy.heal)
        case "delay":
            proxy.delay(seconds / 4)
            loop.call_later(seconds, proxy.heal)
        case "cut after":
            proxy.cut_after(60)
        case "refuse":
            await proxy.refuse()
            loop.call_later(seconds, proxy.heal)
        case _:
            raise AssertionError(fault)


@contextlib.asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    """Run coroutines which have no end of their own, until the block ends."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def seeded(seed: int) -> random.Random:
    """Return a source of chance, and have a failed test show its seed."""
    print(f"seed {seed}")  # noqa: T201
    return random.Random(seed)
