"""Frames that errors keep.

Frames usually lead back to what keeps the error. Such cycles stay in memory until a full collection
of garbage, which holds up the event loop the longer the more objects there are.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


def forget_frames(error: BaseException | None) -> None:
    """Have an error that was reported, and the errors that led to it, keep no frames."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def forget_cancellation(task: asyncio.Task[Any]) -> None:
    """Have a task that has ended keep no frames of its cancellation."""
    if task.cancelled():
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
