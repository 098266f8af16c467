"""Editing of specs in an editor, repeated until they can be applied.

Only changed specs are applied, each at its listed revision.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, TypeVar

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, InputError, explain
from gazette_aio.cli.specs.files import checked_request, name_of, print_applied

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.protocol import consumer as pc

    Request = TypeVar("Request", pb.ApplyRequest, pc.ApplyRequest)


def edit_specs(
    text: str, load: Callable[[str], Request], apply: Callable[[Request], int], *, as_json: bool
) -> None:
    """Edit specs in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the specs can't be applied, the editor opens again and shows the reason. An unchanged or
    empty text gives up.

    Args:
        text: YAML of the specs.
        load: Returns the request that applies all specs of a text.
        apply: Applies a request, and returns its revision.
        as_json: Whether to print the result as JSON.

    Raises:
        CommandError: The user gave up after a failure, or the editor failed then. The text is kept
            in a file.
        ClickException: The editor failed at its first start.
    """
    base = load(text)
    reason = ""
    while True:
        try:
            edited = _edited(text, reason)
        except click.ClickException as error:
            if not reason:
                raise
            raise CommandError(f"{error.message}; the text is kept in {_kept(text)}") from None
        if edited is None and reason:
            raise CommandError(f"nothing was applied, and the text is kept in {_kept(text)}")
        text = text if edited is None else edited
        try:
            request = load(text)
            has_removed = _keep_changed(request, base)
            if request.changes:
                checked_request(request, "<editor>")
                print_applied(request, apply(request), as_json=as_json)
                return
        except (pb.GazetteError, InputError, CommandError) as error:
            reason = explain(error)
            continue
        note = ": specs that aren't in the text are kept" if has_removed else ""
        click.echo(f"gazette-aio: nothing was changed{note}", err=True)
        if as_json:
            print_applied(request, None, as_json=True)
        return


def _keep_changed(edited: Request, base: Request) -> bool:
    """Remove the changes that are in the base too, and return whether the base has others."""
    known = {name_of(change): change for change in base.changes}
    for index, change in reversed(list(enumerate(edited.changes))):
        before = known.pop(name_of(change), None)
        if before is None:
            continue
        # Without a revision, the spec would be created.
        change.expect_mod_revision = change.expect_mod_revision or before.expect_mod_revision
        if change.delete == before.delete and change.upsert == before.upsert:
            del edited.changes[index]
    return bool(known)


def _edited(text: str, reason: str) -> str | None:
    """Return the edited text, or None if it's unchanged or empty."""
    remarks = "".join(f"# {line}\n" for line in reason.splitlines())
    editor = os.environ.get("GAZ_EDITOR") or os.environ.get("EDITOR") or "vi"
    edited = click.edit(remarks + text, editor=editor, extension=".yaml", require_save=False)
    lines = (edited or "").splitlines(keepends=True)
    while lines and lines[0].startswith("# "):
        del lines[0]
    kept = "".join(lines)
    return None if not kept.strip() or kept == text else kept


def _kept(text: str) -> str:
    """Keep a text in a file, and return the file's name."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="gazette-aio-edit-", suffix=".yaml", delete=False
    ) as file:
        file.write(text)
    return file.name
