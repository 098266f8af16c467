"""Producers of all journals that a Sequencer reads, and the effect of each message on them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.emission import Emission
from gazette_aio.message.sequencing.outcome import QueueOutcome
from gazette_aio.message.sequencing.producer import PendingRun, Producer, stale_below, warn_of_stale
from gazette_aio.message.sequencing.rules import (
    ACK,
    BEGIN,
    CLOSE,
    CONTINUE,
    MESSAGE,
    NOTHING,
    SAME,
    rule_of,
    unseen,
)
from gazette_aio.message.uuid import ProducerID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.uniform_run import UniformRun
    from gazette_aio.message.sequencing.checkpoint import ProducerState
    from gazette_aio.message.sequencing.commit_run import CommitRun
    from gazette_aio.message.sequencing.ring import Ring

_logger = logging.getLogger(__name__)


class ProducerTable:
    """Offsets read through, producers by journal, and the ring of their pending messages.

    Args:
        offsets: Offsets read through, by journal. Copied.
        states: States of producers, as of a checkpoint.
        ring: The ring.
    """

    def __init__(
        self, offsets: Mapping[str, int], states: Iterable[ProducerState], ring: Ring
    ) -> None:
        self.offsets: dict[str, int] = dict(offsets)
        self.journals: dict[str, dict[ProducerID, Producer]] = {}
        self.pending: set[Producer] = set()
        """Producers whose pending messages began since the last checkpoint."""
        self.ring = ring
        for state in states:
            known = Producer(state.journal, state.producer, state.bounds)
            self.of(state.journal)[state.producer] = known

    def of(self, journal: str) -> dict[ProducerID, Producer]:
        """Return the producers of a journal."""
        return self.journals.setdefault(journal, {})

    def find(self, journal: str, producer: bytes) -> Producer | None:
        """Return a producer, or None if it's unknown."""
        return self.journals.get(journal, {}).get(ProducerID(bytes(producer)))

    def forget(self, journal: str) -> None:
        """Forget a journal."""
        self.offsets.pop(journal, None)
        self.pending.difference_update(self.journals.pop(journal, {}).values())

    def queue(self, envelope: Envelope[Any]) -> tuple[QueueOutcome, Emission | None]:
        """Return the outcome of a message, and its commit."""
        # Invariant: a full ring evicts a message even if the new message is then dropped.
        ring = self.ring
        if ring.make_room():
            self._sweep()
        journal, clock, flags = envelope.journal, envelope.clock, envelope.flags
        if clock == 0:
            state = Producer(journal, envelope.producer, unseen(1))  # Isn't tracked.
        else:
            producers = self.journals.get(journal) or self.of(journal)
            known = producers.get(envelope.producer)
            if known is None:
                known = Producer(journal, envelope.producer, unseen(clock))
                producers[envelope.producer] = known
            state = known
            if flags > ACK:
                self._log("message has unexpected flags", envelope)
        rule = rule_of(state, flags, clock, state.pending(ring.low))
        if rule.warning is not None:
            self._log(rule.warning, envelope)
        if rule.commits is NOTHING:
            then = rule.then
            if then is CLOSE:
                self._close(state, clock)
            elif then is not SAME:
                ring.retain(envelope)
                state.span.append(envelope)
                state.max = clock
                if then is BEGIN:
                    state.begin = envelope.begin
                    self.pending.add(state)
            self.offsets[journal] = envelope.end
            return rule.outcome, None
        if rule.commits is MESSAGE:
            state.drop()
            state.begin = envelope.begin
        ring.retain(envelope)
        # The bounds follow after the commit is dequeued: until then, `max` is its last clock.
        state.max = clock
        rows = state.take(envelope)
        replay = rule.outcome is QueueOutcome.ACK_COMMIT_REPLAY
        return rule.outcome, Emission(state, rows, replay_required=replay)

    def extend(self, run: UniformRun) -> bool:
        """Queue a run if it extends or begins a transaction as a whole; return whether it does."""
        stamp, first = run.stamp, run.clocks[0]
        if run.flags != CONTINUE or not first or not run.is_rising:
            return False
        producers = self.of(stamp.journal)
        state = producers.get(stamp.producer)
        if state is None:
            state = producers[stamp.producer] = Producer(
                stamp.journal, stamp.producer, unseen(first)
            )
        elif first <= state.max:
            return False
        if state.begin == -1:
            state.begin = run.begin
            self.pending.add(state)
        state.max = run.clocks[-1]
        state.add_run(PendingRun(self.ring.retain_all(len(run)), run))
        self.offsets[stamp.journal] = run.end
        self._sweep()
        return True

    def extend_spans(self, envelopes: Sequence[Envelope[Any]], start: int) -> int:
        """Queue messages of one journal while they're pending ones of open transactions.

        Returns:
            Index of the first other message.
        """
        journal = envelopes[start].journal
        find = self.of(journal).get
        ring = self.ring
        capacity, high, low = ring.capacity, ring.high, ring.low
        index, stop = start, len(envelopes)
        # Hot: a function that isn't inlined costs each message a call.
        while index < stop:
            envelope = envelopes[index]
            clock = envelope.clock
            state = find(envelope.producer)
            if envelope.flags != CONTINUE or not clock or state is None or state.begin == -1:
                break
            if high - low == capacity:
                low += 1
            if clock > state.max:
                high += 1
                envelope.slot = high
                state.max = clock
                state.span.append(envelope)
            index += 1
        ring.high, ring.low = high, low
        if index > start:
            self.offsets[journal] = envelopes[index - 1].end
            self._sweep()
        return index

    def finish(self, emission: Emission) -> None:
        """Declare a commit processed."""
        self.offsets[emission.journal] = emission.end
        self._close(emission.producer, emission.producer.min)

    def _close(self, state: Producer, clock: int) -> None:
        state.close(clock)
        self.pending.discard(state)

    def apply(self, run: CommitRun) -> None:
        """Adopt the producers of a run that is processed as a whole."""
        self.ring.high, self.ring.low = run.high, run.low
        last = run.envelopes[run.end - 1]
        self.offsets[last.journal] = last.end
        producers = self.of(last.journal)
        for producer, state in run.producers.items():
            known = producers.get(producer)
            is_pending = known in self.pending
            if known is not None and is_pending:
                self.pending.discard(known)
            if state.begin != -1 and (is_pending or known is None or known.begin != state.begin):
                self.pending.add(state)
            producers[producer] = state
        self._sweep()

    def add_batch(self, size: int) -> None:
        """Count the bytes of queued messages."""
        self.ring.add_batch(size)
        self._sweep()

    def prune(self, horizon_ns: int, is_spared: Callable[[Producer], bool] | None) -> None:
        """Forget stale producers; none if the horizon is zero.

        Args:
            horizon_ns: Age of stale producers relative to their journal's newest `min`.
            is_spared: Whether a stale producer is kept.
        """
        for journal, producers in self.journals.items() if horizon_ns > 0 else ():
            newest = max((state.min for state in producers.values()), default=0)
            bound = stale_below(newest, horizon_ns)
            for state in [state for state in producers.values() if state.max < bound]:
                if is_spared is None or not is_spared(state):
                    warn_of_stale(journal, state.producer, state.begin)
                    del producers[state.producer]
                    self.pending.discard(state)

    def _sweep(self) -> None:
        if self.ring.is_unswept:
            tracked = [
                state for producers in self.journals.values() for state in producers.values()
            ]
            for state in tracked:
                state.trim(self.ring.low)
            self.ring.swept(len(tracked))

    def _log(self, text: str, envelope: Envelope[Any]) -> None:
        extra = {"journal": envelope.journal, "begin": envelope.begin, "flags": int(envelope.flags)}
        _logger.error(text, extra=extra)
