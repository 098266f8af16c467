"""Columns of records of comma-separated values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columnar.documents.conversion import (
    Converter,
    cast_to,
    is_text_dictionary,
    parse_dates,
    parse_timestamps,
)
from gazette_aio.message.columnar.pyarrow_api import pa
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.adapters import CSVAdapter
    from gazette_aio.message.columnar.payloads import Payloads
    from gazette_aio.message.sequencing.columns import Indices


class CSVReader:
    """Reads columns of CSV records, which are those of `fields` in their order.

    Args:
        adapter: Adapter of the records. The field of the UUID is no column.
        fields: Columns to read. Records may have more fields.

    Raises:
        ConfigurationError: If a type isn't supported.
    """

    def __init__(self, adapter: CSVAdapter, fields: list[Any]) -> None:
        self._decode = adapter.decode
        self._uuid_column = adapter.uuid_column
        self.converters: list[Converter | None] = []
        self._kinds: list[Any] = [field.type for field in fields]
        self._texts = [not _is_binary(kind) for kind in self._kinds]
        for field in fields:
            try:
                self.converters.append(_converter(field.type))
            except TypeError:
                text = f"column {field.name!r}: {field.type} can't be decoded from CSV"
                raise ConfigurationError(text) from None

    def read(
        self, payloads: Payloads, rows: Indices
    ) -> tuple[list[Any], Indices | None, dict[int, Exception]]:
        """Return columns of what was parsed, positions of these rows, and errors of the others."""
        errors: dict[int, Exception] = {}
        records: list[list[str]] = []
        positions: list[int] = []
        width = len(self._kinds)
        for row, payload in enumerate(payloads.take_list(rows)):
            try:
                record = self._decode(payload)
                if len(record) > self._uuid_column:
                    del record[self._uuid_column]
                if len(record) < width:
                    raise ValueError(f"record has {len(record)} fields besides its UUID")
                for field, is_text in zip(record, self._texts, strict=False):
                    if is_text:
                        field.encode()
            except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                errors[row] = error
            else:
                records.append(record)
                positions.append(row)
        columns = [
            _column([record[index] for record in records], kind)
            for index, kind in enumerate(self._kinds)
        ]
        return columns, np.array(positions, np.int64) if errors else None, errors


def _column(texts: list[str], kind: Any) -> Any:
    may_be_empty = _may_be_empty(kind)
    if _is_binary(kind):
        values = [text.encode("utf-8", "surrogateescape") for text in texts]
        return pa.array([v if v or may_be_empty else None for v in values], pa.binary())
    return pa.array([t if t or may_be_empty else None for t in texts], pa.string())


def _may_be_empty(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or is_text_dictionary(kind)
    )


def _is_binary(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _converter(kind: Any) -> Converter | None:
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind):
        return None
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return cast_to(kind)
    if is_text_dictionary(kind):
        return cast_to(kind)
    if types.is_timestamp(kind):
        return parse_timestamps(kind)
    if types.is_date(kind):
        return parse_dates(kind)
    if (
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_decimal(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return cast_to(kind)
    raise TypeError
