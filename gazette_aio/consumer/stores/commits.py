"""Commits of a store, each in a task of its own, which nothing but its store ends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.protocol.errors import DependencyError, StoreError
from gazette_aio.protocol.status_errors import text_without_endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine

    from gazette_aio.client.appends.futures import OpFuture

_logger = logging.getLogger(__name__)


class Commits:
    """Commits of a store, one at a time.

    A commit runs in its own task, so cancelling somebody who awaits it has no effect on it.
    """

    def __init__(self) -> None:
        self._last: AsyncOperation | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._is_closing = False

    @property
    def last(self) -> OpFuture[None] | None:
        """The latest commit, which may be pending; None if there was none."""
        return self._last

    def start(
        self,
        wait_for: Collection[asyncio.Future[Any]],
        apply: Callable[[], Awaitable[None]],
        abandon: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> OpFuture[None]:
        """Begin a commit. The one before it must have ended.

        Args:
            wait_for: Futures that have to succeed first. If one fails, so does the commit, by
                DependencyError.
            apply: Makes the commit take effect.
            abandon: Undoes what was begun. It's called unless `apply` succeeds, and runs to its
                end.
        """
        return self._begin(self._commit(tuple(wait_for), apply, abandon))

    def start_recorded(
        self, opening: OpFuture[Any], record: Callable[[], Awaitable[OpFuture[Any]]]
    ) -> OpFuture[None]:
        """Begin a commit that changes recorded files.

        Args:
            opening: Barrier that waits for the dependencies of the commit, and precedes what is
                recorded.
            record: Changes the files, and returns the barrier of what it has recorded.
        """
        return self._begin(self._record(opening, record))

    def _begin(self, commit: Coroutine[Any, Any, None]) -> OpFuture[None]:
        assert self._last is None or self._last.done(), "the commit before it is still pending"
        operation = self._last = AsyncOperation()
        task = self._task = start_task(commit, "gazette commit of a store")
        task.add_done_callback(lambda _: operation.resolve(_error_of(task)))
        return operation

    async def _record(
        self, opening: OpFuture[Any], record: Callable[[], Awaitable[OpFuture[Any]]]
    ) -> None:
        try:
            closing = await record()
            await self.wait((closing,))
            closing.result()
        except Exception as error:
            # A failed dependency is the cause, of which the recorder tells its later calls only so.
            if opening.done() and (cause := opening.exception()) is not None:
                raise cause from error
            raise

    async def wait(self, futures: Collection[asyncio.Future[Any]]) -> None:
        """Wait within a commit until all futures succeed, or one has failed.

        Raises:
            StoreError: The store was destroyed meanwhile.

        Cancellation: safe.
        """
        if all(future.done() for future in futures):
            return
        if self._is_closing:
            raise _destroyed()
        # A task of its own is what `aclose()` can cancel without touching the commit.
        first_error = asyncio.wait(set(futures), return_when=asyncio.FIRST_EXCEPTION)
        waiting = self._waiting = start_task(first_error, "gazette dependencies of a store")
        try:
            await asyncio.wait((waiting,))
        finally:
            waiting.cancel()
            self._waiting = None
        if waiting.cancelled():
            raise _destroyed()

    async def pause(self, seconds: float) -> None:
        """Wait for some time within a commit.

        Raises:
            StoreError: The store was destroyed meanwhile.

        Cancellation: safe.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, over.set_result, None)
        try:
            await self.wait((over,))
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """End the commit under way: what still waits for futures fails, else it's waited for.

        Cancellation: safe — the commit ends anyway; call again to wait for it.
        """
        self._is_closing = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _commit(
        self,
        wait_for: tuple[asyncio.Future[Any], ...],
        apply: Callable[[], Awaitable[None]],
        abandon: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        try:
            await self.wait(wait_for)
            for future in wait_for:
                if future.done() and (error := _error_of(future)) is not None:
                    text = text_without_endpoint(error)
                    raise DependencyError(f"dependency failed: {text}") from error
            await apply()
        except BaseException:
            if abandon is not None:
                try:
                    await finish(abandon())
                except Exception:
                    # The commit fails with the first error, which says why it was undone.
                    _logger.exception("failed to undo a commit that failed")
            raise


def _destroyed() -> StoreError:
    return StoreError("the store was destroyed before its commit")


def _error_of(future: asyncio.Future[Any]) -> BaseException | None:
    if future.cancelled():
        return StoreError("it was cancelled")
    return future.exception()
