"""Runs of messages whose commits are determined at once, and dequeued together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.producer import Producer
from gazette_aio.message.sequencing.rules import ACK, CONTINUE, EVICTED, OUTSIDE, unseen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.uniform_run import TransactionsRun
    from gazette_aio.message.sequencing.ring import Ring
    from gazette_aio.message.uuid import ProducerID


@dataclass(slots=True)
class CommitRun:
    """Consecutive messages of one journal, and their commits."""

    envelopes: Sequence[Envelope[Any]]
    """Messages that include the run."""
    start: int
    """Index of the run's first message."""
    end: int
    """Index after the run's last message."""
    high: int
    """End of the ring's window after the run."""
    low: int
    """Begin of that window."""
    rows: Sequence[Envelope[Any]]
    """Committed messages, in order."""
    producers: dict[ProducerID, Producer] = field(default_factory=dict["ProducerID", Producer])
    """Producers of the run, in their state after it."""


# Hot: a function that isn't inlined costs each message a call.
def look_ahead(
    envelopes: Sequence[Envelope[Any]],
    start: int,
    producers: Mapping[ProducerID, Producer],
    ring: Ring,
    *,
    transactions: bool = True,
) -> CommitRun:
    """Return the run that begins at a message, with copies of producers.

    It ends before the first message that needs more care: one without a clock, a rollback, one that
    discards pending messages, an acknowledgement of other clocks than the pending ones, of messages
    that left the ring or of whole runs, and one with unknown flags.

    Args:
        envelopes: Messages of one journal.
        start: Index of the first message to look at.
        producers: Producers of the journal.
        ring: The ring before the run.
        transactions: Whether the run includes messages of transactions.
    """
    most_flags = ACK if transactions else OUTSIDE
    capacity, high, low = ring.capacity, ring.high, ring.low
    rows: list[Envelope[Any]] = []
    run = CommitRun(envelopes, start, start, high, low, rows)
    copies = run.producers
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
        # Invariant: a full ring evicts a message even if the new message is then dropped.
        floor = low + 1 if high - low == capacity else low
        if flags == CONTINUE:
            # All pending clocks are at most `max`, which is `min` if nothing is pending.
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
                if state.parts or not span or span[0].slot <= floor or span[0].begin != state.begin:
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


def whole_run(run: TransactionsRun, known: Producer | None, ring: Ring) -> CommitRun | None:
    """Return the commits of a run whose messages all commit in its order; None if any may not.

    Args:
        run: Messages of the producer.
        known: The producer, if it's known.
        ring: The ring before the run.
    """
    first, size = run.clocks[0], len(run)
    journal, _, producer = run.stamp
    state = Producer(journal, producer, unseen(first)) if known is None else known.copy()
    high = ring.high + size
    low = max(ring.low, high - ring.capacity)
    # All clocks that are done or pending are at most `max`.
    if not first or first <= state.max or not run.is_rising or low > ring.high:
        return None
    if state.pending(low) is EVICTED:
        return None
    rows = state.take_before(run)
    state.close(run.clocks[-1])
    return CommitRun(run, 0, size, high, low, rows, {producer: state})
