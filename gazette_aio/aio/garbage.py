"""Collections of garbage in a process with many objects, and memory that was freed."""

from __future__ import annotations

import asyncio
import functools
import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.task import start_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

QUIET_SECONDS = 60.0
_MOST_PERIODS = 10
_YOUNGER_COLLECTIONS = 2
_LARGEST_BLOCK: Final = 31 << 20  # Of those whose size has glibc keep more memory.


@asynccontextmanager
async def collected_in_parts() -> AsyncGenerator[None]:
    """Have full collections look only at objects that are younger than the last one.

    A full collection looks at all objects that may be part of a cycle, in one step: half a second
    for 2,000 shards, several times while they start. So what a collection has left is set aside.
    It's looked at as a whole while little happens: after a minute without a full collection, or
    else after ten minutes.

    This is for programs that own their process: it uses `gc.freeze()`, which is process-wide.

    Cancellation: safe.
    """
    parts = _Parts()
    threshold = gc.get_threshold()
    gc.set_threshold(*threshold[:2], _YOUNGER_COLLECTIONS)  # Parts are small, as they're frequent.
    gc.callbacks.append(parts.collected)
    gc.freeze()  # Modules and classes, which stay.
    whole = start_task(parts.collect_whole(), "gazette collections of garbage")
    try:
        yield
    finally:
        whole.cancel()
        gc.callbacks.remove(parts.collected)
        gc.set_threshold(*threshold)
        gc.unfreeze()


class _Parts:
    def __init__(self) -> None:
        self._count = 0

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """Set aside what a full collection has left."""
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._count += 1

    async def collect_whole(self) -> None:
        """Collect what was set aside, again and again."""
        collected = periods = 0
        while True:
            before = self._count
            await asyncio.sleep(QUIET_SECONDS)
            if self._count == collected:
                continue
            periods += 1
            if self._count == before or periods >= _MOST_PERIODS:
                gc.unfreeze()
                gc.collect()
                collected, periods = self._count, 0


@functools.cache
def keep_freed_memory(size_bytes: int) -> None:
    """Have content of about so many bytes, once freed, leave its memory to later content.

    Glibc returns free memory at the end of its heap to the system, except for twice the size of the
    largest block that was freed before. The system clears each page that it gives anew.
    """
    # The system gives no memory for a block of zeros that nobody writes to.
    bytes(min(size_bytes, _LARGEST_BLOCK))
