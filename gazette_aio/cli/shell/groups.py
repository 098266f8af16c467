"""Groups of commands that take shared options before the command, and settings from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from gazette_aio.cli.shell.settings import Settings, arguments_of, load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHARED: Final = ("--broker.", "--consumer.", "--log.", "--zone", "--timeout")
_FLAGS: Final = {"--version", "--help", "-h"}
_SETTINGS: Final = "gazette_aio.settings"
_LONGEST_SENTENCE: Final = 200


class CommandGroup(click.Group):
    """A group whose commands share options, which may stand before or after the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group, and leave those of the command to it."""
        own = {name for option in self.params for name in option.opts}
        return super().parse_args(ctx, moved_behind_command(args, own))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole first sentence, where click would cut it off."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=_LONGEST_SENTENCE)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, and its arguments after those of the file of settings."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None or isinstance(command, click.Group):
            return name, command, rest
        settings: Settings = ctx.meta.get(_SETTINGS) or load_settings()
        ctx.meta[_SETTINGS] = settings
        options = [each for each in command.params if isinstance(each, click.Option)]
        path = [*ctx.command_path.split()[1:], name]
        return name, command, arguments_of(settings, path, options) + rest


def moved_behind_command(args: Sequence[str], own: set[str]) -> list[str]:
    """Return arguments whose leading shared options are moved after the command.

    Args:
        args: Arguments of a group.
        own: Options of the group itself, which stay.
    """
    kept: list[str] = []
    moved: list[str] = []
    rest = list(args)
    while rest and rest[0].startswith("-"):
        name, separator, _ = rest[0].partition("=")
        taken = kept if name in own or not name.startswith(_SHARED) else moved
        taken.append(rest.pop(0))
        takes_value = taken is moved or (name in own and name not in _FLAGS)
        if takes_value and not separator and rest:
            taken.append(rest.pop(0))
    return [*kept, *rest[:1], *moved, *rest[1:]]
