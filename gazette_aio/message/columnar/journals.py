"""Engine of record batches, of any number of journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.columnar.journal import JournalRecords
from gazette_aio.message.columnar.records import record_schema
from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.producer import as_nanoseconds
from gazette_aio.protocol.errors import ConfigurationError, ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import pyarrow as pa

    from gazette_aio.message.columnar.outputs import RecordOptions
    from gazette_aio.message.columnar.replayed import ReplayRecords
    from gazette_aio.message.framing import Framing
    from gazette_aio.protocol.errors import FramingError


class RecordsByJournal:
    """Makes and keeps the JournalRecords of journals as they're read, leave, and are read again.

    It's the engine of a flow. While `step()` runs in a thread, only journals which aren't read may
    begin to be, and checkpoints be taken.

    Args:
        options: What to make.
        checkpoint: What to go on from; or None to read messages as they are, uncommitted ones
            included.
        max_pending_bytes: Limit of messages which are retained, over all journals.
        explain: Returns an error as it's to be raised.
    """

    replay_bytes = 1 << 20
    """Content of a replay which is worked on at once, roughly."""

    def __init__(
        self,
        options: RecordOptions,
        checkpoint: SequencerCheckpoint | None,
        *,
        max_pending_bytes: int,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        self._options = options
        self.explain = explain
        """Returns an error as it's to be raised."""
        self._is_sequenced = checkpoint is not None
        self._offsets = dict(checkpoint.offsets) if checkpoint else {}
        self._producers: dict[str, list[ProducerState]] = {}
        for state in checkpoint.producers if checkpoint else ():
            self._producers.setdefault(state.journal, []).append(state)
        self._records: dict[str, JournalRecords] = {}
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[JournalRecords, int] = {}
        self.pending_bytes = 0
        """Bytes of messages which are retained as they may commit."""
        self._skipped_before = 0
        self._broken: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        documents = self._options.documents
        return record_schema(None if documents is None else documents.schema)

    @property
    def skipped(self) -> int:
        """Number of messages which were left out as they can't be decoded."""
        return self._skipped_before + sum(records.skipped for records in self._records.values())

    def offsets(self) -> dict[str, int]:
        """Return the offsets which are known of journals."""
        return self._offsets

    def begin(self, journal: str, framing: Framing, offset: int) -> JournalRecords:
        """Begin to read a journal, of which what was known before is kept."""
        if journal in self._records:
            self.leave(self._records[journal])
        sequencer = None
        if self._is_sequenced:
            producers = self._producers.get(journal, ())
            sequencer = ColumnarSequencer(journal, offset=offset, producers=producers)
        records = self._records[journal] = JournalRecords(
            journal, framing, offset, self._options, sequencer=sequencer, explain=self.explain
        )
        return records

    def leave(self, records: JournalRecords) -> None:
        """Retain nothing of a journal which isn't read any more, but what's known of it."""
        # Race: it may have begun anew.
        if self._records.get(records.journal) is records:
            if self._is_sequenced:
                self._settle(records.journal)
            self._drop(records.journal)

    def forget(self, journal: str) -> None:
        """Forget what's known of a journal."""
        self._drop(journal)
        self._offsets.pop(journal, None)
        self._producers.pop(journal, None)

    def _drop(self, journal: str) -> None:
        records = self._records.pop(journal, None)
        if records is not None:
            self.pending_bytes -= self._pending.pop(records, 0)
            self._skipped_before += records.skipped

    def _settle(self, journal: str, prune_horizon_ns: int = 0) -> None:
        """Take over what was handed out of a journal into offsets and producer states."""
        records = self._records.get(journal)
        if records is not None and records.is_read:
            self._offsets[journal], self._producers[journal] = records.checkpoint(prune_horizon_ns)
        elif prune_horizon_ns and journal in self._producers:
            sequencer = ColumnarSequencer(journal, producers=self._producers[journal])
            _, self._producers[journal] = sequencer.checkpoint(prune_horizon_ns)

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return offsets and producer states as of what was delivered.

        Raises:
            ConfigurationError: Uncommitted messages are read, of which there are none.
        """
        if not self._is_sequenced:
            raise ConfigurationError("there's no checkpoint of uncommitted messages")
        prune_horizon_ns = as_nanoseconds(prune_horizon)
        for journal in {**self._producers, **self._records}:
            self._settle(journal, prune_horizon_ns)
        states = [state for states in self._producers.values() for state in states]
        return SequencerCheckpoint(dict(self._offsets), tuple(states))

    def take(self, records: JournalRecords) -> pa.RecordBatch | None:
        """Return the next batch of a journal, or None if none is ready.

        Raises:
            FramingError: It comes next.
        """
        return records.take()

    def room(self, records: JournalRecords) -> int | None:
        """Return how many more bytes a step could do with; None while it can't be done ahead."""
        # Invariant: a checkpoint is as of what was delivered, which must be all of what was
        # processed before.
        # Chunks are of one size mostly: what they add up to is one region.
        return self._options.batch_bytes - records.at_hand if records.is_drained else None

    def replay(self, records: JournalRecords) -> ReplayRecords | None:
        """Return the replay of a journal which is next, or under way."""
        return records.replay

    def bytes_of_step(self, records: JournalRecords) -> int:
        """Return how many bytes a step of a journal may touch, roughly."""
        at_hand = records.at_hand
        if self.pending_bytes + at_hand > self._max_pending_bytes:
            return at_hand + self.pending_bytes  # Of which any may be evicted.
        return at_hand + records.pending_bytes

    def step(self, records: JournalRecords) -> bool:
        """Let a journal work, and evict what's too much then.

        Returns:
            False if it takes more content.

        Raises:
            ReplayError: Content which is read again isn't what it was.
            Exception: What isn't expected, as that there's no memory. Each further step raises it,
                and checkpoints are as of before.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._step(records)
        except ReplayError:
            raise
        except Exception as error:
            self._broken = error
            raise

    def _step(self, records: JournalRecords) -> bool:
        worked = records.work()
        self._note_pending(records)
        excess = self.pending_bytes - self._max_pending_bytes
        if excess > 0:
            largest = max(self._pending, key=self._pending.__getitem__)
            largest.evict(max(self._pending[largest] - excess, 0))
            self._note_pending(largest)
        return worked

    def _note_pending(self, records: JournalRecords) -> None:
        now = records.pending_bytes
        self.pending_bytes += now - self._pending.pop(records, 0)
        if now:
            self._pending[records] = now
