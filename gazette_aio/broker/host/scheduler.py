"""Scheduler of background work: the plans of all journals, in one heap with one task."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.signal import Signal

if TYPE_CHECKING:
    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.workers import Background

Work = Callable[[], Coroutine[Any, Any, None]]

MAX_RUNNING = 16
"""Most concurrent work of one lane."""


class PlannedWork:
    """Work that is to begin at a time."""

    __slots__ = ("lane", "name", "work")

    def __init__(self, name: str, work: Work, lane: str) -> None:
        self.name: str = name
        self.lane: str = lane
        self.work: Work | None = work

    def cancel(self) -> None:
        """Let the work never begin, and forget it. Work that has begun goes on."""
        self.work = None


class _Lane:
    """Due work of one lane."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[PlannedWork] = deque()


class Scheduler:
    """Runs work at times of the broker's clock; the task exists only while something is due."""

    def __init__(self, background: Background, clock: ManualClock) -> None:
        self._background = background
        self._clock = clock
        self._heap: list[tuple[float, int, PlannedWork]] = []
        self._lanes: dict[str, _Lane] = {}
        self._count = itertools.count()
        self._task: asyncio.Task[None] | None = None
        self._earlier = asyncio.Event()
        self._progress = Signal()

    def __repr__(self) -> str:
        return f"<Scheduler due={len(self._heap)}>"

    def after(self, seconds: float, name: str, work: Work, *, lane: str = "") -> PlannedWork:
        """Run `work` after a number of seconds, unless it's cancelled before.

        Args:
            seconds: Seconds from now.
            name: Name of its task.
            work: The work.
            lane: Resource that the work may wait for, such as the URL of a store. Concurrent work
                of a lane is bounded, and doesn't wait for work of other lanes.
        """
        when = self._clock.monotonic() + seconds
        planned = PlannedWork(name, work, lane)
        heapq.heappush(self._heap, (when, next(self._count), planned))
        if self._task is None or self._task.done():
            self._task = self._background.start(self._run(), "broker-scheduler")
        elif self._heap[0][0] == when:
            self._earlier.set()
        return planned

    async def settled(self) -> None:
        """Wait until all due work is done.

        Cancellation: safe.
        """
        while self._lanes or self._is_due():
            await self._progress.wait()

    def _is_due(self) -> bool:
        if self._task is None or self._task.done() or not self._heap:
            return False
        return self._heap[0][0] <= self._clock.monotonic()

    async def _run(self) -> None:
        try:
            while self._heap:
                await self._wait_for(self._heap[0][0])
                _, _, planned = heapq.heappop(self._heap)
                lane = self._lanes.setdefault(planned.lane, _Lane())
                lane.waiting.append(planned)
                self._start(planned.lane, lane)
                await asyncio.sleep(0)  # Very much may be due at once.
        finally:
            self._progress.set()

    async def _wait_for(self, when: float) -> None:
        """Wait until work is due: the next planned work, or work that is planned before it."""
        while when > self._clock.monotonic():
            self._earlier.clear()
            await self._clock.wait(self._earlier, when)
            when = self._heap[0][0]

    def _start(self, key: str, lane: _Lane) -> None:
        """Start the work of a lane, up to its bound."""
        while lane.waiting and lane.running < MAX_RUNNING:
            planned = lane.waiting.popleft()
            if planned.work is None:
                continue
            if (task := self._background.start(planned.work(), planned.name)) is None:
                lane.waiting.clear()
                break
            lane.running += 1
            task.add_done_callback(lambda _: self._finish(key, lane))
        if not lane.running:
            del self._lanes[key]
            self._progress.set()

    def _finish(self, key: str, lane: _Lane) -> None:
        lane.running -= 1
        self._start(key, lane)
