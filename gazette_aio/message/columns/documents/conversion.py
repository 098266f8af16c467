"""Converters of parsed columns, such as texts, to the types of a schema."""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from gazette_aio.message.columns.pyarrow_api import pa, pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.message.columns.uuids import Indices

T = TypeVar("T")


class Converter(NamedTuple):
    """Converts a column to another type."""

    convert: Callable[[Any], Any]
    """Returns a column of the same length; raises ArrowInvalid or ValueError if a value is bad."""
    pattern: str | None = None
    """Regular expression that matches all convertible texts, and few others."""


VALUE_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
_DAY = r"-(0\d|1[0-2])-([0-2]\d|3[01])"
_YEAR = r"\d{4}"
# Nanoseconds in 64 bits reach from 1677 to 2262, beyond which releases of pyarrow wrap around.
_NANOSECOND_YEAR = r"(167[89]|16[89]\d|1[7-9]\d\d|2[01]\d\d|22[0-5]\d|226[01])"
_HOUR = r"[T ]([01]\d|2[0-3])"
_REST = r"(:[0-5]\d(:[0-5]\d(\.\d+)?)?)?"
_ZONE = r"(Z|[+-]\d\d(:?\d\d)?)"
_TIME = re.compile(
    r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d)(:(?P<s>[0-5]\d)(\.(?P<f>\d{1,18}))?)?", re.ASCII
)
_DURATION = re.compile(
    r"(?P<sign>-)?P((?P<d>\d{1,9})D)?(T((?P<h>\d{1,9})H)?((?P<m>\d{1,9})M)?"
    r"((?P<s>\d{1,15})(\.(?P<f>\d{1,18}))?S)?)?",
    re.ASCII,
)
_MAX_TEXT = 200  # Of an error.
FRACTION_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits of a second's fraction, by the unit of a type."""


def bad_value(name: str, text: object) -> ValueError:
    """Return the error of a value that column `name` can't hold."""
    return ValueError(f"column {name!r}: {str(text)[:_MAX_TEXT]}")


class Parsed(NamedTuple):
    """Columns as a reader of documents parses them, to be converted."""

    columns: list[Any]
    converters: list[Converter | None]
    positions: Indices | None
    """Positions of their rows among the rows to read; None if it's all."""
    errors: dict[int, Exception]
    """Errors of other rows, by position."""
    failed: dict[int, Exception]
    """Errors of rows of the columns, by index."""

    def without(self, failed: dict[int, Exception]) -> Parsed:
        """Return what's left without rows of the columns that failed, by index."""
        if not failed:
            return self
        rows = len(self.columns[0])
        positions = np.arange(rows) if self.positions is None else self.positions
        mask = np.ones(rows, np.bool_)
        mask[list(failed)] = False
        columns = [column.filter(pa.array(mask)) for column in self.columns]
        errors = self.errors | {int(positions[row]): error for row, error in failed.items()}
        return self._replace(columns=columns, positions=positions[mask], errors=errors, failed={})


def is_text(kind: Any) -> bool:
    """Return whether it's a type of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_float(kind: Any) -> bool:
    """Return whether it's a type of floats that documents may have."""
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def is_bytes(kind: Any) -> bool:
    """Return whether it's a type of bytes, of any or a fixed length."""
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def decode_singly(
    payloads: Iterable[bytes], decode: Callable[[bytes], T]
) -> tuple[list[T], Indices | None, dict[int, Exception]]:
    """Return the decoded payloads, their positions, and the errors of the others by position.

    Positions are None if all payloads were decoded.
    """
    errors: dict[int, Exception] = {}
    values: list[T] = []
    for row, payload in enumerate(payloads):
        try:
            values.append(decode(payload))
        except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
            errors[row] = error
    if not errors:
        return values, None, errors
    return values, np.delete(np.arange(len(values) + len(errors)), list(errors)), errors


def is_text_dictionary(kind: Any) -> bool:
    """Return whether it's a dictionary type of text whose indices suffice for any batch."""
    if not pa.types.is_dictionary(kind):
        return False
    return bool(pa.types.is_string(kind.value_type) and kind.index_type.bit_width >= 32)


def convert_column(
    name: str, column: Any, convert: Converter, kind: Any, errors: dict[int, Exception]
) -> Any:
    """Return `column` converted, with nulls for values that can't be.

    Args:
        name: Name of the column, for errors.
        column: The column.
        convert: Converter to an array of type `kind`.
        kind: Type of the result.
        errors: Takes an error by the index of each bad row.
    """
    try:
        return convert.convert(column)
    except (pa.ArrowInvalid, ValueError):
        pass
    if convert.pattern is not None:
        matched = pc.match_substring_regex(column, convert.pattern)
        plausible = pc.if_else(matched, column, None)
        bad = pc.and_(plausible.is_null(), column.is_valid())
        for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
            text = f"not of type {kind}: {column[row].as_py()[:40]!r}"
            errors.setdefault(row, bad_value(name, text))
        column = plausible
    pieces: list[Any] = []
    runs = [(0, len(column))]
    while runs:
        begin, end = runs.pop()
        try:
            pieces.append(convert.convert(column.slice(begin, end - begin)))
        except (pa.ArrowInvalid, ValueError) as error:
            if end - begin == 1:
                errors.setdefault(begin, bad_value(name, error))
                pieces.append(pa.nulls(1, kind))
            else:
                middle = (begin + end) // 2
                runs += [(middle, end), (begin, middle)]
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def convert_values(name: str, values: list[Any], kind: Any, errors: dict[int, Exception]) -> Any:
    """Return a column of Python values, with nulls for values that aren't of type `kind`.

    Args:
        name: Name of the column, for errors.
        values: The values.
        kind: Type of the column.
        errors: Takes an error by the index of each bad row.
    """
    try:
        return pa.array(values, kind)
    except VALUE_ERRORS:
        pass
    good: list[Any] = []
    for row, value in enumerate(values):
        try:
            pa.scalar(value, kind)
        except VALUE_ERRORS as error:
            errors.setdefault(row, bad_value(name, error))
            good.append(None)
        else:
            good.append(value)
    return pa.array(good, kind)


def parse_floats(kind: Any) -> Converter:
    """Return a converter of numbers' texts to floats of type `kind`, which refuses infinity."""

    def convert(column: Any) -> Any:
        floats = column.cast(kind)
        if not pc.all(pc.is_finite(floats)).as_py() and len(floats) > floats.null_count:
            raise ValueError("number is not finite")
        return floats

    return Converter(convert)


def cast_to(kind: Any) -> Converter:
    """Return a converter that casts to type `kind`."""

    def convert(column: Any) -> Any:
        return column.cast(kind)

    return Converter(convert)


def parse_timestamps(kind: Any) -> Converter:
    """Return a converter of ISO 8601 texts, in UTC unless they have a zone, to type `kind`.

    Digits of fractions beyond those of `kind` are dropped.
    """
    utc, naive = pa.timestamp(kind.unit, "UTC"), pa.timestamp(kind.unit)
    digits, zone = FRACTION_DIGITS[kind.unit], f"{_HOUR}{_REST}{_ZONE}$"
    # Keeps nothing of a fraction that would be empty, not even its point.
    kept = rf"(\.\d{{{digits}}})" if digits else r"()\."

    def convert(column: Any) -> Any:
        if kind.unit == "ns":
            _check_years(column)
        try:
            times = column.cast(utc)
        except pa.ArrowInvalid:
            text = pc.replace_substring_regex(column, kept + r"\d+", r"\1")
            zoned = pc.match_substring_regex(text, zone)
            zoned_times = pc.if_else(zoned, text, None).cast(utc)
            plain_times = pc.if_else(zoned, None, text).cast(naive).cast(utc)
            times = pc.coalesce(zoned_times, plain_times)
        return times.cast(kind)

    year = _NANOSECOND_YEAR if kind.unit == "ns" else _YEAR
    return Converter(convert, f"^{year}{_DAY}({_HOUR}{_REST}{_ZONE}?)?$")


def _check_years(column: Any) -> None:
    bounds = pc.min_max(column)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < "1678" or last >= "2262"):
        raise ValueError("time is out of the range of nanoseconds")


def parse_counts(kind: Any, count: Callable[[str, int], int]) -> Converter:
    """Return a converter of texts to type `kind`, which counts units of time.

    Args:
        kind: A type of times or durations.
        count: Returns the number for a text, given the digits of a second's fraction.
    """
    digits = FRACTION_DIGITS[kind.unit]
    counts = pa.int32() if kind.bit_width == 32 else pa.int64()

    def convert(column: Any) -> Any:
        found = [None if text is None else count(text, digits) for text in column.to_pylist()]
        return pa.array(found, counts).cast(kind)

    return Converter(convert)


def _time(text: str, digits: int) -> int:
    """Return the count of an ISO time of a day. Digits beyond those of the unit are dropped."""
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError(f"not a time of a day: {text[:40]!r}")
    seconds = (int(match["h"]) * 60 + int(match["m"])) * 60 + int(match["s"] or 0)
    return _scaled(seconds, match["f"], digits)


def _scaled(seconds: int, fraction: str | None, digits: int) -> int:
    return int(f"{seconds}{(fraction or '').ljust(digits, '0')[:digits]}")


def _duration(text: str, digits: int) -> int:
    """Return the count of an ISO 8601 duration of days to seconds, such as `-PT1.5S`."""
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError(f"not an ISO 8601 duration of days to seconds: {text[:40]!r}")
    days, hours, minutes, seconds = (int(match[n] or 0) for n in ("d", "h", "m", "s"))
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    count = _scaled(total, match["f"], digits)
    return -count if match["sign"] else count


def parse_scalars(kind: Any) -> Converter | None:
    """Return a converter of texts, such as names of objects, to type `kind`; None if it's string.

    Raises:
        TypeError: Texts can't be of that type.
    """
    types = pa.types
    if types.is_string(kind):
        return None
    if converter := parse_texts(kind):
        return converter
    if is_text(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return cast_to(kind)
    if is_float(kind) or types.is_decimal(kind):
        return cast_to(kind)
    raise TypeError(str(kind))


def parse_texts(kind: Any) -> Converter | None:
    """Return the converter of texts to a type that JSON has no values of, or None."""
    types = pa.types
    if types.is_timestamp(kind):
        return parse_timestamps(kind)
    if types.is_date(kind):
        return cast_to(kind)._replace(pattern=f"^{_YEAR}{_DAY}$")
    if types.is_time(kind):
        return parse_counts(kind, _time)
    if types.is_duration(kind):
        return parse_counts(kind, _duration)
    if is_bytes(kind):
        return parse_base64(kind)
    return None


def parse_base64(kind: Any) -> Converter:
    """Return a converter of base64 texts to binary values of type `kind`."""
    decode = binascii.a2b_base64

    def convert(column: Any) -> Any:
        texts = column.to_pylist()
        values = [None if text is None else decode(text, strict_mode=True) for text in texts]
        return pa.array(values, kind)

    return Converter(convert)


def parse_values(kind: Any) -> Converter:
    """Return a converter of the texts that readers of JSON return for type `kind`, if any."""
    if pa.types.is_floating(kind):
        return parse_floats(kind)
    return parse_texts(kind) or cast_to(kind)


def rebuilt(array: Any, kind: Any) -> Any:
    """Return an array as a type of the same form, part by part, with parsed values and keys."""
    types = pa.types
    if array.type.equals(kind):
        return array
    if not types.is_nested(kind):
        return parse_values(kind).convert(array)
    if array.offset:
        # A copy of two arrays begins at its buffers' begin.
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if types.is_struct(kind):
        # Members of null structs may be anything, unless they're flattened.
        children = [
            rebuilt(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=children)
    end = array.offsets[-1].as_py() if len(array) else 0
    if types.is_map(kind):
        parts = [array.keys.slice(0, end), rebuilt(array.items.slice(0, end), kind.item_type)]
        if types.is_string(parts[0].type) and (keys := parse_scalars(kind.key_type)):
            parts[0] = keys.convert(parts[0])
            _check_distinct(parts[0], array.offsets.to_numpy())
        else:
            parts[0] = rebuilt(parts[0], kind.key_type)
        entry = pa.struct([kind.key_field, kind.item_field])
        child = pa.Array.from_buffers(entry, end, [None], children=parts)
    else:
        child = rebuilt(array.values.slice(0, end), kind.value_type)
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[child])


def _check_distinct(keys: Any, offsets: Any) -> None:
    """Refuse maps two of whose names are the same key, such as `1` and `01`."""
    codes = pc.dictionary_encode(keys)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    entries = rows * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    if len(np.unique(entries)) < len(entries):
        raise ValueError("two names of a map are the same key")
