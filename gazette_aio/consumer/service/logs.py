"""Logs of a consumer's process."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

    from gazette_aio.consumer.service.settings import LogFormat

_LEVELS: Final = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_NAMES: Final = {"WARNING": "warn", "CRITICAL": "fatal"}
_STANDARD: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)).keys() | {"message", "asctime"}
)
_COLORS: Final = {"error": "\x1b[31m", "fatal": "\x1b[31m", "warn": "\x1b[33m", "info": "\x1b[36m"}


def configure_logs(level: str, form: LogFormat, stream: TextIO | None = None) -> None:
    """Write the log records of all modules to stderr.

    Args:
        level: Least level: `trace`, `debug`, `info`, `warn`, `error` or `fatal`.
        form: `text`, `color`, or `json`, one object on each line.
        stream: Stream to write to, in place of stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(RecordFormatter(form))
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)


class RecordFormatter(logging.Formatter):
    """Formats a record with its extra members.

    Args:
        form: `text`, `color` or `json`.
    """

    def __init__(self, form: LogFormat) -> None:
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
            shown = f"{color}{level}\x1b[0m"
        extras = "".join(f" {name}={value}" for name, value in fields.items())
        line = f"{time} {shown} {record.name}: {record.getMessage()}{extras}"
        return f"{line}\n{error}" if error else line
