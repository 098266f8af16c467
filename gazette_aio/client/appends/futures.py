"""Futures of operations that complete once and that any number of others observe.

To whoever holds one, an `OpFuture` is an asyncio future: `asyncio.isfuture()` is true, and
`wait()`, `gather()`, `as_completed()`, `shield()`, `wait_for()` and `ensure_future()` take it
beside tasks. It differs in three ways:

* It needs no event loop until somebody observes it. Appends are made by the hundred thousand.
* Nobody has to retrieve its error.
* It can't be cancelled. `asyncio.gather()` and, before Python 3.12, `asyncio.wait_for()` call
  `cancel()` when their task is cancelled or its time is over. This ends their wait, and the
  operation goes on for all others. A `gather()` whose own `cancel()` is called by another task than
  the one that made it ends with the operation.
"""

from __future__ import annotations

import abc
import asyncio
import contextvars
import logging
import types
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
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

    Awaiting it returns the operation's result, or raises its error. Call `asyncio.gather()` in the
    task that awaits it: only then can the wait be cancelled before the operation completes.

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
        """End the wait of a task that is being cancelled, or else of the running task.

        This calls the callbacks that these tasks have registered last, by which functions such as
        `asyncio.gather()` wait. The operation goes on, and other tasks go on waiting for it.

        Returns:
            Whether there were such callbacks.
        """
        return not self.done() and self.operation.release(self)

    def cancelled(self) -> bool:
        """Whether the operation is pending, and `cancel()` ended a wait."""
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
            observer()
        else:
            self.operation.observe(observer)

    def _check_awaitable(self) -> None:
        """Raise RuntimeError if the operation can't be awaited yet."""

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        """Forget `fn`, and return how many times it was registered and not yet called."""
        seen = [each for each in self.operation.observers(self) if each.callback == fn]
        self.operation.forget(seen)
        return len(seen)

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

    __slots__ = ("callback", "cancellations", "context", "future", "loop", "task")

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
        self.cancellations: int = 0 if self.task is None else self.task.cancelling()

    def is_being_cancelled(self) -> bool:
        """Whether the task was cancelled after the callback was registered."""
        return self.task is not None and self.task.cancelling() > self.cancellations

    def __call__(self) -> None:
        self.loop.call_soon(self.callback, self.future, context=self.context)


_Watcher: TypeAlias = "Callable[[], None] | asyncio.Future[None]"


class AsyncOperation(OpFuture[None]):
    """An operation that its owner resolves."""

    __slots__ = ("_observers", "_outcome", "_watchers", "has_released")

    def __init__(self) -> None:
        self._outcome: object = _PENDING
        # Thousands of appends may share a batch, each with a watcher that may leave again.
        self._watchers: dict[_Watcher, None] | None = None  # In the order of their registration.
        self._observers: dict[OpFuture[Any], list[_Observer]] | None = None
        self.has_released: bool = False
        """Whether a wait was ended before completion."""

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
        watchers, self._watchers, self._observers = self._watchers, None, None
        for watcher in watchers or ():
            try:
                if callable(watcher):
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
        """Call `callback` once within `resolve()`, or at once after that. It must not raise."""
        if self._outcome is not _PENDING:
            callback()
        else:
            self._watch(callback)

    def _watch(self, watcher: _Watcher) -> None:
        if self._watchers is None:
            self._watchers = {}
        self._watchers[watcher] = None

    def observe(self, observer: _Observer) -> None:
        """Call `observer` upon completion. The operation is pending."""
        self._watch(observer)
        if self._observers is None:
            self._observers = {}
        self._observers.setdefault(observer.future, []).append(observer)

    def observers(self, future: OpFuture[Any]) -> list[_Observer]:
        """Return the observers of one future of the operation that weren't called yet."""
        return [] if self._observers is None else self._observers.get(future, [])

    def forget(self, observers: Iterable[_Observer]) -> None:
        """Forget observers that weren't called yet."""
        for observer in observers:
            assert self._watchers is not None, "nothing was observed"
            assert self._observers is not None, "nothing was observed"
            del self._watchers[observer]
            left = self._observers[observer.future]
            left.remove(observer)
            if not left:
                del self._observers[observer.future]

    def release(self, future: OpFuture[Any]) -> bool:
        """Call the callbacks by which cancelled tasks, or the running task, wait for `future`.

        Returns:
            Whether there were any.
        """
        # Invariant: a task waits in one function at a time, which was the last to register.
        last = {seen.task: seen for seen in self.observers(future) if seen.task is not None}
        released = [seen for seen in last.values() if seen.is_being_cancelled()]
        running = asyncio.current_task()
        if not released and running in last:
            # `wait_for()` cancels when its time is over, and a task may cancel its `gather()`.
            released = [last[running]]
        if not released:
            return False
        self.has_released = True
        self.forget(released)
        for observer in released:
            observer()
        return True

    def waiter(self) -> asyncio.Future[None]:
        """Return a future of the running task, to be awaited until completion.

        If the wait is broken off, `leave()` it.
        """
        # Race: each task that awaits has a future of its own: cancelling one concerns no other.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._outcome is not _PENDING:
            future.set_result(None)
        elif self._watchers is None:
            self._watchers = {future: None}
        else:
            self._watchers[future] = None  # Hot: a future spares a function for each.
        return future

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Forget a waiter, which may have been notified."""
        if self._watchers is not None:
            self._watchers.pop(waiter, None)

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
        operation.leave(waiter)
        raise
