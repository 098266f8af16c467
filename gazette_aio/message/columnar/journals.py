"""Engine of record batches of any number of journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columnar.outputs import RecordOptions
    from gazette_aio.message.columnar.replayed import ReplayRecords
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.protocol.errors import FramingError


class RecordsByJournal:
    """Makes and keeps the JournalRecords of journals, which may leave and be read again.

    It's the engine of a flow. While `step()` runs in a thread, only other journals may begin, and
    checkpoints be made.

    Args:
        options_of: Returns the options of the outputs of an adapter's messages.
        schema: Schema of the documents; None to output their bytes.
        checkpoint: State to resume from; None to read all messages in journal order, including
            uncommitted ones.
        batch_bytes: Content that is split, sequenced and decoded at once.
        max_pending_bytes: Limit of the pending messages that are retained, over all journals.
        explain: Returns the error to raise for an error.
    """

    replay_bytes = 1 << 20
    """Approximate content of a replay that one step works on."""

    def __init__(
        self,
        options_of: Callable[[Adapter[Any]], RecordOptions],
        schema: pa.Schema | None,
        checkpoint: SequencerCheckpoint | None,
        *,
        batch_bytes: int,
        max_pending_bytes: int,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        self._make_options = options_of
        self._options: RecordOptions | None = None  # Of the latest adapter.
        self._documents = schema
        self._batch_bytes = batch_bytes
        self.explain = explain
        """Returns the error to raise for an error."""
        self._is_sequenced = checkpoint is not None
        self._offsets = dict(checkpoint.offsets) if checkpoint else {}
        self._producers: dict[str, list[ProducerState]] = {}
        for state in checkpoint.producers if checkpoint else ():
            self._producers.setdefault(state.journal, []).append(state)
        self._records: dict[str, JournalRecords] = {}
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[JournalRecords, int] = {}
        self.pending_bytes: int = 0
        """Bytes of pending messages that are retained."""
        self._skipped_before = 0
        self._broken: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        return record_schema(self._documents)

    @property
    def skipped(self) -> int:
        """Number of messages that were skipped because they can't be decoded."""
        return self._skipped_before + sum(records.skipped for records in self._records.values())

    def offsets(self) -> dict[str, int]:
        """Return the known offsets by journal."""
        return self._offsets

    def options_of(self, adapter: Adapter[Any]) -> RecordOptions:
        """Return the options of the outputs of an adapter's messages.

        Raises:
            ConfigurationError: The schema doesn't fit documents of the adapter.
        """
        options = self._options
        if options is None or options.adapter is not adapter:
            options = self._options = self._make_options(adapter)
        return options

    def begin(self, journal_format: JournalFormat[Any], offset: int) -> JournalRecords:
        """Begin the content of a journal, and keep its known state.

        Raises:
            ConfigurationError: The schema doesn't fit documents of the journal's adapter.
        """
        journal, options = journal_format.journal, self.options_of(journal_format.adapter)
        if journal in self._records:
            self.leave(self._records[journal])
        sequencer = None
        if self._is_sequenced:
            producers = self._producers.get(journal, ())
            sequencer = ColumnarSequencer(journal, offset=offset, producers=producers)
        records = self._records[journal] = JournalRecords(
            journal,
            journal_format.framing,
            offset,
            options,
            sequencer=sequencer,
            explain=self.explain,
        )
        return records

    def leave(self, records: JournalRecords) -> None:
        """Release content of a journal that isn't read any more, but keep its state."""
        # Race: the journal may have begun anew.
        if self._records.get(records.journal) is records:
            if self._is_sequenced:
                self._settle(records.journal)
            self._drop(records.journal)

    def forget(self, journal: str) -> None:
        """Forget the state of a journal."""
        self._drop(journal)
        self._offsets.pop(journal, None)
        self._producers.pop(journal, None)

    def _drop(self, journal: str) -> None:
        records = self._records.pop(journal, None)
        if records is not None:
            self.pending_bytes -= self._pending.pop(records, 0)
            self._skipped_before += records.skipped

    def _settle(self, journal: str, prune_horizon_ns: int = 0) -> None:
        """Update the offset and producer states of a journal from its delivered outputs."""
        records = self._records.get(journal)
        if records is not None and records.is_read:
            self._offsets[journal], self._producers[journal] = records.checkpoint(prune_horizon_ns)
        elif prune_horizon_ns and journal in self._producers:
            sequencer = ColumnarSequencer(journal, producers=self._producers[journal])
            _, self._producers[journal] = sequencer.checkpoint(prune_horizon_ns)

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return offsets and producer states as of the delivered outputs.

        Raises:
            ConfigurationError: Uncommitted messages are read, which have no checkpoint.
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
            FramingError: The next output is this error.
        """
        return records.take()

    def room(self, records: JournalRecords) -> int | None:
        """Return how many more bytes a step could use; None if no step may run ahead now."""
        # Invariant: a checkpoint is as of the delivered outputs, so all outputs of earlier steps
        # must be delivered.
        # Chunks are mostly of one size: together they are one region.
        return self._batch_bytes - records.at_hand if records.is_drained else None

    def replay(self, records: JournalRecords) -> ReplayRecords | None:
        """Return the replay of a journal that is next, or in progress."""
        return records.replay

    def rewind(self, records: JournalRecords) -> int:
        """Undo the commit that needs a replay, and return the offset to receive content from."""
        assert records.replay is not None, "no replay is next, or in progress"
        self.leave(records)
        # Errors of frames before the batch were raised, and aren't again.
        return max(self._offsets[records.journal], records.replay.batch_begin)

    def bytes_of_step(self, records: JournalRecords) -> int:
        """Return about how many bytes a step of a journal may touch."""
        at_hand = records.at_hand
        if self.pending_bytes + at_hand > self._max_pending_bytes:
            return at_hand + self.pending_bytes  # Any of these may be evicted.
        return at_hand + records.pending_bytes

    def step(self, records: JournalRecords) -> bool:
        """Let a journal work, then evict messages beyond the limit.

        Returns:
            False if more content is needed.

        Raises:
            ReplayError: The content of the replay has changed.
            Exception: Unexpected errors, such as MemoryError. Each further step raises it again,
                and checkpoints are as of before it.
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
