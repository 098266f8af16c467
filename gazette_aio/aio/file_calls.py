"""Calls of aiofiles, whose threads can be awaited."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from anyio import CancelScope

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiofiles.threadpool.binary import AsyncFileIO

P = ParamSpec("P")
T = TypeVar("T")


class FileCalls(Executor):
    """Executor of the calls of one file, one at a time, in the event loop's default threads.

    Native cancellation makes a coroutine of aiofiles return while its thread still uses the file.
    So give this executor to aiofiles, and await the coroutines by `run()`, and the first one by
    `open()`: both return only after the thread has left the file.

    Example:
        calls = FileCalls()
        file = await calls.open(aiofiles.open(path, "rb", executor=calls))
        data = await calls.run(file.read())
        await calls.close(file)
    """

    def __init__(self) -> None:
        self._last: Future[Any] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is in progress."""
        return self._last is not None and not self._last.done()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call. aiofiles does this."""
        assert not self.busy, "a call of the file is still in progress"
        call: Future[T] = Future()
        self._last = call
        entered = asyncio.get_running_loop().run_in_executor(
            None, _make, call, functools.partial(fn, *args, **kwargs)
        )
        # Race: an executor that shuts down may cancel calls which it hasn't begun.
        entered.add_done_callback(lambda _: call.cancel())
        return call

    async def run(self, coroutine: Awaitable[T]) -> T:
        """Await a coroutine of aiofiles, and return its result.

        Cancellation: safe — raised after the thread has left the file. The effect of the call is
        unknown then. A call that no thread has begun is never made.
        """
        try:
            return await coroutine
        except asyncio.CancelledError:
            await self._over()
            raise
        except BaseException:
            self._last = None  # It has the error, whose frames have this object.
            raise

    async def open(self, opening: Awaitable[T]) -> T:
        """Await the coroutine of aiofiles that opens the file, and return the file.

        Cancellation: safe — as `run()`; a file that was opened is closed.
        """
        try:
            return await self.run(opening)
        except asyncio.CancelledError:
            call = self._last
            if call is not None and not call.cancelled() and call.exception() is None:
                call.result().close()
            raise

    async def close(self, file: AsyncFileIO) -> None:
        """Close the file. Idempotent.

        Raises:
            OSError: Closing failed. The file is closed anyway.

        Cancellation: safe — raised after the file was closed.
        """
        cancelled: asyncio.CancelledError | None = None
        # Invariant: as in `finish()`, the loop resists native cancellation, and the shield anyio's.
        with CancelScope(shield=True):
            while not file.closed:
                try:
                    await self.run(file.close())
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is not None:
            raise cancelled

    async def _over(self) -> None:
        call = self._last
        if call is None or call.done():
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        call.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set_result, None))
        await finish(ended)


def _make(call: Future[T], function: Callable[[], T]) -> None:
    """Make a call, unless it was cancelled. Runs in a worker thread."""
    if not call.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - The caller has it.
        # Without this frame, which leads back to the error.
        call.set_exception(
            error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        )
    else:
        call.set_result(result)
