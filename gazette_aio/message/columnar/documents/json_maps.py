"""Columns of JSON documents which have maps: objects of any members, for which pyarrow has no way.

Documents are parsed one by one, but only for the members which are such columns.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from gazette_aio.message.columnar.documents.conversion import convert_values
from gazette_aio.message.columnar.documents.json_checks import LineChecker
from gazette_aio.message.columnar.pyarrow_api import pa


class MapReader:
    """Reads columns which have maps.

    Args:
        fields: Columns as they're parsed.
    """

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields
        self._checker = LineChecker(fields)

    def read(self, lines: list[bytes]) -> tuple[list[Any], dict[int, Exception]]:
        """Return columns of lines, with nulls where lines are bad, and what's wrong with those."""
        documents, errors = self._checker.decode(lines)
        for row, document in enumerate(documents):
            if document is None and row not in errors:
                errors[row] = ValueError("text isn't JSON")
        columns: list[Any] = []
        for number, field in enumerate(self._fields):
            name = f"f{number}"
            values = [_plain(getattr(document, name, None)) for document in documents]
            columns.append(convert_values(field.name, values, field.type, errors))
        return columns, errors


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value, builtin_types=(Decimal,))


def has_map(kind: Any) -> bool:
    """Return whether there are maps within a type, or it's one."""
    if pa.types.is_map(kind):
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(has_map(kind.field(index).type) for index in range(kind.num_fields))
