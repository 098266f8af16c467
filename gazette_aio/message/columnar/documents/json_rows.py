"""Reader of JSON documents one by one: of all of them, or of those that the core leaves out."""

from __future__ import annotations

from typing import Any

import msgspec

from gazette_aio.message.columnar.documents.json_cursor import Cursor, Shape
from gazette_aio.message.columnar.pyarrow_api import pa


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
        self._groups = [
            (has_maps, places, Shape.of_object([fields[place] for place in places]))
            for has_maps in (False, True)
            if (places := [at for at, f in enumerate(fields) if has_map(f.type) == has_maps])
        ]

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
        for has_maps, places, shape in self._groups:
            rows: list[dict[str, Any]] = []
            for row, text in enumerate(texts):
                rows.append({})
                if text is None or row in errors:
                    continue
                try:
                    rows[row] = Cursor(text, shape, has_maps=has_maps).read()
                except (ValueError, msgspec.DecodeError) as error:
                    errors[row] = error
            for place in places:
                values = [members.get(self._fields[place].name) for members in rows]
                columns[place] = pa.array(values, self._kinds[place])
        return columns


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
