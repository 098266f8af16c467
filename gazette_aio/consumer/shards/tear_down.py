"""Bound of what the tear-down of a replica waits for."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.task import start_task

if TYPE_CHECKING:
    from collections.abc import Coroutine

_logger = logging.getLogger(__name__)

CANCELLED_SECONDS: Final = 1.0
"""Time that cancelled work has."""


async def bounded(work: Coroutine[Any, Any, None], seconds: float, name: str) -> bool:
    """Do some work, whose error is logged. It's cancelled after `seconds`, or else left behind.

    Args:
        work: The work.
        seconds: Its bound; infinity for none.
        name: What it is, for the log.

    Returns:
        Whether it ended in time.

    Cancellation: aborts — the work goes on.
    """
    task = start_task(work, f"gazette {name}")
    task.add_done_callback(lambda done: _log_error(done, name))
    await asyncio.wait((task,), timeout=None if math.isinf(seconds) else seconds)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait((task,), timeout=CANCELLED_SECONDS)
    outcome = "was cancelled" if task.done() else "is left running"
    _logger.error("%s took more than %g s, and %s", name, seconds, outcome)
    return False


def _log_error(task: asyncio.Task[None], name: str) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("%s failed", name, exc_info=error)
