"""Futures of operations which complete once, observed by any number of others.

An `OpFuture` differs from an `asyncio.Future` in that it costs no event loop until somebody awaits
it, that cancelling one who awaits it leaves it alone, and that nobody has to retrieve its error.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import types
from collections.abc import Callable, Generator
from typing import Any

_logger = logging.getLogger(__name__)

_PENDING = object()

Callback = Callable[[], None]


class OpFuture(abc.ABC):
    """Completion of an operation. Equal to itself only.

    Awaiting it raises the error of the operation.

    Cancellation: safe — the operation goes on.
    """

    __slots__ = ()

    @abc.abstractmethod
    def done(self) -> bool:
        """Whether the operation completed."""

    @abc.abstractmethod
    def exception(self) -> BaseException | None:
        """Return the error of the completed operation, or None.

        Raises:
            asyncio.InvalidStateError: It didn't complete yet.
        """

    @abc.abstractmethod
    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback` upon completion, which may be at once. It must not raise."""

    @abc.abstractmethod
    def remove_done_callback(self, callback: Callback) -> None:
        """Forget `callback`, which may have been called."""

    @abc.abstractmethod
    def __await__(self) -> Generator[Any, None, Any]: ...


class AsyncOperation(OpFuture):
    """An operation which its owner resolves."""

    __slots__ = ("_callbacks", "_outcome")

    def __init__(self) -> None:
        self._outcome: object = _PENDING
        self._callbacks: list[Callback | asyncio.Future[None]] | None = None

    def resolve(self, error: BaseException | None = None) -> None:
        """Complete the operation.

        Args:
            error: Error with which it failed, or None if it succeeded.

        Raises:
            asyncio.InvalidStateError: It already completed.
        """
        if self._outcome is not _PENDING:
            raise asyncio.InvalidStateError("the operation was already resolved")
        self._outcome = error
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                if callable(callback):
                    callback()
                elif not callback.done():
                    callback.set_result(None)
            except Exception:
                # Invariant: whoever waits is woken, whatever others do.
                _logger.exception("a callback of a completed operation failed")

    def done(self) -> bool:
        """Whether the operation completed."""
        return self._outcome is not _PENDING

    def exception(self) -> BaseException | None:
        """Return the error of the completed operation, or None.

        Raises:
            asyncio.InvalidStateError: It didn't complete yet.
        """
        if self._outcome is _PENDING:
            raise asyncio.InvalidStateError("the operation is still pending")
        assert self._outcome is None or isinstance(self._outcome, BaseException)
        return self._outcome

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback` upon completion, which may be at once. It must not raise."""
        if self._outcome is not _PENDING:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callback) -> None:
        """Forget `callback`, which may have been called."""
        self.forget(callback)

    def forget(self, callback: Callback | asyncio.Future[None]) -> None:
        """Forget a callback or a waiter. One who gives up time and again leaves nothing behind."""
        if self._callbacks is not None and callback in self._callbacks:
            self._callbacks.remove(callback)

    def waiter(self) -> asyncio.Future[None]:
        """Return a future of the running task, to be awaited until completion.

        If that's broken off, the future is to be handed to `forget()`.
        """
        # Race: each task which awaits has a future of its own: cancelling one concerns no other.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Hot: a future among the callbacks spares a function for each.
        if self._outcome is not _PENDING:
            future.set_result(None)
        elif self._callbacks is None:
            self._callbacks = [future]
        else:
            self._callbacks.append(future)
        return future

    def __await__(self) -> Generator[Any, None, None]:
        if self._outcome is _PENDING:
            yield from _park(self)
        if (error := self.exception()) is not None:
            raise error.with_traceback(None)

    def __repr__(self) -> str:
        if self._outcome is _PENDING:
            state = "pending"
        else:
            state = "succeeded" if self._outcome is None else f"failed: {self._outcome}"
        return f"<AsyncOperation {state}>"


def finished_operation(error: BaseException | None = None) -> AsyncOperation:
    """Return an operation which already completed."""
    operation = AsyncOperation()
    operation.resolve(error)
    return operation


@types.coroutine
def parked(operation: OpFuture) -> Generator[Any, None, None]:
    """Wait until `operation` completes, whether it succeeds or fails.

    Cancellation: safe.
    """
    yield from _park(operation)


def _park(operation: OpFuture) -> Generator[Any, None, None]:
    if isinstance(operation, AsyncOperation):
        waiter = operation.waiter()
        try:
            yield from waiter
        except BaseException:
            operation.forget(waiter)
            raise
        return
    completion = AsyncOperation()
    operation.add_done_callback(completion.resolve)
    try:
        yield from completion.waiter()
    finally:
        operation.remove_done_callback(completion.resolve)
