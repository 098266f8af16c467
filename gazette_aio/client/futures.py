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
        self._callbacks: list[Callback] | None = None

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
                callback()
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
        if self._callbacks is not None and callback in self._callbacks:
            self._callbacks.remove(callback)

    def __await__(self) -> Generator[Any, None, None]:
        if self._outcome is _PENDING:
            yield from park(self)
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


def park(operation: OpFuture) -> Generator[Any, None, None]:
    """Suspend the running task until `operation` completes; for use in `__await__`."""
    # Race: each awaiting task has a future of its own, so that cancelling one concerns no other.
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    operation.add_done_callback(wake)
    try:
        yield from future
    finally:
        # One who gives up time and again leaves nothing behind.
        operation.remove_done_callback(wake)


@types.coroutine
def parked(operation: OpFuture) -> Generator[Any, None, None]:
    """Wait until `operation` completes, whether it succeeds or fails.

    Cancellation: safe.
    """
    yield from park(operation)
