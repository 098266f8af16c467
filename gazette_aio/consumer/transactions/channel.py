"""Channel from the readers of a shard to its transactions, bounded by messages and bytes."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.fifo import FIFOBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message import Envelope

DEFAULT_MESSAGES: Final = 8192
"""Default bound of the messages of a channel."""

MOST_BYTES: Final = 64 << 20
"""Bound of the bytes of a channel. A single run of messages may exceed it."""

_journal_of = attrgetter("journal")


class MessageChannel:
    """Runs of read messages, in the order of their arrival.

    Args:
        on_ready: Called when there's something to take.
        messages: Bound of the messages; 0 for the default.
    """

    def __init__(
        self,
        on_ready: Callable[[], object],
        messages: int,
    ) -> None:
        self._on_ready = on_ready
        self._capacity = messages or DEFAULT_MESSAGES
        self._messages = FIFOBudget(self._capacity)
        self._bytes = FIFOBudget(MOST_BYTES)
        self._runs: deque[tuple[Sequence[Envelope[Any]], int]] = deque()
        self._has_ended = False
        self._error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `take()` may be called."""
        return self._has_ended or bool(self._runs)

    async def send(self, envelopes: Sequence[Envelope[Any]], /) -> None:
        """Add messages, and wait while there's no room for them.

        Cancellation: aborts — some of the messages were added.
        """
        for _, some in groupby(envelopes, _journal_of):
            await self.send_run(list(some))

    async def send_run(self, envelopes: Sequence[Envelope[Any]]) -> None:
        """Add messages of one journal, and wait while there's no room for them.

        Cancellation: aborts — some of the messages were added.
        """
        if len(envelopes) > self._capacity:
            for at in range(0, len(envelopes), self._capacity):
                await self.send_run(envelopes[at : at + self._capacity])
            return
        # They may not be in the order of their offsets.
        count, size = len(envelopes), max(envelopes[-1].end - envelopes[0].begin, 0)
        await self._messages.acquire(count)
        try:
            await self._bytes.acquire(size)
        except BaseException:
            self._messages.release(count)
            raise
        if not self._has_ended:
            self._runs.append((envelopes, size))
            self._on_ready()

    def end(self, error: Exception | None = None) -> None:
        """End after the messages so far: take no more of them.

        Args:
            error: Why reading ended, if it failed.
        """
        self._has_ended, self._error = True, error
        self._on_ready()

    def take(self) -> Sequence[Envelope[Any]] | None:
        """Return the next messages, which are of one journal; or None at the end.

        Raises:
            Exception: The error that reading ended by.
        """
        if not self._runs:
            if self._error is not None:
                raise self._error
            return None
        envelopes, size = self._runs.popleft()
        self._messages.release(len(envelopes))
        self._bytes.release(size)
        return envelopes
