"""Receiver of a client's messages, each by a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")

_LATE_SECONDS = 0.25
"""Lateness of a timer from which a busy loop is at fault, and not the client."""


class ReceiveGuard(Generic[T]):
    """Receives from an iterator with deadlines; a context manager for one task.

    One timer serves many messages: it's left alone as long as it fires early enough.
    """

    def __init__(self, messages: AsyncIterator[T]) -> None:
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_when = 0.0
        self._deadline = 0.0
        self._waiting = False
        self._expired = False
        self.was_late = False
        """Whether the loop was too busy to measure the client during the last wait."""

    def __enter__(self) -> ReceiveGuard[T]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def next(self, deadline: float) -> T | None:
        """Return the next message, or None at the end.

        Args:
            deadline: Latest time, of the loop's clock.

        Raises:
            TimeoutError: If there was none in time.

        Cancellation: poisons — the iterator can't be used any more.
        """
        task = self._task
        assert task is not None, "outside of a task"
        cancelling = task.cancelling()
        self._deadline = deadline
        if self._timer is None or self._timer_when > deadline:
            self._arm(deadline)
        self._waiting = True
        self.was_late = False
        try:
            return await self._messages.__anext__()
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if self._expired and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = False

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fire, when)
        self._timer_when = when

    def _fire(self, when: float) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._waiting:
            return  # The next wait arms it again.
        if now < self._deadline:
            self._arm(self._deadline)
        elif now > when + _LATE_SECONDS:
            # The message may be there, with the loop too busy to have seen it.
            self.was_late = True
            self._deadline = now + _LATE_SECONDS
            self._arm(self._deadline)
        else:
            self._expired = True
            assert self._task is not None
            self._task.cancel()
