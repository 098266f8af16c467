"""Times and sizes, as people write and read them."""

from __future__ import annotations

import datetime as dt
import math
from typing import Final

import click

import gazette_aio.protocol as pb

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS: Final = (
    ("year", 31_104_000),
    ("month", 2_592_000),
    ("week", 604_800),
    ("day", 86_400),
    ("hour", 3_600),
    ("minute", 60),
    ("second", 1),
)
_KIBI: Final = 1024
_TEN: Final = 10


def unix_time(_context: click.Context, _option: click.Parameter, text: str) -> int:
    """Return the Unix seconds of a time, as a callback of options.

    It's a number of seconds, or an ISO 8601 date and time. Without a zone, it's in local time.

    Raises:
        click.BadParameter: The text is neither a number nor a time.
    """
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal():
        return int(text)
    try:
        return int(dt.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is neither Unix seconds nor a date and time") from None


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a duration such as `1m30s`, as a callback of options.

    Raises:
        click.BadParameter: The text isn't a duration.
    """
    try:
        return None if not text else pb.parse_duration(text) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as `2 records`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def age_of(seconds: float) -> str:
    """Return an age, such as `3 hours ago`.

    As in `gazctl`, a month has 30 days, a year has 12 of these, and 18 of these are two years.
    """
    for name, span in _SPANS:
        if count := int(seconds // span):
            if name == "year" and count == 1 and seconds >= 1.5 * span:
                count = 2
            return f"{counted(count, name)} ago"
    return "now"


def size_of(count: int) -> str:
    """Return a number of bytes with a binary unit, such as `2.9 KiB`.

    As in `gazctl`, numbers are rounded to tenths, and those from 10 on then to integers.
    """
    unit = int(math.log(count) / math.log(_KIBI)) if count else 0
    value = math.floor(count / _KIBI**unit * 10 + 0.5) / 10
    digits = 1 if unit and value < _TEN else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"
