"""The Sequencer: from messages in the order they were read, to messages in commit order.

It takes all messages of journals, pending ones included, and decides which of them commit. It does
no reading of its own: for a transaction that outgrew the ring of retained messages, it requires a
replay of the journal.

Theory of operation. `rules` has the rule, as a table. The parts that apply the rule:

- a ProducerTable applies it to each message, and holds the bounds of producers;
- a Ring limits the pending messages that all producers retain;
- an Emission holds the messages that a message commits. It's dequeued before another message is
  queued, by `take()` and `settle()`, or message by message by `step()` and `offer_replay()`. It
  advances the bounds of its producer as its messages are processed.

Iterators sequence messages by the core instead, which is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint
from gazette_aio.message.sequencing.producer import as_nanoseconds
from gazette_aio.message.sequencing.producer_table import ProducerTable
from gazette_aio.message.sequencing.ring import Ring
from gazette_aio.protocol.errors import SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import timedelta

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.emission import Emission
    from gazette_aio.message.sequencing.outcome import QueueOutcome, ReplayRange

DEFAULT_BUFFER = 8192
"""Default number of messages that the ring retains."""


class Sequencer:
    """Sequences messages of any number of journals into their committed order.

    Args:
        offsets: Offsets read through, by journal. Copied.
        producers: States of producers, as of a checkpoint.
        buffer: Number of messages that the ring retains, over all producers; at least one.
        buffer_bytes: Limit of the bytes of messages that the ring retains, if any.
    """

    def __init__(
        self,
        offsets: Mapping[str, int] | None = None,
        producers: Iterable[ProducerState] = (),
        *,
        buffer: int = DEFAULT_BUFFER,
        buffer_bytes: int | None = None,
    ) -> None:
        self.dequeued: Envelope[Any] | None = None
        """The committed message delivered by the last `step()` or `offer_replay()`, or None."""
        self._ring = Ring(buffer, buffer_bytes)
        self._table = ProducerTable(offsets or {}, producers, self._ring)
        self._emission: Emission | None = None

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: SequencerCheckpoint,
        *,
        buffer: int = DEFAULT_BUFFER,
        buffer_bytes: int | None = None,
    ) -> Self:
        """Return a Sequencer that resumes from `checkpoint`."""
        return cls(
            checkpoint.offsets, checkpoint.producers, buffer=buffer, buffer_bytes=buffer_bytes
        )

    @property
    def offsets(self) -> dict[str, int]:
        """Offsets read through, by journal: a copy."""
        return dict(self._table.offsets)

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint, and hasn't ended."""
        return bool(self._table.pending)

    @property
    def emitting(self) -> bool:
        """Whether a commit is being dequeued."""
        return self._emission is not None

    @property
    def replay_required(self) -> bool:
        """Whether the commit being dequeued waits for `start_replay()`."""
        return self._emission is not None and self._emission.replay_required

    def __repr__(self) -> str:
        table, ring = self._table, self._ring
        return (
            f"<{type(self).__name__} journals={len(table.offsets)} "
            f"producers={sum(map(len, table.journals.values()))} "
            f"ring={ring.high - ring.low}/{ring.capacity} emitting={self.emitting}>"
        )

    def forget(self, journal: str) -> None:
        """Forget the offset and all producers of a journal, which was created anew.

        A commit of the journal that is being dequeued is dropped.
        """
        self._table.forget(journal)
        if self._emission is not None and self._emission.journal == journal:
            self._emission = self.dequeued = None

    def queue_uncommitted(self, envelope: Envelope[Any]) -> QueueOutcome:
        """Queue a message that was read.

        If the outcome is a commit, it must be dequeued before the next message is queued.

        Raises:
            SequencerStateError: A commit wasn't fully dequeued.
        """
        self._require_dequeued()
        outcome, self._emission = self._table.queue(envelope)
        self._table.add_batch(envelope.end - envelope.begin)
        return outcome

    def _require_dequeued(self) -> None:
        if self._emission is not None:
            raise SequencerStateError("committed messages remain to dequeue")

    def take(self) -> Sequence[Envelope[Any]]:
        """Dequeue all messages of the commit at once; may be empty.

        Report their processing through `settle()`.

        Raises:
            SequencerStateError: There's no commit, or a replay is required or in progress.
        """
        return self._commit().take()

    def settle(self, count: int) -> None:
        """Declare the first `count` messages processed, of those returned last.

        Once all messages of `take()` are processed, the commit ends.

        Raises:
            SequencerStateError: There's no commit, or none of its messages were returned.
        """
        emission = self._commit()
        if emission.settle(count):
            self._emission = None
            self._table.finish(emission)

    def replay_range(self) -> ReplayRange:
        """Return the content that must be read again.

        Raises:
            SequencerStateError: No commit is being dequeued, or it's fully dequeued.
        """
        return self._commit().replay_range()

    def start_replay(self) -> None:
        """Declare that messages of `replay_range()` follow through `take_replay()`.

        Raises:
            SequencerStateError: No commit is being dequeued.
        """
        self._commit().start_replay()

    def take_replay(self, envelopes: Sequence[Envelope[Any]]) -> list[Envelope[Any]]:
        """Take messages of the replay, and return those of the commit; may be empty.

        Report their processing through `settle()` before the next messages of the replay.

        Raises:
            ReplayError: A message isn't in the replayed range. No message was accepted.
            SequencerStateError: No replay is in progress.
        """
        return self._commit().take_replay(envelopes)

    def finish_replay(self) -> None:
        """Declare the end of the replay: the retained messages of the commit are next.

        Raises:
            SequencerStateError: No replay is in progress.
        """
        self._settle_dequeued()
        self._commit().finish_replay()

    def abort_replay(self) -> None:
        """Require a new replay, of the range that processed messages have narrowed.

        Raises:
            SequencerStateError: No replay is in progress.
        """
        self._settle_dequeued()
        self._commit().abort_replay()

    def rewind(self) -> int:
        """Give up the commit, whose replay is required or in progress, until it's queued again.

        Processed messages stay processed, and checkpoints are exact. Messages of other journals may
        be queued. The next message of this journal must be the committing one.

        Returns:
            Offset at which the committing message begins.

        Raises:
            SequencerStateError: No replay is required or in progress.
        """
        self._settle_dequeued()
        # Invariant: the span of its producer is empty, so the message requires a replay again.
        offset = self._commit().rewind()
        self._emission = None
        return offset

    def _commit(self) -> Emission:
        if self._emission is None:
            raise SequencerStateError("emit == nil")
        return self._emission

    def step(self) -> bool:
        """Declare `dequeued` processed, and dequeue the next message of the commit.

        Returns:
            Whether there's another message, which is then `dequeued`.

        Raises:
            SequencerStateError: A replay is required or in progress.
        """
        self._settle_dequeued()
        if self._emission is None:
            return False
        commit = self._commit()
        taken = commit.take()
        if commit.settled == len(taken):
            self.settle(len(taken))
            return False
        self._dequeue(commit, taken[commit.settled])
        return True

    def offer_replay(self, envelope: Envelope[Any]) -> bool:
        """Take a message of the replay, after declaring `dequeued` processed.

        Returns:
            Whether the message belongs to the commit. If so, it's now `dequeued`.

        Raises:
            ReplayError: The message isn't in the replayed range.
            SequencerStateError: No replay is in progress.
        """
        self._settle_dequeued()
        commit = self._commit()
        if not commit.take_replay([envelope]):
            return False
        self._dequeue(commit, envelope)
        return True

    def _dequeue(self, commit: Emission, envelope: Envelope[Any]) -> None:
        # Messages before it were processed, or don't belong to the commit.
        commit.producer.begin = envelope.begin
        self.dequeued = envelope

    def _settle_dequeued(self) -> None:
        if self.dequeued is not None:
            self.dequeued = None
            self.settle(self._commit().settled + 1)

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
        table, emission = self._table, self._emission
        is_spared = emission.relies_on if emission is not None else None
        if prune_dequeued:
            is_spared = None
        table.prune(as_nanoseconds(prune_horizon), is_spared)
        table.pending.clear()
        producers = [p for producers in table.journals.values() for p in producers.values()]
        states = (
            ProducerState.of(p.journal, p.producer, (p.min, p.max, p.begin)) for p in producers
        )
        return SequencerCheckpoint(self.offsets, tuple(states))

    def producer_state(self, journal: str, producer: bytes) -> ProducerState | None:
        """Return the state of a producer, or None if it's unknown."""
        p = self._table.find(journal, producer)
        return None if p is None else ProducerState(journal, p.producer, p.min, p.begin, p.max)

    def retained(self, journal: str, producer: bytes) -> list[Envelope[Any]]:
        """Return the pending messages of a producer that the ring retains."""
        p = self._table.find(journal, producer)
        if p is None:
            return []
        p.trim(self._ring.low)
        return p.span.copy()
