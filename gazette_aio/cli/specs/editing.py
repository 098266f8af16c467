"""Editing of specs in an editor, repeated until they can be applied.

Only changed specs are applied, each at its listed revision. A failed request may have applied some
of them, in transactions before the failed one: these are known, and aren't sent again.
"""

from __future__ import annotations

import copy
import os
import tempfile
from typing import TYPE_CHECKING, TypeVar

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, InputError, explain
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.specs.files import checked_request, name_of, print_applied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.cli.specs.files import Change
    from gazette_aio.cli.specs.transactions import OnApplied
    from gazette_aio.protocol import consumer as pc

    Request = TypeVar("Request", pb.ApplyRequest, pc.ApplyRequest)

_NAMES_SHOWN = 10


def edit_specs(
    text: str,
    load: Callable[[str], Request],
    apply: Callable[[Request, OnApplied], int],
    *,
    as_json: bool,
) -> None:
    """Edit specs in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the specs can't be applied, the editor opens again and shows the reason. An unchanged or
    empty text gives up.

    Args:
        text: YAML of the specs.
        load: Returns the request that applies all specs of a text.
        apply: Applies a request, in transactions that it passes to its second argument.
        as_json: Whether to print the result as JSON.

    Raises:
        CommandError: The user gave up after a failure, or the editor failed then. The text is kept
            in a file.
        ClickException: The editor failed at its first start.
    """
    specs = _EditedSpecs(load(text).changes)
    reason = ""
    while True:
        try:
            edited = _edited(text, reason)
        except click.ClickException as error:
            if not reason:
                raise
            raise CommandError(f"{specs.outcome(error.message)}; {_kept(text)}") from None
        if edited is None and reason:
            raise CommandError(f"{specs.outcome(reason)}; {_kept(text)}")
        text = text if edited is None else edited
        try:
            request = load(text)
            has_removed = specs.keep_changed(request)
            if request.changes:
                checked_request(request, "<editor>")
                apply(request, specs.on_applied)
        except (pb.GazetteError, InputError, CommandError) as error:
            if specs.applied and isinstance(error, pb.GazetteError):
                error.applied = len(specs.applied)
            reason = explain(error)
            continue
        except BaseException:
            # For example Ctrl-C while no broker answers.
            print_line(f"gazette-aio: {specs.outcome('interrupted')}; {_kept(text)}", err=True)
            raise
        break
    if not specs.applied:
        note = ": specs that aren't in the text are kept" if has_removed else ""
        print_line(f"gazette-aio: nothing was changed{note}", err=True)
    if specs.applied or as_json:
        print_applied(specs.applied.values(), specs.revision, as_json=as_json)


class _EditedSpecs:
    """Specs as they are listed, and as transactions have changed them since.

    Args:
        listed: Changes that would leave each listed spec as it is.
    """

    def __init__(self, listed: Sequence[Change]) -> None:
        self._listed = {name_of(change): change.expect_mod_revision for change in listed}
        self._present: dict[str, Change | None] = {name_of(change): change for change in listed}
        self.applied: dict[str, Change] = {}
        self.revision: int | None = None

    def on_applied(self, changes: Sequence[Change], revision: int) -> None:
        """Take the changes of a transaction, and its revision."""
        for change in changes:
            name = name_of(change)
            present = None
            if change.HasField("upsert"):
                present = copy.deepcopy(change)
                present.expect_mod_revision = revision
            self._present[name] = present
            self.applied[name] = change
        self.revision = revision

    def keep_changed(self, request: Request) -> bool:
        """Remove changes without effect from a request, and complete the revisions of the others.

        Returns:
            Whether specs are missing in the request.
        """
        missing = {name for name, change in self._present.items() if change is not None}
        for index, change in reversed(list(enumerate(request.changes))):
            name = name_of(change)
            missing.discard(name)
            if name not in self._present:
                continue
            present = self._present[name]
            # The text has the listed revision, or none. Without it, the spec would be created.
            if change.expect_mod_revision in (0, self._listed.get(name, 0)):
                change.expect_mod_revision = present.expect_mod_revision if present else 0
            same = not change.HasField("upsert") if present is None else _equal(change, present)
            if same:
                del request.changes[index]
        return bool(missing)

    def outcome(self, reason: str) -> str:
        """Return the reason of a failure, and the specs that are applied nevertheless."""
        names = sorted(self.applied)
        if not names:
            return reason
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return f"{reason}; applied are {', '.join(names[:_NAMES_SHOWN])}{more}"


def _equal(change: Change, other: Change) -> bool:
    return change.delete == other.delete and change.upsert == other.upsert


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
    """Keep a text in a file, and return a remark with the file's name."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="gazette-aio-edit-", suffix=".yaml", delete=False
    ) as file:
        file.write(text)
    return f"the text is kept in {file.name}"
