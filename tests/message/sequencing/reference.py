"""A Sequencer in its plainest form: the table of rules, applied to one message after the other."""

from __future__ import annotations

from collections import deque

from gazette_aio.message.core.rules import Commits, ProducerBounds, Then, step, unseen
from gazette_aio.message.sequencing.checkpoint import ProducerState


class Reference:
    """What becomes of messages, by the table alone.

    Args:
        log: All messages of all journals: those which are read again are looked up in it.
        ring: Number of messages which are retained, at least one; by default, all are.
        checkpoint: Offsets and states to go on from.
    """

    def __init__(self, log, ring=None, checkpoint=None):
        self.log = log
        self.bounds = {}  # By journal and producer.
        self.offsets = {}
        self.pending = set()  # Whose pending messages began since the last checkpoint.
        self._spans = {}  # The pending messages which are retained.
        self._ring = deque()
        self._capacity = None if ring is None else max(ring, 1)
        if checkpoint is not None:
            self.offsets = dict(checkpoint.offsets)
            self.bounds = {(s.journal, s.producer): s.bounds for s in checkpoint.producers}

    def copy(self):
        """Return one which goes on from here, apart from this one."""
        copy = Reference(self.log, self._capacity)
        copy.bounds, copy.offsets = dict(self.bounds), dict(self.offsets)
        copy.pending, copy._ring = set(self.pending), deque(self._ring)
        copy._spans = {key: list(span) for key, span in self._spans.items()}
        return copy

    def queue(self, row):
        """Return the rule which a message is of, and the messages which it commits."""
        if len(self._ring) == self._capacity:
            evicted_of, evicted = self._ring.popleft()
            if self._spans[evicted_of][:1] == [evicted]:
                del self._spans[evicted_of][0]
        key = row.journal, row.producer
        before = self.bounds.get(key) or unseen(row.clock)
        span = self._spans.setdefault(key, [])
        is_whole = bool(span) and span[0].begin == before.begin
        rule, after = step(before, int(row.flags), row.clock, row.begin, retained=is_whole)
        delivered = []
        if rule.commits is Commits.MESSAGE:
            delivered = [row]
        elif rule.commits is Commits.SPAN:
            again = [] if is_whole else self._again(row, before, span)
            low = before.min
            for candidate in [*again, *span, row]:
                if low < candidate.clock <= row.clock:
                    low = candidate.clock
                    delivered.append(candidate)
        if rule.then in {Then.BEGIN, Then.EXTEND}:
            span.append(row)
        if delivered or rule.then in {Then.BEGIN, Then.EXTEND}:
            self._ring.append((key, row))
        if row.clock or key in self.bounds:
            self.bounds[key] = after
        if rule.then is Then.BEGIN:
            self.pending.add(key)
        elif rule.then is Then.CLOSE:
            self.pending.discard(key)
            span.clear()
        self.offsets[row.journal] = row.end
        return rule, delivered

    def _again(self, ack, bounds, span):
        """Return the messages of a producer which are read again, before those retained."""
        end = span[0].begin if span else ack.begin
        return [
            row
            for row in self.log
            if (row.journal, row.producer) == (ack.journal, ack.producer)
            and bounds.begin <= row.begin < end
            and row.clock
        ]

    def checkpoint(self):
        """Return the offsets, and the states of producers."""
        return self.offsets, states_of(self.bounds)

    def within(self, row, count):
        """Return the checkpoint within the commit of a row, of which so many were processed."""
        rule, delivered = self.copy().queue(row)
        key, bounds = (row.journal, row.producer), dict(self.bounds)
        low, _, begin = self.bounds.get(key) or unseen(row.clock)
        if count:
            low, begin = delivered[count - 1].clock, delivered[count - 1].begin
        elif rule.commits is Commits.MESSAGE:
            begin = row.begin
        if row.clock:
            bounds[key] = ProducerBounds(low, row.clock, begin)
        return self.offsets, states_of(bounds)


def states_of(bounds):
    """Return states of producers as a set, so that their order doesn't matter."""
    states = {
        ProducerState.of(journal, producer, known) for (journal, producer), known in bounds.items()
    }
    assert len(states) == len(bounds)
    return states


def states_in(checkpoint):
    """Return offsets and states of a checkpoint, as those of a Reference."""
    states = set(checkpoint.producers)
    assert len(states) == len(checkpoint.producers)
    return checkpoint.offsets, states
