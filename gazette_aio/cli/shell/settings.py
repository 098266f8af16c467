"""File of settings, `gazctl.ini`, which Gazette's own command line reads as well.

A section is a command, such as `[journals.list]`, or options that commands share, such as
`[journals.Broker]`. A setting applies unless the command line has the option. Settings of commands
and options that don't exist are ignored, so that several programs can share a file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gazette_aio.cli.shell.failures import InputError
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.ini import IniLine, parse_ini

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FILE_NAME: Final = "gazctl.ini"


Settings = dict[str, list[IniLine]]
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
    try:
        for line in parse_ini(text, source=source):
            settings.setdefault(line.section.lower(), []).append(line)
    except ValidationError as error:
        raise InputError(str(error)) from None
    return settings


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
    for plain, (_, key, value, where) in _settings_of(settings, path):
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
        else:
            arguments += option.secondary_opts
    return arguments


def _settings_of(settings: Settings, path: Sequence[str]) -> Iterable[tuple[str, IniLine]]:
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
