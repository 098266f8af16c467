"""Record batches: columns of the places and UUIDs of messages, and of their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.uuid import UNIX_EPOCH_TICKS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.columns.uuids import UuidColumns

METADATA_NAMES = ("_journal", "_begin", "_end", "_timestamp", "_clock", "_producer", "_flags")
"""Names of the columns before those of documents."""
VALUE_NAME = "_value"
"""Name of the column of messages that aren't decoded."""

_METADATA_TYPES = (
    pa.dictionary(pa.int32(), pa.string()),
    pa.int64(),
    pa.int64(),
    pa.timestamp("us", "UTC"),
    pa.uint64(),
    pa.binary(6),
    pa.uint16(),
)
_METADATA_FIELDS = [
    pa.field(name, kind, nullable=False)
    for name, kind in zip(METADATA_NAMES, _METADATA_TYPES, strict=True)
]
_VALUE_FIELD = pa.field(VALUE_NAME, pa.binary(), nullable=False)
_RAW_SCHEMA: Schema = pa.schema([*_METADATA_FIELDS, _VALUE_FIELD])


def record_schema(documents: Schema | None) -> Schema:
    """Return the schema of record batches, of a schema of documents or of undecoded messages."""
    if documents is None:
        return _RAW_SCHEMA
    schema: Schema = pa.schema([*_METADATA_FIELDS, *documents], documents.metadata)
    return schema


class RecordBuilder:
    """Builds the record batches of one journal.

    Args:
        journal: Name of the journal.
        documents: Schema of its documents, or None if messages aren't decoded.
    """

    def __init__(self, journal: str, documents: Schema | None) -> None:
        self.schema: Schema = record_schema(documents)
        self._journals = pa.array([journal], pa.string())

    def build(self, columns: UuidColumns, content: Any) -> RecordBatch:
        """Return the batch of some messages.

        Args:
            columns: UUIDs and places of the messages.
            content: Record batch of their documents, or array of their bytes.
        """
        rows = columns.rows
        codes = pa.array(np.zeros(rows, np.int32))
        arrays: list[Any] = [
            pa.DictionaryArray.from_arrays(codes, self._journals, safe=False),
            pa.array(columns.begin),
            pa.array(columns.end),
            timestamps(columns.clock),
            pa.array(columns.clock),
            _producers(columns.producer),
            pa.array(columns.flags),
        ]
        if isinstance(content, pa.RecordBatch):
            arrays += content.columns
        else:
            arrays.append(content)
        batch: RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return batch


_TICKS_PER_MICROSECOND = np.uint64(10)
_EPOCH_MICROSECONDS = UNIX_EPOCH_TICKS // 10
_COUNTER_BITS = np.uint64(4)


def timestamps(clocks: NDArray[np.uint64], validity: Any = None) -> Any:
    """Return the times of clocks, as timestamps in microseconds.

    Args:
        clocks: The clocks.
        validity: Bitmap of values that aren't null, if there are nulls.
    """
    # Ticks have 60 bits, so that microseconds fit into signed ones with room to spare.
    since_1582 = (clocks >> _COUNTER_BITS) // _TICKS_PER_MICROSECOND
    microseconds = since_1582.view(np.int64) - np.int64(_EPOCH_MICROSECONDS)
    buffers = [validity, pa.py_buffer(microseconds)]
    return pa.Array.from_buffers(_METADATA_TYPES[3], len(clocks), buffers)


def _producers(producers: NDArray[np.uint64]) -> Any:
    raw = producers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    buffers = [None, pa.py_buffer(np.ascontiguousarray(raw))]
    return pa.Array.from_buffers(_METADATA_TYPES[5], len(producers), buffers)
