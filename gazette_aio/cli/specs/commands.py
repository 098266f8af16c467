"""The commands `apply` and `edit`, for journals and shards alike."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.messages import prototext
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_text
from gazette_aio.cli.specs.editing import edit_specs
from gazette_aio.cli.specs.files import load_request, name_of, print_applied, read_text
from gazette_aio.cli.specs.selection import selection_options, selector_of_names
from gazette_aio.cli.specs.transactions import apply_changes, transaction_size_option
from gazette_aio.protocol.journal_space.differences import (
    SpecChange,
    compare,
    lines_of,
    spec_name,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.cli.specs.selection import Kind, Selection
    from gazette_aio.cli.specs.transactions import OnApplied

_MOST_NAMES = 100
"""Longest selector of names: thousands would be refused."""
_REFUSED_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Specs:
    """How specs of one kind are read, listed and applied."""

    kind: Kind
    load: Callable[..., Any]
    """Returns the space of a YAML text; `source=` names the file in errors."""
    dump: Callable[[Any], str]
    """Returns the YAML of a listing."""
    open: Callable[[], AbstractAsyncContextManager[Any]]
    """Opens a client."""
    fetch: Callable[[Any, pb.LabelSelector], Awaitable[Any]]
    """Returns the listing of a selector."""
    check: Callable[[Any], Awaitable[None]]
    """Raises if a request must not be applied."""
    send: Callable[[Any, Sequence[Any]], Awaitable[Any]]
    """Applies the changes of a transaction."""

    def items(self, listing: Any) -> Sequence[Any]:
        """Return the journals or shards of a listing."""
        items: Sequence[Any] = getattr(listing, f"{self.kind}s")
        return items

    async def apply(
        self, request: Any, size: int | None, on_applied: OnApplied | None = None
    ) -> int:
        """Check a request and apply it, as `apply_changes()` does.

        Cancellation: aborts — the transactions so far remain.
        """
        await self.check(request)
        return await apply_changes(self.open(), self.send, request.changes, size, on_applied)

    async def compare(self, request: Any) -> list[SpecChange]:
        """Check a request, and return what it would change.

        Cancellation: safe.
        """
        await self.check(request)
        names = {name_of(change) for change in request.changes}
        selector = selector_of_names(self.kind, names if len(names) <= _MOST_NAMES else ())
        async with self.open() as client:
            items = self.items(await self.fetch(client, selector))
        compared = compare(request.changes, {spec_name(item.spec): item for item in items})
        return [
            # Applying a file again changes nothing, though a spec without a revision is a new one.
            dataclasses.replace(each, conflict="")
            if each.action == "keep" and not change.expect_mod_revision
            else each
            for change, each in zip(request.changes, compared, strict=True)
        ]

    async def apply_changed(self, request: Any, size: int | None) -> tuple[list[Any], int | None]:
        """Apply a request without the specs that exist as they are.

        Returns:
            The changes that were sent, and the revision of the last transaction, or None.

        Cancellation: aborts — the transactions so far remain.
        """
        changes = list(request.changes)
        refused = ""
        try:
            compared = await self.compare(request)
        except pb.TransportError as error:
            if error.code not in {"PERMISSION_DENIED", "UNAUTHENTICATED"}:
                raise
            await self.check(request)  # A token may permit to apply, but not to list.
        else:
            kept = [each.action == "keep" and not each.conflict for each in compared]
            changes = [change for change, same in zip(changes, kept, strict=True) if not same]
            refused = self.refused(compared)
        if not changes:
            return changes, None
        try:
            return changes, await apply_changes(self.open(), self.send, changes, size)
        except (pb.EtcdTransactionFailedError, pb.ShardEtcdTransactionFailedError) as error:
            if not refused:  # A spec has changed since it was compared.
                raise
            text = f"nothing was applied: {refused} ({error.status_name})"
            raise CommandError(text) from None

    def refused(self, compared: Sequence[SpecChange]) -> str:
        """Return which changes are refused and what helps, or an empty text."""
        found = [f"{each.name}: {each.conflict}" for each in compared if each.conflict]
        if not found:
            return ""
        more = f"; and {len(found) - _REFUSED_SHOWN} more" if len(found) > _REFUSED_SHOWN else ""
        kinds = f"{self.kind}s"
        return (
            f"{'; '.join(found[:_REFUSED_SHOWN])}{more}; take each `revision` from "
            f"`{kinds} list -o yaml`, use `{kinds} edit`, or write `revision: -1` "
            f"to change the {self.kind} whatever it is"
        )

    async def listed(self, selection: Selection) -> str:
        """Return the YAML of a selection, which must match something.

        Cancellation: safe.
        """
        async with self.open() as client:
            listing = await self.fetch(client, selection.selector)
        selection.require((spec_name(item.spec) for item in self.items(listing)), some=True)
        return self.dump(listing)


def apply_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take the arguments of `apply_file()`, as keywords."""
    path = click.Path(dir_okay=False, allow_dash=True)
    for option in (
        json_option(),
        transaction_size_option,
        click.option(
            "-o",
            "--output",
            "--format",
            "output",
            type=click.Choice(["diff", "proto"]),
            default="diff",
            show_default=True,
            help="Format of a dry run: differences, or the request as protobuf text.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Print the differences that the file makes only."
        ),
        click.option("--specs", "alias", type=path, help="The same as FILE."),
        click.argument("file", type=path, required=False),
    ):
        command = option(command)
    return command


def apply_file(
    specs: Specs,
    *,
    file: str | None,
    alias: str | None,
    output: str,
    max_txn_size: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Apply the YAML of a file, or print what that would change.

    Raises:
        CommandError: Some changes would be refused, or were.
        InputError: The file is invalid.
    """
    if file is not None and alias is not None:
        raise click.UsageError("give FILE or --specs, but not both")
    text, source = read_text(file or alias or "-")
    request = load_request(
        lambda: specs.load(text, source=source).to_apply_request(), source, f"{specs.kind}s"
    )
    if not dry_run:
        applied, revision = asyncio.run(specs.apply_changed(request, max_txn_size))
        if not applied:
            print_line("gazette-aio: nothing was changed", err=True)
        if applied or as_json:
            print_applied(applied, revision, as_json=as_json)
        return
    if output == "proto":
        print_text(prototext(request))
        return
    changes = asyncio.run(specs.compare(request))
    if as_json:
        found = map(dataclasses.asdict, changes)
        shown = [{specs.kind: each.pop("name"), **each} for each in found]
        print_json({"dry_run": True, "changes": shown})
    else:
        for line in lines_of(changes):
            print_line(line)
    if refused := specs.refused(changes):
        raise CommandError(f"these changes would be refused: {refused}")


def edit_options(kind: Kind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take the arguments of `edit_selected()`, as keywords."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        as_json = json_option()
        return selection_options(kind)(transaction_size_option(as_json(command)))

    return decorate


def edit_selected(
    specs: Specs, *, selection: Selection, max_txn_size: int | None, as_json: bool
) -> None:
    """Edit the selected specs in an editor, as `edit_specs()` does."""
    edit_specs(
        asyncio.run(specs.listed(selection)),
        lambda text: specs.load(text, source="<editor>").to_apply_request(),
        lambda request, on_applied: asyncio.run(specs.apply(request, max_txn_size, on_applied)),
        as_json=as_json,
    )
