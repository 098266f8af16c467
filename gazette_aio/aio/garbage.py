"""Collections of garbage in a process with many objects, and memory that was freed."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.task import start_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

QUIET_SECONDS = 60.0
PART_SECONDS = 0.1
"""Processor time of the event loop after which there's a full collection."""
LONG_SECONDS = 0.05
"""Processor time of a collection that an event loop is spared unless memory grows."""
_TICK_SECONDS: Final = 0.25
_MOST_PERIODS = 10
_GROWTH: Final = 1.5
_YOUNGER_COLLECTIONS = 2
_LARGEST_BLOCK: Final = 31 << 20  # Of those whose size has glibc keep more memory.


@asynccontextmanager
async def collected_in_parts() -> AsyncGenerator[None]:
    """Have full collections look only at objects that are younger than the last one.

    A full collection looks at all objects that may be part of a cycle, in one step: half a second
    for 2,000 shards, several times while they start. So what a collection has left is set aside,
    and there's one at least whenever the event loop has worked for a tenth of a second: by itself,
    the interpreter collects nothing while as many objects are freed as are made.
    It's looked at as a whole while little happens: after a minute without a full collection, or
    else after ten minutes. Where that would take long, as with thousands of shards, it waits until
    there are half as many objects more.

    This is for programs that own their process: it uses `gc.freeze()`, which is process-wide.

    Cancellation: safe.
    """
    parts = _Parts()
    threshold = gc.get_threshold()
    gc.set_threshold(*threshold[:2], _YOUNGER_COLLECTIONS)  # Parts are small, as they're frequent.
    gc.callbacks.append(parts.collected)
    gc.freeze()  # Modules and classes, which stay.
    tasks = [
        start_task(collecting, "gazette collections of garbage")
        for collecting in (parts.collect_parts(), parts.collect_whole())
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        gc.callbacks.remove(parts.collected)
        gc.set_threshold(*threshold)
        gc.unfreeze()


class _Parts:
    def __init__(self) -> None:
        self._count = 0
        self._begun = 0.0
        self._seconds = 0.0  # Of the last whole collection, and of those of parts since.
        self._blocks = 0  # Of memory, after the last whole collection, or when one was put off.

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """Set aside what a full collection has left."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._begun = time.thread_time()
        else:
            self._seconds += time.thread_time() - self._begun
            gc.freeze()
            self._count += 1

    async def collect_parts(self) -> None:
        """Collect what isn't set aside, again and again."""
        count, begun = self._count, time.thread_time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            # Race: other threads collect, too, whose times are their own.
            if count == self._count and time.thread_time() - begun >= PART_SECONDS:
                gc.collect()
            if count != self._count:
                count, begun = self._count, time.thread_time()

    async def collect_whole(self) -> None:
        """Collect what was set aside, again and again."""
        collected = periods = 0
        while True:
            before = self._count
            await asyncio.sleep(QUIET_SECONDS)
            if self._count == collected:
                continue
            periods += 1
            if (self._count == before or periods >= _MOST_PERIODS) and self._is_worthwhile():
                self._collect()
                collected, periods = self._count, 0

    def _is_worthwhile(self) -> bool:
        blocks = blocks_of_memory()
        self._blocks = self._blocks or blocks
        return self._seconds <= LONG_SECONDS or blocks >= self._blocks * _GROWTH

    def _collect(self) -> None:
        gc.unfreeze()
        self._seconds = 0.0
        gc.collect()
        # The next full collection would wait for a quarter as many objects as this one has left.
        gc.collect()
        self._blocks = blocks_of_memory()


def blocks_of_memory() -> int:
    """Return how many blocks of memory the interpreter's objects hold, about."""
    return sys.getallocatedblocks()


@functools.cache
def keep_freed_memory(size_bytes: int) -> None:
    """Have content of about so many bytes, once freed, leave its memory to later content.

    Glibc returns free memory at the end of its heap to the system, except for twice the size of the
    largest block that was freed before. The system clears each page that it gives anew.
    """
    # The system gives no memory for a block of zeros that nobody writes to.
    bytes(min(size_bytes, _LARGEST_BLOCK))
