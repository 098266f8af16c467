"""Log records of commands on stderr: their level and format."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS: Final = {
    # Gazette's programs use the same variable, with other names for some levels.
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "critical": logging.CRITICAL,
}
DEFAULT_LEVEL: Final = "error"
DEFAULT_FORMAT: Final = "text"

_FORMATS: Final = ("json", "text", "color")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_COLORS: Final = {"DEBUG": "blue", "INFO": "cyan", "WARNING": "yellow"}
_CHOSEN: Final = "gazette_aio.logs"


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        fields = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["err"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class ColorFormatter(logging.Formatter):
    """Formats a record as text whose level has a color."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        text = super().format(record)
        name = record.levelname
        return text.replace(name, click.style(name, fg=_COLORS.get(name, "red")), 1)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--log.level` and `--log.format`, which take effect at once."""
    for name, choices, default, more in (
        ("format", _FORMATS, DEFAULT_FORMAT, ()),
        ("level", tuple(LEVELS), DEFAULT_LEVEL, ("--log-level",)),
    ):
        command = click.option(
            f"--log.{name}",
            *more,
            f"log_{name}",
            envvar=f"LOG_{name.upper()}",
            show_envvar=True,
            type=click.Choice(choices, case_sensitive=False),
            callback=_configure,
            expose_value=False,
            help=f"{'Least level' if name == 'level' else 'Format'} of log records on stderr. "
            f"[default: {default}]",
        )(command)
    return command


def _configure(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    chosen: dict[str, str] = context.meta.setdefault(_CHOSEN, {})
    chosen[option.name or ""] = value
    configure_logging(
        chosen.get("log_level", DEFAULT_LEVEL), chosen.get("log_format", DEFAULT_FORMAT)
    )


def configure_logging(level: str = DEFAULT_LEVEL, style: str = DEFAULT_FORMAT) -> None:
    """Write records of at least `level` to stderr, in the format `style`."""
    formatter: logging.Formatter
    match style:
        case "json":
            formatter = JSONFormatter()
        case "color":
            formatter = ColorFormatter(_TEXT)
        case _:
            formatter = logging.Formatter(_TEXT)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(formatter)
    root.setLevel(LEVELS[level.lower()])
