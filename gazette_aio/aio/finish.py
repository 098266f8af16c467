"""Wait that lasts to the end in spite of cancellation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end, even if cancelled meanwhile, and return its result.

    A coroutine runs in a task of its own. Unlike a shield of anyio, this also resists
    `task.cancel()` and `asyncio.timeout()`.

    Cancellation: safe — raised after the end of `work`, so that nothing outlives the call. The
    result or error of `work` is dropped then.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _ended(future)
        if not future.cancelled():
            future.exception()  # Retrieved: the caller sees the cancellation instead.
        raise
    finally:
        del future, work  # An error of theirs has this frame, and would be in a cycle with them.


async def _ended(future: asyncio.Future[T]) -> None:
    # Imported only here: most programs never cancel such a wait.
    from anyio import CancelScope  # noqa: PLC0415

    # Invariant: the loop resists native cancellation, and the shield resists a scope of anyio,
    # which cancels again in each turn of the event loop.
    with CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError:
                continue  # The caller raises the first cancellation.
