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
_OUT_OF_RANGE: Final = "Number out of range"


class RowReader:
    """Reads columns of JSON documents one by one.

    Columns with maps are read after others, as another document.

    Args:
        fields: Columns to read.
        kinds: Types of the columns that are read, to be converted.
    """

    def __init__(self, fields: list[Any], kinds: list[Any]) -> None:
        self._fields = fields
        self._kinds = kinds
        self._groups: list[_Group] = []
        for has_maps in (False, True):
            places = [at for at, field in enumerate(fields) if has_map(field.type) == has_maps]
            if places:
                shape = Shape.of_object([fields[place] for place in places])
                self._groups.append(_Group(places, shape, has_maps=has_maps))

    def read(self, documents: list[bytes], errors: dict[int, Exception]) -> list[Any]:
        """Return columns of documents, whose bad ones have any values.

        Args:
            documents: The documents.
            errors: Takes the errors of bad documents by index.
        """
        texts: list[str | None] = []
        for row, document in enumerate(documents):
            text = _text_of(document)
            if isinstance(text, Exception):
                errors[row], text = text, None
            texts.append(text)
        columns: list[Any] = [None] * len(self._fields)
        for group in self._groups:
            rows: list[dict[str, Any]] = []
            for row, text in enumerate(texts):
                found = {} if text is None or row in errors else group.read(text)
                if isinstance(found, Exception):
                    errors[row], found = found, {}
                rows.append(found)
            for place in group.places:
                values = [members.get(self._fields[place].name) for members in rows]
                columns[place] = pa.array(values, self._kinds[place])
        return columns


class _Group:
    """Columns that are read together."""

    def __init__(self, places: list[int], shape: Shape, *, has_maps: bool) -> None:
        self.places = places
        self._shape = shape
        self._has_maps = has_maps
        self._decode = msgspec.json.Decoder(_hint(shape), float_hook=Decimal).decode

    def read(self, text: str) -> dict[str, Any] | Exception:
        """Return the members of a document, or its error."""
        refusal: msgspec.DecodeError | None = None
        try:
            self._decode(text + "\n")
        except msgspec.ValidationError as error:
            refusal = error
            # Columns of floats refuse infinity themselves.
            if self._has_maps or not str(error).startswith(_OUT_OF_RANGE):
                return error
        except msgspec.DecodeError as error:
            refusal = error
            if "NaN" not in text and "Inf" not in text:
                return error
        except RecursionError:
            pass
        try:
            return Cursor(text, self._shape, has_maps=self._has_maps).read()
        except MalformedError:
            return refusal or ValueError("text isn't JSON")
        except ValueError as error:
            return refusal if isinstance(refusal, msgspec.ValidationError) else error


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


def has_map(kind: Any) -> bool:
    """Return whether a type is that of a map, or has one within."""
    if pa.types.is_map(kind):
        return True
    if not pa.types.is_nested(kind):
        return False
    return any(has_map(kind.field(index).type) for index in range(kind.num_fields))


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
