"""Pace of work on many rows, which leaves the event loop its turns."""

from __future__ import annotations

import asyncio
from time import perf_counter, thread_time
from typing import Final, Self

_TURN_SECONDS: Final = 0.001
_FIRST_ROWS: Final = 16
_MAX_ROWS: Final = 4096


class Pace:
    """Sees to it that work on many rows gives way to the event loop."""

    def __init__(self) -> None:
        self._turn_began = perf_counter()

    async def turn(self) -> None:
        """Let the event loop have a turn, if it's time."""
        if perf_counter() - self._turn_began >= _TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn_began = perf_counter()


class Slices:
    """Async iterator of slices of rows, with turns for the event loop in between.

    Slices grow and shrink to take about a millisecond each.

    Args:
        count: Number of rows.
        pace: Pace of the work.
        min_rows: Number of rows which slices aren't made smaller than, and begin with; by default
            they begin with a few.
    """

    def __init__(self, count: int, pace: Pace, min_rows: int | None = None) -> None:
        self._count, self._pace = count, pace
        self._rows = min_rows or _FIRST_ROWS
        self._min_rows = min_rows or 1
        self._start = self._stop = 0
        self._began = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, int]:
        if self._stop:
            self._adapt()
            await self._pace.turn()
        if self._stop == self._count:
            raise StopAsyncIteration
        self._start = self._stop
        self._stop = min(self._start + self._rows, self._count)
        self._began = thread_time()
        return self._start, self._stop

    def _adapt(self) -> None:
        # Time of this thread alone: others which keep it waiting don't make the work longer.
        seconds = thread_time() - self._began
        if seconds > _TURN_SECONDS:
            self._rows = max(self._rows // 2, self._min_rows)
        elif seconds < _TURN_SECONDS / 3:
            self._rows = max(self._rows, min(self._rows * 2, _MAX_ROWS))
