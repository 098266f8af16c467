"""Times formatted by Go's layouts, which spell a reference time: `2006-01-02T15:04:05.999Z07:00`.

All times are UTC, in nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import SECOND, timedelta_nanoseconds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DAY_SECONDS: Final = 86_400

# The names in `calendar` depend on the locale.
MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)

ZERO_TIME: Final = -62_135_596_800 * SECOND
"""Unset time: midnight of January 1, year 1."""
DEFAULT_LAYOUT: Final = "2006-01-02 15:04:05.999999999 -0700 MST"
"""Layout of times which are printed without a layout."""

# The first alternative which matches at a position is used; other text is copied.
_CHUNK: Final = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|0[1-6]|002|15|1|2006|2|_2(?!006)|__2"
    r"|3|4|5|PM|pm|[-Z](?:070000|07:00:00|0700|07:00|07)|[.,](?:0+|9+)(?![0-9])"
)


class Civil(NamedTuple):
    """Fields of a time."""

    year: int
    month: int
    day: int
    year_day: int
    """From 1."""
    weekday: int
    """From 0 for Monday."""
    hour: int
    minute: int
    second: int
    nanosecond: int


def civil(nanoseconds: int) -> Civil:
    """Split a time into its fields.

    Raises:
        ValidationError: The year isn't within 1 to 9999.
    """
    seconds, nanosecond = divmod(nanoseconds, SECOND)
    days, rest = divmod(seconds, _DAY_SECONDS)
    ordinal = _EPOCH_ORDINAL + days
    if not 1 <= ordinal <= date.max.toordinal():
        raise ValidationError(f"time out of range ({seconds})")
    day = date.fromordinal(ordinal)
    minutes, second = divmod(rest, 60)
    hour, minute = divmod(minutes, 60)
    return Civil(
        day.year,
        day.month,
        day.day,
        ordinal - date(day.year, 1, 1).toordinal() + 1,
        day.weekday(),
        hour,
        minute,
        second,
        nanosecond,
    )


def unix_nanoseconds(time: datetime | int) -> int:
    """Return a time in nanoseconds since the Unix epoch; naive times are UTC."""
    if isinstance(time, int):
        return time
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return timedelta_nanoseconds(aware - _EPOCH)


def format_time(nanoseconds: int, layout: str = DEFAULT_LAYOUT) -> str:
    """Format a time by a layout.

    Raises:
        ValidationError: The year isn't within 1 to 9999.
    """
    time = civil(nanoseconds)
    return _CHUNK.sub(lambda match: _format_chunk(time, match[0]), layout)


def _format_chunk(time: Civil, chunk: str) -> str:
    if chunk[0] in ".,":
        digits = f"{time.nanosecond:09d}"[: len(chunk) - 1]
        if chunk[1] == "9":
            digits = digits.rstrip("0")
        return chunk[0] + digits if digits else ""
    if chunk[0] == "Z":
        return "Z"
    if chunk[0] == "-":
        return "+" + chunk[1:].replace("7", "0")
    hour12 = time.hour % 12 or 12
    return {
        "January": MONTHS[time.month - 1],
        "Jan": MONTHS[time.month - 1][:3],
        "Monday": WEEKDAYS[time.weekday],
        "Mon": WEEKDAYS[time.weekday][:3],
        "MST": "UTC",
        "01": f"{time.month:02d}",
        "02": f"{time.day:02d}",
        "03": f"{hour12:02d}",
        "04": f"{time.minute:02d}",
        "05": f"{time.second:02d}",
        "06": f"{time.year % 100:02d}",
        "002": f"{time.year_day:03d}",
        "15": f"{time.hour:02d}",
        "1": str(time.month),
        "2006": f"{time.year:04d}",
        "2": str(time.day),
        "_2": f"{time.day:2d}",
        "__2": f"{time.year_day:3d}",
        "3": str(hour12),
        "4": str(time.minute),
        "5": str(time.second),
        "PM": "AM" if time.hour < 12 else "PM",
        "pm": "am" if time.hour < 12 else "pm",
    }[chunk]
