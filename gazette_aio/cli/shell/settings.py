"""File of settings, `gazctl.ini`, which Gazette's own command line reads as well.

A section is a command, such as `[journals.list]`, or options that commands share, such as
`[journals.Broker]`. A setting applies unless the command line has the option. Settings of commands
and options that don't exist are ignored, so that several programs can share a file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import click

from gazette_aio.cli.shell.failures import InputError
from gazette_aio.settings import KEYS, plain, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_aio.protocol.go.ini import IniLine

Settings: TypeAlias = "dict[str, list[IniLine]]"
"""Settings by section, in lower case."""

SHARED_SECTIONS: Final = {
    "broker": "broker.",
    "consumer": "consumer.",
    "logging": "log.",
    "": "",
}
"""Sections of options that commands of a group share, and how these options begin."""


def load_settings() -> Settings:
    """Return the settings of the first file that exists, in this directory or the user's.

    Raises:
        ConfigurationError: The file can't be read or is invalid.
    """
    settings: Settings = {}
    for line in read_settings("gazctl.ini"):
        settings.setdefault(line.section.lower(), []).append(line)
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
    known = {plain(name): option for option in options for name in option.opts if len(name) > 2}
    arguments: list[str] = []
    for key, line in _settings_of(settings, path):
        option = known.get(key)
        if option is None:
            continue
        name = max(option.opts, key=len)
        kind = click.BOOL if option.is_flag else option.type
        text = line.value or "false" if option.is_flag else line.value
        try:
            with click.Context(click.Command(None)) as context:  # Closes what it opens.
                value = kind.convert(text, option, context)
        except (click.BadParameter, ValueError) as error:  # A path may have a zero byte.
            reason = error.message if isinstance(error, click.BadParameter) else error
            raise InputError(f"{line.where}: {line.key}: {reason}") from None
        if not option.is_flag:
            arguments.append(f"{name}={text}")
        else:
            arguments += [name] if value else option.secondary_opts
    return arguments


def _settings_of(settings: Settings, path: Sequence[str]) -> Iterable[tuple[str, IniLine]]:
    """Yield the plain names of options and the settings of a command."""
    group = ".".join(path[:-1])
    sections: Mapping[str, str] = {".".join(path): ""}
    if group:
        shared = {f"{group}.{name}".rstrip("."): begin for name, begin in SHARED_SECTIONS.items()}
        sections = {**shared, **sections}
    for section, begin in sections.items():
        for line in settings.get(section, ()):
            key = plain(line.key)
            yield plain(begin) + KEYS.get(key, key), line
