"""Checks of JSON documents one by one, which find the errors of bad documents.

They're much faster than narrowing down the bad documents of a block by pyarrow.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import msgspec

from gazette_aio.message.columnar.documents.conversion import (
    bad_value,
    convert_values,
    is_text,
)
from gazette_aio.message.columnar.pyarrow_api import pa

if TYPE_CHECKING:
    from collections.abc import Callable

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
"""What JSON must escape: msgspec takes no names with it as those of a struct."""
_FIRST_OF_PATH: Final = re.compile(r"(?<=`\$\.)f(\d+)")


class LineChecker:
    """Finds documents that pyarrow refuses; it may refuse others as well.

    Args:
        fields: Columns that are parsed.
    """

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields
        self._names = {field.name: msgspec.json.encode(field.name) for field in fields}

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        kind = _object("Document", self._fields)
        if not issubclass(kind, _Members):
            return msgspec.json.Decoder(kind, dec_hook=_convert, float_hook=Decimal).decode
        decode = msgspec.json.Decoder(float_hook=Decimal).decode
        return lambda line: kind.take(decode(line))

    def decode(self, lines: list[bytes]) -> tuple[list[Any], dict[int, Exception]]:
        """Return a document of each line, and the errors of lines by their index.

        Documents have attributes `f0`, `f1`, … of the columns. A line that this parser refuses
        has None, even without an error.
        """
        errors: dict[int, Exception] = {}
        documents: list[Any] = []
        decode, add = self._decode, documents.append
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


class _Members(dict[str, Any]):
    """Members of an object by their names, of which msgspec can't take one as a struct's.

    These objects are read as values of any type first, and converted then.
    """

    names: ClassVar[list[str]]
    struct: ClassVar[Any]
    """Struct whose names are `f0`, `f1`, …"""

    @classmethod
    def take(cls, value: Any) -> Any:
        """Return the struct of an object.

        Raises:
            ValidationError: It's no object, or a member has another type.
        """
        if not isinstance(value, dict):
            raise msgspec.ValidationError(f"Expected `object`, got {type(value).__name__!r}")
        members = cast("dict[str, Any]", value)
        renamed = {f"f{at}": members[name] for at, name in enumerate(cls.names) if name in members}
        try:
            return msgspec.convert(renamed, cls.struct, dec_hook=_convert)
        except msgspec.ValidationError as error:
            text = _FIRST_OF_PATH.sub(lambda found: cls.names[int(found[1])], str(error), count=1)
            raise msgspec.ValidationError(text) from None


def _convert(kind: type[_Members], value: Any) -> _Members:
    found = kind.take(value)
    return kind((name, getattr(found, f"f{at}")) for at, name in enumerate(kind.names))


def _object(name: str, fields: list[Any]) -> Any:
    """Return a struct of fields named `f0`, `f1`, …; or members, if names have escapes."""
    hints = [(f"f{at}", _hint(field.type), field.name) for at, field in enumerate(fields)]
    if not any(_ESCAPED.search(field.name) for field in fields):
        members = [(at, hint, msgspec.field(default=None, name=name)) for at, hint, name in hints]
        return msgspec.defstruct(name, members)
    struct = msgspec.defstruct(name, [(at, hint, None) for at, hint, _ in hints])
    return type(name, (_Members,), {"names": [field.name for field in fields], "struct": struct})


def _hint(kind: Any) -> Any:
    """Return a type of Python that has all the values that pyarrow accepts."""
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
        hint = _object("Object", [kind.field(index) for index in range(kind.num_fields)])
    elif types.is_list(kind):
        hint = list[_hint(kind.value_type)]  # type: ignore[misc]
    elif types.is_map(kind):
        hint = dict[str, _hint(kind.item_type)]  # type: ignore[misc]
    assert hint is not None
    return hint | None
