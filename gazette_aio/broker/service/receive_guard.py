"""Receiver of a client's messages with time limits."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from gazette_aio.broker.journal.patience import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

T = TypeVar("T")


class ReceiveGuard(Generic[T]):
    """Receives from an iterator with time limits; a context manager for one task.

    One timer serves many messages, and isn't changed until it fires.
    """

    def __init__(self, messages: AsyncIterator[T]) -> None:
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_when = math.inf
        self._patience = Patience()
        self._until = math.inf
        self._waiting = False
        self._expired = False

    def __enter__(self) -> ReceiveGuard[T]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def waited(self) -> float:
        """Seconds of the last wait to charge to the client."""
        return self._patience.waited

    async def next(self, allowance: float, until: float = math.inf) -> T | None:
        """Return the next message, or None at the end.

        Args:
            allowance: Most seconds to wait, not counting time in which the broker couldn't read.
            until: Latest time, by the loop's clock.

        Raises:
            TimeoutError: No message came in time.

        Cancellation: poisons — the iterator can't be used any more.
        """
        task = self._task
        assert task is not None, "outside of a task"
        cancelling = task.cancelling()
        now = self._loop.time()
        self._patience.begin(now, allowance)
        self._until = until
        self._look_by(min(self._patience.next_look(now), until))
        self._waiting = True
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
            if not self._expired:
                self._patience.look(self._timer_when, self._loop.time())

    def _look_by(self, when: float) -> None:
        if self._timer_when <= when:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fire, when)
        self._timer_when = when

    def _fire(self, when: float) -> None:
        self._timer, self._timer_when = None, math.inf
        if not self._waiting:
            return  # The next wait arms it again.
        now = self._loop.time()
        if self._patience.look(when, now) or now >= self._until:
            self._expired = True
            assert self._task is not None
            self._task.cancel()
        else:
            self._look_by(min(self._patience.next_look(now), self._until))
