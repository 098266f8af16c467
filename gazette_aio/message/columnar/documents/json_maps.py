"""Reader of columns with maps, objects of any members, which pyarrow can't read from JSON.

Documents are parsed one by one, but only the members of these columns.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from gazette_aio.message.columnar.documents.conversion import convert_values
from gazette_aio.message.columnar.documents.json_checks import LineChecker
from gazette_aio.message.columnar.pyarrow_api import pa


class MapReader:
    """Reads columns with maps of JSON documents.

    Args:
        fields: Columns as they're parsed.
    """

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields
        self._checker = LineChecker(fields)

    def read(self, lines: list[bytes]) -> tuple[list[Any], dict[int, Exception]]:
        """Return columns of lines, with nulls for bad lines, and the errors of these by index."""
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
    """Return whether a type is a map, or contains maps."""
    if pa.types.is_map(kind):
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(has_map(kind.field(index).type) for index in range(kind.num_fields))
