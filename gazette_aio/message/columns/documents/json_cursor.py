"""Cursor over one JSON document that msgspec takes, or only refuses for what isn't JSON proper.

It's the reference of the core's cursor. NaN and infinity are numbers, which no column holds.
"""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gazette_aio.message.columns.documents.conversion import bad_value
from gazette_aio.message.columns.pyarrow_api import pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_MEMBER: Final = re.compile(rf"[ \t\r\n]*({_STRING})[ \t\r\n]*:")
_TOKEN: Final = re.compile(
    rf"[ \t\r\n]*(?:(?P<str>{_STRING})"
    r"|(?P<float>-?(?:0|[1-9]\d*+)(?=[.eE])(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![.eE])"
    r"|(?P<int>-?(?:0|[1-9]\d*+))(?![.eE\d])"
    r"|(?P<bool>true|false)|(?P<null>null)|(?P<object>\{)|(?P<array>\[)"
    r"|(?P<constant>-?(?:NaN|Inf(?:inity)?)))",
    re.ASCII,
)
_DECIMAL: Final = re.compile(r"[+-]?(?=\.?\d)\d*\.?\d*(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_SHOWN: Final = 80  # Characters of a value, in errors.
_MAX_DIGITS: Final = 4000  # Of an integer that Python is willing to convert.
_FORMS: Final = {  # Those of tokens that are values of a form.
    "bool": ("bool",),
    "int": ("int",),
    "float": ("int", "float"),
    "decimal": ("int", "float", "str"),
    "str": ("str",),
    "array": ("array",),
    "object": ("object",),
    "map": ("object",),
}


class Shape(NamedTuple):
    """Form of the JSON values of a type of Arrow."""

    form: str
    """`bool`, `int`, `float`, `decimal`, `str`, `array`, `object` or `map`."""
    kind: Any
    children: Mapping[str, Shape]
    """Shapes of members of an object; that of elements or of a map's values by `[]`."""

    @classmethod
    def of(cls, kind: Any) -> Shape:
        """Return the shape of a type of a schema."""
        types = pa.types
        if types.is_struct(kind):
            return cls.of_object(list(kind), kind)
        if types.is_list(kind):
            return cls("array", kind, {"[]": cls.of(kind.value_type)})
        if types.is_map(kind):
            return cls("map", kind, {"[]": cls.of(kind.item_type)})
        if types.is_boolean(kind):
            return cls("bool", kind, {})
        if types.is_integer(kind):
            return cls("int", kind, {})
        if types.is_decimal(kind):
            return cls("decimal", kind, {})
        return cls("float" if types.is_floating(kind) else "str", kind, {})

    @classmethod
    def of_object(cls, fields: list[Any], kind: Any = None) -> Shape:
        """Return the shape of an object with members."""
        return cls("object", kind, {field.name: cls.of(field.type) for field in fields})


class MalformedError(Exception):
    """The text isn't JSON."""


class Cursor:
    """Reads the members of one document.

    Args:
        text: The document, which begins with a brace.
        shape: Shape of the document.
    """

    def __init__(self, text: str, shape: Shape) -> None:
        self._text = text
        self._at = 0
        self._shape = shape
        self._column = ""

    def read(self) -> dict[str, Any]:
        """Return the members. Floats are texts, and maps are lists of pairs.

        Raises:
            ValueError: A member has several values, or a value doesn't fit its type.
            MalformedError: The text isn't JSON.
        """
        self._expect("{")
        members: dict[str, Any] = self._object(self._shape, "$")
        if _SPACE.fullmatch(self._text, self._at) is None:
            raise MalformedError
        return members

    def _bad(self, text: str, place: str) -> ValueError:
        """Return the error of a value at a place such as `$.tags[...]`."""
        is_nested = place != f"$.{self._column}"
        return bad_value(self._column, f"{text} - at `{place}`" if is_nested else text)

    def _token(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise MalformedError
        self._at = token.end()
        return token

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            space = _SPACE.match(self._text, self._at)
            if space is None or not self._text.startswith(text, space.end()):
                return False
            self._at = space.end()
        self._at += len(text)
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise MalformedError

    def _elements(self, closer: str) -> Iterator[None]:
        """Iterate elements, each of which the caller passes over."""
        if self._takes(closer):
            return
        while True:
            yield
            if not self._takes(","):
                self._expect(closer)
                return

    def _member(self) -> str:
        """Pass over the name of a member, and return it."""
        member = _MEMBER.match(self._text, self._at)
        if member is None:
            raise MalformedError
        self._at = member.end()
        return _plain(member[1])

    def _skip(self) -> None:
        """Pass over a value, however deep it is."""
        closers: list[str] = []
        while True:
            token = self._token()
            if token.lastgroup in ("object", "array"):
                closer = "}" if token.lastgroup == "object" else "]"
                if not self._takes(closer):
                    closers.append(closer)
                    if closer == "}":
                        self._member()
                    continue
            elif token.lastgroup == "str":
                _plain(token["str"])
            while closers:
                if self._takes(","):
                    if closers[-1] == "}":
                        self._member()
                    break
                self._expect(closers.pop())
            else:
                return

    def _value(self, shape: Shape, place: str) -> Any:
        token = self._token()
        got = token.lastgroup or ""
        if got == "null":
            return None
        if got == "constant":
            if shape.form == "float":
                return "inf"  # Its column refuses infinity.
            raise self._bad(f"{token[got]} isn't of type {shape.kind}", place)
        text = _plain(token[got]) if got == "str" else token[got]
        if got not in _FORMS[shape.form]:
            form = "object" if shape.form == "map" else shape.form
            raise ValueError(f"Expected `{form} | null`, got `{got}` - at `{place}`")
        match shape.form:
            case "int":
                return self._integer(text, shape.kind, place)
            case "decimal":
                return self._decimal(text, shape.kind, place)
            case "array":
                item = shape.children["[]"]
                return [self._value(item, f"{place}[...]") for _ in self._elements("]")]
            case "map" | "object":
                return self._object(shape, place)
            case form:
                return text == "true" if form == "bool" else text

    def _object(self, shape: Shape, place: str) -> Any:
        members: dict[str, Any] = {}
        is_map = shape.form == "map"
        for _ in self._elements("}"):
            name = self._member()
            child = shape.children.get("[]" if is_map else name)
            if child is None:
                self._skip()
                continue
            if shape is self._shape:
                self._column = name
            inner = f"{place}[...]" if is_map else f"{place}.{name}"
            if name in members and not is_map:
                raise self._bad("there are several values", inner)
            members[name] = self._value(child, inner)
        return list(members.items()) if is_map else members

    def _integer(self, text: str, kind: Any, place: str) -> int:
        value = int(text[:_MAX_DIGITS])
        is_unsigned = pa.types.is_unsigned_integer(kind)
        bits: int = kind.bit_width - (not is_unsigned)
        if not (0 if is_unsigned else -(1 << bits)) <= value < 1 << bits:
            raise self._bad(f"{text[:_MAX_SHOWN]} is out of the range of {kind}", place)
        return value

    def _decimal(self, text: str, kind: Any, place: str) -> Decimal:
        if _DECIMAL.fullmatch(text) is None:
            raise self._bad(f"not a decimal number: {text[:_MAX_SHOWN]!r}", place)
        exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        try:
            return Decimal(text).quantize(Decimal((0, (1,), -kind.scale)), context=exact)
        except (Inexact, InvalidOperation):
            raise self._bad(f"{text[:_MAX_SHOWN]} has more digits than {kind}", place) from None


def _plain(quoted: str) -> str:
    """Return the content of a string."""
    if "\\" not in quoted:
        return quoted[1:-1]
    content: str = json.loads(quoted)
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise MalformedError
    return content
