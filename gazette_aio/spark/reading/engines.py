"""From content of a journal to the rows of a task.

An engine is fed content, and works on it until it takes more. It may want content again which was
there before: its range is fed next then, up to its end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

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
"""Largest row of content which isn't known to be made of messages."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Most bytes of messages which are retained as they may commit. Others are read once more."""

_NEVER: Final = 1 << 63


class RowEngine(Protocol):
    """Makes rows of the content of a task. Its calls come one after the other, from any thread."""

    def feed(self, pieces: Pieces) -> None:
        """Take content: of the range which is wanted again, if that's so, or else what follows."""
        ...

    def end(self) -> None:
        """Declare the end of that content."""
        ...

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows, maybe none; or None if that takes content, or nothing is left.

        Raises:
            FramingError: A record is bad, and the mode is FAILFAST.
            SequencingError: Content isn't what it was before.
        """
        ...

    def wanted(self) -> tuple[int, int] | None:
        """Return the range to be fed next, if it isn't what follows."""
        ...

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, once all content was worked on."""
        ...


class TaskRows(NamedTuple):
    """What makes the rows of a task, and of which content."""

    decoder: RowDecoder
    engine: RowEngine
    bounds: RecordBounds


def rows_of(
    task: Task,
    layout: RowLayout,
    *,
    step_bytes: int = STEP_BYTES,
    max_pending_bytes: int = MAX_PENDING_BYTES,
) -> TaskRows:
    """Return what makes the rows of a task.

    Args:
        task: The task.
        layout: What rows are made of.
        step_bytes: Content which is worked on at once.
        max_pending_bytes: Limit of the bytes of messages which are retained as they may commit.

    Raises:
        ConfigurationError: Rows can't be made of the journal's messages.
    """
    decoder = RowDecoder(layout, task.journal, task.labels, task.content_type)
    form = layout.format_of(task.content_type)
    framing = form.framing
    lines = framing is not None and framing.is_lines
    bounds = RecordBounds(task.begin, task.end, task.head, lines=lines, is_aligned=task.is_aligned)
    # Lines are read up to the head, if need be.
    torn_at = task.end if not lines and task.end < task.head else -1
    outputs = RowOutputs(decoder, form.adapter, layout.options, step_bytes, torn_at=torn_at)
    begin = bounds.begin
    engine: RowEngine
    match task.kind:
        case All() if framing is None:
            engine = ChunkRows(outputs, begin)
        case _ if framing is None:
            text = f"content of type {task.content_type!r} isn't known to be made of messages"
            raise ConfigurationError(f"journal {task.journal}: {text}")
        case All():
            engine = SequencedRows(outputs, framing, begin)
        case CommittedFrom(text, entering):
            state = RangeState.from_json(json.loads(text))
            sequencer = CommittedRange(
                task.journal, state, entering=entering, max_pending_bytes=max_pending_bytes
            )
            engine = SequencedRows(outputs, framing, begin, sequencer)
        case kind:
            engine = SplitRows(
                outputs, framing, begin, kind.plan, max_pending_bytes=max_pending_bytes
            )
    return TaskRows(decoder, engine, bounds)


class SequencedRows:
    """Makes rows of messages: of those which a sequencer says, or of all.

    Args:
        outputs: Makes the rows.
        framing: Framing of the journal.
        offset: Offset to begin at.
        sequencer: Says which messages commit; or None for all.
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
        """Offset behind the content which was fed."""
        return self._records.fed_through

    def feed(self, pieces: Pieces) -> None:
        """Take content."""
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
        if replay.through < replay.end_offset:
            replay.feed(b"", replay.end_offset)  # The rest was lost, which is put up with.
        replay.end()

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        records = self._records
        merged = self._outputs.merging()
        while not merged.is_enough and records.work():
            while (batch := records.take()) is not None:
                merged.add(batch)
        return merged.batches() or None

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, once all content was worked on."""
        return self._outputs.flush()

    def wanted(self) -> tuple[int, int] | None:
        """Return the range of a replay which is next."""
        replay = self._records.replay
        if replay is None or (wanted := replay.wanted) is None:
            return None
        replay.open()
        self._replay = replay
        return wanted.begin, wanted.end


class SplitRows:
    """Makes rows of those messages of a split which are committed, be it behind the split.

    Args:
        outputs: Makes the rows.
        framing: Framing of the journal.
        offset: Offset to begin at.
        plan: Plan of the split.
        max_pending_bytes: Limit of the bytes of messages which wait. Beyond it, content is read
            once more.
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
        # What else is bad is told when content is read once more.
        self._told, self._outputs.told_from = self._outputs.told_through, _NEVER

    def feed(self, pieces: Pieces) -> None:
        """Take content."""
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
        """Return the last rows, once all content was worked on."""
        return self._rows.finish()

    def wanted(self) -> tuple[int, int] | None:
        """Return the range to be read once more."""
        wanted, self._wanted = self._wanted, None
        return wanted


class ChunkRows:
    """Makes rows of content which isn't known to be made of messages: of 1 MiB of it at most.

    They're cut at multiples of that in the journal, whatever the chunks are which content comes in.

    Args:
        outputs: Makes the rows.
        offset: Offset to begin at.
    """

    def __init__(self, outputs: RowOutputs, offset: int) -> None:
        self._outputs = outputs
        self._begin = offset
        self._held: list[bytes] = []
        self._size = 0
        self._ready: list[Region] = []

    def feed(self, pieces: Pieces) -> None:
        """Take content."""
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

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, once all content was worked on: there are none."""
        return []

    def wanted(self) -> tuple[int, int] | None:
        """Return the range to be read again: none."""
        return None
