"""Channel from the readers of a shard to its transactions, bounded by messages and bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.fifo import FIFOBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message import Envelope

DEFAULT_MESSAGES: Final = 8192
"""Default bound of the messages of a channel."""

DEFAULT_BYTES: Final = 64 << 20
"""Bound of the bytes of a channel. A single run of messages may exceed it."""

_journal_of = attrgetter("journal")


@dataclass(frozen=True, slots=True)
class End:
    """The end of a channel: its last element."""

    error: Exception | None = None
    """Why reading ended, if it failed."""


class MessageChannel:
    """Runs of read messages, in the order of their arrival.

    Args:
        on_ready: Called when an element is added.
        messages: Bound of the messages; None for the default.
        size_bytes: Bound of their bytes.
    """

    def __init__(
        self,
        on_ready: Callable[[], object],
        *,
        messages: int | None = None,
        size_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self._on_ready = on_ready
        self._capacity = messages or DEFAULT_MESSAGES
        self._messages = FIFOBudget(self._capacity)
        self._bytes = FIFOBudget(size_bytes)
        self._elements: deque[tuple[Sequence[Envelope[Any]], int] | End] = deque()
        self._has_ended = False

    @property
    def is_ready(self) -> bool:
        """Whether `take()` returns an element."""
        return bool(self._elements)

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
            self._elements.append((envelopes, size))
            self._on_ready()

    def end(self, error: Exception | None = None) -> None:
        """Add the last element, for which there's always room. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._elements.append(End(error))
            self._on_ready()

    def take(self) -> Sequence[Envelope[Any]] | End:
        """Return the next element, of which there must be one."""
        element = self._elements.popleft()
        if isinstance(element, End):
            return element
        envelopes, size = element
        self._messages.release(len(envelopes))
        self._bytes.release(size)
        return envelopes
