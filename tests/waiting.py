"""Waits of tests: for what no event tells, and for other tasks of the event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

Condition: TypeAlias = Callable[[], Awaitable[object]] | Callable[[], object]

_TURNS = 100
_PAUSE_SECONDS = 0.005


async def eventually(condition: Condition) -> None:
    """Wait until a condition holds. The test's own time-out limits the wait.

    Args:
        condition: Returns a truth value, or an awaitable of one.
    """
    tries = 0
    while not await _holds(condition):
        # A task of this loop needs turns, and another process or thread needs time.
        await asyncio.sleep(0 if tries < _TURNS else _PAUSE_SECONDS)
        tries += 1


def wait_until(condition: Callable[[], object]) -> None:
    """Wait as `eventually` does, blocking this thread and its event loop, if there's any."""
    while not condition():
        time.sleep(_PAUSE_SECONDS)


async def _holds(condition: Condition) -> bool:
    holds = condition()
    if inspect.isawaitable(holds):
        holds = await holds
    return bool(holds)


async def turns(count: int = 20) -> None:
    """Give other tasks of the event loop so many turns, in which those that can go on do."""
    for _ in range(count):
        await asyncio.sleep(0)
