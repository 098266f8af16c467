"""`gazette-aio journals`: apply and list specs. Module `transfer` has read and append."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click
from google.protobuf import json_format

import gazette_aio.protocol as pb
from gazette_aio.cli.connection import ClientSettings, connection_options
from gazette_aio.cli.failures import InputError
from gazette_aio.cli.output import print_json, table
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
    request = _read_journal_space(file)
    if not dry_run:
        response = asyncio.run(_apply(connection, request, batch_size))
        revision = response.header.etcd.revision
    else:
        revision = 0
    _print_applied(request, revision, dry_run=dry_run, as_json=as_json)


def _read_journal_space(file: str) -> pb.ApplyRequest:
    source = "<stdin>" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 at byte {error.start}") from None
    try:
        request = pb.load_journal_space(text, source=source).to_apply_request()
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    if not request.changes:
        raise InputError(f"{source}: no journals in this file")
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        raise InputError(f"{source}: {error}") from None
    return request


async def _apply(
    connection: ClientSettings, request: pb.ApplyRequest, batch_size: int
) -> pb.ApplyResponse:
    async with connection.open() as client:
        return await client.apply(request, batch_size=batch_size)


def _print_applied(
    request: pb.ApplyRequest, revision: int, *, dry_run: bool, as_json: bool
) -> None:
    upserts = [change.upsert.name for change in request.changes if change.HasField("upsert")]
    deletes = [change.delete for change in request.changes if not change.HasField("upsert")]
    if as_json:
        result: dict[str, Any] = {"upserts": upserts, "deletes": deletes, "dry_run": dry_run}
        print_json(result if dry_run else {"revision": revision, **result})
        return
    if dry_run:
        for name in upserts:
            click.echo(f"would upsert {name}")
        for name in deletes:
            click.echo(f"would delete {name}")
        return
    parts = [f"{len(upserts)} upserted"] if upserts else []
    parts += [f"{len(deletes)} deleted"] if deletes else []
    click.echo(f"revision {revision}: {', '.join(parts)}")


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
    try:
        parsed = pb.parse_label_selector(selector)
    except pb.ValidationError as error:
        raise InputError(f"selector {selector!r}: {error}") from None
    listing = asyncio.run(_list(connection, parsed))
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
