"""Ring of the messages that a Sequencer retains, over all of its producers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_aio.message.envelopes.envelope import Envelope


class Ring:
    """A window `(low, high]` over the numbers of messages: messages up to `low` were evicted.

    The messages themselves are in spans of their producers, each with its number as its `slot`.
    Evicted messages are removed from spans later: once per ring of evictions, not at each one.

    Args:
        capacity: Number of messages in the window; at least one.
        max_bytes: Limit of the bytes of these messages, if any.
    """

    def __init__(self, capacity: int, max_bytes: int | None) -> None:
        self.capacity: int = max(capacity, 1)
        self.high: int = 0
        self.low: int = 0
        self._sweep_at = self.capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: deque[tuple[int, int]] = deque()  # (last number, bytes) of each.

    @property
    def is_unswept(self) -> bool:
        """Whether evicted messages are due to be removed from spans."""
        return self.low > self._sweep_at

    def swept(self, producers: int) -> None:
        """Declare that evicted messages were removed from the spans of `producers` producers."""
        # This bounds memory, and sweeps cost little per message for any number of producers.
        self._sweep_at = self.low + max(self.capacity, producers)

    def make_room(self) -> bool:
        """Evict the oldest message if the window is full, and return whether it was."""
        if self.high - self.low < self.capacity:
            return False
        self.low += 1
        return True

    def retain(self, envelope: Envelope[Any]) -> None:
        """Add a message to the window."""
        self.high += 1
        envelope.slot = self.high

    def add_batch(self, size: int) -> None:
        """Count the bytes of added messages, and evict whole batches beyond the limit.

        If batches were evicted, spans must be swept at once.
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
