"""Lengths of the event loop's steps, in function calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

from gazette_aio.aio import turns

# Calls that take about as long as a time slice of the event loop.
SLICE_CALLS = 10_000


class Longest:
    """The longest step: how many functions it called, and what ran."""

    def __init__(self) -> None:
        self.calls = 0
        self.step = ""


class Calls:
    """How many functions were called so far."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def counted_calls() -> Generator[Calls]:
    """Count the calls of this thread within the block."""
    calls = Calls()

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        calls.count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@contextmanager
def longest_step() -> Generator[Longest]:
    """Measure the steps of the event loop that begin within the block.

    Calls are counted, and time slices last a number of calls: both are the same on each machine,
    busy or not.
    """
    longest = Longest()
    # Private: the event loop has no hook around its steps.
    run = asyncio.Handle._run
    with counted_calls() as total:

        def counted(handle: asyncio.Handle) -> None:
            begin = total.count
            run(handle)
            if (calls := total.count - begin) > longest.calls:
                longest.calls, longest.step = calls, repr(handle)

        clock = SimpleNamespace(
            perf_counter=lambda: total.count / SLICE_CALLS * turns.SLICE_SECONDS,
            sleep=turns.time.sleep,
        )
        with (
            mock.patch.object(asyncio.Handle, "_run", counted),
            mock.patch.object(turns, "time", clock),
        ):
            yield longest
