"""`gazette-aio completion`: scripts that complete commands in shells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from click import shell_completion

from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import print_text

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "_GAZETTE_AIO_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@log_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands and options.

    For bash, add `eval "$(gazette-aio completion bash)"` to ~/.bashrc; for zsh, the same to
    ~/.zshrc; for fish, write the script to ~/.config/fish/completions/gazette-aio.fish.
    """
    root = context.find_root()
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    print_text(kind(root.command, {}, root.info_name or "", VARIABLE).source() + "\n")


def complete(command: click.Command, program: str, environment: Mapping[str, str]) -> int | None:
    """Answer a completion request of a shell, and return the exit code; None without a request."""
    instruction = environment.get(VARIABLE)
    if not instruction:
        return None
    return shell_completion.shell_complete(command, {}, program, VARIABLE, instruction)
