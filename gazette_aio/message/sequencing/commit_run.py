"""Runs of messages whose commits are found at once, and dequeued together.

It's looked ahead with copies of producers' states. Those which count stay as they are until what
commits was processed: all of it, as is usual, or message by message.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.uuid import ProducerID

_OUTSIDE, _CONTINUE, _ACK = 0, 1, 2


class CommitRun:
    """Consecutive messages of one journal, none of which takes more than the ring to commit.

    It ends before the first message which takes more care: one without a clock, a rollback, one
    that discards pending messages, an acknowledgement of other clocks than the pending ones or of
    messages that left the ring, and one of unknown flags.

    Args:
        envelopes: Messages of one journal.
        start: Index of the first message to look at.
        producers: Producers of the journal.
        high: Number of the last message of the ring.
        low: Number of the last message which left the ring.
        capacity: Number of messages which the ring retains.
        transactions: Whether messages of transactions are part of it, too.
    """

    __slots__ = (
        "added_bytes",
        "done",
        "emitted",
        "emitting",
        "end",
        "entered",
        "envelopes",
        "high",
        "low",
        "next",
        "rows",
        "states",
    )

    def __init__(  # noqa: PLR0917
        self,
        envelopes: Sequence[Envelope[Any]],
        start: int,
        producers: Mapping[ProducerID, Producer],
        high: int,
        low: int,
        capacity: int,
        *,
        transactions: bool = True,
    ) -> None:
        self.envelopes = envelopes
        self.rows: list[Envelope[Any]] = []
        """What commits, in order."""
        self.states: dict[ProducerID, Producer] = {}
        """States of producers behind the run."""
        self.high = high
        self.low = low
        most_flags = _ACK if transactions else _OUTSIDE
        self.end = self._look_ahead(start, producers, capacity, most_flags)
        """Index behind the last message."""
        self.added_bytes = 0
        # Where the run is processed message by message:
        self.entered = False
        self.next = start
        """Index of the next message to queue."""
        self.done = 0
        """Number of rows of the commits which are finished."""
        self.emitting: Producer | None = None
        self.emitted: list[Envelope[Any]] = []
        """Rows of the commit which isn't."""

    # Hot: what isn't inlined costs each message a call.
    def _look_ahead(
        self,
        start: int,
        producers: Mapping[ProducerID, Producer],
        capacity: int,
        most_flags: int,
    ) -> int:
        states, rows, high, low = self.states, self.rows, self.high, self.low
        find = states.get
        index = start
        for envelope in islice(self.envelopes, start, None):
            clock, flags, producer = envelope.clock, envelope.flags, envelope.producer
            if not clock or flags > most_flags:
                break
            state = find(producer)
            if state is None:
                known = producers.get(producer)
                if known is None:
                    state = Producer(envelope.journal, producer, clock - 1)
                else:
                    state = known.copy()
                states[producer] = state
            # Invariant: a full ring is evicted from even if the message is then dropped.
            floor = low + 1 if high - low == capacity else low
            if flags == _CONTINUE:
                # Whatever is pending has clocks up to `max`; it's `min` if nothing is.
                if clock > state.max:
                    if state.begin == -1:
                        state.begin = envelope.begin
                    state.max = clock
                    high += 1
                    envelope.slot = high
                    state.span.append(envelope)
            elif flags == _ACK:
                if clock <= state.max:
                    break
                if state.begin != -1:
                    span = state.span
                    if not span or span[0].slot <= floor or span[0].begin != state.begin:
                        break
                    rows += span
                    state.span = []
                    state.begin = -1
                rows.append(envelope)
                high += 1
                state.min = state.max = clock
            elif clock > state.min:
                if state.begin != -1:
                    break
                rows.append(envelope)
                high += 1
                state.min = state.max = clock
            low = floor
            index += 1
        self.high, self.low = high, low
        return index
