"""File of settings, `gazctl.ini`, which Gazette's own command line reads as well.

A section is a command, such as `[journals.list]`, or options that commands share, such as
`[journals.Broker]`. A setting applies unless the command line has the option. Settings of commands
and options that don't exist are ignored, so that several programs can share a file.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gazette_aio.cli.shell.failures import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FILE_NAME: Final = "gazctl.ini"


class Setting(NamedTuple):
    """A line of the file."""

    key: str
    value: str
    where: str
    """File and number of the line."""


Settings = dict[str, list[Setting]]
"""Settings by section, in lower case."""

SHARED_SECTIONS: Final = {
    "broker": "broker.",
    "consumer": "consumer.",
    "logging": "log.",
    "": "",
}
"""Sections of options that commands of a group share, and how these options begin."""

# Names of settings that aren't those of options.
_NAMES: Final = {
    "specspath": "specs",
    "fromunix": "from",
    "tounix": "to",
    "sigttl": "urlttl",
    "labels": "labelcolumns",
    "offsetspath": "offsets",
    "offsetsoutpath": "offsetsout",
    "size": "cachesize",
    "ttl": "cachettl",
}
_TRUE: Final = {"true", "1", "t", "yes", "on", ""}


def load_settings() -> Settings:
    """Return the settings of the first file that exists, in this directory or the user's.

    Raises:
        InputError: The file is invalid.
        OSError: The file can't be read.
    """
    homes = [os.environ.get(name) for name in ("HOME", "USERPROFILE")]
    directories = [Path(), *(Path(home, ".config", "gazette") for home in homes if home)]
    for directory in directories:
        path = directory / FILE_NAME
        try:
            return parse_settings(path.read_text("utf-8"), source=str(path))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    return {}


def parse_settings(text: str, *, source: str) -> Settings:
    """Return the settings of a file.

    Args:
        text: Content of the file.
        source: Name of the file in errors.

    Raises:
        InputError: A line is invalid.
    """
    settings: Settings = {}
    section: list[Setting] = settings.setdefault("", [])
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        where = f"{source}:{number}"
        if line[0] == "[":
            if line[-1] != "]" or not line[1:-1].strip():
                raise InputError(f"{where}: malformed section")
            section = settings.setdefault(line[1:-1].strip().lower(), [])
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise InputError(f"{where}: expected KEY = VALUE")
        section.append(Setting(key.strip(), _unquoted(value.strip(), where), where))
    return settings


def _unquoted(value: str, where: str) -> str:
    if len(value) < len('""') or value[0] != '"':
        return value
    try:
        text: str = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        raise InputError(f"{where}: malformed string") from None
    return text


def arguments_of(
    settings: Settings, path: Sequence[str], options: Iterable[click.Option]
) -> list[str]:
    """Return the settings of a command as arguments.

    Args:
        settings: Settings of the file.
        path: Names of the group, if any, and of the command.
        options: Options of the command.

    Raises:
        InputError: An option can't have its value.
    """
    known = {_plain(name): option for option in options for name in option.opts if len(name) > 2}
    arguments: list[str] = []
    for plain, (key, value, where) in _settings_of(settings, path):
        option = known.get(plain)
        if option is None:
            continue
        name = max(option.opts, key=len)
        if not option.is_flag:
            try:
                with click.Context(click.Command(None)) as context:  # Closes what it opens.
                    option.type.convert(value, option, context)
            except click.BadParameter as error:
                raise InputError(f"{where}: {key}: {error.message}") from None
            arguments.append(f"{name}={value}")
        elif value.lower() in _TRUE:
            arguments.append(name)
    return arguments


def _settings_of(settings: Settings, path: Sequence[str]) -> Iterable[tuple[str, Setting]]:
    """Yield the plain names of options and the settings of a command."""
    group = ".".join(path[:-1])
    sections: Mapping[str, str] = {".".join(path): ""}
    if group:
        shared = {f"{group}.{name}".rstrip("."): begin for name, begin in SHARED_SECTIONS.items()}
        sections = {**shared, **sections}
    for section, begin in sections.items():
        for setting in settings.get(section, ()):
            plain = _plain(setting.key)
            yield _plain(begin) + _NAMES.get(plain, plain), setting


def _plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name.lower())
