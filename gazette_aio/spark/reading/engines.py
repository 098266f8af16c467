"""Engines: from content of a journal to the rows of a task.

An engine processes content until it needs more. It may request an earlier range again, which is
then fed next, up to its end.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gazette_aio.message.columnar.journal import JournalRecords
from gazette_aio.message.columnar.payloads import Payloads
from gazette_aio.message.framing.regions import Region
from gazette_aio.message.ranges.committed import CommittedRange, RangeState
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.planning.tasks import All, CommittedFrom
from gazette_aio.spark.reading.outputs import RowOutputs
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.reading.split_sequencer import MaskSequencer, SplitSequencer
from gazette_aio.spark.rows.records import RowDecoder

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from gazette_aio.message.columnar.journal import BatchSequencer
    from gazette_aio.message.columnar.replayed import ReplayRecords
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.ranges.committed import SplitPlan
    from gazette_aio.spark.planning.tasks import Task
    from gazette_aio.spark.reading.pieces import Pieces
    from gazette_aio.spark.rows.records import RowLayout

CHUNK_BYTES: Final = 1 << 20
"""Largest row of content without a known framing."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Greatest number of bytes of pending messages in memory. Other messages are read again."""

_NEVER: Final = 1 << 63


class RowEngine(ABC):
    """Makes rows from the content of a task. Calls come one after the other, from any thread."""

    @abstractmethod
    def feed(self, pieces: Pieces) -> None:
        """Add content: of the requested range, if there is one, or else the next content."""

    @abstractmethod
    def end(self) -> None:
        """Declare the end of the content, or of the requested range."""

    @abstractmethod
    def work(self) -> list[RecordBatch] | None:
        """Return the next rows, possibly none; or None if the engine needs content or is done.

        Raises:
            FramingError: A record is bad, and the mode is FAILFAST.
            SequencingError: Content differs from when it was read before.
        """

    def wanted(self) -> tuple[int, int] | None:
        """Return the range which the engine requests again, if any."""
        return None

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, after all content is processed."""
        return []


class PendingAcks(NamedTuple):
    """Acknowledgements after a task's range, of messages of the range.

    Messages of the range which are pending at its end may commit after it.
    """

    bounds: RecordBounds
    """Bounds of the content which may have acknowledgements."""
    sequencer: CommittedRange
    """Sequencer of the range, and of the content after it."""
    task: Task
    clocks: tuple[int | None, int | None]
    """Least clock of wanted messages, and the clock after the greatest; None for no limit."""

    @property
    def is_needed(self) -> bool:
        """Whether wanted messages of the range are pending."""
        start, stop = self.clocks
        # Invariant: clocks of pending messages are in (min, max].
        return any(
            -1 < bounds.begin < self.task.end
            and (start is None or bounds.max >= start)
            and (stop is None or bounds.min + 1 < stop)
            for bounds in self.sequencer.state.producers.values()
        )


class TaskRows(NamedTuple):
    """Decoder, engine, content bounds and later acknowledgements of a task."""

    decoder: RowDecoder
    engine: RowEngine
    bounds: RecordBounds
    acks: PendingAcks | None = None


def rows_of(
    task: Task,
    layout: RowLayout,
    *,
    step_bytes: int = STEP_BYTES,
    max_pending_bytes: int = MAX_PENDING_BYTES,
) -> TaskRows:
    """Return the decoder, engine and content bounds of a task.

    Args:
        task: The task.
        layout: Layout of the rows.
        step_bytes: Number of bytes which are processed in one step.
        max_pending_bytes: Limit of the bytes of pending messages in memory.

    Raises:
        ConfigurationError: The journal's messages can't be decoded to the schema.
    """
    decoder = RowDecoder(layout, task.journal, task.labels, task.content_type)
    form = layout.format_of(task.content_type)
    framing = form.framing
    lines = framing is not None and framing.is_lines
    bounds = RecordBounds(task.begin, task.end, task.head, lines=lines, is_aligned=task.is_aligned)
    # The last line is read up to the head if needed.
    torn_at = task.end if not lines and task.end < task.head else -1
    outputs = RowOutputs(decoder, form.adapter, layout.options, step_bytes, torn_at=torn_at)
    begin = bounds.begin
    acks: PendingAcks | None = None
    engine: RowEngine
    match task.kind:
        case All() if framing is None:
            engine = ChunkRows(outputs, begin)
        case _ if framing is None:
            text = f"there is no framing for content type {task.content_type!r}"
            raise ConfigurationError(f"journal {task.journal}: {text}")
        case All():
            engine = SequencedRows(outputs, framing, begin)
        case CommittedFrom(text, entering):
            state = RangeState.from_json(json.loads(text))
            sequencer = CommittedRange(
                task.journal, state, entering=entering, max_pending_bytes=max_pending_bytes
            )
            engine = SequencedRows(outputs, framing, begin, sequencer)
            if task.acks_end:
                head = max(task.head, task.acks_end)
                after = RecordBounds(task.end, task.acks_end, head, lines=lines, is_aligned=True)
                acks = PendingAcks(after, sequencer, task, layout.clocks_of(task.journal))
                decoder.end = task.end
        case kind:
            engine = SplitRows(
                outputs, framing, begin, kind.plan, max_pending_bytes=max_pending_bytes
            )
    return TaskRows(decoder, engine, bounds, acks)


class SequencedRows(RowEngine):
    """Makes rows of all messages, or of the messages which a sequencer commits.

    Args:
        outputs: Makes the rows.
        framing: Framing of the journal.
        offset: Offset of the first content.
        sequencer: Decides which messages commit; None for all.
    """

    def __init__(
        self,
        outputs: RowOutputs,
        framing: Framing,
        offset: int,
        sequencer: BatchSequencer | None = None,
    ) -> None:
        self._outputs = outputs
        self._records = JournalRecords(
            outputs.journal,
            framing,
            offset,
            outputs.options,
            sequencer=sequencer,
            explain=lambda error: error,
            maker=outputs,
        )
        self._replay: ReplayRecords | None = None

    @property
    def through(self) -> int:
        """Offset after the content so far."""
        return self._records.fed_through

    def feed(self, pieces: Pieces) -> None:
        """Add content."""
        if self._replay is not None:
            for offset, chunk in pieces:
                self._replay.feed(chunk, offset)
            return
        self._outputs.see(pieces, self._records.offset)
        for offset, chunk in pieces:
            self._records.feed(chunk, offset)

    def end(self) -> None:
        """Declare the end of content."""
        replay, self._replay = self._replay, None
        if replay is None:
            self._records.end()
            return
        replay.end()  # If some content is lost, options allow it.

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        records = self._records
        merged = self._outputs.merging()
        while not merged.is_enough and records.work():
            while (batch := records.take()) is not None:
                merged.add(batch)
        return merged.batches() or None

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, after all content is processed."""
        return self._outputs.flush()

    def wanted(self) -> tuple[int, int] | None:
        """Return the range of the next replay."""
        replay = self._records.replay
        if replay is None or (wanted := replay.open()) is None:
            return None
        self._replay = replay
        return wanted.begin, wanted.end


class SplitRows(RowEngine):
    """Makes rows of the messages of a split which are committed, in the split or after it.

    Args:
        outputs: Makes the rows.
        framing: Framing of the journal.
        offset: Offset of the first content.
        plan: Plan of the split.
        max_pending_bytes: Limit of the bytes of pending messages. Beyond it, content is read again.
    """

    def __init__(
        self,
        outputs: RowOutputs,
        framing: Framing,
        offset: int,
        plan: SplitPlan,
        *,
        max_pending_bytes: int,
    ) -> None:
        self._outputs = outputs
        self._framing = framing
        self._sequencer: SplitSequencer | MaskSequencer = SplitSequencer(
            plan, max_pending_bytes=max_pending_bytes, on_excess=self._mute
        )
        self._rows = SequencedRows(outputs, framing, offset, self._sequencer)
        self._told = 0
        self._ended = False
        self._wanted: tuple[int, int] | None = None

    def _mute(self) -> None:
        # Bad records from here on are reported when the content is read again.
        self._told, self._outputs.told_from = self._outputs.told_through, _NEVER

    def feed(self, pieces: Pieces) -> None:
        """Add content."""
        self._rows.feed(pieces)

    def end(self) -> None:
        """Declare the end of content."""
        self._rows.end()
        self._ended = True

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        batches = self._rows.work()
        if batches is not None or not self._ended:
            return batches
        self._ended = False
        again = self._sequencer.finish()
        if again is not None:
            assert isinstance(self._sequencer, SplitSequencer)
            resume, self._sequencer = self._sequencer.resume, again
            self._wanted = resume, self._rows.through
            self._outputs.restart(self._told)
            self._rows = SequencedRows(self._outputs, self._framing, resume, again)
        return None

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, after all content is processed."""
        return self._rows.finish()

    def wanted(self) -> tuple[int, int] | None:
        """Return the range to read again, if any."""
        wanted, self._wanted = self._wanted, None
        return wanted


class ChunkRows(RowEngine):
    """Makes rows of up to 1 MiB from content without a known framing.

    Rows end at multiples of 1 MiB in the journal, independent of the pieces of content.

    Args:
        outputs: Makes the rows.
        offset: Offset of the first content.
    """

    def __init__(self, outputs: RowOutputs, offset: int) -> None:
        self._outputs = outputs
        self._begin = offset
        self._held: list[bytes] = []
        self._size = 0
        self._ready: list[Region] = []

    def feed(self, pieces: Pieces) -> None:
        """Add content."""
        for offset, chunk in pieces:
            if offset != self._begin + self._size:
                self._cut(self._size)
                self._begin = offset
            self._held.append(chunk)
            self._size += len(chunk)
        self._cut((self._begin + self._size) // CHUNK_BYTES * CHUNK_BYTES - self._begin)

    def end(self) -> None:
        """Declare the end of content."""
        self._cut(self._size)

    def _cut(self, size: int) -> None:
        if size <= 0:
            return
        data, begin = b"".join(self._held), self._begin
        first = (begin // CHUNK_BYTES + 1) * CHUNK_BYTES
        ends = np.array([*range(first, begin + size, CHUNK_BYTES), begin + size], np.int64)
        stops = ends - begin
        starts = np.concatenate(([0], stops[:-1]))
        self._ready.append(Region(data, begin, starts, stops, ends, line_feeds=False))
        self._begin, self._size = begin + size, self._size - size
        self._held = [data[size:]] if self._size else []

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        if not self._ready:
            return None
        region = self._ready.pop(0)
        payloads, rows = Payloads(), region.rows
        payloads.add(region)
        numbers = np.zeros(rows, np.uint64)
        columns = UuidColumns(
            numbers, numbers, np.zeros(rows, np.uint16), region.begins(), region.ends
        )
        return self._outputs.rows(columns, payloads, np.arange(rows))
