"""Reader of CSV records as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.message.columns.documents.conversion import (
    Converter,
    Parsed,
    cast_to,
    decode_singly,
    is_bytes,
    is_text,
    is_text_dictionary,
    parse_scalars,
)
from gazette_aio.message.columns.documents.messages import payloads_of
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.adapters.csv import CSVAdapter
    from gazette_aio.message.columns.documents.messages import Messages


class CSVReader:
    """Reads columns of CSV records: `fields`, in their order.

    Args:
        adapter: Adapter of the records. The field of the UUID is no column.
        fields: Columns to read. Records may have more fields.

    Raises:
        ConfigurationError: A type isn't supported.
    """

    def __init__(self, adapter: CSVAdapter, fields: list[Any]) -> None:
        self._decode = adapter.decode
        self._uuid_column = adapter.uuid_column
        self._converters: list[Converter | None] = []
        self._kinds: list[Any] = [field.type for field in fields]
        self._texts = [not is_bytes(kind) for kind in self._kinds]
        for field in fields:
            try:
                self._converters.append(_converter(field.type))
            except TypeError:
                text = f"column {field.name!r}: {field.type} can't be decoded from CSV"
                raise ConfigurationError(text) from None

    def read(self, messages: Messages) -> list[Parsed]:
        """Return the columns of records."""
        records, positions, errors = decode_singly(payloads_of(messages), self._record)
        columns = [
            _column([record[index] for record in records], kind)
            for index, kind in enumerate(self._kinds)
        ]
        return [Parsed(columns, self._converters, positions, errors, {})]

    def _record(self, payload: bytes) -> list[str]:
        """Return the fields of a record, without that of the UUID."""
        record = self._decode(payload)
        if len(record) > self._uuid_column:
            del record[self._uuid_column]
        if len(record) < len(self._kinds):
            raise ValueError(f"record has {len(record)} fields besides its UUID")
        for field, is_checked in zip(record, self._texts, strict=False):
            if is_checked:
                field.encode()
        return record


def _column(texts: list[str], kind: Any) -> Any:
    # Only these types have an empty value, besides null.
    may_be_empty = is_text(kind) or is_text_dictionary(kind)
    if is_bytes(kind):
        may_be_empty = not pa.types.is_fixed_size_binary(kind)
        values = [text.encode("utf-8", "surrogateescape") for text in texts]
        return pa.array([v if v or may_be_empty else None for v in values], pa.binary())
    return pa.array([t if t or may_be_empty else None for t in texts], pa.string())


def _converter(kind: Any) -> Converter | None:
    if pa.types.is_binary(kind):
        return None
    # Bytes are those of the field, and not in base64.
    return cast_to(kind) if is_bytes(kind) or is_text_dictionary(kind) else parse_scalars(kind)
