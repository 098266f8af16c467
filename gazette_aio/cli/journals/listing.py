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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FORMATS = ["table", "yaml", "json", "proto"]
_NONE = "<none>"


@click.command("list")
@click.option(
    "-l", "--selector", default="", help="Label selector, such as `name:prefix=a/` or `tag in (x)`."
)
@click.option(
    "-o",
    "--output",
    "--format",
    "output",
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
    help="Format; YAML is a journal space, which can be edited and applied.",
)
@click.option("-L", "--label-columns", "labels", multiple=True, help="Label to show; repeatable.")
@click.option("-p", "--primary", is_flag=True, help="Show the primary.")
@click.option("-r", "--replicas", is_flag=True, help="Show the other replicas.")
@click.option("--rf", "factor", is_flag=True, help="Show the replication.")
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

    asyncio.run((_watch if watch else _list)(connection, parsed, show))


async def _list(
    connection: ClientSettings,
    selector: pb.LabelSelector,
    show: Callable[[pb.ListResponse], None],
) -> None:
    async with connection.open() as client:
        listing = await client.list(selector)
    show(listing)


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
            _primary(item.route) or "-",
            ",".join(item.spec.fragment.stores) or "-",
        )
        for item in listing.journals
    ]
    print_table(("NAME", "CONTENT TYPE", "REVISION", "REPLICATION", "PRIMARY", "STORES"), rows)


def _primary(route: pb.Route) -> str:
    if not 0 <= route.primary < len(route.members):
        return ""
    member = route.members[route.primary]
    return f"{member.zone}/{member.suffix}"


def _print_chosen(
    listing: pb.ListResponse, labels: Sequence[str], columns: dict[str, bool]
) -> None:
    header = ["NAME"]
    header += ["RF"] if columns["factor"] else []
    header += ["PRIMARY"] if columns["primary"] else []
    header += ["REPLICAS"] if columns["replicas"] else []
    header += ["STORES"] if columns["stores"] else []
    header += [name.upper() for name in labels]
    rows: list[list[object]] = []
    for item in listing.journals:
        row: list[object] = [item.spec.name]
        primary, others = _replicas(item)
        row += [item.spec.replication] if columns["factor"] else []
        row += [primary] if columns["primary"] else []
        row += [",".join(others)] if columns["replicas"] else []
        row += [next(iter(item.spec.fragment.stores), _NONE)] if columns["stores"] else []
        row += [_label(item.spec.labels, name) for name in labels]
        rows.append(row)
    print_table(header, rows)


def _replicas(item: pb.ListResponse.Journal) -> tuple[str, list[str]]:
    members = [member.suffix for member in item.route.members]
    has_primary = 0 <= item.route.primary < len(members)
    primary = members.pop(item.route.primary) if has_primary else _NONE
    suspended = item.spec.suspend.level != pb.JournalSpec.Suspend.NONE
    return f"{primary} <S>" if suspended else primary, members


def _label(labels: pb.LabelSet, name: str) -> str:
    values = [label.value for label in labels.labels if label.name == name]
    return ",".join(values) if values else _NONE
