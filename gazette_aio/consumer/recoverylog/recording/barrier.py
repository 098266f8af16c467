"""Barrier of a recorder, and who makes it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from gazette_aio.client.appends.futures import AsyncOperation, OpFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import gazette_aio.protocol as pb


class Barrier(OpFuture["pb.AppendResponse"]):
    """Completion of an append that commits everything that was recorded before.

    Awaiting it returns the response of the broker, whose `commit.end` was the write head, or raises
    RuntimeError within the `atomic()` block that it waits for.

    Cancellation: safe — recording goes on.
    """

    __slots__ = ("_check", "_operation", "_response")

    def __init__(self, check: Callable[[], object] | None = None) -> None:
        self._check = check
        """Raises if it would never be done while its caller waits for it."""
        self._operation = AsyncOperation()
        self._response: pb.AppendResponse | None = None

    @property
    def operation(self) -> AsyncOperation:
        """The operation that completes with the append."""
        return self._operation

    def done(self) -> bool:
        """Whether the append was committed, or has failed."""
        return self._operation.done()

    def exception(self) -> BaseException | None:
        """Return the error of the append, or None if it was committed.

        Raises:
            asyncio.InvalidStateError: The append is pending.
        """
        return self._operation.exception()

    def __await__(self) -> Generator[Any, None, pb.AppendResponse]:
        if self._check is not None and not self.done():
            self._check()
        return super().__await__()

    def _value(self) -> pb.AppendResponse:
        assert self._response is not None
        return self._response

    def resolve(self, outcome: pb.AppendResponse | BaseException) -> None:
        """Complete it, unless that's done, by a response or an error. Its recorder does this."""
        if self._operation.done():
            return
        if isinstance(outcome, BaseException):
            self._operation.resolve(outcome)
        else:
            self._response = outcome
            self._operation.resolve()

    def __repr__(self) -> str:
        return f"<Barrier {self._operation!r}>"


def current_caller() -> object:
    """Return the running task, or the thread if it's none of an event loop."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
