"""Slices of many rows, between which the event loop has turns."""

from __future__ import annotations

from time import thread_time
from typing import TYPE_CHECKING, Final, Self

from gazette_aio.aio import turns

if TYPE_CHECKING:
    from gazette_aio.aio.turns import Turns

FIRST_ROWS: Final = 16
MAX_ROWS: Final = 4096


class Slices:
    """Async iterator of slices of rows, with turns for the event loop in between.

    Slices grow and shrink to take about a millisecond each.

    Args:
        count: Number of rows.
        pace: Turns of the event loop.
        max_rows: Greatest size of a slice; by default 4096.
    """

    def __init__(
        self,
        count: int,
        pace: Turns,
        max_rows: int | None = None,
    ) -> None:
        self._count, self._pace = count, pace
        self._max_rows = max_rows or MAX_ROWS
        self._rows = FIRST_ROWS
        self._start = self._stop = 0
        self._began = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, int]:
        if self._stop:
            self._adapt()
            await self._pace.rest()
        if self._stop == self._count:
            raise StopAsyncIteration
        self._start = self._stop
        self._stop = min(self._start + self._rows, self._count)
        self._began = thread_time()
        return self._start, self._stop

    def _adapt(self) -> None:
        # Time of this thread alone: others that keep it waiting don't make the work longer.
        seconds = thread_time() - self._began
        factor = min(max(turns.SLICE_SECONDS / max(seconds, 1e-9), 0.5), 2.0)
        rows = int((self._stop - self._start) * factor)
        self._rows = max(min(rows, self._max_rows), 1)
