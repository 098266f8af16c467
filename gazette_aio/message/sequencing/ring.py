"""The ring of messages which a Sequencer retains, over all of its producers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_aio.message.envelopes.envelope import Envelope


class Ring:
    """A window `(low, high]` over the numbers of messages: those up to `low` were evicted.

    The messages themselves are in spans of their producers, each with its number as its `slot`.
    Spans are rid of evicted messages later: once per ring of evictions, rather than by each.

    Args:
        capacity: Number of messages in the window; at least one.
        max_bytes: Limit of the bytes of these messages, if there's one.
    """

    __slots__ = ("_batches", "_bytes", "_max_bytes", "_sweep_at", "capacity", "high", "low")

    def __init__(self, capacity: int, max_bytes: int | None) -> None:
        self.capacity = max(capacity, 1)
        self.high = 0
        self.low = 0
        self._sweep_at = self.capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: deque[tuple[int, int]] = deque()  # (last number, bytes) of each.

    @property
    def is_unswept(self) -> bool:
        """Whether it's time to rid spans of evicted messages."""
        return self.low > self._sweep_at

    def swept(self, producers: int) -> None:
        """Declare that spans of so many producers are rid of evicted messages."""
        # Memory is bounded, and sweeps cost each message little, however many producers there are.
        self._sweep_at = self.low + max(self.capacity, producers)

    def make_room(self) -> bool:
        """Evict the oldest message if the window is full, and return whether it was."""
        if self.high - self.low < self.capacity:
            return False
        self.low += 1
        return True

    def retain(self, span: list[Envelope[Any]], envelope: Envelope[Any]) -> None:
        """Add a message to the window, and to a span."""
        self.high += 1
        envelope.slot = self.high
        span.append(envelope)

    def add_batch(self, size: int) -> None:
        """Count the bytes of messages which were added, and evict whole batches beyond the limit.

        Spans are to be swept at once if that evicted any.
        """
        if self._max_bytes is None:
            return
        batches = self._batches
        batches.append((self.high, size))
        self._bytes += size
        while batches and (self._bytes > self._max_bytes or batches[0][0] <= self.low):
            last, dropped = batches.popleft()
            self._bytes -= dropped
            if last > self.low:
                self.low = last
                self._sweep_at = last - 1
