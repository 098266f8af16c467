"""`gazette-aio journals list`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.messages import prototext, tree_of
from gazette_aio.cli.shell.output import print_json, print_line, print_table, print_text
from gazette_aio.cli.specs.files import parse_selector
from gazette_aio.cli.specs.listing import (
    NONE,
    label_columns,
    listing_options,
    print_columns,
    route_columns,
    split_members,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.cli.specs.listing import Column


@click.command("list")
@listing_options("journal", "`name:prefix=a/` or `tag in (x)`", "replication")
@click.option("--stores", is_flag=True, help="Show the first fragment store.")
@click.option("--watch", is_flag=True, help="Print the list again whenever it changes.")
@click.option("--json", "as_json", is_flag=True, help="The same as `-o json`.")
@connection_options
def list_journals(
    connection: ClientSettings,
    selector: str,
    output: str,
    labels: Sequence[str],
    *,
    watch: bool,
    as_json: bool,
    **columns: bool,
) -> None:
    """List the journals that a selector matches, by name."""
    parsed = parse_selector(selector)

    def show(listing: pb.ListResponse) -> None:
        if selector and not listing.journals:
            print_line(f"gazette-aio: no journal matches {selector!r}", err=True)
        _print(listing, "json" if as_json else output, labels, columns)

    if watch:
        asyncio.run(_watch(connection, parsed, show))
    else:
        show(connection.run(lambda client: client.list(parsed)))


async def _watch(
    connection: ClientSettings,
    selector: pb.LabelSelector,
    show: Callable[[pb.ListResponse], None],
) -> None:
    async with connection.open() as client, client.watch(selector) as journals:
        async for listing in journals.updates():
            if sys.stdout.isatty():
                click.clear()
            show(listing)
            sys.stdout.flush()


def _print(
    listing: pb.ListResponse, output: str, labels: Sequence[str], columns: dict[str, bool]
) -> None:
    match output:
        case "json":
            print_json(tree_of(listing), compact=True)
        case "proto":
            print_text(prototext(listing))
        case "yaml":
            print_text(pb.dump_journal_space(pb.Node.from_list_response(listing)))
        case _ if labels or any(columns.values()):
            _print_chosen(listing, labels, columns)
        case _:
            _print_common(listing)


def _print_common(listing: pb.ListResponse) -> None:
    rows = [
        (
            item.spec.name,
            pb.value_of(item.spec.labels, pb.CONTENT_TYPE) or "-",
            item.mod_revision,
            item.spec.replication,
            _primary(item.route),
            ",".join(item.spec.fragment.stores) or "-",
        )
        for item in listing.journals
    ]
    print_table(("NAME", "CONTENT TYPE", "REVISION", "REPLICATION", "PRIMARY", "STORES"), rows)


def _primary(route: pb.Route) -> str:
    primary, _ = split_members(route, [f"{each.zone}/{each.suffix}" for each in route.members])
    return "-" if primary == NONE else primary


def _print_chosen(listing: pb.ListResponse, labels: Sequence[str], chosen: dict[str, bool]) -> None:
    columns: list[Column] = [("NAME", lambda item: item.spec.name)]
    columns += route_columns(chosen, lambda item: item.spec.replication, _replicas)
    if chosen["stores"]:
        columns.append(("STORES", lambda item: next(iter(item.spec.fragment.stores), NONE)))
    print_columns(columns + label_columns(labels), listing.journals)


def _replicas(item: pb.ListResponse.Journal) -> tuple[str, list[str]]:
    primary, others = split_members(item.route, [member.suffix for member in item.route.members])
    suspended = item.spec.suspend.level != pb.JournalSpec.Suspend.NONE
    return f"{primary} <S>" if suspended else primary, others
