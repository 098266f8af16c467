"""Receiver of a client's messages at a least rate."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gazette_aio.broker.journal.flow_control import LOOK_MILLIS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.broker.journal.flow_control import FlowControl

T = TypeVar("T")


class Looks:
    """Looks at receivers at intervals, by one timer for all."""

    def __init__(self) -> None:
        self.due_millis: float = 0.0
        """Time of the next look, if there are receivers."""
        self._receivers: set[ReceiveGuard[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, receiver: ReceiveGuard[Any]) -> None:
        """Look at a receiver from now on."""
        self._receivers.add(receiver)
        if self._timer is None:
            self._arm()

    def remove(self, receiver: ReceiveGuard[Any]) -> None:
        """Don't look at a receiver any more."""
        self._receivers.discard(receiver)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self.due_millis = loop.time() * 1000 + LOOK_MILLIS
        self._timer = loop.call_later(LOOK_MILLIS / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        for receiver in tuple(self._receivers):
            receiver.look()
        if self._receivers:
            self._arm()


class ReceiveGuard(Generic[T]):
    """Receives from an iterator with time limits; a context manager for one task.

    Args:
        flow: Flow of the client, which is charged for waits, but not for time in which the broker
            couldn't read.
    """

    def __init__(self, messages: AsyncIterator[T], flow: FlowControl, looks: Looks) -> None:
        self._messages = messages
        self._flow = flow
        self._looks = looks
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "outside of a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._until = 0.0
        self._waiting = False
        self._expired = False

    def __enter__(self) -> ReceiveGuard[T]:
        self._looks.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._looks.remove(self)

    async def next(self, until: float) -> T | None:
        """Return the next message, or None at the end.

        Args:
            until: Latest time, by the loop's clock. The wait ends at the next look after it.

        Raises:
            TimeoutError: No message came in time, or the client is too slow.

        Cancellation: poisons — the iterator can't be used any more.
        """
        self._flow.begin_wait(self._loop.time() * 1000)
        self._until = until
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
        if not self._flow.end_wait(self._looks.due_millis, self._loop.time() * 1000):
            raise TimeoutError
        return message

    def look(self) -> None:
        """End a wait that has lasted too long."""
        now = self._loop.time()
        if self._waiting and (
            self._flow.look(self._looks.due_millis, now * 1000) or now >= self._until
        ):
            self._expired, self._waiting = True, False
            self._task.cancel()
