"""Waits which last to the end in spite of cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end, also when cancelled meanwhile, and return its result.

    A coroutine runs in a task of its own. Unlike a shield of anyio, this also holds against
    `task.cancel()` and `asyncio.timeout()`.

    Cancellation: safe — raised after the end of `work`, so that nothing runs on behind the caller.
    The result of `work`, or its error, is dropped then.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError:
                continue  # The first one is raised below.
        if not future.cancelled():
            future.exception()  # Retrieved: the caller sees the cancellation instead.
        raise
