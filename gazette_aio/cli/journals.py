"""`gazette-aio journals`: apply and list specs. Module `transfer` has read and append."""

from __future__ import annotations

import asyncio

import click
from google.protobuf import json_format

import gazette_aio.protocol as pb
from gazette_aio.cli.connection import ClientSettings, connection_options
from gazette_aio.cli.output import print_json, table
from gazette_aio.cli.specs import load_request, parse_selector, print_applied, read_text
from gazette_aio.cli.transfer import append, read

_FORMATS = ["table", "yaml", "json"]


@click.group()
def journals() -> None:
    """Apply, list, read and append journals."""


journals.add_command(append)
journals.add_command(read)


@journals.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--dry-run", is_flag=True, help="Check the file and print the changes; send nothing.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=0),
    default=0,
    help="Greatest number of changes per transaction; 0 applies all changes in one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@connection_options
def apply(
    connection: ClientSettings, file: str, batch_size: int, *, dry_run: bool, as_json: bool
) -> None:
    """Apply the journal space of a YAML FILE (default: stdin)."""
    text, source = read_text(file)
    request = load_request(
        lambda: pb.load_journal_space(text, source=source).to_apply_request(), source, "journals"
    )
    upserts = [change.upsert.name for change in request.changes if change.HasField("upsert")]
    deletes = [change.delete for change in request.changes if not change.HasField("upsert")]
    revision = None if dry_run else asyncio.run(_apply(connection, request, batch_size))
    print_applied(upserts, deletes, revision, as_json=as_json)
    if dry_run and not as_json:
        for name in upserts:
            click.echo(f"would upsert {name}")
        for name in deletes:
            click.echo(f"would delete {name}")


async def _apply(connection: ClientSettings, request: pb.ApplyRequest, batch_size: int) -> int:
    async with connection.open() as client:
        response = await client.apply(request, batch_size=batch_size)
    return response.header.etcd.revision


@journals.command("list")
@click.option(
    "-l", "--selector", default="", help="Label selector, such as `name:prefix=a/` or `tag in (x)`."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
    help="Format; YAML is a journal space, which can be edited and applied.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as `-o json`.")
@connection_options
def list_journals(connection: ClientSettings, selector: str, output: str, *, as_json: bool) -> None:
    """List the journals which match a selector, by name."""
    listing = asyncio.run(_list(connection, parse_selector(selector)))
    match "json" if as_json else output:
        case "json":
            print_json([json_format.MessageToDict(item) for item in listing.journals])
        case "yaml":
            space = pb.Node.from_list_response(listing)
            click.echo(pb.dump_journal_space(space), nl=False)
        case _:
            click.echo(_listing_table(listing))


async def _list(connection: ClientSettings, selector: pb.LabelSelector) -> pb.ListResponse:
    async with connection.open() as client:
        return await client.list(selector)


def _listing_table(listing: pb.ListResponse) -> str:
    rows = [
        (
            item.spec.name,
            pb.value_of(item.spec.labels, pb.CONTENT_TYPE) or "-",
            item.mod_revision,
            item.spec.replication,
            _primary(item.route) or "-",
            ",".join(item.spec.fragment.stores) or "-",
        )
        for item in listing.journals
    ]
    header = ("NAME", "CONTENT TYPE", "REVISION", "REPLICATION", "PRIMARY", "STORES")
    return table(header, rows)


def _primary(route: pb.Route) -> str:
    if not 0 <= route.primary < len(route.members):
        return ""
    member = route.members[route.primary]
    return f"{member.zone}/{member.suffix}"
