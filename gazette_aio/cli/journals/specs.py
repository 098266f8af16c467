"""`gazette-aio journals apply` and `edit`."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.messages import prototext
from gazette_aio.cli.shell.output import print_json, print_line, print_text
from gazette_aio.cli.specs.editing import edit_specs
from gazette_aio.cli.specs.files import load_request, parse_selector, print_applied, read_text
from gazette_aio.cli.specs.transactions import apply_changes, transaction_size_option
from gazette_aio.client import JournalClient, iter_journals
from gazette_aio.protocol.journal_space.differences import SpecChange, compare, lines_of

if TYPE_CHECKING:
    from gazette_aio.cli.specs.transactions import OnApplied

_MOST_NAMES = 100


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), required=False)
@click.option("--specs", type=click.Path(dir_okay=False, allow_dash=True), help="The same as FILE.")
@click.option("--dry-run", is_flag=True, help="Print the differences that the file makes only.")
@click.option(
    "-o",
    "--output",
    "--format",
    "output",
    type=click.Choice(["diff", "proto"]),
    default="diff",
    show_default=True,
    help="Format of a dry run; the request as protobuf text needs no broker.",
)
@transaction_size_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@connection_options
def apply(
    connection: ClientSettings,
    file: str | None,
    specs: str | None,
    output: str,
    max_txn_size: int | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Apply the journal space of a YAML FILE (default: stdin)."""
    if file is not None and specs is not None:
        raise click.UsageError("give FILE or --specs, but not both")
    request = _request_of(*read_text(file or specs or "-"))
    if not dry_run:
        revision = asyncio.run(_apply(connection, request, max_txn_size))
        print_applied(request.changes, revision, as_json=as_json)
    elif output == "proto":
        print_text(prototext(request))
    else:
        changes = asyncio.run(_compare(connection, request))
        if as_json:
            print_json({"dry_run": True, "changes": [dataclasses.asdict(each) for each in changes]})
        else:
            for line in lines_of(changes):
                print_line(line)
        if any(each.conflict for each in changes):
            raise CommandError("brokers would refuse these changes: list again")


def _request_of(text: str, source: str) -> pb.ApplyRequest:
    return load_request(
        lambda: pb.load_journal_space(text, source=source).to_apply_request(), source, "journals"
    )


async def _apply(
    connection: ClientSettings,
    request: pb.ApplyRequest,
    max_txn_size: int | None,
    on_applied: OnApplied | None = None,
) -> int:
    for change in request.changes:
        # Each transaction would check only its own changes.
        if change.HasField("upsert"):
            pb.validate_journal(change.upsert.name, allow_parent=False)
    return await apply_changes(
        connection.open(), JournalClient.apply, request.changes, max_txn_size, on_applied
    )


async def _compare(connection: ClientSettings, request: pb.ApplyRequest) -> list[SpecChange]:
    names = {
        change.upsert.name if change.HasField("upsert") else change.delete
        for change in request.changes
    }
    present: dict[str, pb.ListResponse.Journal] = {}
    # Selectors of thousands of names would be long.
    few = len(names) <= _MOST_NAMES
    labels = [pb.Label(name="name", value=name) for name in sorted(names)] if few else []
    selector = pb.LabelSelector(include=pb.LabelSet(labels=labels))
    async with connection.open() as client:
        async for item in iter_journals(client, selector):
            if item.spec.name in names:
                present[item.spec.name] = item
    return compare(request.changes, present)


@click.command()
@click.option("-l", "--selector", required=True, help="Label selector of the journals to edit.")
@transaction_size_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@connection_options
def edit(
    connection: ClientSettings, selector: str, max_txn_size: int | None, *, as_json: bool
) -> None:
    """Edit journals in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the journals can't be applied, the editor opens again and shows the reason. To give up, don't
    change the text, or empty it. To delete a journal, add `delete: true`.
    """
    parsed = parse_selector(selector)
    listing = connection.run(lambda client: client.list(parsed))
    if not listing.journals:
        raise CommandError(f"no journal matches {selector!r}")
    edit_specs(
        pb.dump_journal_space(pb.Node.from_list_response(listing)),
        lambda text: pb.load_journal_space(text, source="<editor>").to_apply_request(),
        lambda request, on_applied: asyncio.run(
            _apply(connection, request, max_txn_size, on_applied)
        ),
        as_json=as_json,
    )
