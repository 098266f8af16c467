"""The Sequencer: from messages in the order they were read, to messages in commit order.

It takes all messages of journals, pending ones included, and decides by the table of `rules` which
of them commit. It does no reading of its own: for a transaction that outgrew the ring of retained
messages, it requires a replay of the journal.

Theory of operation. Each producer has its bounds, and a span: its pending messages that the ring
retains. The ring has the spans of the latest messages, in the order these were read; its oldest
entry tells which span loses its first message next. A message that commits others turns the span
into a `_Commit`, which is dequeued before another message is queued. The bounds of its producer
advance as its messages are processed.

Iterators sequence messages by the core instead, which is faster.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from gazette_aio.message.core.rules import (
    ACK,
    BEGIN,
    CLOSE,
    EVICTED,
    MESSAGE,
    NONE,
    NOTHING,
    RETAINED,
    SAME,
    ProducerBounds,
    QueueOutcome,
    rule_of,
    stale_below,
    unseen,
)
from gazette_aio.message.sequencing.checkpoint import (
    ProducerState,
    SequencerCheckpoint,
    as_nanoseconds,
    warn_of_stale,
)
from gazette_aio.protocol.errors import ReplayError, SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from gazette_aio.message.core.rules import PendingAre
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.uuid import ProducerID

_logger = logging.getLogger(__name__)

DEFAULT_BUFFER: Final = 8192
"""Default number of messages that the ring retains."""


class ReplayRange(NamedTuple):
    """Content that must be read again to dequeue a commit."""

    journal: str
    begin: int
    end: int


class _Producer:
    """A producer of a journal."""

    __slots__ = ("bounds", "journal", "producer", "span")

    def __init__(self, journal: str, producer: ProducerID, bounds: ProducerBounds) -> None:
        self.journal = journal
        self.producer = producer
        self.bounds = bounds
        self.span: deque[Envelope[Any]] | None = None
        """The pending messages that are retained, of which the first ones may be evicted."""

    @property
    def pending(self) -> PendingAre:
        """Whether the pending messages are retained."""
        begin, span = self.bounds.begin, self.span
        if begin == -1:
            return NONE
        return RETAINED if span and span[0].begin == begin else EVICTED

    def drop_span(self) -> None:
        """Release the pending messages, which the ring has entries of."""
        if self.span is not None:
            self.span.clear()
            self.span = None


class _Commit:
    """Messages of a producer that commit together, and are dequeued one by one."""

    def __init__(
        self, producer: _Producer, rows: deque[Envelope[Any]], *, replay_required: bool
    ) -> None:
        self.producer = producer
        self.rows = rows
        """Retained messages that remain. The last one is the committing message."""
        self.last = rows[-1]
        self.replay_required = replay_required
        self.is_replaying = False

    def is_next(self, envelope: Envelope[Any]) -> bool:
        """Return whether a message is the commit's next one, or follows it."""
        low, high, _ = self.producer.bounds
        return low < envelope.clock <= high

    def skip(self) -> None:
        """Drop retained messages that aren't delivered, up to the next one that is."""
        rows, (low, high, _) = self.rows, self.producer.bounds
        while rows and not low < rows[0].clock <= high:
            rows.popleft()

    def processed(self, envelope: Envelope[Any]) -> None:
        """Declare a message processed, and those before it."""
        producer = self.producer
        producer.bounds = ProducerBounds(envelope.clock, producer.bounds.max, envelope.begin)

    def check_replayed(self, envelope: Envelope[Any]) -> None:
        """Raise ReplayError if a message isn't of the content to read again."""
        journal, begin, end = self.producer.journal, self.producer.bounds.begin, self.rows[0].begin
        if envelope.journal != journal:
            raise ReplayError(f"replay of wrong journal ({envelope.journal}; expected {journal})")
        if envelope.begin < begin:
            raise ReplayError(f"replay has wrong Begin ({envelope.begin}; expected >= {begin})")
        if envelope.end > end:
            raise ReplayError(f"replay has wrong End ({envelope.end}; expected <= {end})")


class Sequencer:
    """Sequences messages of any number of journals into their committed order.

    Args:
        offsets: Offsets read through, by journal. Copied.
        producers: States of producers, as of a checkpoint.
        buffer: Number of messages that the ring retains, over all producers; at least one.
    """

    def __init__(
        self,
        offsets: Mapping[str, int] | None = None,
        producers: Iterable[ProducerState] = (),
        *,
        buffer: int = DEFAULT_BUFFER,
    ) -> None:
        self.dequeued: Envelope[Any] | None = None
        """The committed message delivered by the last `step()` or `offer_replay()`, or None."""
        self._offsets: dict[str, int] = dict(offsets or {})
        self._producers: dict[str, dict[ProducerID, _Producer]] = {}  # By journal.
        self._pending: set[_Producer] = set()  # Whose spans began since the last checkpoint.
        self._capacity = max(buffer, 1)
        self._ring: deque[deque[Envelope[Any]]] = deque()
        self._commit: _Commit | None = None
        for state in producers:
            known = _Producer(state.journal, state.producer, state.bounds)
            self._producers.setdefault(state.journal, {})[state.producer] = known

    @classmethod
    def from_checkpoint(
        cls, checkpoint: SequencerCheckpoint, *, buffer: int = DEFAULT_BUFFER
    ) -> Self:
        """Return a Sequencer that resumes from `checkpoint`."""
        return cls(checkpoint.offsets, checkpoint.producers, buffer=buffer)

    @property
    def offsets(self) -> dict[str, int]:
        """Offsets read through, by journal: a copy."""
        return dict(self._offsets)

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint, and hasn't ended."""
        return bool(self._pending)

    @property
    def emitting(self) -> bool:
        """Whether a commit is being dequeued."""
        return self._commit is not None

    @property
    def replay_required(self) -> bool:
        """Whether the commit being dequeued waits for `start_replay()`."""
        return self._commit is not None and self._commit.replay_required

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} journals={len(self._offsets)} "
            f"producers={sum(map(len, self._producers.values()))} "
            f"ring={len(self._ring)}/{self._capacity} emitting={self.emitting}>"
        )

    def forget(self, journal: str) -> None:
        """Forget the offset and all producers of a journal, which was created anew.

        A commit of the journal that is being dequeued is dropped.
        """
        self._offsets.pop(journal, None)
        for producer in self._producers.pop(journal, {}).values():
            producer.drop_span()
            self._pending.discard(producer)
        if self._commit is not None and self._commit.producer.journal == journal:
            self._drop_commit(self._commit)

    def queue_uncommitted(self, envelope: Envelope[Any]) -> QueueOutcome:
        """Queue a message that was read.

        If the outcome is a commit, it must be dequeued before the next message is queued.

        Raises:
            SequencerStateError: A commit wasn't fully dequeued.
        """
        if self._commit is not None:
            raise SequencerStateError("committed messages remain to dequeue")
        # Invariant: a full ring evicts a message even if the new message is then dropped.
        if len(self._ring) == self._capacity and (oldest := self._ring.popleft()):
            oldest.popleft()
        producer = self._producer_of(envelope)
        bounds, clock, flags = producer.bounds, envelope.clock, envelope.flags
        rule = rule_of(bounds, flags, clock, producer.pending)
        if rule.warning is not None:
            _log(rule.warning, envelope)
        if rule.commits is NOTHING:
            if rule.then is CLOSE:
                self._close(producer, clock)
            elif rule.then is not SAME:
                begin = bounds.begin
                if rule.then is BEGIN:
                    begin = envelope.begin
                    self._pending.add(producer)
                producer.bounds = ProducerBounds(bounds.min, clock, begin)
                self._retain(producer, envelope)
            self._offsets[envelope.journal] = envelope.end
            return rule.outcome
        begin = bounds.begin
        if rule.commits is MESSAGE:
            producer.drop_span()
            begin = envelope.begin
        # The bounds follow as the commit is dequeued: until then, `max` is its last clock.
        producer.bounds = ProducerBounds(bounds.min, clock, begin)
        rows = self._retain(producer, envelope)
        producer.span = None
        replay = rule.outcome is QueueOutcome.ACK_COMMIT_REPLAY
        self._commit = _Commit(producer, rows, replay_required=replay)
        return rule.outcome

    def _producer_of(self, envelope: Envelope[Any]) -> _Producer:
        journal, producer, clock = envelope.journal, envelope.producer, envelope.clock
        if clock == 0:
            return _Producer(journal, producer, unseen(0))  # Isn't tracked.
        if envelope.flags > ACK:
            _log("message has unexpected flags", envelope)
        producers = self._producers.setdefault(journal, {})
        known = producers.get(producer)
        if known is None:
            known = producers[producer] = _Producer(journal, producer, unseen(clock))
        return known

    def _retain(self, producer: _Producer, envelope: Envelope[Any]) -> deque[Envelope[Any]]:
        """Add a message to its producer's span and to the ring, and return the span."""
        span = producer.span
        if span is None:
            span = producer.span = deque()
        span.append(envelope)
        self._ring.append(span)
        return span

    def _close(self, producer: _Producer, clock: int) -> None:
        """Mark messages of a producer up to `clock` done, and none pending."""
        producer.bounds = ProducerBounds(clock, clock, -1)
        producer.drop_span()
        self._pending.discard(producer)

    def _end_commit(self, commit: _Commit) -> None:
        """Declare a commit processed."""
        self._offsets[commit.producer.journal] = commit.last.end
        self._close(commit.producer, commit.producer.bounds.min)
        self._drop_commit(commit)

    def _drop_commit(self, commit: _Commit) -> None:
        commit.rows.clear()
        self._commit = self.dequeued = None

    def _require_commit(self) -> _Commit:
        if self._commit is None:
            raise SequencerStateError("emit == nil")
        return self._commit

    def step(self) -> bool:
        """Declare `dequeued` processed, and dequeue the next message of the commit.

        Returns:
            Whether there's another message, which is then `dequeued`.

        Raises:
            SequencerStateError: A replay is required or in progress.
        """
        self._settle_dequeued()
        commit = self._commit
        if commit is None:
            return False
        if commit.replay_required:
            raise SequencerStateError("caller was required to StartReplay, and didn't")
        if commit.is_replaying:
            raise SequencerStateError("replay isn't finished")
        commit.skip()
        if not commit.rows:
            self._end_commit(commit)
            return False
        self._dequeue(commit, commit.rows.popleft())
        return True

    def _dequeue(self, commit: _Commit, envelope: Envelope[Any]) -> None:
        # Messages before it were processed, or don't belong to the commit.
        low, high, _ = commit.producer.bounds
        commit.producer.bounds = ProducerBounds(low, high, envelope.begin)
        self.dequeued = envelope

    def _settle_dequeued(self) -> None:
        """Declare `dequeued` processed, and the commit if nothing of it is left to deliver."""
        if self.dequeued is None or self._commit is None:
            return
        commit = self._commit
        commit.processed(self.dequeued)
        self.dequeued = None
        if not commit.is_replaying:
            commit.skip()
            if not commit.rows:
                self._end_commit(commit)

    def replay_range(self) -> ReplayRange:
        """Return the content that must be read again.

        Raises:
            SequencerStateError: No commit is being dequeued, or it's fully dequeued.
        """
        commit = self._require_commit()
        if not commit.rows:
            raise SequencerStateError("no message of the ring remains to dequeue")
        producer = commit.producer
        return ReplayRange(producer.journal, producer.bounds.begin, commit.rows[0].begin)

    def start_replay(self) -> None:
        """Declare that messages of `replay_range()` follow through `offer_replay()`.

        Raises:
            SequencerStateError: No commit is being dequeued, or it's fully dequeued.
        """
        self.replay_range()
        commit = self._require_commit()
        commit.replay_required, commit.is_replaying = False, True

    def offer_replay(self, envelope: Envelope[Any]) -> bool:
        """Take a message of the replay, after declaring `dequeued` processed.

        Returns:
            Whether the message belongs to the commit. If so, it's now `dequeued`.

        Raises:
            ReplayError: The message isn't in the replayed range.
            SequencerStateError: No replay is in progress.
        """
        commit = self._require_replay()
        commit.check_replayed(envelope)
        # Invariant: no zero clock is next: such messages were delivered when first read.
        if envelope.producer != commit.producer.producer or not commit.is_next(envelope):
            return False
        self._dequeue(commit, envelope)
        return True

    def finish_replay(self) -> None:
        """Declare the end of the replay: the retained messages of the commit are next.

        Raises:
            SequencerStateError: No replay is in progress.
        """
        self._require_replay().is_replaying = False

    def abort_replay(self) -> None:
        """Require a new replay, of the range that processed messages have narrowed.

        Raises:
            SequencerStateError: No replay is in progress.
        """
        commit = self._require_replay()
        commit.is_replaying, commit.replay_required = False, True

    def _require_replay(self) -> _Commit:
        """Declare `dequeued` processed, and return the commit whose replay is in progress."""
        self._settle_dequeued()
        commit = self._require_commit()
        if not commit.is_replaying:
            raise SequencerStateError("no replay is under way")
        return commit

    def rewind(self) -> int:
        """Give up the commit, whose replay is required or in progress, until it's queued again.

        Processed messages stay processed, and checkpoints are exact. Messages of other journals may
        be queued. The next message of this journal must be the committing one.

        Returns:
            Offset at which the committing message begins.

        Raises:
            SequencerStateError: No replay is required or in progress.
        """
        commit = self._require_commit()
        if not commit.replay_required:
            commit = self._require_replay()
        # Invariant: the span of its producer is empty, so the message requires a replay again.
        self._drop_commit(commit)
        return commit.last.begin

    def checkpoint(
        self,
        prune_horizon: timedelta | int = 0,
        *,
        include_dequeued: bool = False,
        prune_dequeued: bool = False,
    ) -> SequencerCheckpoint:
        """Return the present offsets and producer states, and reset `has_pending`.

        Args:
            prune_horizon: Forget producers whose largest clock is older by this than the newest
                acknowledgement of their journal: nanoseconds, or a timedelta. Zero keeps all.
            include_dequeued: Count the `dequeued` message as processed. By default, a Sequencer
                that resumes from the checkpoint reads it again.
            prune_dequeued: Also forget the producer whose commit is being dequeued, as Gazette
                does. A Sequencer that resumes from the checkpoint misses the rest of the commit.
        """
        if include_dequeued:
            self._settle_dequeued()
        spared = None if prune_dequeued or self._commit is None else self._commit.producer
        self._prune(as_nanoseconds(prune_horizon), spared)
        self._pending.clear()
        states = [
            ProducerState.of(journal, each.producer, each.bounds)
            for journal, producers in self._producers.items()
            for each in producers.values()
        ]
        return SequencerCheckpoint(self.offsets, tuple(states))

    def _prune(self, horizon_ns: int, spared: _Producer | None) -> None:
        """Forget stale producers, except for one; none if the horizon is zero."""
        for journal, producers in self._producers.items() if horizon_ns > 0 else ():
            newest = max((each.bounds.min for each in producers.values()), default=0)
            bound = stale_below(newest, horizon_ns)
            for each in [each for each in producers.values() if each.bounds.max < bound]:
                if each is not spared:
                    warn_of_stale(journal, each.producer, each.bounds.begin)
                    del producers[each.producer]
                    self._pending.discard(each)


def _log(text: str, envelope: Envelope[Any]) -> None:
    extra = {"journal": envelope.journal, "begin": envelope.begin, "flags": int(envelope.flags)}
    _logger.error(text, extra=extra)
