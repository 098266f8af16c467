"""Engines: from content of a journal to the rows of a task.

An engine processes content until it needs more. It may request an earlier range again, which is
then fed next, up to its end.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.content import JournalContent, Refusal
from gazette_aio.message.ranges.committed import CommittedRange, CommittedSplit, RangeState
from gazette_aio.spark.reading.outputs import MAX_FRAME_BYTES, RowOutputs
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.reading.task import All, CommittedFrom
from gazette_aio.spark.rows.records import MessageTable, RowDecoder

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from gazette_aio.spark.reading.pieces import Pieces
    from gazette_aio.spark.reading.task import Task
    from gazette_aio.spark.rows.records import RowLayout

CHUNK_BYTES: Final = 1 << 20
"""Largest row of content without a known framing."""

MAX_PENDING_BYTES: Final = 64 << 20
"""Greatest number of bytes of pending messages in memory. Other messages are read again."""


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
    outputs = RowOutputs(decoder, layout.options, torn_at=torn_at)
    acks: PendingAcks | None = None
    if framing is None and task.kind == All():
        return TaskRows(decoder, ChunkRows(outputs, bounds.begin), bounds)
    journal_format = form.of_journal(task.journal)
    limits: Any = {
        "max_frame_bytes": MAX_FRAME_BYTES,
        "max_pending_bytes": max_pending_bytes,
        "lenient": form.is_lenient,
        "skip_acks": not layout.options.include_acks,
        "skip_errors": layout.options.mode == "DROPMALFORMED",
    }
    content: JournalContent
    match task.kind:
        case All():
            content = JournalContent(journal_format, bounds.begin, **limits)
        case CommittedFrom(text, entering):
            state = RangeState.from_json(json.loads(text))
            content = CommittedRange(journal_format, state, entering=entering, **limits)
            if task.acks_end:
                head = max(task.head, task.acks_end)
                after = RecordBounds(task.end, task.acks_end, head, lines=lines, is_aligned=True)
                acks = PendingAcks(after, content, task, layout.clocks_of(task.journal))
                decoder.end = task.end
        case kind:
            content = CommittedSplit(journal_format, kind.plan, bounds.begin, **limits)
    return TaskRows(decoder, MessageRows(outputs, content, step_bytes), bounds, acks)


class MessageRows(RowEngine):
    """Makes rows of messages.

    Args:
        outputs: Makes the rows.
        content: Content of the journal.
        step_bytes: Number of bytes which are processed in one step.
    """

    def __init__(self, outputs: RowOutputs, content: JournalContent, step_bytes: int) -> None:
        self._outputs = outputs
        self._content = content
        self._step_bytes = step_bytes

    def feed(self, pieces: Pieces) -> None:
        """Add content."""
        to = self._content.replay or self._content
        if to is self._content:
            self._outputs.see(pieces, self._content.offset)
        for offset, chunk in pieces:
            to.feed(chunk, offset)

    def end(self) -> None:
        """Declare the end of content."""
        (self._content.replay or self._content).end()  # Options may allow that content is lost.

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        content, outputs = self._content, self._outputs
        merged = outputs.merging()
        while not merged.is_enough and (found := content.read(self._step_bytes)) is not None:
            if isinstance(found, Refusal):
                merged.add(outputs.refuse(found))
                if found.kind == "unexpected_eof":
                    content.jump(content.through)  # A partial record at the end is refused once.
            elif not isinstance(found, str):
                merged.add(outputs.rows(MessageTable.of(found)))
                content.core.settle(found, 0, len(found))
        return merged.batches() or None

    def finish(self) -> list[RecordBatch]:
        """Return the last rows, after all content is processed."""
        return self._outputs.flush()

    def wanted(self) -> tuple[int, int] | None:
        """Return the range of the next replay."""
        replay = self._content.replay
        return None if replay is None else replay.open()


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
        self._ready: list[tuple[int, bytes]] = []

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
        self._ready.append((begin, data[:size]))
        self._begin, self._size = begin + size, self._size - size
        self._held = [data[size:]] if self._size else []

    def work(self) -> list[RecordBatch] | None:
        """Return the next rows."""
        if not self._ready:
            return None
        begin, data = self._ready.pop(0)
        end = begin + len(data)
        first = (begin // CHUNK_BYTES + 1) * CHUNK_BYTES
        edges = np.array([begin, *range(first, end, CHUNK_BYTES), end], np.int64)
        rows = len(edges) - 1
        numbers = np.zeros(rows, np.uint64)
        columns = UuidColumns(numbers, numbers, np.zeros(rows, np.uint16), edges[:-1], edges[1:])
        offsets = pa.py_buffer((edges - begin).astype(np.int32))
        values = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(data)])
        return self._outputs.rows(MessageTable(columns, values))
