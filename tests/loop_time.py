"""Processor time of the event loop's steps."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from unittest import mock


class Longest:
    """The longest step: its processor time, and what ran."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.step = ""


@contextmanager
def longest_step() -> Generator[Longest]:
    """Measure the steps of the event loop that begin within the block."""
    longest = Longest()
    # Private: the event loop has no hook around its steps.
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        run(handle)
        if (seconds := time.thread_time() - begin) > longest.seconds:
            longest.seconds, longest.step = seconds, repr(handle)

    gc.collect()
    gc.disable()  # The garbage of all tests isn't measured.
    try:
        with mock.patch.object(asyncio.Handle, "_run", timed):
            yield longest
    finally:
        gc.enable()
