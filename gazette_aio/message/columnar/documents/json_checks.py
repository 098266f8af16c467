"""Checks of JSON documents one by one, which find the errors of bad documents.

They're much faster than narrowing down the bad documents of a block by pyarrow.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec

from gazette_aio.message.columnar.documents.conversion import (
    bad_value,
    convert_values,
    is_text,
)
from gazette_aio.message.columnar.pyarrow_api import pa


class LineChecker:
    """Finds documents which pyarrow refuses; it may refuse others as well.

    Args:
        fields: Columns which are parsed.
    """

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields
        self._names = {field.name: msgspec.json.encode(field.name) for field in fields}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(_struct("Document", self._fields))

    def decode(self, lines: list[bytes]) -> tuple[list[Any], dict[int, Exception]]:
        """Return a document of each line, and the errors of lines by their index.

        Documents have attributes `f0`, `f1`, … of the columns. A line which this parser refuses
        has None, even without an error.
        """
        errors: dict[int, Exception] = {}
        documents: list[Any] = []
        decode, add = self._decoder.decode, documents.append
        for index, line in enumerate(lines):
            try:
                document = decode(line)
                repeated = self._repeated(line)
                if repeated is None:
                    add(document)
                    continue
                errors[index] = bad_value(repeated, "there are several values")
            except msgspec.ValidationError as error:
                errors[index] = error
            except msgspec.DecodeError as error:
                # pyarrow accepts these as numbers.
                if b"NaN" not in line and b"Inf" not in line:
                    errors[index] = error
            except RecursionError:
                pass
            add(None)
        return documents, errors

    def check(self, lines: list[bytes]) -> dict[int, Exception]:
        """Return the errors of lines, by their index."""
        documents, errors = self.decode(lines)
        for number, field in enumerate(self._fields):
            if pa.types.is_integer(field.type) or pa.types.is_decimal(field.type):
                name = f"f{number}"
                values = [getattr(document, name, None) for document in documents]
                convert_values(field.name, values, field.type, errors)
        return errors

    def _repeated(self, line: bytes) -> str | None:
        """Return the name of a column with several values, unless escapes hide that."""
        if all(line.count(text) < 2 for text in self._names.values()):
            return None
        # Numbers may have more digits than Python is willing to convert.
        members: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list, parse_int=str)
        names = [name for name, _ in members if name in self._names]
        return next((name for name in names if names.count(name) > 1), None)


def _struct(name: str, fields: list[Any]) -> Any:
    members = [
        (f"f{index}", _hint(field.type), msgspec.field(default=None, name=field.name))
        for index, field in enumerate(fields)
    ]
    return msgspec.defstruct(name, members)


def _hint(kind: Any) -> Any:
    """Return a type of Python which has all the values that pyarrow accepts."""
    types = pa.types
    hint: Any = None
    if types.is_boolean(kind):
        hint = bool
    elif types.is_integer(kind):
        hint = int
    elif types.is_floating(kind):
        hint = float
    elif types.is_decimal(kind):
        hint = Decimal
    elif is_text(kind):
        hint = str
    elif types.is_struct(kind):
        hint = _struct("Object", [kind.field(index) for index in range(kind.num_fields)])
    elif types.is_list(kind):
        hint = list[_hint(kind.value_type)]  # type: ignore[misc]
    elif types.is_map(kind):
        hint = dict[str, _hint(kind.item_type)]  # type: ignore[misc]
    assert hint is not None
    return hint | None
