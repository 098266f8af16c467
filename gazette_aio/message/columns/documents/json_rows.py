"""Reader of JSON documents one by one: of all of them, or of those that the core leaves out.

It decides on documents, and words their errors: those of msgspec, and then those of the cursor.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

import msgspec

from gazette_aio.message.columns.documents.json_cursor import Cursor, MalformedError, Shape
from gazette_aio.message.columns.pyarrow_api import pa

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')  # msgspec takes no such names of members.
_HINTS: Final = {"bool": bool, "int": int, "float": float, "decimal": Decimal, "str": str}


class RowReader:
    """Reads columns of JSON documents one by one.

    Args:
        fields: Columns to read.
        kinds: Types of the columns that are read, to be converted.
    """

    def __init__(self, fields: list[Any], kinds: list[Any]) -> None:
        self._columns = [(field.name, kind) for field, kind in zip(fields, kinds, strict=True)]
        self._shape = Shape.of_object(fields)
        self._check = msgspec.json.Decoder(_hint(self._shape), float_hook=str).decode

    def read(self, documents: list[bytes], errors: dict[int, Exception]) -> list[Any]:
        """Return columns of documents, whose bad ones have nulls.

        Args:
            documents: The documents.
            errors: Takes the errors of bad documents by index.
        """
        rows: list[dict[str, Any]] = []
        for row, document in enumerate(documents):
            found = self._read(document)
            if isinstance(found, Exception):
                errors[row], found = found, {}
            rows.append(found)
        return [
            pa.array([members.get(name) for members in rows], kind) for name, kind in self._columns
        ]

    def _read(self, document: bytes) -> dict[str, Any] | Exception:
        """Return the members of a document, or its error."""
        text = _text_of(document)
        if not isinstance(text, str):
            return text or {}
        refusal: Exception = ValueError("text isn't JSON")
        try:
            self._check(text + "\n")
        except msgspec.ValidationError as error:
            return error
        except msgspec.DecodeError as error:
            if "NaN" not in text and "Inf" not in text:
                return error
            refusal = error
        except RecursionError:
            pass
        try:
            return Cursor(text, self._shape).read()
        except MalformedError:
            return refusal
        except ValueError as error:
            return error


def _hint(shape: Shape) -> Any:
    """Return a type of msgspec that has all values of a shape, and few others."""
    if shape.form in ("array", "map"):
        hint = _hint(shape.children["[]"]) | None
        return list[hint] if shape.form == "array" else dict[str, hint]  # type: ignore[valid-type]
    if shape.form != "object":
        return _HINTS[shape.form]
    if any(map(_ESCAPED.search, shape.children)):
        return Any
    fields = [
        (f"f{at}", _hint(child) | None, msgspec.field(default=None, name=name))
        for at, (name, child) in enumerate(shape.children.items())
    ]
    return msgspec.defstruct("Document", fields)


def _text_of(document: bytes) -> str | Exception | None:
    """Return the text of a document, None for null, or why it can't be an object."""
    stripped = document.strip(b" \t\r\n")
    if stripped == b"null":
        return None
    if not stripped:
        return ValueError("blank line")
    try:
        if stripped[:1] != b"{" or stripped[-1:] != b"}":
            found = type(msgspec.json.decode(stripped)).__name__
            return ValueError(f"document is not an object but {found}")
        if b"\0" in document:
            return ValueError("there's a zero byte")
        return stripped.decode()
    except UnicodeDecodeError:
        return ValueError("text isn't UTF-8")
    except (msgspec.DecodeError, RecursionError) as error:
        return error
