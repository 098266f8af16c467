"""Timers of all journals, in one heap with one task."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_aio.broker.workers import Background

Work = Callable[[], Coroutine[Any, Any, None]]

MAX_RUNNING = 16


class Scheduler:
    """Runs work at times of the loop's clock; the task exists only while something is due.

    Args:
        background: Owner of the tasks.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._heap: list[tuple[float, int, str, Work]] = []
        self._count = itertools.count()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._task: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Scheduler due={len(self._heap)}>"

    def after(self, seconds: float, name: str, work: Work) -> None:
        """Run `work` after a number of seconds. Work that became pointless must return at once."""
        when = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._heap, (when, next(self._count), name, work))
        if self._task is None or self._task.done():
            self._task = self._background.start(self._run(), "broker-scheduler")
        elif self._heap[0][0] == when:
            self._earlier.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._heap:
            self._earlier.clear()
            when, _, name, work = self._heap[0]
            delay = when - loop.time()
            if delay > 0:
                timer = loop.call_later(delay, self._earlier.set)
                try:
                    await self._earlier.wait()
                finally:
                    timer.cancel()
                continue
            heapq.heappop(self._heap)
            await self._running.acquire()
            if self._background.start(self._perform(work), name) is None:
                self._running.release()
                return

    async def _perform(self, work: Work) -> None:
        try:
            await work()
        finally:
            self._running.release()
