"""Blocking calls in worker threads."""

from __future__ import annotations

import asyncio
import functools
import os
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_limiter: RunVar[CapacityLimiter] = RunVar("gazette_aio.aio.threads")
"""Bound of the calls of an event loop which run at the same time."""


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread, and return its result.

    As many calls of an event loop run at the same time as its default executor would have threads.

    Cancellation: safe — raised after the call has returned, so that nothing runs on behind the
    caller. The result of the call is dropped. A call which didn't begin yet is never made.
    """
    call = _Call(functools.partial(function, *args, **kwargs))
    try:
        return await run_sync(call.run, limiter=_threads())
    except asyncio.CancelledError:
        # Native cancellation pierces the shield within, and leaves the thread at work.
        await call.over()
        raise


class _Call(Generic[T]):
    """A call in a thread, whose end its caller can await even after leaving it.

    Invariant: either the thread or the caller takes the ticket. The thread then makes the call, or
    the caller then knows that it's never made.
    """

    __slots__ = ("_ended", "_function", "_is_over", "_loop", "_ticket")

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
            # Race: the caller sets `_ended` and then looks at `_is_over`; here it's the reverse.
            self._is_over = True
            if self._ended is not None:
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def over(self) -> None:
        """Wait until the thread has left the call, if it ever enters it.

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
    try:
        return _limiter.get()
    except LookupError:
        limiter = CapacityLimiter(min(32, (os.cpu_count() or 1) + 4))
        _limiter.set(limiter)
        return limiter
