"""Deadlines of operations: bounds of the time for which a caller waits for brokers."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import TYPE_CHECKING, Any, TypeVar

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client.rpc.dispatch import Dispatcher

T = TypeVar("T")


def checked_timeout(timeout: float | None, default: float | None = None) -> float | None:
    """Return the seconds of a `timeout=`, or None if there's no limit.

    Args:
        timeout: Seconds, `math.inf` for no limit, or None for the default.
        default: Seconds, or None for no limit.

    Raises:
        ConfigurationError: The timeout isn't positive.
        TypeError: The timeout isn't a number.
    """
    seconds = default if timeout is None else timeout
    if seconds is None:
        return None
    _check_number(seconds)
    if not seconds > 0:  # NaN isn't positive either.
        raise pb.ConfigurationError(f"timeout must be positive, not {seconds}")
    return None if math.isinf(seconds) else seconds


def _check_number(seconds: object) -> None:
    if not isinstance(seconds, int | float):
        raise TypeError(f"timeout: expected a number of seconds, not {seconds!r}")


class Deadline:
    """Bound of the time that one operation takes.

    Args:
        dispatcher: Connections of the client.
        operation: Name of the operation.
        seconds: The bound, or None for no limit.
        journal: Journal of the operation, or empty.
        doubt: What may have happened nevertheless; empty if the operation has no side effects.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[Any],
        operation: str,
        seconds: float | None,
        *,
        journal: str = "",
        doubt: str = "",
    ) -> None:
        self._dispatcher = dispatcher
        self._operation = operation
        self._journal = journal
        self._doubt = doubt
        self.seconds = seconds
        """Seconds, or None for no limit."""
        self.last_error: BaseException | None = None
        """The latest failure that is being retried, or None."""

    def note(self, error: BaseException | None) -> None:
        """Note the latest failure that is being retried, or None after a success."""
        if isinstance(error, pb.OperationTimeoutError):
            error = error.last_error  # That an attempt takes as long is what this deadline tells.
        if self.seconds is not None:
            # A copy: with its traceback, the error would refer to itself by this deadline.
            self.last_error = copy.copy(error)

    async def run(
        self, work: Awaitable[T], latest: Callable[[], BaseException | None] | None = None
    ) -> T:
        """Return the result of `work`, which is cancelled at the deadline.

        Args:
            work: The operation.
            latest: Returns the latest failure, instead of `last_error`.

        Raises:
            OperationTimeoutError: The deadline has passed.
            Exception: `work` raises it.

        Cancellation: as `work`.
        """
        if self.seconds is None:
            return await work
        timer = asyncio.timeout(self.seconds)
        try:
            async with timer:
                return await work
        except TimeoutError:
            if not timer.expired():
                raise
        if latest is not None:
            self.note(latest())
        # Out of the handler: as its context, the cancellation would keep the RPC.
        reason = "" if self.last_error is not None else await self._dispatcher.failure()
        raise self.expired(reason) from self.last_error

    def expired(self, reason: str = "") -> pb.OperationTimeoutError:
        """Return the error of an operation whose deadline has passed.

        Args:
            reason: Text of the reason, if there's no `last_error`.
        """
        where = (
            f"{self._operation} of journal {self._journal}" if self._journal else self._operation
        )
        endpoint = self._dispatcher.endpoint
        text = f"{where} timed out after {self.seconds:g} s ({self._dispatcher.peer} {endpoint})"
        if reason := str(self.last_error or reason):
            text = f"{text}; the last error was: {reason}"
        error = pb.OperationTimeoutError(
            f"{text}; {self._doubt}" if self._doubt else text,
            operation=self._operation,
            journal=self._journal,
            endpoint=endpoint,
            last_error=self.last_error,
            outcome_unknown=bool(self._doubt),
        )
        error.__cause__ = self.last_error
        return error

    def limit(self, waiter: asyncio.Future[None]) -> asyncio.TimerHandle:
        """Have `waiter` fail at the deadline, counted from now. Cancel the result after the wait.

        There must be a limit.
        """
        assert self.seconds is not None, "there's no limit"
        return asyncio.get_running_loop().call_later(self.seconds, self._expire, waiter)

    def _expire(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(self.expired())
