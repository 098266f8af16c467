"""Long work in slices, between which other tasks have turns."""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])

SLICE_SECONDS = 0.001
_SORTED_ROWS = 1024
_THREAD_ITEMS = 64
# Not zero: the thread would retake the interpreter before another thread has woken up.
_THREAD_REST_SECONDS = 0.0001


class Turns:
    """Time slice of long work, after which other tasks have a turn."""

    def __init__(self) -> None:
        self._end = time.perf_counter() + SLICE_SECONDS

    async def rest(self) -> None:
        """Let other tasks have a turn if the time is used up.

        Call it after each step of some microseconds, or after a few dozen shorter ones.

        Cancellation: safe.
        """
        if time.perf_counter() >= self._end:
            await asyncio.sleep(0)
            self._end = time.perf_counter() + SLICE_SECONDS


async def in_turns(work: Generator[None, None, T]) -> T:
    """Do work that yields every few dozen steps, and return its result.

    Cancellation: aborts — the work done so far is lost.
    """
    turns = Turns()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await turns.rest()


def in_thread_slices(items: Iterable[T]) -> Iterator[T]:
    """Iterate items in a worker thread, and let the thread of the event loop run in between.

    Otherwise, the event loop would wait up to the switch interval of 5 ms after each of its waits.
    """
    end = time.perf_counter() + SLICE_SECONDS
    for number, item in enumerate(items, 1):
        yield item
        if number % _THREAD_ITEMS == 0 and time.perf_counter() >= end:
            time.sleep(_THREAD_REST_SECONDS)
            end = time.perf_counter() + SLICE_SECONDS


def sorted_rows(rows: list[Row]) -> Iterator[Row]:
    """Iterate tuples in their order, sorted in a worker thread.

    A sort of many rows is one step of the interpreter, during which no other thread runs.
    """
    starts = in_thread_slices(range(0, len(rows), _SORTED_ROWS))
    runs = [sorted(rows[start : start + _SORTED_ROWS]) for start in starts]
    return in_thread_slices(heapq.merge(*runs))
