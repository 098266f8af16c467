"""Record batches as the outputs of a journal's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gazette_aio.message.columns.documents.decoder import Decoded
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.records import RecordBuilder
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.core import Batch
from gazette_aio.message.envelopes.content import Refusal
from gazette_aio.message.uuid import ACK_TXN

if TYPE_CHECKING:
    from pyarrow import BinaryArray, RecordBatch

    from gazette_aio.message.columns.documents.decoder import DocumentDecoder
    from gazette_aio.message.columns.documents.messages import Messages
    from gazette_aio.message.columns.uuids import Indices
    from gazette_aio.message.envelopes.outputs import BadMessages, Made
    from gazette_aio.protocol.errors import FramingError

MAX_BATCH_BYTES: Final = 1 << 30
"""Largest size of the messages of a record batch, and of a single message."""

_ACK = np.uint16(ACK_TXN)


def columns_of(batch: Batch) -> UuidColumns:
    """Return the UUIDs and offsets of messages."""
    producer, clock, flags, begin, end = batch.columns()
    return UuidColumns(
        np.frombuffer(producer, np.uint64),
        np.frombuffer(clock, np.uint64),
        np.frombuffer(flags, np.uint16),
        np.frombuffer(begin, np.int64),
        np.frombuffer(end, np.int64),
    )


def values_of(messages: Messages, start: int = 0, stop: int | None = None) -> BinaryArray:
    """Return the bytes of messages `[start, stop)`, by default all."""
    stop = len(messages) if stop is None else stop
    if not isinstance(messages, Batch):
        return messages[start:stop]
    buffers = [None, *map(pa.py_buffer, messages.values(start, stop))]
    values: BinaryArray = pa.Array.from_buffers(pa.binary(), stop - start, buffers)
    return values


class RecordMaker:
    """Makes record batches of the messages of one journal.

    Args:
        journal: Name of the journal.
        documents: Decoder of documents; or None to output their bytes.
        bad: What becomes of messages that can't be decoded.
        start_clock: Messages with smaller nonzero clocks are left out.
        piece_bytes: Largest size of the messages of a batch, unless it's a single one. Commits of
            large transactions are split.
    """

    def __init__(
        self,
        journal: str,
        documents: DocumentDecoder | None,
        bad: BadMessages,
        start_clock: int,
        piece_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._journal = journal
        self._documents = documents
        self._bad = bad
        self._start_clock = np.uint64(start_clock)
        self._piece_bytes = min(piece_bytes, MAX_BATCH_BYTES)
        # Of a batch that is made into pieces: its columns, and sizes of its messages, summed up.
        self._rest: tuple[UuidColumns, Any] | None = None
        self._builder = RecordBuilder(journal, None if documents is None else documents.schema)

    def make(self, batch: Batch, start: int) -> tuple[list[Made[RecordBatch]], int]:
        """Return record batches of messages, and errors between them."""
        columns, messages, stop = self._piece(batch, start)
        wanted = self._wanted(columns)
        if wanted is None:
            made = self._make(columns, messages)
        else:
            array: Any = values_of(messages).take(pa.array(wanted))
            made = [
                (value, int(wanted[end - 1]) + 1)
                for value, end in self._make(columns.take(wanted), array)
            ]
        outputs = [(value, start + end) for value, end in made]
        if outputs:
            # Unwanted messages after the last wanted one are delivered along with it.
            outputs[-1] = outputs[-1][0], stop
        return outputs, stop

    def _piece(self, batch: Batch, start: int) -> tuple[UuidColumns, Messages, int]:
        """Return messages from index `start` on that fit together, and the index after them."""
        if start and self._rest is not None:
            columns, sizes = self._rest
        else:
            columns = columns_of(batch)
            sizes = np.cumsum(columns.end - columns.begin)
        limit = self._piece_bytes + (sizes[start - 1] if start else 0)
        stop = max(int(np.searchsorted(sizes, limit, "right")), start + 1)
        self._rest = None if stop == len(batch) else (columns, sizes)
        if not start and stop == len(batch):
            return columns, batch, stop
        return columns.slice(start, stop), values_of(batch, start, stop), stop

    def refuse(self, refusal: Refusal) -> list[FramingError]:
        """Return the error of bytes that are no message."""
        return self._bad.errors(self._journal, refusal)

    def _wanted(self, columns: UuidColumns) -> Indices | None:
        """Return the indices of messages to output, or None for all."""
        if not self._start_clock:
            return None
        wanted = (columns.clock == 0) | (columns.clock >= self._start_clock)
        return None if wanted.all() else np.flatnonzero(wanted)

    def _make(self, columns: UuidColumns, messages: Messages) -> list[Made[RecordBatch]]:
        if not columns.rows:
            return []
        documents = self._documents
        if documents is None:
            return [(self._builder.build(columns, values_of(messages)), columns.rows)]
        decoded = _decode(documents, columns, messages)
        good = columns if decoded.good is None else columns.take(decoded.good)
        made: list[Made[RecordBatch]] = []
        at = 0

        def add_rows(stop: int, end: int) -> None:
            if stop > at:
                rows = decoded.batch.slice(at, stop - at)
                made.append((self._builder.build(good.slice(at, stop), rows), end))

        for passed, bad in enumerate(decoded.bad):
            begin, end = int(columns.begin[bad.position]), int(columns.end[bad.position])
            refusal = Refusal(bad.error, begin, end, "decode")
            for error in self._bad.errors(self._journal, refusal):
                stop = bad.position - passed
                add_rows(stop, bad.position)
                made.append((error, bad.position + 1))
                at = stop
        add_rows(good.rows, columns.rows)
        return made


def _decode(documents: DocumentDecoder, columns: UuidColumns, messages: Messages) -> Decoded:
    """Decode messages. Acknowledgements, which are no documents, become rows of nulls."""
    is_ack = columns.flags == _ACK
    if not is_ack.any():
        return documents.decode(messages)
    others = np.flatnonzero(~is_ack)
    values: Any = values_of(messages)
    batch, good, bad = documents.decode(values.take(pa.array(others)))
    at = np.full(columns.rows, -1, np.int64)
    at[others if good is None else others[good]] = np.arange(batch.num_rows)
    kept = np.flatnonzero(is_ack | (at >= 0))
    at = at[kept]
    batch = batch.take(pa.array(at, mask=at < 0))
    bad = [each._replace(position=int(others[each.position])) for each in bad]
    return Decoded(batch, kept, bad)
