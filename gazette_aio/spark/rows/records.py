"""Rows of messages, as record batches of the exact schema which Spark expects.

Only columns of the schema are made. Columns which describe the UUID are null for messages without a
UUID, whose clock is zero. `_uuid` has the producer, clock and flags, like all UUIDs of version 1;
`_clock` has 16 hexadecimal digits, which sort like clocks; `_producer` has 12 digits.

Columns of labels have the label's first value in order, all values if the column is an array, and
null if the journal has no such label. `_key` is the value of the member which an option names, and
null for messages without it.

Bad records are bytes which aren't a frame, frames whose UUID can't be read, documents which don't
fit the columns, and messages without a value of a NOT NULL column. The mode decides:

- FAILFAST: raise an error which names the journal and offsets.
- DROPMALFORMED: drop and count the record.
- PERMISSIVE: make a row with the known properties of the message. Its document's columns are null,
  and the column of bad records has its text, with invalid UTF-8 replaced. If such a column is NOT
  NULL, it's an error instead: Spark takes the schema as it is, and reads no nulls of such columns.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np

from gazette_aio.message.columns.documents.decoder import DocumentDecoder
from gazette_aio.message.columns.documents.texts import clock_texts, producer_texts, uuid_texts
from gazette_aio.message.columns.outputs import MAX_BATCH_BYTES, columns_of, values_of
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.records import timestamps
from gazette_aio.message.uuid import ACK_TXN, MASK_64, UNIX_EPOCH_TICKS
from gazette_aio.protocol.errors import ConfigurationError, FramingError
from gazette_aio.spark.rows.formats import (
    Format,
    content_type_for,
    format_of,
    key_reader_of,
)
from gazette_aio.spark.types import KEY_COLUMN, RESERVED, classify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.columns.documents.messages import Messages
    from gazette_aio.message.columns.uuids import Indices, UuidColumns
    from gazette_aio.message.core import Batch
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.rows.keys import KeyReader
    from gazette_aio.spark.types import Columns, Labels

_OF_UUIDS: Final = ("_uuid", "_timestamp", "_producer", "_clock", "_flags")
_OF_BAD_FRAMES: Final = ("_journal", "_begin", "_end")
_ACK: Final = np.uint16(ACK_TXN)
_NO_CLOCK: Final = np.uint64(0)
_MAX_ROWS: Final = 1 << 20  # Of texts of 1 KiB, such as labels: their offsets have 32 bits.
_MAX_TEXT: Final = 500  # Of an error.


class RowLayout:
    """Columns, formats and decoders of a source's rows.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        ConfigurationError: The format can't have rows of the schema.
    """

    def __init__(self, options: SourceOptions, schema: Schema) -> None:
        self.options = options
        labels, corrupt = options.partition_columns, options.corrupt_column
        self.columns: Columns = classify(schema, partition_columns=labels, corrupt_column=corrupt)
        self.schema = schema
        fields = list[Any](schema)
        self.mode: Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"] = options.mode
        """Treatment of bad records: FAILFAST instead of PERMISSIVE unless `allows_nulls`."""
        self.allows_nulls: bool = True
        """Whether a bad record can be a row of nulls: no column of its content is NOT NULL."""
        self.required: list[str] = [
            f.name for f in fields if f.name in _OF_UUIDS and not f.nullable
        ]
        """NOT NULL columns which describe UUIDs."""
        self.stop_clock: np.uint64 | None = _clock_of(options.ending_timestamp_ms)
        """Clock after the last clock of rows, or None."""
        self._check_nullability()
        self._formats: dict[str, Format] = {}
        self._decoders: dict[str, DocumentDecoder | None] = {}
        self._key_readers: dict[str, KeyReader] = {}
        if options.format is not None:
            self.decoder_of("")

    def _check_nullability(self) -> None:
        options, columns = self.options, self.columns
        documents: list[str] = columns.documents.names
        for field in list[Any](self.schema):
            if field.nullable or field.name in _OF_BAD_FRAMES:
                continue
            name = field.name
            if name == KEY_COLUMN:
                raise ConfigurationError(f"column {name!r} can't be NOT NULL")
            if name in documents or name in RESERVED:
                self.allows_nulls = False
                if options.mode == "PERMISSIVE":
                    self.mode = "FAILFAST"
            if options.include_acks and name in documents:
                raise ConfigurationError(
                    f"column {name!r} is NOT NULL, but acknowledgements, which includeAcks=true"
                    " includes, have no value for it"
                )

    def start_clock(self, journal: str) -> np.uint64 | None:
        """Return the least clock of a journal's rows, or None."""
        return _clock_of(self.options.starting_ms(journal))

    def clocks_of(self, journal: str) -> tuple[int | None, int | None]:
        """Return the least clock of rows of a journal, and the clock after the last; or None."""
        start, stop = self.start_clock(journal), self.stop_clock
        return None if start is None else int(start), None if stop is None else int(stop)

    def format_of(self, content_type: str) -> Format:
        """Return the format of journals of a content type.

        Raises:
            ConfigurationError: Option 'uuid' or 'messageType' doesn't fit the format.
        """
        found = self._formats.get(content_type)
        if found is None:
            found = self._formats[content_type] = format_of(self.options, content_type)
        return found

    def decoder_of(self, content_type: str) -> DocumentDecoder | None:
        """Return the decoder of documents of a content type; or None if there are no such columns.

        Raises:
            ConfigurationError: Messages can't be decoded to columns of the schema.
        """
        if content_type not in self._decoders:
            self._decoders[content_type] = self._new_decoder(content_type)
        return self._decoders[content_type]

    def key_reader_of(self, content_type: str) -> KeyReader | None:
        """Return the reader of keys of a content type; or None if there is no column of keys.

        Raises:
            ConfigurationError: Messages of the content type have no such member.
        """
        if KEY_COLUMN not in self.columns.reserved:
            return None
        label = content_type_for(self.options, content_type)
        found = self._key_readers.get(label)
        if found is None:
            found = self._key_readers[label] = key_reader_of(self.options, label)
        return found

    def _new_decoder(self, content_type: str) -> DocumentDecoder | None:
        documents = self.columns.documents
        found = self.format_of(content_type)
        if not len(documents):
            return None
        first = documents.names[0]
        if found.kind == "raw" and self.options.format is None:
            raise ConfigurationError(
                f"column {first!r}: messages of content type {content_type!r} have no columns:"
                " set option 'format'"
            )
        if found.kind == "raw":
            raise ConfigurationError(f"column {first!r}: messages of format raw have no columns")
        if found.kind == "protobuf-fixed" and self.options.message_type is None:
            raise ConfigurationError(
                f"column {first!r}: columns of protobuf messages need the option 'messageType'"
            )
        return DocumentDecoder(found.adapter, documents)


def _clock_of(unix_ms: int | None) -> np.uint64 | None:
    """Return the clock of a time, at most the greatest clock."""
    if unix_ms is None:
        return None
    return np.uint64(min((unix_ms * 10_000 + UNIX_EPOCH_TICKS) << 4, MASK_64))


class MessageTable:
    """Messages as columns.

    Args:
        columns: Their UUIDs and offsets.
        content: The messages: a batch of the core, or an array of bytes.
    """

    def __init__(self, columns: UuidColumns, content: Messages) -> None:
        self.columns = columns
        self.content = content

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the messages of a batch."""
        return cls(columns_of(batch), batch)

    @cached_property
    def values(self) -> Any:
        """Array of the messages' bytes."""
        return values_of(self.content)

    def take(self, rows: Indices) -> Self:
        """Return the messages at some rows."""
        return type(self)(self.columns.take(rows), self.values.take(pa.array(rows)))


class RowDecoder:
    """Makes rows from the messages of one journal.

    Args:
        layout: Layout of the rows.
        journal: Name of the journal.
        labels: Labels of the journal.
        content_type: Content type of the journal, or empty.

    Raises:
        ConfigurationError: The messages can't be decoded to the schema, or the journal lacks the
            label of a NOT NULL column.
    """

    def __init__(self, layout: RowLayout, journal: str, labels: Labels, content_type: str) -> None:
        self.journal = journal
        self.skipped: int = 0
        """Number of bad records which were dropped."""
        self.end: int | None = None
        """Offset before which rows begin, if any."""
        self._layout = layout
        self._start_clock = layout.start_clock(journal)
        self._mode = layout.mode
        self._documents = layout.decoder_of(content_type)
        self._read_key = layout.key_reader_of(content_type)
        self._batch_rows = min(layout.options.batch_rows, _MAX_ROWS)
        self._batch_bytes = min(layout.options.batch_bytes, MAX_BATCH_BYTES)
        self._constants = self._find_constants(dict(labels))
        names = set(layout.columns.reserved)
        self._uuid_names = [name for name in _OF_UUIDS if name in names]
        self._place_names = names & {"_begin", "_end"}
        self._has_values = "_value" in names
        self._needs_values = self._has_values or self._read_key is not None

    def __repr__(self) -> str:
        return f"<RowDecoder of {self.journal}, {self.skipped} records skipped>"

    def _find_constants(self, labels: Mapping[str, tuple[str, ...]]) -> dict[str, _Constant]:
        columns = self._layout.columns
        fields = {field.name: field for field in list[Any](self._layout.schema)}
        constants: dict[str, _Constant] = {}
        if "_journal" in columns.reserved:
            constants["_journal"] = _Constant(self.journal, pa.string())
        for name, label, is_array in columns.labels:
            field = fields[name]
            values = sorted(labels.get(label, ()))
            if not values and not field.nullable:
                raise ConfigurationError(
                    f"column {name!r} is NOT NULL, but journal {self.journal} has no label {label}"
                )
            value = None if not values else values if is_array else values[0]
            constants[name] = _Constant(value, field.type)
        return constants

    def rows(self, messages: MessageTable) -> list[RecordBatch]:
        """Return batches of messages, in order.

        Acknowledgements are left out, unless options include them. So are messages whose clocks are
        before the starting timestamp, or not before the ending timestamp; messages without a clock
        stay.

        Args:
            messages: The messages.

        Raises:
            FramingError: A record is bad, and the mode is FAILFAST.
        """
        wanted = self._wanted(messages.columns)
        if wanted is not None:
            messages = messages.take(wanted)
        documents, errors = self._decode(messages)
        columns, texts = messages.columns, None
        if self._layout.required:
            text = f"column {self._layout.required[0]!r} is NOT NULL, but the message has no UUID"
            for row in np.flatnonzero(columns.clock == _NO_CLOCK).tolist():
                errors.setdefault(row, ValueError(text))
        if errors and self._mode == "FAILFAST":
            row = min(errors)
            begin, end = int(columns.begin[row]), int(columns.end[row])
            raise self._failure(errors[row], begin, end, "decode") from errors[row]
        if errors and self._mode == "DROPMALFORMED":
            self.skipped += len(errors)
            kept = np.delete(np.arange(columns.rows), list(errors))
            messages = messages.take(kept)
            columns = messages.columns
            documents = None if documents is None else documents.take(pa.array(kept))
        elif errors and self._layout.columns.corrupt is not None:
            texts = _texts_at(sorted(errors), messages.values)
        values = messages.values if self._needs_values else None
        ends = np.cumsum(columns.end - columns.begin)
        batches: list[RecordBatch] = []
        begin = base = 0
        while begin < columns.rows:
            fit = int(np.searchsorted(ends, base + self._batch_bytes, "right"))
            end = min(max(fit, begin + 1), begin + self._batch_rows)
            parts = [
                None if each is None else each.slice(begin, end - begin)
                for each in (values, documents, texts)
            ]
            batches.append(self._make(columns.slice(begin, end), *parts))
            begin, base = end, int(ends[end - 1])
        return batches

    def bad(
        self, error: FramingError, content: bytes | None, begin: int, end: int
    ) -> list[RecordBatch]:
        """Return the batches of a bad record, bytes `[begin, end)` of the journal.

        Args:
            error: Reason.
            content: Bytes of the record, without a frame's framing; or None if they aren't kept.
            begin: Offset of the first byte.
            end: Offset after the last byte.

        Raises:
            FramingError: The mode is FAILFAST.
        """
        if self.end is not None and begin >= self.end:
            return []
        if self._mode == "FAILFAST":
            raise self._failure(error, begin, end, error.kind) from error
        if self._mode == "DROPMALFORMED":
            self.skipped += 1
            return []
        values: dict[str, Any] = {"_begin": begin, "_end": end, "_value": content}
        if content is not None:
            values[self._layout.options.corrupt_column] = content.decode("utf-8", "replace")
        row = self._bad_row | {
            name: pa.array([value], self._bad_row[name].type)
            for name, value in values.items()
            if name in self._bad_row
        }
        return [pa.RecordBatch.from_arrays(list(row.values()), schema=self._layout.schema)]

    @cached_property
    def _bad_row(self) -> dict[str, Any]:
        """Columns of one row without any value except those of the journal."""
        return {
            field.name: constant.rows(1)
            if (constant := self._constants.get(field.name)) is not None
            else pa.nulls(1, field.type)
            for field in list[Any](self._layout.schema)
        }

    def _wanted(self, columns: UuidColumns) -> Indices | None:
        """Return the indices of messages which become rows, or None for all."""
        clock, layout = columns.clock, self._layout
        wanted = np.ones(columns.rows, np.bool_)
        if self._start_clock is not None:
            wanted &= (clock >= self._start_clock) | (clock == _NO_CLOCK)
        if layout.stop_clock is not None:
            wanted &= clock < layout.stop_clock
        if self.end is not None:
            wanted &= columns.begin < self.end
        if not layout.options.include_acks:
            wanted &= columns.flags != _ACK
        return None if wanted.all() else np.flatnonzero(wanted)

    def _make(self, columns: UuidColumns, values: Any, documents: Any, texts: Any) -> RecordBatch:
        """Return the batch of messages, their bytes, documents and texts of bad ones, if any."""
        arrays = {name: constant.rows(columns.rows) for name, constant in self._constants.items()}
        for name in self._place_names:
            arrays[name] = pa.array(columns.begin if name == "_begin" else columns.end)
        if self._uuid_names:
            arrays |= self._of_uuids(columns, columns.clock != _NO_CLOCK)
        if self._has_values:
            arrays["_value"] = values
        if (read_key := self._read_key) is not None:
            arrays[KEY_COLUMN] = pa.array(map(read_key, values.to_pylist()), pa.binary())
        if (corrupt := self._layout.columns.corrupt) is not None:
            arrays[corrupt] = pa.nulls(columns.rows, pa.string()) if texts is None else texts
        if documents is not None:
            arrays |= zip(documents.schema.names, documents.columns, strict=True)
        schema = self._layout.schema
        found = [arrays[name] for name in schema.names]
        made: RecordBatch = pa.RecordBatch.from_arrays(found, schema=schema)
        return made

    def _decode(self, messages: MessageTable) -> tuple[Any, dict[int, Exception]]:
        """Decode documents.

        Returns:
            Documents, with rows of nulls for bad messages and acknowledgements, or None if there
            are no such columns; and errors by the message's row.
        """
        if self._documents is None:
            return None, {}
        flags, content, rows = messages.columns.flags, messages.content, None
        if self._layout.options.include_acks and (flags == _ACK).any():
            rows = np.flatnonzero(flags != _ACK)
            content = messages.values.take(pa.array(rows))
        batch, good, bad = self._documents.decode(content)
        if rows is None:
            if good is None:
                return batch, {}
            rows = np.arange(len(flags))
        at = np.full(len(flags), -1, np.int64)
        at[rows if good is None else rows[good]] = np.arange(batch.num_rows)
        errors = {int(rows[position]): error for position, error in bad}
        return batch.take(pa.array(at, mask=at < 0)), errors

    def _of_uuids(self, columns: UuidColumns, has_uuid: Any) -> dict[str, Any]:
        validity = None
        if not has_uuid.all():
            validity = pa.py_buffer(np.packbits(has_uuid, bitorder="little"))
        arrays: dict[str, Any] = {}
        for name in self._uuid_names:
            match name:
                case "_uuid":
                    arrays[name] = uuid_texts(columns, validity)
                case "_timestamp":
                    arrays[name] = timestamps(columns.clock, validity)
                case "_producer":
                    arrays[name] = producer_texts(columns.producer, validity)
                case "_clock":
                    arrays[name] = clock_texts(columns.clock, validity)
                case _:
                    arrays[name] = pa.array(
                        columns.flags.astype(np.int32), mask=None if validity is None else ~has_uuid
                    )
        return arrays

    def _failure(self, error: Exception, begin: int, end: int, kind: str) -> FramingError:
        reason = " ".join(str(error).split())[:_MAX_TEXT]
        advice = "mode=PERMISSIVE makes it a row of nulls, mode=DROPMALFORMED drops it"
        if not self._layout.allows_nulls:
            advice = (
                "it can't be a row of nulls, because columns are NOT NULL: read it by"
                " schema.toNullable() and mode=PERMISSIVE, or drop it by mode=DROPMALFORMED"
            )
        text = (
            f"bad record of journal {self.journal} at bytes [{begin}, {end}): {reason} ({advice})"
        )
        return FramingError(text, journal=self.journal, begin=begin, end=end, kind=kind)


class _Constant:
    """A column with the same value in all rows."""

    def __init__(self, value: object, kind: Any) -> None:
        self._scalar = pa.scalar(value, kind)
        self._array = pa.repeat(self._scalar, 1)

    def rows(self, count: int) -> Any:
        """Return the column for a number of rows."""
        if len(self._array) < count:
            self._array = pa.repeat(self._scalar, count)
        return self._array.slice(0, count)


def _texts_at(rows: list[int], values: Any) -> Any:
    """Return the texts of the messages at `rows`, and nulls for all others."""
    texts: list[str | None] = [None] * len(values)
    for row in rows:
        texts[row] = values[row].as_py().decode("utf-8", "replace")
    return pa.array(texts, pa.string())
