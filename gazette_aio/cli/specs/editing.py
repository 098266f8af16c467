"""Editing of specs in an editor, again and again until they can be applied."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable


def edit_until_applied(text: str, apply: Callable[[str], None]) -> None:
    """Edit `text` in $GAZ_EDITOR, $EDITOR or vi, and pass the result to `apply`.

    The editor opens again, with the reason, if `apply` fails.

    Raises:
        CommandError: The text was left as it is, or emptied.
    """
    reason = ""
    while True:
        edited = _edited(text, reason)
        if edited is None:
            raise CommandError("nothing was changed")
        text = edited
        try:
            apply(text)
        except (pb.GazetteError, InputError, CommandError) as error:
            reason = str(error)
        else:
            return


def _edited(text: str, reason: str) -> str | None:
    """Return the text as a person left it, or None to give up."""
    remarks = "".join(f"# {line}\n" for line in reason.splitlines())
    editor = os.environ.get("GAZ_EDITOR") or os.environ.get("EDITOR") or "vi"
    edited = click.edit(remarks + text, editor=editor, extension=".yaml", require_save=False)
    lines = (edited or "").splitlines(keepends=True)
    while lines and lines[0].startswith("# "):
        del lines[0]
    kept = "".join(lines)
    return None if not kept.strip() or kept == text else kept
