"""Go's text forms: durations, quoted strings, integers and clean paths."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from datetime import timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration

from gazette_aio.protocol.errors import ValidationError

MAX_INT64: Final = (1 << 63) - 1
MIN_INT64: Final = -(1 << 63)

NANOSECOND: Final = 1
MICROSECOND: Final = 1000 * NANOSECOND
MILLISECOND: Final = 1000 * MICROSECOND
SECOND: Final = 1000 * MILLISECOND
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

_UNITS: Final = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,
    "\u03bcs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_DURATION_TERM: Final = re.compile(r"([0-9]*)(\.([0-9]*))?([^0-9.]*)")
# Durations of 64 bits need fewer characters.
_MAX_DURATION_LENGTH: Final = 256

_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def byte_length(text: str) -> int:
    """Return the length of `text` in UTF-8; lone surrogates count three bytes."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))


def quote(text: str) -> str:
    """Return `text` as a double-quoted string literal with escapes."""
    return f'"{"".join(map(_escape, text))}"'


def _escape(char: str) -> str:
    if (escaped := _ESCAPES.get(char)) is not None:
        return escaped
    code = ord(char)
    if char == " " or (unicodedata.category(char)[0] in "LMNPS" and code != 0x7F):
        return char
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code < 0xDD00:
        return f"\\x{code - 0xDC00:02x}"  # A byte that isn't UTF-8, as Python decodes it.
    if 0xD800 <= code < 0xE000:
        return "\\ufffd"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_LITERAL: Final = re.compile(
    rb'"(?:[^"\\\n]|\\(?:[abfnrtv\\"]|x[0-9a-fA-F]{2}|[0-3][0-7]{2}'
    rb'|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*"'
)
_ESCAPE: Final = re.compile(rb"\\(?:x(..)|u(....)|U(.{8})|([0-3][0-7]{2})|(.))")
_PLAIN: Final = {escape[1:].encode(): char.encode() for char, escape in _ESCAPES.items()}


def unquote(literal: str) -> str:
    """Return the text of a double-quoted string literal.

    Raises:
        ValidationError: The text isn't a literal.
    """
    data = literal.encode("utf-8", "surrogateescape")
    if not _LITERAL.fullmatch(data):
        raise ValidationError("invalid syntax")
    return _ESCAPE.sub(_meaning, data[1:-1]).decode("utf-8", "surrogateescape")


def _meaning(escape: re.Match[bytes]) -> bytes:
    byte, short, long, octal, plain = escape.groups()
    if plain:
        return _PLAIN[plain]
    if byte or octal:
        return bytes([int(byte, 16) if byte else int(octal, 8)])
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValidationError("invalid syntax")
    return chr(code).encode()


def format_duration(nanoseconds: int) -> str:
    """Return a duration in its canonical text form, such as `1h0m0s`, `1.5s` or `0s`."""
    if nanoseconds == 0:
        return "0s"
    sign = "-" if nanoseconds < 0 else ""
    value = abs(nanoseconds)
    if value < SECOND:
        for unit, size in (("ms", MILLISECOND), ("\u00b5s", MICROSECOND), ("ns", NANOSECOND)):
            if value >= size:
                return f"{sign}{_decimal(value, size)}{unit}"
    minutes, rest = divmod(value, MINUTE)
    text = f"{_decimal(rest, SECOND)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    if not fraction:
        return str(whole)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0")


def parse_duration(text: str) -> int:
    """Parse a duration such as `300ms`, `-1.5h` or `2h45m`, and return nanoseconds.

    Raises:
        ValidationError: The text has no number or no unit, or the duration doesn't fit 64 bits.
    """
    invalid = ValidationError(f"time: invalid duration {quote(text[:_MAX_DURATION_LENGTH])}")
    if len(text) > _MAX_DURATION_LENGTH:
        raise invalid
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise invalid
    total = 0
    while rest:
        term = _DURATION_TERM.match(rest)
        assert term is not None
        whole, fraction, unit = term[1], term[3] or "", term[4]
        if not (whole or fraction):
            raise invalid
        if not unit:
            raise ValidationError(f"time: missing unit in duration {quote(text)}")
        if (size := _UNITS.get(unit)) is None:
            raise ValidationError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
        total += int(whole or "0") * size
        if fraction:
            total += int(fraction) * size // 10 ** len(fraction)
        rest = rest[term.end() :]
    negative = text[0] == "-"
    if total > MAX_INT64 + negative:
        raise invalid
    return -total if negative else total


def duration_nanoseconds(duration: Duration) -> int:
    """Return the nanoseconds of a protobuf duration."""
    return duration.seconds * SECOND + duration.nanos


def duration_proto(value: int | timedelta) -> Duration:
    """Return the protobuf form of a duration; an integer is nanoseconds."""
    if isinstance(value, timedelta):
        value = timedelta_nanoseconds(value)
    seconds, nanos = divmod(abs(value), SECOND)
    if value < 0:
        seconds, nanos = -seconds, -nanos
    return Duration(seconds=seconds, nanos=nanos)


def timedelta_nanoseconds(value: timedelta) -> int:
    """Return the nanoseconds of a `timedelta`, exactly."""
    return ((value.days * 86400 + value.seconds) * 1_000_000 + value.microseconds) * MICROSECOND


_HEX_INT: Final = re.compile(r"[+-]?[0-9A-Fa-f]+", re.ASCII)


def parse_hex_int64(text: str) -> int:
    """Parse a signed 64-bit integer of hexadecimal digits, without a prefix.

    Raises:
        ValidationError: The text has other characters, or doesn't fit 64 bits.
    """
    if not _HEX_INT.fullmatch(text):
        raise ValidationError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax")
    value = int(text, 16)
    if not MIN_INT64 <= value <= MAX_INT64:
        raise ValidationError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return value


def clean_path(path: str) -> str:
    """Return the shortest path that is lexically equal to `path`.

    Repeated slashes, `.` and inner `..` are resolved, and trailing slashes are cut. A leading `..`
    of a relative path stays. The empty path is `.`.
    """
    # POSIX gives a meaning of its own to two leading slashes.
    return posixpath.normpath(path).replace("//", "/")


def join_path(*parts: str) -> str:
    """Join the non-empty `parts` with slashes, and clean the result; without parts it's empty."""
    present = [part for part in parts if part]
    return clean_path("/".join(present)) if present else ""
