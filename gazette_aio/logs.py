"""Format of log records, for programs that use this package: text, colored text, or JSON.

    configure_logs("info", "json")

Records of this package name what they are about by members such as `journal` and `shard`, which
each format shows. Credentials and the signatures of URLs aren't logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gazette_aio.protocol.shown import shown_text

if TYPE_CHECKING:
    from typing import TextIO

LogFormat: TypeAlias = Literal["text", "json", "color"]

LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "critical": logging.CRITICAL,
}
"""Levels by name: those of Gazette's programs, and those of Python."""

_NAMES: Final = {"WARNING": "warn", "CRITICAL": "fatal"}
_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)).keys() | {"message", "asctime"}
)
_COLORS: Final = {
    "fatal": "\x1b[31m",
    "error": "\x1b[31m",
    "warn": "\x1b[33m",
    "info": "\x1b[36m",
    "debug": "\x1b[34m",
}
_PLAIN: Final = "\x1b[0m"


class LogFormatter(logging.Formatter):
    """Formats a record with its extra members.

    Args:
        form: `json` for one object on each line, with the members `time` (UTC), `level`, `msg`,
            `logger`, those of `extra=`, and `error` with the traceback of an exception; `text`, or
            `color`, for lines of text, in which control characters are escaped, and in which the
            lines of a traceback are indented.
    """

    def __init__(self, form: LogFormat = "json") -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; the traceback of its error follows it, or is a member."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = _NAMES.get(record.levelname, record.levelname.lower())
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        error = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "json":
            members = {"time": time, "level": level, "msg": record.getMessage(), **fields}
            if error:
                members["error"] = error
            return json.dumps({**members, "logger": record.name}, default=str)
        shown = level
        if self._form == "color" and (color := _COLORS.get(level)):
            shown = f"{color}{level}{_PLAIN}"
        extras = "".join(f" {name}={value}" for name, value in fields.items())
        text = shown_text(f"{record.name}: {record.getMessage()}{extras}")
        # Invariant: only a record begins a line. An error's text has lines of its own.
        rest = "".join(f"\n  {shown_text(line)}" for line in error.split("\n")) if error else ""
        return f"{time} {shown} {text}{rest}"


def configure_logs(
    level: str = "info", form: LogFormat = "text", stream: TextIO | None = None
) -> None:
    """Write the log records of all modules to stderr. Handlers of the root logger are replaced.

    Args:
        level: Least level, one of `LEVELS`.
        form: `text`, `color`, or `json`, one object on each line.
        stream: Stream to write to, in place of stderr.

    Raises:
        KeyError: There's no such level.
    """
    least = LEVELS[level]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LogFormatter(form))
    logging.basicConfig(level=least, handlers=[handler], force=True)
