"""Blocking calls in worker threads."""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, TypeVar

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio import CapacityLimiter

P = ParamSpec("P")
T = TypeVar("T")

_limiters: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter]] = (
    weakref.WeakKeyDictionary()
)
"""Limits of the concurrent calls of event loops."""


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread, and return its result.

    The number of concurrent calls of an event loop is limited, as by its default executor.

    Cancellation: safe — raised after the call has returned, so that nothing outlives the caller.
    The result of the call is dropped. A call that hasn't begun is never made.
    """
    # Imported only here: many programs never need it, and importing it takes a while.
    from anyio import to_thread  # noqa: PLC0415

    call = _Call(functools.partial(function, *args, **kwargs))
    try:
        return await to_thread.run_sync(call.run, limiter=_threads())
    except asyncio.CancelledError:
        # Native cancellation bypasses the shield of anyio, and leaves the thread running.
        await call.over()
        raise


class _Call(Generic[T]):
    """A call in a thread. Its caller can await its end even after a cancellation.

    Invariant: either the thread or the caller takes the ticket. With it, the thread makes the call,
    or the caller knows that the call is never made.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._ticket = [None]
        self._is_over = False
        self._ended: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def run(self) -> T:
        """Make the call. Runs in a worker thread."""
        self._ticket.pop()
        try:
            return self._function()
        finally:
            # Race: the caller sets `_ended` before it reads `_is_over`; here the order is reversed.
            self._is_over = True
            if self._ended is not None:
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def over(self) -> None:
        """Wait until the thread has left the call, if the thread ever enters it.

        Cancellation: safe — raised after that.
        """
        try:
            self._ticket.pop()
        except IndexError:
            pass  # The thread was faster.
        else:
            return
        self._ended = self._loop.create_future()
        if not self._is_over:
            await finish(self._ended)


def _threads() -> CapacityLimiter:
    loop = asyncio.get_running_loop()
    if (limiter := _limiters.get(loop)) is None:
        from anyio import CapacityLimiter  # noqa: PLC0415 - As above.

        limiter = _limiters[loop] = CapacityLimiter(min(32, (os.cpu_count() or 1) + 4))
    return limiter
