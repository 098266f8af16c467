"""Values of Arrow columns, as JSON has them.

| type | JSON |
| --- | --- |
| null, and a null of any type | `null` |
| bool, integers | as they are, exact |
| floats | the shortest decimal that reads back as the same float of its width |
| string | string |
| binary | string, base64 |
| decimal | string, as `str(Decimal)` |
| timestamp | string, RFC 3339, with the digits of its unit; with a time zone in UTC and `Z` |
| date, time | string, RFC 3339 |
| duration | string, ISO 8601, in seconds, such as `-PT1.5S` |
| list, struct | array, object |
| map | object, whose names are the keys, or the texts of keys that aren't strings |

Dictionaries, run-end encoded and extension arrays are encoded as their values.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gazette_aio.message.columns.documents.conversion import FRACTION_DIGITS
from gazette_aio.message.columns.pyarrow_api import pa, pc
from gazette_aio.message.core import FORM

if TYPE_CHECKING:
    from gazette_aio.message.core.plain.rows import TableColumn

encoder: Final = msgspec.json.Encoder()

_NUMBERS: Final = {
    pa.bool_(): ("bool", 1),
    pa.int8(): ("int", 1),
    pa.int16(): ("int", 2),
    pa.int32(): ("int", 4),
    pa.int64(): ("int", 8),
    pa.uint8(): ("uint", 1),
    pa.uint16(): ("uint", 2),
    pa.uint32(): ("uint", 4),
    pa.uint64(): ("uint", 8),
    pa.float32(): ("float", 4),
    pa.float64(): ("float", 8),
    pa.date32(): ("date", 4),
}


class RefusedValueError(Exception):
    """A value that JSON can't hold.

    Args:
        row: Index of its row.
        reason: Reason.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row = row
        self.reason = reason


class RefusedTypeError(Exception):
    """A type that has no form in JSON."""


def json_values(array: Any) -> list[Any]:
    """Return what msgspec encodes as the JSON of each value of a valid array.

    Raises:
        RefusedValueError: A float isn't finite, a time is out of the years 0 to 9999, or a key of a
            map is there twice.
        RefusedTypeError: The type, or one within it, has no form in JSON.
    """
    array = _plain(array)
    kind, types = array.type, pa.types
    if types.is_floating(kind):
        return _floats(array, kind)
    if types.is_decimal(kind) or types.is_time(kind):
        return _texts(array)
    if types.is_timestamp(kind):
        return _timestamps(array, kind)
    if types.is_date(kind):
        return _of_length(_texts(pc.cast(array, pa.date32())), kind, 10)
    if types.is_duration(kind):
        return _durations(array, kind)
    if types.is_struct(kind):
        return _structs(array, kind)
    if types.is_map(kind):
        return _maps(array)
    if types.is_nested(kind) and hasattr(array, "flatten") and not types.is_union(kind):
        return _lists(array)
    is_number = types.is_boolean(kind) or types.is_integer(kind)
    if is_number or types.is_null(kind) or hasattr(pa.scalar(None, kind), "as_buffer"):
        values: list[Any] = array.to_pylist()
        return values
    raise RefusedTypeError(f"{kind} has no form in JSON")


def _plain(array: Any) -> Any:
    """Return the values of a dictionary, of runs, or of an extension type."""
    while True:
        kind = array.type
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_dictionary(kind):
            array = pc.take(array.dictionary, array.indices)
        elif pa.types.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        else:
            return array


def _texts(array: Any) -> list[Any]:
    texts: list[Any] = pc.cast(array, pa.large_string()).to_pylist()
    return texts


def _floats(array: Any, kind: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    for row, value in enumerate(values):
        if value is not None and not isfinite(value):
            raise RefusedValueError(row, f"{float(value)} has no form in JSON")
    if pa.types.is_float64(kind):
        return values
    # Every half is a single: its digits are the shortest ones of that.
    return [
        text if text is None else msgspec.Raw(f"{text}.0" if text.lstrip("-").isdigit() else text)
        for text in _texts(pc.cast(array, pa.float32()))
    ]


def _timestamps(array: Any, kind: Any) -> list[Any]:
    digits = FRACTION_DIGITS[kind.unit]
    suffix = "" if kind.tz is None else "Z"
    # Those with a time zone are stored in UTC, and slow to cast.
    spaced = _texts(pc.cast(array, pa.int64()).cast(pa.timestamp(kind.unit)))
    texts = [text if text is None else text.replace(" ", "T", 1) + suffix for text in spaced]
    return _of_length(texts, kind, 19 + (digits + 1 if digits else 0) + len(suffix))


def _of_length(texts: list[Any], kind: Any, length: int) -> list[Any]:
    """Return texts, and refuse years that need a sign or five digits."""
    for row, text in enumerate(texts):
        if text is not None and len(text) != length:
            raise RefusedValueError(row, f"{kind} is out of the years 0 to 9999")
    return texts


def _durations(array: Any, kind: Any) -> list[Any]:
    return [
        count if count is None else _duration(count, FRACTION_DIGITS[kind.unit])
        for count in pc.cast(array, pa.int64()).to_pylist()
    ]


def _duration(count: int, digits: int) -> str:
    seconds, fraction = divmod(abs(count), 10**digits)
    decimals = f".{fraction:0{digits}}" if fraction else ""
    return f"{'-' if count < 0 else ''}PT{seconds}{decimals}S"


def _structs(array: Any, kind: Any) -> list[Any]:
    names = [field.name for field in kind]
    if len(set(names)) < len(names):
        raise RefusedTypeError(f"{kind} has several members of the same name")
    columns = [json_values(column) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    objects: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
    return _nulled(objects, array)


def _nulled(values: list[Any], array: Any) -> list[Any]:
    if array.null_count:
        for row, is_valid in enumerate(array.is_valid().to_pylist()):
            if not is_valid:
                values[row] = None
    return values


def _lists(array: Any) -> list[Any]:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    stops = [0, *accumulate(lengths)]
    values = _of_rows(array.flatten(), stops)
    return _nulled([values[begin:end] for begin, end in pairwise(stops)], array)


def _maps(array: Any) -> list[Any]:
    # A slice of a map array keeps keys and items of all of it.
    offsets = array.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]
    stops = [offset - first for offset in offsets]
    keys = _plain(array.keys.slice(first, count))
    if pa.types.is_nested(keys.type):
        raise RefusedTypeError(f"keys of {array.type} can't be names")
    names = [_name(key) for key in _of_rows(keys, stops)]
    for row, (begin, end) in enumerate(pairwise(stops)):
        seen: set[str] = set()
        for name in names[begin:end]:
            if name in seen:
                text = encoder.encode(name).decode()
                raise RefusedValueError(row, f"key {text} is there twice")
            seen.add(name)
    items = _of_rows(array.items.slice(first, count), stops)
    maps: list[Any] = [
        dict(zip(names[begin:end], items[begin:end], strict=True)) for begin, end in pairwise(stops)
    ]
    return _nulled(maps, array)


def _name(key: Any) -> str:
    """Return the name that a key is in JSON."""
    return key if isinstance(key, str) else encoder.encode(key).decode().strip('"')


def _of_rows(values: Any, stops: list[int]) -> list[Any]:
    """Return the values of rows, the ranges of which are between their stops."""
    try:
        return json_values(values)
    except RefusedValueError as error:
        raise RefusedValueError(bisect_right(stops, error.row) - 1, error.reason) from None


def column_of(name: str, array: Any) -> TableColumn:
    """Return a member of documents, for `table_lines()`.

    Raises:
        RefusedValueError: As of `json_values()`.
        RefusedTypeError: As of `json_values()`.
    """
    if FORM == "native":
        try:
            return _described(name, array)
        except (RefusedValueError, RefusedTypeError):
            pass  # Within a list or struct, it tells another row.
    return encoded(name, array)


def encoded(name: str, array: Any) -> TableColumn:
    """Return a member whose values are encoded already. It raises as `json_values()`."""
    lines = encoder.encode_lines(json_values(array))
    return encoder.encode(name) + b":", "json", 0, len(array), 0, None, [lines], []


def _described(name: str, array: Any) -> TableColumn:
    array = _plain(array)
    kind, types = array.type, pa.types
    rows, offset = len(array), array.offset
    bits = slice(offset // 8, (offset + rows + 7) // 8)
    parts: list[bytes] = []
    children: list[TableColumn] = []
    if kind in _NUMBERS:
        what, parameter = _NUMBERS[kind]
        values = array.buffers()[1]
        parts = [_part(values, bits) if what == "bool" else _rows(values, offset, rows, parameter)]
    elif types.is_string(kind) or types.is_large_string(kind):
        what, parameter = "text", 4 if types.is_string(kind) else 8
        _, offsets, data = array.buffers()
        bounds, values = _bounds(offsets, offset, rows, parameter)
        parts = [bounds, _part(data, values)]
    elif types.is_timestamp(kind):
        what, parameter = "timestamp" if kind.tz is None else "utc", FRACTION_DIGITS[kind.unit]
        parts = [_rows(array.buffers()[1], offset, rows, 8)]
    elif types.is_time(kind):
        what, parameter = "time", FRACTION_DIGITS[kind.unit]
        parts = [_rows(array.buffers()[1], offset, rows, kind.bit_width // 8)]
    elif types.is_decimal128(kind):
        what, parameter = "decimal", kind.scale
        parts = [_rows(array.buffers()[1], offset, rows, 16)]
    elif types.is_struct(kind):
        what, parameter = "struct", 0
        names = {field.name for field in kind}
        if len(names) < kind.num_fields:
            return encoded(name, array)
        children = [_described(f.name, array.field(i)) for i, f in enumerate(kind)]
    elif types.is_list(kind) or types.is_large_list(kind):
        what, parameter = "list", 4 if types.is_list(kind) else 8
        bounds, values = _bounds(array.buffers()[1], offset, rows, parameter)
        parts = [bounds]
        children = [_described("", array.values.slice(values.start, values.stop - values.start))]
    else:
        return encoded(name, array)
    valid = _part(array.buffers()[0], bits) if array.null_count else None
    key = encoder.encode(name) + b":"
    return key, what, parameter, rows, offset % 8, valid, parts, children


def _part(buffer: Any, part: slice) -> bytes:
    if buffer is None:
        return b""
    content: bytes = buffer.slice(part.start, part.stop - part.start).to_pybytes()
    return content


def _rows(buffer: Any, offset: int, rows: int, width: int) -> bytes:
    return _part(buffer, slice(offset * width, (offset + rows) * width))


def _bounds(offsets: Any, offset: int, rows: int, width: int) -> tuple[bytes, slice]:
    """Return the offsets of rows, and the values that these have."""
    if not rows:
        return bytes(width), slice(0, 0)
    bounds = _rows(offsets, offset, rows + 1, width)
    begin = int.from_bytes(bounds[:width], "little", signed=True)
    return bounds, slice(begin, int.from_bytes(bounds[-width:], "little", signed=True))
