"""Path postfixes of persisted fragments, which lay out stores for other tools.

A template such as `date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}` is evaluated when a
fragment is persisted. Gazette's templates are those of Go. Here an action names one value, and
everything else is refused, so that no wrong path is written.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.protocol.fragment import codec_name
from gazette_aio.protocol.labels import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

_ACTION: Final = re.compile(
    r"""\{\{[ \t\r\n]* (?P<path>(?:\.\w+)+) (?:[ \t\r\n]+(?P<text>"[^"\\\n]*"|`[^`\r]*`))?
        [ \t\r\n]*\}\}
    |\{\{.*?(?:\}\}|\Z)  # Any other action.
    """,
    re.VERBOSE | re.DOTALL,
)
_MAX_SHOWN: Final = 100

# The names in `calendar` depend on the locale.
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_WEEKDAYS: Final = (
    *("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
)

# The first alternative which matches at a position is used; other text is copied.
_CHUNK: Final = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|0[1-6]|002|15|1|2006|2|_2(?!006)|__2"
    r"|3|4|5|PM|pm|[-Z](?:070000|07:00:00|0700|07:00|07)|[.,](?:0+|9+)(?![0-9])"
)


def check_template(template: str) -> None:
    """Check that a template can be evaluated.

    Raises:
        ValidationError: The template has an action that isn't known.
    """
    render_path_postfix(
        template,
        fragment=pb.Fragment(),
        first_append_time=datetime(1970, 1, 1, tzinfo=UTC),
        registers=pb.LabelSet(),
        spec=pb.JournalSpec(),
    )


def render_path_postfix(
    template: str,
    *,
    fragment: pb.Fragment,
    first_append_time: datetime,
    registers: pb.LabelSet,
    spec: pb.JournalSpec,
) -> str:
    """Evaluate a template for a fragment to be persisted.

    Args:
        template: The template.
        fragment: The fragment.
        first_append_time: Time of the fragment's first append, in UTC.
        registers: Registers of the journal at the end of the fragment.
        spec: Spec of the journal.

    Raises:
        ValidationError: The template has an action that isn't known.
    """
    fields: dict[str, str | int] = {
        ".Name": spec.name,
        ".JournalSpec.Name": spec.name,
        ".Spool.Journal": fragment.journal,
        ".Spool.Begin": fragment.begin,
        ".Spool.End": fragment.end,
        ".Spool.CompressionCodec": codec_name(fragment.compression_codec),
        ".Spool.FirstAppendTime.Year": first_append_time.year,
        ".Spool.FirstAppendTime.Day": first_append_time.day,
        ".Spool.FirstAppendTime.YearDay": first_append_time.timetuple().tm_yday,
    }
    methods: dict[str, Callable[[str], str]] = {
        ".ValueOf": partial(value_of, spec.labels),
        ".LabelSet.ValueOf": partial(value_of, spec.labels),
        ".JournalSpec.ValueOf": partial(value_of, spec.labels),
        ".JournalSpec.LabelSet.ValueOf": partial(value_of, spec.labels),
        ".Spool.Registers.ValueOf": partial(value_of, registers),
        ".Spool.FirstAppendTime.Format": partial(format_time, first_append_time),
    }

    def evaluate(action: re.Match[str]) -> str:
        path, text = action["path"], action["text"]
        if text is None and path in fields:
            return str(fields[path])
        if text is not None and path in methods:
            return methods[path](text[1:-1])
        raise pb.ValidationError(
            f"unsupported {action[0][:_MAX_SHOWN]!r}; this broker evaluates {', '.join(fields)}, "
            f"and with a text {', '.join(methods)}"
        )

    return _ACTION.sub(evaluate, template)


def format_time(time: datetime, layout: str) -> str:
    """Format a time of UTC by a layout of Go, which spells a reference time.

    The reference time is `Mon Jan _2 15:04:05.999999999 2006 -0700 MST`.
    """
    month, weekday = _MONTHS[time.month - 1], _WEEKDAYS[time.weekday()]
    hour = time.hour % 12 or 12
    half = "AM" if time.hour < 12 else "PM"
    year_day = time.timetuple().tm_yday
    chunks = {
        "January": month,
        "Jan": month[:3],
        "Monday": weekday,
        "Mon": weekday[:3],
        "MST": "UTC",
        "01": f"{time.month:02}",
        "02": f"{time.day:02}",
        "03": f"{hour:02}",
        "04": f"{time.minute:02}",
        "05": f"{time.second:02}",
        "06": f"{time.year % 100:02}",
        "002": f"{year_day:03}",
        "15": f"{time.hour:02}",
        "1": f"{time.month}",
        "2006": f"{time.year:04}",
        "2": f"{time.day}",
        "_2": f"{time.day:2}",
        "__2": f"{year_day:3}",
        "3": f"{hour}",
        "4": f"{time.minute}",
        "5": f"{time.second}",
        "PM": half,
        "pm": half.lower(),
    }
    nanosecond = f"{time.microsecond:06}000"

    def replace(match: re.Match[str]) -> str:
        chunk = match[0]
        if chunk[0] == "Z":
            return "Z"
        if chunk[0] == "-":
            return "+" + chunk[1:].replace("7", "0")
        if chunk[0] in ".,":
            digits = nanosecond[: len(chunk) - 1]
            if chunk[1] == "9":
                digits = digits.rstrip("0")
            return chunk[0] + digits if digits else ""
        return chunks[chunk]

    return _CHUNK.sub(replace, layout)
