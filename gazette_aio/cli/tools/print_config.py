"""`gazette-aio print-config`: the settings of all commands, as a file of settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.shell.settings import SHARED_SECTIONS, Settings, arguments_of, load_settings
from gazette_aio.settings import setting_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

_TITLES: Final = {"logging": "Logging", "broker": "Broker", "consumer": "Consumer", "": ""}


@click.command()
@log_options
@click.pass_context
def print_config(context: click.Context) -> None:
    """Print the settings of `gazctl.ini` and of the environment in the form of the file.

    Settings that have their defaults are comments. Keys and tokens aren't printed.
    """
    root = context.find_root().command
    settings = load_settings()
    for section, options in sections_of(context, root):
        print_line(f"[{section}]")
        for option, name in options:
            for line in setting_lines(option, name, _given(section, option, settings)):
                print_line(line)
        print_line()


def sections_of(
    context: click.Context, root: click.Command
) -> Iterator[tuple[str, list[tuple[click.Option, str]]]]:
    """Yield sections of the file, and their options with their names in the section."""
    assert isinstance(root, click.Group)
    for name in ("attach-uuids", "journals", "shards"):
        command = root.get_command(context, name)
        if not isinstance(command, click.Group):
            assert command is not None
            yield name, [(each, _long(each)) for each in _options(command)]
            continue
        children = {child: _options(command.commands[child]) for child in sorted(command.commands)}
        everything = {_long(each): each for options in children.values() for each in options}
        taken: set[str] = set()
        for shared in ("", "logging", "consumer", "broker"):
            begin = SHARED_SECTIONS[shared]
            found = [(each, long) for long, each in everything.items() if _is_of(long, shared)]
            taken |= {long for _, long in found}
            if found:
                title = f"{name}.{_TITLES[shared]}".rstrip(".")
                yield title, [(each, long.removeprefix(begin)) for each, long in found]
        for child, options in children.items():
            own = [(each, _long(each)) for each in options if _long(each) not in taken]
            if own:
                yield f"{name}.{child}", own


def _is_of(long: str, shared: str) -> bool:
    return long in {"zone", "timeout"} if not shared else long.startswith(SHARED_SECTIONS[shared])


def _options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def _long(option: click.Option) -> str:
    names = [name.lstrip("-") for name in option.opts if name.startswith("--")]
    return "format" if "format" in names else names[0]


def _given(section: str, option: click.Option, settings: Settings) -> list[str]:
    """Return the values of an option in the file or the environment."""
    group, _, rest = section.partition(".")
    path = [group] if not rest else [group, rest]
    if rest.lower() in SHARED_SECTIONS or (group in {"journals", "shards"} and not rest):
        path = [group, ""]
    arguments = arguments_of(settings, path, [option])
    if arguments:
        return [_value(option, each) for each in arguments]
    variable = option.envvar
    value = os.environ.get(variable) if isinstance(variable, str) else None
    return [value] if value else []


def _value(option: click.Option, argument: str) -> str:
    if option.is_flag:
        return "false" if argument in option.secondary_opts else "true"
    return argument.partition("=")[2]
