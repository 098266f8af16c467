"""Log records of commands on stderr: their level and format."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import click

from gazette_aio.logs import LEVELS, LogFormat, LogFormatter

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_LEVEL: Final = "error"
DEFAULT_FORMAT: Final[LogFormat] = "text"

_FORMATS: Final[tuple[LogFormat, ...]] = ("json", "text", "color")
_CHOSEN: Final = "gazette_aio.logs"


def log_options(command: Callable[..., Any], *, level: str = DEFAULT_LEVEL) -> Callable[..., Any]:
    """Add the options `--log.level` and `--log.format`, which take effect when they're parsed.

    Args:
        command: The command.
        level: Its default level.
    """

    def configure(context: click.Context, option: click.Parameter, value: str | None) -> None:
        chosen: dict[str, Any] = context.meta.setdefault(_CHOSEN, {})
        if value is not None:
            chosen[option.name or ""] = value
        configure_logging(chosen.get("log_level", level), chosen.get("log_format", DEFAULT_FORMAT))

    for name, choices, default, more in (
        ("format", _FORMATS, DEFAULT_FORMAT, ()),
        ("level", tuple(LEVELS), level, ("--log-level",)),
    ):
        command = click.option(
            f"--log.{name}",
            *more,
            f"log_{name}",
            envvar=f"LOG_{name.upper()}",
            show_envvar=True,
            type=click.Choice(choices, case_sensitive=False),
            callback=configure,
            expose_value=False,
            help=f"{'Least level' if name == 'level' else 'Format'} of log records on stderr. "
            f"[default: {default}]",
        )(command)
    return command


def configure_logging(level: str = DEFAULT_LEVEL, style: LogFormat = DEFAULT_FORMAT) -> None:
    """Write records of at least `level` to stderr, in the format `style`."""
    formatter = LogFormatter(style)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(formatter)
    root.setLevel(LEVELS[level.lower()])
