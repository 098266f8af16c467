"""`gazette-aio journals list`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.specs import journal_specs
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.messages import tree_of
from gazette_aio.cli.specs.listing import (
    NONE,
    label_columns,
    listing_options,
    print_listing,
    route_columns,
    say_nothing_matches,
    split_members,
)
from gazette_aio.cli.specs.selection import parse_selector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.cli.specs.listing import Column


def _primary(item: pb.ListResponse.Journal) -> str:
    members = [f"{each.zone}/{each.suffix}" for each in item.route.members]
    primary, _ = split_members(item.route, members)
    return "-" if primary == NONE else primary


_NAME: Final[Column] = ("NAME", lambda item: item.spec.name)
_COMMON: Final[list[Column]] = [
    _NAME,
    ("CONTENT TYPE", lambda item: pb.value_of(item.spec.labels, pb.CONTENT_TYPE) or "-"),
    ("REVISION", lambda item: item.mod_revision),
    ("RF", lambda item: item.spec.replication),
    ("PRIMARY", _primary),
    ("STORES", lambda item: ",".join(item.spec.fragment.stores) or "-"),
]


@click.command("list")
@listing_options("journal", "`name:prefix=a/` or `tag in (x)`", "replication")
@click.option("--stores", is_flag=True, help="Show the first fragment store.")
@click.option("--watch", is_flag=True, help="Print the list again whenever it changes.")
@connection_options
def list_journals(
    connection: ClientSettings,
    selector: str,
    output: str,
    labels: Sequence[str],
    *,
    watch: bool,
    as_json: bool,
    stores: bool,
    **chosen: bool,
) -> None:
    """List the journals that a selector matches, by name."""
    parsed = parse_selector(selector)
    specs = journal_specs(connection)
    columns: list[Column] = [
        _NAME,
        *route_columns(chosen, lambda item: item.spec.replication, _replicas),
    ]
    if stores:
        columns.append(("STORES", lambda item: next(iter(item.spec.fragment.stores), NONE)))
    columns += label_columns(labels)

    def show(listing: pb.ListResponse) -> None:
        say_nothing_matches(specs, listing, selector)
        table = columns if len(columns) > 1 else _COMMON
        print_listing(specs, listing, table, "json" if as_json else output, tree_of)

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


def _replicas(item: pb.ListResponse.Journal) -> tuple[str, list[str]]:
    primary, others = split_members(item.route, [member.suffix for member in item.route.members])
    suspended = item.spec.suspend.level != pb.JournalSpec.Suspend.NONE
    return f"{primary} <S>" if suspended else primary, others
