"""Timers of all journals, in one heap with one task."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_aio.broker.clock import ManualClock
    from gazette_aio.broker.workers import Background

Work = Callable[[], Coroutine[Any, Any, None]]

MAX_RUNNING = 16


class Scheduler:
    """Runs work at times of the broker's clock; the task exists only while something is due.

    Args:
        background: Owner of the tasks.
        clock: The clock.
    """

    def __init__(self, background: Background, clock: ManualClock) -> None:
        self._background = background
        self._clock = clock
        self._heap: list[tuple[float, int, str, Work]] = []
        self._count = itertools.count()
        self._running = asyncio.Semaphore(MAX_RUNNING)
        self._task: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()
        self._performing = 0
        self._progress: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<Scheduler due={len(self._heap)}>"

    def after(self, seconds: float, name: str, work: Work) -> None:
        """Run `work` after a number of seconds. Work that became pointless must return at once."""
        when = self._clock.monotonic() + seconds
        heapq.heappush(self._heap, (when, next(self._count), name, work))
        if self._task is None or self._task.done():
            self._task = self._background.start(self._run(), "broker-scheduler")
        elif self._heap[0][0] == when:
            self._earlier.set()

    async def settled(self) -> None:
        """Wait until all work which is due is done.

        Cancellation: safe.
        """
        while self._performing or self._is_due():
            if self._progress is None:
                self._progress = asyncio.Event()
            await self._progress.wait()

    def _is_due(self) -> bool:
        if self._task is None or self._task.done() or not self._heap:
            return False
        return self._heap[0][0] <= self._clock.monotonic()

    async def _run(self) -> None:
        try:
            await self._run_due()
        finally:
            self._wake()

    async def _run_due(self) -> None:
        clock = self._clock
        while self._heap:
            self._earlier.clear()
            when, _, name, work = self._heap[0]
            if when > clock.monotonic():
                timer = clock.call_at(when, self._earlier.set)
                try:
                    await self._earlier.wait()
                finally:
                    timer.cancel()
                continue
            heapq.heappop(self._heap)
            self._performing += 1
            try:
                await self._running.acquire()
            except asyncio.CancelledError:
                self._performing -= 1
                raise
            if (task := self._background.start(work(), name)) is None:
                self._performing -= 1
                self._running.release()
                return
            task.add_done_callback(self._finish)

    def _finish(self, _task: asyncio.Task[None]) -> None:
        self._performing -= 1
        self._running.release()
        self._wake()

    def _wake(self) -> None:
        event, self._progress = self._progress, None
        if event is not None:
            event.set()
