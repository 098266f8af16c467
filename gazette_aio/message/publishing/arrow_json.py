"""Encoder of Arrow columns as JSON texts, without a Python object for each value.

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

from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from gazette_aio.message.columnar.pyarrow_api import pa, pc

_BYTES: Final = pa.large_binary()
_NULL: Final = pa.scalar(b"null", _BYTES)
_NOTHING: Final = pa.scalar(b"", _BYTES)
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_encoder = msgspec.json.Encoder()


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


class Texts(NamedTuple):
    """Texts of values, apart from what is the same at both ends of all of them.

    Hot: these ends are joined along with the names of members, rather than once more before that.
    """

    inner: Any
    """Array of the texts between the ends."""
    opening: bytes = b""
    closing: bytes = b""

    def whole(self) -> Any:
        """Return an array of the texts."""
        if not self.opening and not self.closing:
            return self.inner
        return join(text(self.opening), self.inner, text(self.closing))


def text(value: bytes) -> Any:
    """Return a constant to be joined with columns of texts."""
    return pa.scalar(value, _BYTES)


def join(*parts: Any) -> Any:
    """Return texts joined row by row."""
    return pc.binary_join_element_wise(*parts, _NOTHING)


def json_texts(array: Any) -> Texts:
    """Return the JSON text of each value of a valid array, without nulls.

    Raises:
        RefusedValueError: A float isn't finite, or a time is out of the years 0 to 9999.
        RefusedTypeError: The type, or one within it, has no form in JSON.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return json_texts(array.storage)
    if pa.types.is_dictionary(kind):
        if len(array.dictionary) > len(array):
            return json_texts(array.dictionary_decode())
        try:
            taken = pc.take(json_texts(array.dictionary).whole(), array.indices)
        except RefusedValueError:
            # It may stand for no row at all.
            return json_texts(array.dictionary_decode())
        return Texts(taken if taken.null_count == 0 else pc.fill_null(taken, _NULL))
    if pa.types.is_run_end_encoded(kind):
        return json_texts(pc.run_end_decode(array))
    if pa.types.is_null(kind):
        return Texts(pa.repeat(_NULL, len(array)))
    texts = _texts(array, kind)
    if array.null_count == 0:
        return texts
    return Texts(pc.if_else(array.is_valid(), texts.whole(), _NULL))


def _texts(array: Any, kind: Any) -> Texts:  # noqa: PLR0911 - one for each kind of type.
    """Return the text of each value; that of a null is arbitrary."""
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind):
        return Texts(_cast(array))
    if types.is_floating(kind):
        return Texts(_floats(array, kind))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _strings(array)
    if types.is_decimal(kind):
        return _quoted(_cast(array))
    if types.is_timestamp(kind):
        return _timestamps(array, kind)
    if types.is_date(kind):
        return _fixed_width(_cast(pc.cast(array, pa.date32())), kind, 10)
    if types.is_time(kind):
        return _quoted(_cast(array))
    if types.is_duration(kind):
        return _durations(array, kind)
    if types.is_struct(kind):
        return _structs(array, kind)
    if types.is_map(kind):
        return _maps(array)
    if types.is_nested(kind) and hasattr(array, "flatten") and not types.is_union(kind):
        return _lists(array)
    if hasattr(pa.scalar(None, kind), "as_buffer"):
        return Texts(_encoded(array))
    raise RefusedTypeError(f"{kind} has no form in JSON")


def _cast(array: Any) -> Any:
    return pc.cast(array, pa.large_string()).view(_BYTES)


def _quoted(inner: Any) -> Texts:
    return Texts(inner, b'"', b'"')


def _encoded(array: Any) -> Any:
    """Return texts as msgspec encodes values."""
    return _lines(_encoder.encode_lines(array.to_pylist()), len(array))


def _lines(lines: bytes, count: int) -> Any:
    """Return lines as an array."""
    content = np.frombuffer(lines, np.uint8)
    feeds = np.flatnonzero(content == 10)
    assert len(feeds) == count, "texts of JSON have no newlines"
    offsets = np.zeros(count + 1, np.int64)
    offsets[1:] = feeds - np.arange(count)
    values = pa.py_buffer(content[content != 10].tobytes())
    return pa.Array.from_buffers(_BYTES, count, [None, pa.py_buffer(offsets.tobytes()), values])


def _floats(array: Any, kind: Any) -> Any:
    values = array.fill_null(0.0).to_numpy(zero_copy_only=False)
    infinite = np.flatnonzero(~np.isfinite(values))
    if len(infinite):
        row = int(infinite[0])
        raise RefusedValueError(row, f"{float(values[row])} has no form in JSON")
    if pa.types.is_float64(kind):
        return _lines(_encoder.encode_lines(values.tolist()), len(array))
    # Every half is a single: its digits are the shortest ones of that.
    texts = pc.cast(pc.cast(array, pa.float32()), pa.large_string())
    whole = pc.invert(pc.match_substring_regex(texts, "[.e]"))
    texts = pc.cast(texts, _BYTES)
    return pc.if_else(whole, join(texts, text(b".0")), texts)


def _strings(array: Any) -> Texts:
    if not pa.types.is_string(array.type):
        array = pc.cast(array, pa.large_string())
    _, offsets, values = array.buffers()
    if values is None or not len(array):
        return _quoted(pa.repeat(_NOTHING, len(array)))
    bounds = np.frombuffer(offsets, np.int32 if pa.types.is_string(array.type) else np.int64)
    bounds = bounds[array.offset : array.offset + len(array) + 1].astype(np.int64)
    content = np.frombuffer(values, np.uint8)[bounds[0] : bounds[-1]]
    if ((content < 0x20) | (content == 0x22) | (content == 0x5C)).any():
        return Texts(_encoded(array))
    # Hot: this is a cast, which takes several times as long.
    inner = pa.Array.from_buffers(_BYTES, len(array), [None, pa.py_buffer(bounds), values])
    return _quoted(inner)


def _timestamps(array: Any, kind: Any) -> Texts:
    digits = _DIGITS[kind.unit]
    width = 19 + (digits + 1 if digits else 0)
    # Those with a time zone are stored in UTC, and slow to cast.
    plain = pc.cast(array, pa.int64()).cast(pa.timestamp(kind.unit))
    spaced = pc.cast(plain, pa.large_string())
    texts = pc.cast(pc.replace_substring(spaced, " ", "T", max_replacements=1), _BYTES)
    return _fixed_width(texts, kind, width, b"" if kind.tz is None else b"Z")


def _fixed_width(texts: Any, kind: Any, width: int, suffix: bytes = b"") -> Texts:
    """Return texts in quotes, and refuse years that need a sign or five digits."""
    wrong = pc.fill_null(pc.not_equal(pc.binary_length(texts), width), pa.scalar(False))  # noqa: FBT003
    if pc.any(wrong).as_py():
        row = int(np.argmax(wrong.to_numpy(zero_copy_only=False)))
        raise RefusedValueError(row, f"{kind} is out of the years 0 to 9999")
    return Texts(texts, b'"', suffix + b'"')


def _durations(array: Any, kind: Any) -> Texts:
    digits = _DIGITS[kind.unit]
    lines: list[str] = []
    for count in pc.fill_null(pc.cast(array, pa.int64()), 0).to_pylist():
        seconds, fraction = divmod(abs(count), 10**digits)
        sign = "-" if count < 0 else ""
        decimals = f".{fraction:0{digits}}" if fraction else ""
        lines.append(f'"{sign}PT{seconds}{decimals}S"')
    return Texts(pa.array(lines, pa.large_string()).cast(_BYTES))


def _structs(array: Any, kind: Any) -> Texts:
    names = [field.name for field in kind]
    if len(set(names)) < len(names):
        raise RefusedTypeError(f"{kind} has several members of the same name")
    return Texts(objects(names, [json_texts(column) for column in array.flatten()], len(array)))


def objects(
    names: list[str],
    columns: list[Texts],
    count: int,
    *,
    opening: bytes = b"{",
    closing: bytes = b"}",
) -> Any:
    """Return the texts of objects, of the texts of the values of their members."""
    if not names:
        return pa.repeat(text(opening + closing), count)
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        parts += [text(opening + _encoder.encode(name) + b":" + column.opening), column.inner]
        opening = column.closing + b","
    return join(*parts, text(columns[-1].closing + closing))


def _lists(array: Any) -> Texts:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    return _arrays(array.flatten(), lengths, b"[", b"]")


def _maps(array: Any) -> Texts:
    # A slice of a map array keeps keys and items of all of it.
    offsets = array.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    lengths = np.diff(offsets)
    if pa.types.is_nested(_value_type(keys.type)):
        raise RefusedTypeError(f"keys of {array.type} can't be names")
    names = _of_rows(keys, np.cumsum(lengths)).whole()
    if not _is_text(keys.type):
        names = _quoted(names).whole()
    codes = pc.dictionary_encode(names)
    rows = np.repeat(np.arange(len(array)), lengths)
    entries = rows * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    _, firsts = np.unique(entries, return_index=True)
    if len(firsts) < len(entries):
        again = np.setdiff1d(np.arange(len(entries)), firsts)[0]
        raise RefusedValueError(
            int(rows[again]), f"key {names[int(again)].as_py().decode()} is there twice"
        )
    return _arrays(items, lengths, b"{", b"}", names)


def _is_text(kind: Any) -> bool:
    """Return whether texts of a scalar type are strings, in quotes."""
    kind = _value_type(kind)
    return not (
        pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


def _value_type(kind: Any) -> Any:
    """Return the type as which values of a type are encoded."""
    while True:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _arrays(values: Any, lengths: Any, opening: bytes, closing: bytes, names: Any = None) -> Texts:
    """Return texts of arrays of `lengths`, or of objects if their values have names."""
    stops = np.cumsum(lengths, dtype=np.int64)
    texts = _of_rows(values, stops)
    if names is not None:
        middle = text(b":" + texts.opening)
        texts = Texts(join(names, middle, texts.inner, text(texts.closing)))
    elif not lengths.all():
        texts = Texts(texts.whole())  # An empty array has no value whose ends to write.
    offsets = pa.array(np.concatenate((np.zeros(1, np.int64), stops)))
    lists = pa.LargeListArray.from_arrays(offsets, texts.inner)
    inner = pc.binary_join(lists, text(texts.closing + b"," + texts.opening))
    return Texts(inner, opening + texts.opening, texts.closing + closing)


def _of_rows(values: Any, stops: Any) -> Texts:
    """Return texts of the values of rows, each row having values up to its stop."""
    try:
        return json_texts(values)
    except RefusedValueError as error:
        row = int(np.searchsorted(stops, error.row, side="right"))
        raise RefusedValueError(row, error.reason) from None
