"""Receiver of a client's messages at a least rate."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Generic, TypeVar

from gazette_aio.broker.journal.patience import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.broker.journal.flow_control import FlowControl

T = TypeVar("T")


class ReceiveGuard(Generic[T]):
    """Receives from an iterator with time limits; a context manager for one task.

    One timer serves many messages, and isn't changed until it fires.
    """

    def __init__(self, messages: AsyncIterator[T]) -> None:
        self._messages = messages
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "outside of a task"
        self._task = task
        self._cancelling = task.cancelling()
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

    def millis(self) -> int:
        """Return the time of flows, in milliseconds."""
        return int(self._loop.time() * 1000)

    async def next(self, flow: FlowControl, until: float) -> T | None:
        """Return the next message, or None at the end.

        Args:
            flow: Flow of the client, which is charged for the wait, but not for time in which the
                broker couldn't read.
            until: Latest time, by the loop's clock.

        Raises:
            TimeoutError: No message came in time, or the client is too slow.

        Cancellation: poisons — the iterator can't be used any more.
        """
        now = self._loop.time()
        flow.skip(int(now * 1000))
        self._patience.begin(now, flow.patience_millis() / 1000)
        self._until = until
        self._look_by(min(self._patience.next_look(now), until))
        self._waiting = True
        try:
            message = await self._messages.__anext__()
        except StopAsyncIteration:
            message = None
        except asyncio.CancelledError:
            if self._expired and self._task.uncancel() <= self._cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = False
        now = self._loop.time()
        self._patience.look(self._timer_when, now)
        if not flow.tick(int(now * 1000), int(self._patience.waited * 1000)):
            raise TimeoutError
        return message

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
            self._task.cancel()
        else:
            self._look_by(min(self._patience.next_look(now), self._until))
