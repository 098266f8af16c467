"""Producers of all journals that a Sequencer reads, and the effect of each message on them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.emission import Emission
from gazette_aio.message.sequencing.outcome import QueueOutcome
from gazette_aio.message.sequencing.producer import Producer, stale_below, warn_of_stale
from gazette_aio.message.sequencing.rules import (
    ACK,
    BEGIN,
    CLOSE,
    MESSAGE,
    NOTHING,
    SAME,
    rule_of,
    unseen,
)
from gazette_aio.message.uuid import ProducerID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.checkpoint import ProducerState
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
            state.span = []
            state.begin = envelope.begin
        ring.retain(envelope)
        # The bounds follow after the commit is dequeued: until then, `max` is its last clock.
        state.max = clock
        rows = state.take(envelope)
        replay = rule.outcome is QueueOutcome.ACK_COMMIT_REPLAY
        return rule.outcome, Emission(state, rows, replay_required=replay)

    def finish(self, emission: Emission) -> None:
        """Declare a commit processed."""
        self.offsets[emission.journal] = emission.end
        self._close(emission.producer, emission.producer.min)

    def _close(self, state: Producer, clock: int) -> None:
        state.close(clock)
        self.pending.discard(state)

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
