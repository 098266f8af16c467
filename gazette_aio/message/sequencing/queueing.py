"""The half of a Sequencer which is given messages: what becomes of each, and the ring."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from gazette_aio.message.sequencing.outcome import QueueOutcome
from gazette_aio.message.sequencing.producer import Producer
from gazette_aio.protocol.errors import SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint
    from gazette_aio.message.sequencing.commit_run import CommitRun
    from gazette_aio.message.uuid import ProducerID

_logger = logging.getLogger(__name__)

DEFAULT_BUFFER = 8192
"""Default number of messages which the ring retains."""

_OUTSIDE, _CONTINUE, _ACK = 0, 1, 2


class MessageQueue:
    """The half of a Sequencer which queues messages, and finds what commits.

    Args:
        offsets: Offsets read through, by journal. Copied.
        producers: States of producers, as of a checkpoint.
        buffer: Number of messages which the ring retains, over all producers; at least one.
        buffer_bytes: Number of bytes of messages which the ring retains, if that's limited. It's
            heeded from batch to batch, not within one.
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
        """The committed message delivered by the last step, or None."""
        self._offsets = dict(offsets or {})
        self._journals: dict[str, dict[ProducerID, Producer]] = {}
        self._pending: set[Producer] = set()
        # The ring, as a window (low, high] over the numbers of retained messages. Spans hold the
        # messages themselves, and are rid of those behind the window lazily.
        self._capacity = max(buffer, 1)
        self._high = 0
        self._low = 0
        self._sweep_at = self._capacity
        self._buffer_bytes = buffer_bytes
        self._ring_bytes = 0
        self._ring_runs: deque[tuple[int, int]] = deque()  # (last number, bytes) of each batch.
        # The commit being dequeued.
        self._emit: Producer | None = None
        self._rows: list[Envelope[Any]] = []
        self._cursor = 0
        self._taken: list[Envelope[Any]] | None = None
        self._settled = 0
        self._replay_required = False
        self._replaying = False
        self._dequeued_clock = 0
        self._run: CommitRun | None = None  # Of commits which are dequeued together.
        for state in producers:
            restored = Producer(state.journal, state.producer, state.last_ack, state.begin)
            if state.begin != -1 and state.max_clock is not None:
                restored.max = max(state.max_clock, state.last_ack)
            self._journals.setdefault(state.journal, {})[state.producer] = restored

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: SequencerCheckpoint,
        *,
        buffer: int = DEFAULT_BUFFER,
        buffer_bytes: int | None = None,
    ) -> Self:
        """Return one which goes on from `checkpoint`."""
        return cls(
            checkpoint.offsets, checkpoint.producers, buffer=buffer, buffer_bytes=buffer_bytes
        )

    @property
    def offsets(self) -> dict[str, int]:
        """By journal, the offset read through: a copy."""
        return dict(self._offsets)

    def forget(self, journal: str) -> None:
        """Forget the offset and all producers of a journal, which isn't what it was any more.

        A commit of it which is being dequeued is given up.
        """
        self._offsets.pop(journal, None)
        for state in self._journals.pop(journal, {}).values():
            self._pending.discard(state)
        if self._emit is not None and self._emit.journal == journal:
            self._emit = self._taken = self.dequeued = None
            self._rows = []
            self._run = None
            self._replay_required = self._replaying = False

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint, and wasn't finished."""
        return bool(self._pending)

    @property
    def emitting(self) -> bool:
        """Whether a commit is being dequeued."""
        return self._emit is not None

    @property
    def replay_required(self) -> bool:
        """Whether the commit being dequeued waits for `start_replay()`."""
        return self._replay_required

    def __repr__(self) -> str:
        tracked = sum(map(len, self._journals.values()))
        return (
            f"<{type(self).__name__} journals={len(self._offsets)} producers={tracked} "
            f"ring={self._high - self._low}/{self._capacity} emitting={self.emitting}>"
        )

    def queue_uncommitted(self, envelope: Envelope[Any]) -> QueueOutcome:
        """Queue a message which was read.

        If the outcome is a commit, it must be dequeued before the next message is queued.

        Raises:
            SequencerStateError: If a commit wasn't fully dequeued.
        """
        outcome = self._queue(envelope)
        if self._buffer_bytes is not None:
            self._bound_bytes(envelope.end - envelope.begin)
        return outcome

    def queue_batch(self, envelopes: Sequence[Envelope[Any]], start: int = 0) -> int:
        """Queue consecutive messages of one journal, up to and including the first commit.

        It does exactly what `queue_uncommitted()` would do for one after the other. Messages which
        commit nothing take a short path.

        Args:
            envelopes: Messages in the order they were read, all of one journal.
            start: Index of the first one to queue.

        Returns:
            Index of the next message to queue. There's a commit to dequeue if `emitting` is set.

        Raises:
            SequencerStateError: If a commit wasn't fully dequeued.
        """
        return self._queue_many(envelopes, start, self._queue_first_commit)

    def _queue_many(
        self,
        envelopes: Sequence[Envelope[Any]],
        start: int,
        queue: Callable[[Sequence[Envelope[Any]], int], int],
    ) -> int:
        if self._emit is not None:
            raise SequencerStateError("committed messages remain to dequeue")
        if start >= len(envelopes):
            return start
        index = start
        while self._emit is None and index < len(envelopes):
            index = queue(envelopes, index)
        added = envelopes[index - 1].end - envelopes[start].begin
        if self._run is not None:
            self._run.added_bytes = added
        elif self._buffer_bytes is not None:
            self._bound_bytes(added)
        return index

    def _queue_first_commit(self, envelopes: Sequence[Envelope[Any]], start: int) -> int:
        """Queue messages up to the first one which needs care, and that one."""
        journal = envelopes[start].journal
        find = self._journals.setdefault(journal, {}).get
        capacity, high, low = self._capacity, self._high, self._low
        index = start
        for envelope in islice(envelopes, start, None):
            clock = envelope.clock
            state = find(envelope.producer)
            # A span which exists is extended, or the message is a duplicate: neither commits.
            if envelope.flags != _CONTINUE or not clock or state is None or state.begin == -1:
                break
            if high - low == capacity:
                low += 1
            if clock > state.max:
                high += 1
                envelope.slot = high
                state.max = clock
                state.span.append(envelope)
            index += 1
        self._high, self._low = high, low
        if index > start:
            self._offsets[journal] = envelopes[index - 1].end
        if index < len(envelopes):
            self._queue(envelopes[index])
            index += 1
        elif low > self._sweep_at:
            self._sweep()
        return index

    def _queue(self, envelope: Envelope[Any]) -> QueueOutcome:
        if self._emit is not None:
            raise SequencerStateError("committed messages remain to dequeue")
        # Invariant: a full ring is evicted from even if the message is then dropped.
        if self._high - self._low == self._capacity:
            self._low += 1
            if self._low > self._sweep_at:
                self._sweep()
        journal, clock, flags = envelope.journal, envelope.clock, int(envelope.flags)
        if clock == 0:
            untracked = Producer(journal, envelope.producer, 0)
            return self._commit_outside(untracked, envelope, 1)
        producers = self._journals.get(journal)
        if producers is None:
            producers = self._journals[journal] = {}
        state = producers.get(envelope.producer)
        if state is None:
            state = Producer(journal, envelope.producer, clock - 1)
            producers[envelope.producer] = state

        if flags == _CONTINUE:
            outcome = self._queue_continue(state, envelope)
        elif flags == _ACK:
            outcome = self._queue_ack(state, envelope)
        else:
            if flags != _OUTSIDE:
                _logger.error(
                    "message has unexpected flags",
                    extra={"journal": journal, "begin": envelope.begin, "flags": flags},
                )
            if clock > state.min:
                return self._commit_outside(state, envelope, clock)
            outcome = QueueOutcome.OUTSIDE_ALREADY_ACKED
        if self._emit is None:
            self._offsets[journal] = envelope.end
        return outcome

    def _queue_continue(self, state: Producer, envelope: Envelope[Any]) -> QueueOutcome:
        clock = envelope.clock
        if clock <= state.min:
            return QueueOutcome.CONTINUE_ALREADY_ACKED
        if clock <= state.max:
            return QueueOutcome.CONTINUE_TXN_CLOCK_LARGER
        outcome = QueueOutcome.CONTINUE_EXTEND_SPAN
        if state.begin == -1:
            state.begin = envelope.begin
            self._pending.add(state)
            outcome = QueueOutcome.CONTINUE_BEGIN_SPAN
        self._retain(state, envelope)
        state.max = clock
        return outcome

    def _queue_ack(self, state: Producer, envelope: Envelope[Any]) -> QueueOutcome:
        clock = envelope.clock
        if clock <= state.min:
            if clock < state.min:
                _logger.error(
                    "acknowledgement is older than the last one: exactly-once semantics are lost",
                    extra={"journal": state.journal, "begin": envelope.begin},
                )
            state.min = clock
            self._close(state)
            return QueueOutcome.ACK_ROLLBACK
        replay = False
        if state.begin == -1:
            outcome = QueueOutcome.ACK_EMPTY
            state.begin = envelope.begin
        else:
            state.trim(self._low)
            replay = not state.span or state.span[0].begin != state.begin
            outcome = QueueOutcome.ACK_COMMIT_REPLAY if replay else QueueOutcome.ACK_COMMIT_RING
        self._retain(state, envelope)
        state.max = clock
        self._start_emit(state, replay=replay)
        return outcome

    def _commit_outside(self, state: Producer, envelope: Envelope[Any], clock: int) -> QueueOutcome:
        if state.begin != -1:
            _logger.error(
                "message outside of transactions discards pending ones of its producer",
                extra={"journal": state.journal, "begin": envelope.begin},
            )
            state.span.clear()
        state.begin = envelope.begin
        self._retain(state, envelope)
        state.max = clock
        self._start_emit(state, replay=False)
        return QueueOutcome.OUTSIDE_COMMIT

    def _retain(self, state: Producer, envelope: Envelope[Any]) -> None:
        self._high += 1
        envelope.slot = self._high
        state.span.append(envelope)

    def _sweep(self) -> None:
        # Memory is bounded by sweeping once per ring of evictions, rather than by each eviction,
        # and no more often than there are producers to sweep.
        tracked = 0
        for producers in self._journals.values():
            tracked += len(producers)
            for state in producers.values():
                if state.span:
                    state.trim(self._low)
        self._sweep_at = self._low + max(self._capacity, tracked)

    def _bound_bytes(self, added: int) -> None:
        assert self._buffer_bytes is not None
        runs = self._ring_runs
        runs.append((self._high, added))
        self._ring_bytes += added
        while runs and (self._ring_bytes > self._buffer_bytes or runs[0][0] <= self._low):
            last, size = runs.popleft()
            self._ring_bytes -= size
            if last > self._low:
                self._low = last
                self._sweep()

    def _close(self, state: Producer) -> None:
        state.close()
        self._pending.discard(state)

    def _start_emit(self, state: Producer, *, replay: bool) -> None:
        self._emit = state
        self._rows = state.span
        state.span = []
        self._cursor = 0
        self._replay_required = replay
        self._replaying = False
        self._taken = None
        self._settled = 0
