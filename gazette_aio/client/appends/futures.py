"""Futures of operations that complete once and that any number of others observe.

To whoever holds one, an `OpFuture` is an asyncio future: `asyncio.isfuture()` is true, and
`wait()`, `gather()`, `as_completed()`, `shield()`, `wait_for()` and `ensure_future()` take it
beside tasks. It differs in three ways:

* It needs no event loop until somebody observes it. Appends are made by the hundred thousand.
* Nobody has to retrieve its error.
* It can't be cancelled. `cancel()`, which asyncio's functions call when those who wait in them are
  cancelled, releases exactly those, and the operation goes on.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import inspect
import logging
import types
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from collections.abc import Set as AbstractSet

_logger = logging.getLogger(__name__)

_PENDING: Final = object()

T = TypeVar("T")

if TYPE_CHECKING:
    # What `asyncio.wait()` takes is a Future by its name.
    class _Future(asyncio.Future[T]): ...

    Dependencies = AbstractSet[asyncio.Future[Any]]
else:

    class _Future:
        __slots__ = ()
        _asyncio_future_blocking = False  # By this `asyncio.isfuture()` knows a future.
        _cancel_message = None  # Read by `asyncio.gather()`.

        def __class_getitem__(cls, _item):
            return cls


class OpFuture(_Future[T], abc.ABC):
    """Completion of an operation. Equal to itself only.

    Awaiting it returns the operation's result, or raises its error.

    Cancellation: safe — the operation goes on.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def operation(self) -> AsyncOperation:
        """The operation whose completion this is."""

    @abc.abstractmethod
    def done(self) -> bool:
        """Whether the operation completed."""

    @abc.abstractmethod
    def exception(self) -> BaseException | None:
        """Return the error of the completed operation, or None.

        Raises:
            asyncio.InvalidStateError: The operation is pending.
        """

    @abc.abstractmethod
    def _value(self) -> T:
        """Return the result of the operation, which succeeded."""

    def result(self) -> T:
        """Return the result of the completed operation, or raise its error.

        Raises:
            asyncio.InvalidStateError: The operation is pending.
            asyncio.CancelledError: It's pending, and `cancel()` released a waiting task.
        """
        if self.cancelled():
            raise asyncio.CancelledError
        if (error := self.exception()) is not None:
            raise error.with_traceback(None)
        return self._value()

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002 - as of asyncio's futures.
        """Release the asyncio function that calls this, as the task waiting in it was cancelled.

        The operation goes on, and others go on waiting for it. `asyncio.gather()` and, before
        Python 3.12, `asyncio.wait_for()` need this in order to end.

        Returns:
            Whether a waiting task was released.
        """
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        canceller = caller.f_locals.get("self") if caller is not None else None
        return not self.done() and self.operation.release(self, canceller)

    def cancelled(self) -> bool:
        """Whether the operation is pending, and `cancel()` released a waiting task."""
        return self.operation.has_released and not self.done()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running event loop.

        Raises:
            RuntimeError: No event loop is running.
        """
        return asyncio.get_running_loop()

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: contextvars.Context | None = None
    ) -> None:
        """Have the running event loop call `fn` with this future soon after completion.

        Args:
            fn: Function of one argument.
            context: Context in which to call it; None for the present one.

        Raises:
            RuntimeError: No event loop is running, or this is an append that isn't released.
        """
        self._check_awaitable()
        observer = _Observer(self, fn, context)
        if self.done():
            observer.notify()
        else:
            self.operation.observe(observer)

    def _check_awaitable(self) -> None:
        """Raise RuntimeError if the operation can't be awaited yet."""

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Forget `fn`, and return how many times it was registered and not yet called."""
        return self.operation.forget_callback(self, fn)

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        return asyncio.CancelledError()  # Asked for by `asyncio.gather()`.

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            yield from _park(self.operation)
        if (error := self.exception()) is not None:
            raise error.with_traceback(None)
        return self._value()


class _Observer:
    """A callback of a future, and the task that registered it."""

    __slots__ = ("callback", "context", "future", "loop", "task")

    def __init__(
        self,
        future: OpFuture[Any],
        callback: Callable[[Any], object],
        context: contextvars.Context | None,
    ) -> None:
        self.future: OpFuture[Any] = future
        self.callback: Callable[[Any], object] = callback
        self.context: contextvars.Context = context or contextvars.copy_context()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] | None = asyncio.current_task()

    def is_of(self, gathered: object) -> bool:
        """Whether the callback is the one by which `gathered` waits for its parts."""
        cells = getattr(self.callback, "__closure__", None) or ()
        return any(cell.cell_contents is gathered for cell in cells)

    def notify(self, future: asyncio.Future[Any] | None = None) -> None:
        self.loop.call_soon(self.callback, future or self.future, context=self.context)


class AsyncOperation(OpFuture[None]):
    """An operation that its owner resolves."""

    __slots__ = ("_outcome", "_watchers", "has_released")

    def __init__(self) -> None:
        self._outcome: object = _PENDING
        self._watchers: list[Callable[[], None] | asyncio.Future[None] | _Observer] | None = None
        self.has_released: bool = False
        """Whether somebody who waited was released before completion."""

    @property
    def operation(self) -> AsyncOperation:
        """The operation itself."""
        return self

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
        watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            try:
                if isinstance(watcher, _Observer):
                    watcher.notify()
                elif callable(watcher):
                    watcher()
                elif not watcher.done():
                    watcher.set_result(None)
            except Exception:
                # Invariant: whoever waits is woken, whatever others do.
                _logger.exception("a callback of a completed operation failed")

    def done(self) -> bool:
        """Whether the operation completed."""
        return self._outcome is not _PENDING

    def exception(self) -> BaseException | None:
        """Return the error of the completed operation, or None.

        Raises:
            asyncio.InvalidStateError: The operation is pending.
        """
        if self._outcome is _PENDING:
            raise asyncio.InvalidStateError("the operation is still pending")
        assert self._outcome is None or isinstance(self._outcome, BaseException)
        return self._outcome

    def _value(self) -> None:
        return None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` within `resolve()`, or at once if that was called. It must not raise."""
        if self._outcome is not _PENDING:
            callback()
        else:
            self.observe(callback)

    def observe(self, watcher: Callable[[], None] | asyncio.Future[None] | _Observer) -> None:
        """Notify `watcher` upon completion, which is to come."""
        if self._watchers is None:
            self._watchers = [watcher]
        else:
            self._watchers.append(watcher)

    def forget(self, watcher: Callable[[], None] | asyncio.Future[None]) -> None:
        """Forget a waiter or a callback of `when_done()`, which may have been notified."""
        if self._watchers is not None and watcher in self._watchers:
            self._watchers.remove(watcher)

    def forget_callback(self, future: OpFuture[Any], callback: Callable[[Any], object]) -> int:
        """Forget `callback` of `future`, and return how many times it was registered."""
        return len(self._take(lambda seen: seen.future is future and seen.callback == callback))

    def release(self, future: OpFuture[Any], canceller: object) -> bool:
        """Notify callbacks of `future` that it was cancelled, though it wasn't.

        Args:
            future: The future whose `cancel()` was called.
            canceller: The object whose method called it: the future of a `gather()`, or any other.

        Returns:
            Whether there were any.
        """
        if asyncio.isfuture(canceller):
            gathered: object = canceller
            released = self._take(lambda seen: seen.future is future and seen.is_of(gathered))
        else:
            # Invariant: `wait_for()` registers its callback, and cancels at once.
            last = self._watchers[-1] if self._watchers else None
            running = asyncio.current_task()
            released = self._take(
                lambda seen: seen is last and seen.future is future and seen.task is running
            )
        for observer in released:
            self.has_released = True
            stand_in: asyncio.Future[Any] = observer.loop.create_future()
            stand_in.cancel()
            observer.notify(stand_in)
        return bool(released)

    def _take(self, is_meant: Callable[[_Observer], bool]) -> list[_Observer]:
        watchers = self._watchers or []
        taken = [seen for seen in watchers if isinstance(seen, _Observer) and is_meant(seen)]
        for observer in taken:
            watchers.remove(observer)
        return taken

    def waiter(self) -> asyncio.Future[None]:
        """Return a future of the running task, to be awaited until completion.

        If the wait is broken off, hand the future to `forget()`.
        """
        # Race: each task that awaits has a future of its own: cancelling one concerns no other.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Hot: a future among the watchers spares a function for each.
        if self._outcome is not _PENDING:
            future.set_result(None)
        elif self._watchers is None:
            self._watchers = [future]
        else:
            self._watchers.append(future)
        return future

    def __repr__(self) -> str:
        if self._outcome is _PENDING:
            state = f"pending, {len(self._watchers or ())} waiting"
        else:
            state = "succeeded" if self._outcome is None else f"failed: {self._outcome}"
        return f"<AsyncOperation {state}>"


def finished_operation(error: BaseException | None = None) -> AsyncOperation:
    """Return an operation that has completed."""
    operation = AsyncOperation()
    operation.resolve(error)
    return operation


@types.coroutine
def parked(future: asyncio.Future[Any]) -> Generator[Any, None, None]:
    """Wait until `future` completes, whether it succeeds, fails, or is cancelled.

    Cancellation: safe — the future is left alone.
    """
    if isinstance(future, OpFuture):
        yield from _park(future.operation)
    else:
        yield from asyncio.wait((future,)).__await__()


def _park(operation: AsyncOperation) -> Generator[Any, None, None]:
    waiter = operation.waiter()
    try:
        yield from waiter
    except BaseException:
        operation.forget(waiter)
        raise
