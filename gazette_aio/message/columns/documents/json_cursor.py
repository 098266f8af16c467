"""Cursor over one JSON document that msgspec takes, or only refuses for what isn't JSON proper.

It's the reference of the core's cursor. As columns take documents, NaN and infinity are numbers,
which no column holds, and a number whose exponent is beyond a double's is an error.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from gazette_aio.message.columns.documents.conversion import VALUE_ERRORS, bad_value
from gazette_aio.message.columns.pyarrow_api import pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"'
_MEMBER: Final = re.compile(rf"[ \t\r\n]*({_STRING})[ \t\r\n]*:")
_TOKEN: Final = re.compile(
    rf"[ \t\r\n]*(?:(?P<str>{_STRING})"
    r"|(?P<float>-?(?:0|[1-9]\d*+)(?=[.eE])(?:\.(\d+))?(?:[eE]\+?(-?\d+))?)(?![.eE])"
    r"|(?P<int>-?(?:0|[1-9]\d*+))(?![.eE\d])"
    r"|(?P<bool>true|false)|(?P<null>null)|(?P<object>\{)|(?P<array>\[)"
    r"|(?P<constant>-?(?:NaN|Inf(?:inity)?)))",
    re.ASCII,
)
_DECIMAL: Final = re.compile(r"[+-]?(?=\.?\d)0*(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?", re.ASCII)
_WIDE: Final = Context(prec=200)  # No decimal of Arrow has more than 76 digits.
_MAX_EXPONENT: Final = 308
_MAX_DIGITS: Final = 4000  # Of an integer that Python is willing to convert.
_NUMBER, _FORM, _TYPE = range(3)
"""Ranks of errors: of any number, of the form of a value, of its type."""
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
_PYARROW_FORMS: Final = {"str": "string", "bool": "boolean"}


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
        has_maps: Whether members have maps. Then the last one of several values of a member counts,
            constants such as NaN are errors, and numbers are checked when they're converted.
    """

    def __init__(self, text: str, shape: Shape, *, has_maps: bool) -> None:
        self._text = text
        self._at = 0
        self._shape = shape
        self._names = list(shape.children)
        self._has_maps = has_maps
        self._name = self._names[0]
        self._faults: dict[tuple[int, int], ValueError] = {}
        self._has_misfits = False

    def read(self) -> dict[str, Any]:
        """Return the members. Floats and decimals are texts, and maps are lists of pairs.

        Raises:
            ValueError: A member has several values, or a value doesn't fit its type.
            MalformedError: The text isn't JSON.
        """
        seen = Counter[str]()
        members: dict[str, Any] = {}
        self._expect("{")
        for _ in self._elements("}"):
            name = self._member()
            if (shape := self._shape.children.get(name)) is None:
                self._skip()
            else:
                self._name = name
                seen[name] += 1
                members[name] = self._value(shape, f"/{name}")
        if _SPACE.fullmatch(self._text, self._at) is None:
            raise MalformedError
        for name, count in seen.items():
            if count > 1:
                self._repeat(name)
        for name in self._names if self._has_misfits else ():
            if (error := _misfit_of(members.get(name))) is not None:
                raise bad_value(name, error)
        if self._faults:
            raise self._faults[min(self._faults)]
        return members

    def _repeat(self, name: str) -> None:
        if any(self._text.count(msgspec.json.encode(each).decode()) > 1 for each in self._names):
            raise bad_value(name, "there are several values")
        self._name = name  # Escapes hide one of its names.
        self._fault(_FORM, f"Column(/{name}) was specified twice")

    def _fault(self, rank: int, text: object) -> None:
        """Note an error of the present column. That of the first column is raised in the end."""
        if not self._has_maps:
            name = self._names[0] if rank == _NUMBER else self._name
            place = -1 if rank == _NUMBER else self._names.index(name)
            self._faults.setdefault((place, rank), bad_value(name, text))

    def _token(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._at)
        if token is None:
            raise MalformedError
        self._at = token.end()
        if token.lastgroup == "constant" and self._has_maps:
            raise ValueError("text isn't JSON")
        if token.lastgroup == "float" and _is_too_big(token):
            self._fault(_NUMBER, "Number too big to be stored in double.")
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
        """Return the value of a shape, at a place such as `/tags/[]`."""
        token = self._token()
        got = token.lastgroup or ""
        if got == "null":
            return None
        if got == "constant":
            if shape.form == "float":
                return "inf"  # Its column refuses infinity.
            self._fault(*_constant(shape, token[got], place))
            return None
        text = _plain(token[got]) if got == "str" else token[got]
        if got not in _FORMS[shape.form]:
            path = "$" + place.replace("/[]", "[...]").replace("/", ".")
            form = "object" if shape.form == "map" else shape.form
            raise ValueError(f"Expected `{form} | null`, got `{got}` - at `{path}`")
        is_nested = place != f"/{self._name}"
        match shape.form:
            case "int":
                return self._integer(text, shape.kind, is_nested=is_nested)
            case "decimal":
                return self._decimal(text, shape.kind, is_nested=is_nested)
            case "array":
                item = shape.children["[]"]
                return [self._value(item, f"{place}/[]") for _ in self._elements("]")]
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
            if name in members:
                self._fault(_FORM, f"Column({place}/{name}) was specified twice")
            members[name] = self._value(child, f"{place}/{'[]' if is_map else name}")
        return list(members.items()) if is_map else members

    def _misfit(self, value: Any, kind: Any) -> Exception | None:
        """Return the error of a value that a type doesn't hold, or None."""
        try:
            pa.scalar(value, kind)
        except VALUE_ERRORS as error:
            self._has_misfits = True
            return error.with_traceback(None)
        return None

    def _integer(self, text: str, kind: Any, *, is_nested: bool) -> int | Exception | None:
        value = int(text[:_MAX_DIGITS])
        is_unsigned = pa.types.is_unsigned_integer(kind)
        bits: int = kind.bit_width - (not is_unsigned)
        fits = (0 if is_unsigned else -(1 << bits)) <= value < 1 << bits
        if not fits and (self._has_maps or not is_nested):
            return self._misfit(value, kind)
        if not fits or (text == "-0" and is_unsigned):
            self._fault(_TYPE, f"Failed to convert JSON to {kind}, couldn't parse:{text}")
        return value if fits else None

    def _decimal(self, text: str, kind: Any, *, is_nested: bool) -> str | Exception | None:
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = None
        if value is None:
            raise bad_value(self._name, "Invalid decimal string")
        reason = None if self._has_maps else _why_no_decimal(text, kind)
        if reason is not None:
            self._fault(_TYPE, reason)
        if self._has_maps or (reason is not None and not is_nested):
            misfit = self._misfit(value, kind)
            if misfit is not None:
                return misfit
        if reason is not None:
            return None
        return f"{value.quantize(Decimal((0, (1,), -kind.scale)), context=_WIDE):f}"


def _is_too_big(token: re.Match[str]) -> bool:
    """Tell whether the exponent of a number is surely beyond that of a double, of 17 digits."""
    exponent = int((token[4] or "0")[:_MAX_DIGITS])
    return exponent > _MAX_EXPONENT + min(len(token[3] or ""), 17)


def _plain(quoted: str) -> str:
    """Return the content of a string."""
    if "\\" not in quoted:
        return quoted[1:-1]
    content: str = json.loads(quoted)
    if any("\ud800" <= character <= "\udfff" for character in content):
        raise MalformedError
    return content


def _misfit_of(value: Any) -> Exception | None:
    """Return the first error within a value, where it's in place of a value that didn't fit."""
    if isinstance(value, Exception):
        return value
    inner: list[Any] = []
    if isinstance(value, dict):
        inner += cast("dict[str, Any]", value).values()
    elif isinstance(value, list | tuple):
        inner += cast("list[Any]", value)
    return next((error for each in inner if (error := _misfit_of(each)) is not None), None)


def _constant(shape: Shape, text: str, place: str) -> tuple[int, str]:
    """Return the rank and the text of an error: a column can't hold NaN or infinity."""
    if shape.form == "int":
        return _TYPE, f"Failed to convert JSON to {shape.kind}, couldn't parse:{text}"
    if shape.form == "decimal":
        return _TYPE, _not_decimal(text, shape.kind)
    form = _PYARROW_FORMS.get(shape.form, shape.form)
    return _FORM, f"Column({place}) changed from {form} to number"


def _not_decimal(text: str, kind: Any) -> str:
    return f"The string '{text}' is not a valid decimal{kind.bit_width} number"


def _why_no_decimal(text: str, kind: Any) -> str | None:
    """Return why a number doesn't fit a type of decimals, unless it only has too many digits."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return _not_decimal(text, kind)
    digits, fraction = match[1], match[2]
    precision = len(digits) + len(fraction)
    most = 38 if kind.bit_width == 128 else 76  # Digits of a value of any scale.
    scale = len(fraction) - int((match[3] or "0")[:_MAX_DIGITS])
    if scale < 0:
        if -scale > most:
            return f"The string '{text}' cannot be represented as decimal{kind.bit_width}"
        precision, fraction, scale = precision - scale, fraction + "0" * -scale, 0
    failed = f"Failed to convert JSON to {kind}: {text} requires"
    if precision > kind.precision:
        return f"{failed} precision {precision}"
    dropped = scale - kind.scale
    if precision - dropped > most or (dropped > 0 and (digits + fraction)[-dropped:].strip("0")):
        return f"{failed} scale {scale}"
    return None
