"""States of messages in a journal, as a reader of committed messages sees them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from gazette_aio.message.core.rules import ACK, ProducerBounds, QueueOutcome, step, unseen
from gazette_aio.message.uuid import get_clock, get_flags, get_producer_id

if TYPE_CHECKING:
    from uuid import UUID

State = Literal["committed", "pending", "rolled-back", "duplicate", "acknowledgement", "plain"]
"""A `plain` message has no UUID, or no clock: it takes no part in transactions."""

_DUPLICATES: Final = frozenset(
    {
        QueueOutcome.OUTSIDE_ALREADY_ACKED,
        QueueOutcome.CONTINUE_ALREADY_ACKED,
        QueueOutcome.CONTINUE_TXN_CLOCK_LARGER,
    }
)
_COMMITS: Final = frozenset({QueueOutcome.ACK_COMMIT_RING, QueueOutcome.ACK_COMMIT_REPLAY})


class Settled(NamedTuple):
    """A pending message whose transaction has ended."""

    begin: int
    """Offset of the message's first byte."""
    state: State | Literal["unreadable"]


class _Producer:
    __slots__ = ("bounds", "pending")

    def __init__(self, bounds: ProducerBounds) -> None:
        self.bounds = bounds
        self.pending: dict[int, int] = {}
        """Clocks of pending messages, by offset."""


class MessageStates:
    """States of the messages of one journal, read from some offset on.

    Messages before that offset are ignored, although a transaction may have begun there. Memory is
    bounded: beyond `most_pending`, the oldest pending messages are forgotten, and stay pending.

    Args:
        most_pending: Most pending messages to remember.
        most_producers: Most producers to remember.
    """

    def __init__(self, most_pending: int = 2000, most_producers: int = 1000) -> None:
        self._most_pending = most_pending
        self._most_producers = most_producers
        self._producers: OrderedDict[bytes, _Producer] = OrderedDict()
        self._pending: deque[tuple[_Producer, int]] = deque()

    def take(self, begin: int, uuid: UUID) -> tuple[State, list[Settled]]:
        """Take the next message.

        Args:
            begin: Offset of the message's first byte.
            uuid: UUID of the message, or the zero UUID.

        Returns:
            The message's state, and the final states of earlier messages that were pending.
        """
        clock, flags = get_clock(uuid), get_flags(uuid)
        if not clock or not uuid.int:
            return "plain", []
        producer = self._producer(get_producer_id(uuid), clock)
        rule, producer.bounds = step(producer.bounds, flags, clock, begin)
        if rule.outcome in _DUPLICATES:
            return "duplicate", []
        if producer.bounds.begin != -1:
            self._add(producer, begin, clock)
            return "pending", []
        commits_to = clock if rule.outcome in _COMMITS else -1
        settled = [
            Settled(at, "committed" if its_clock <= commits_to else "rolled-back")
            for at, its_clock in producer.pending.items()
        ]
        producer.pending.clear()
        return ("acknowledgement" if flags == ACK else "committed"), settled

    def _producer(self, name: bytes, clock: int) -> _Producer:
        producer = self._producers.get(name)
        if producer is None:
            producer = self._producers[name] = _Producer(unseen(clock))
            if len(self._producers) > self._most_producers:
                self._producers.popitem(last=False)
        else:
            self._producers.move_to_end(name)
        return producer

    def _add(self, producer: _Producer, begin: int, clock: int) -> None:
        producer.pending[begin] = clock
        self._pending.append((producer, begin))
        if len(self._pending) > self._most_pending:
            eldest, at = self._pending.popleft()
            eldest.pending.pop(at, None)
