"""Runs of messages whose commits are found at once, and dequeued together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.producer import Producer
from gazette_aio.message.sequencing.rules import ACK, CONTINUE, OUTSIDE, unseen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.ring import Ring
    from gazette_aio.message.uuid import ProducerID


@dataclass(slots=True)
class CommitRun:
    """Consecutive messages of one journal, and what becomes of them."""

    envelopes: Sequence[Envelope[Any]]
    """Messages, of which the run is a part."""
    start: int
    """Index of its first message."""
    end: int
    """Index behind its last one."""
    high: int
    """End of the ring's window behind the run."""
    low: int
    """Begin of that window."""
    rows: list[Envelope[Any]] = field(default_factory=list["Envelope[Any]"])
    """What commits, in order."""
    producers: dict[ProducerID, Producer] = field(default_factory=dict["ProducerID", Producer])
    """Producers of the run, as they are behind it."""


# Hot: what isn't inlined costs each message a call.
def look_ahead(
    envelopes: Sequence[Envelope[Any]],
    start: int,
    producers: Mapping[ProducerID, Producer],
    ring: Ring,
    *,
    transactions: bool = True,
) -> CommitRun:
    """Return the run which begins at a message, with copies of producers.

    It ends before the first message which takes more care: one without a clock, a rollback, one
    that discards pending messages, an acknowledgement of other clocks than the pending ones or of
    messages that left the ring, and one of unknown flags.

    Args:
        envelopes: Messages of one journal.
        start: Index of the first message to look at.
        producers: Producers of the journal.
        ring: The ring, as of before.
        transactions: Whether messages of transactions are part of it, too.
    """
    most_flags = ACK if transactions else OUTSIDE
    capacity, high, low = ring.capacity, ring.high, ring.low
    run = CommitRun(envelopes, start, start, high, low)
    copies, rows = run.producers, run.rows
    find = copies.get
    index = start
    for envelope in envelopes[start:]:
        clock, flags, identity = envelope.clock, envelope.flags, envelope.producer
        if not clock or flags > most_flags:
            break
        state = find(identity)
        if state is None:
            known = producers.get(identity)
            if known is None:
                state = Producer(envelope.journal, identity, unseen(clock))
            else:
                state = known.copy()
            copies[identity] = state
        # Invariant: a full ring is evicted from even if the message is then dropped.
        floor = low + 1 if high - low == capacity else low
        if flags == CONTINUE:
            # Whatever is pending has clocks up to `max`; it's `min` if nothing is.
            if clock > state.max:
                if state.begin == -1:
                    state.begin = envelope.begin
                state.max = clock
                high += 1
                envelope.slot = high
                state.span.append(envelope)
        elif flags == ACK:
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
    run.end, run.high, run.low = index, high, low
    return run
