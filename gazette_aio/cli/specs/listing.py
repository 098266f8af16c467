"""Options and columns of listings, for journals and shards alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gazette_aio.cli.shell.messages import prototext
from gazette_aio.cli.shell.output import (
    json_option,
    print_json,
    print_line,
    print_table,
    print_text,
)

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.cli.specs.commands import Specs

NONE: Final = "<none>"
_FORMATS: Final = ["table", "yaml", "json", "proto"]

Column = tuple[str, Callable[[Any], object]]
"""Title of a column, and what it has of an item of a listing."""


def listing_options(
    kind: str, example: str, factor: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take `selector`, `output`, `labels`, `primary`, `replicas` and `factor`.

    Args:
        kind: `journal` or `shard`.
        example: Examples of selectors.
        factor: What the replication is.
    """
    options = (
        click.option("-l", "--selector", default="", help=f"Label selector, such as {example}."),
        click.option(
            "-o",
            "--output",
            "--format",
            "output",
            type=click.Choice(_FORMATS),
            default="table",
            show_default=True,
            help=f"Format; YAML is a {kind} space, which can be edited and applied.",
        ),
        click.option(
            "-L", "--label-columns", "labels", multiple=True, help="Label to show; repeatable."
        ),
        click.option("-p", "--primary", is_flag=True, help="Show the primary."),
        click.option("-r", "--replicas", is_flag=True, help="Show the other replicas."),
        click.option("--rf", "factor", is_flag=True, help=f"Show the {factor}."),
        json_option("The same as `-o json`."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def route_columns(
    chosen: Mapping[str, bool],
    replication: Callable[[Any], object],
    replicas: Callable[[Any], tuple[str, list[str]]],
) -> list[Column]:
    """Return those of the columns of replication that are chosen.

    Args:
        chosen: The flags of `listing_options()`.
        replication: Returns the replication of an item.
        replicas: Returns its primary, and the others.
    """
    columns: list[Column] = [
        ("RF", replication),
        ("PRIMARY", lambda item: replicas(item)[0]),
        ("REPLICAS", lambda item: ",".join(replicas(item)[1])),
    ]
    flags = ("factor", "primary", "replicas")
    return [column for flag, column in zip(flags, columns, strict=True) if chosen[flag]]


def split_members(route: pb.Route, members: Iterable[str]) -> tuple[str, list[str]]:
    """Return the primary of the shown members of a route, and the others."""
    others = list(members)
    primary = others.pop(route.primary) if 0 <= route.primary < len(others) else NONE
    return primary, others


def label_columns(names: Sequence[str]) -> list[Column]:
    """Return the columns of labels."""

    def column(name: str) -> Column:
        return (
            name.upper(),
            lambda item: (
                ",".join(each.value for each in item.spec.labels.labels if each.name == name)
                or NONE
            ),
        )

    return [column(name) for name in names]


def print_listing(
    specs: Specs, listing: Any, columns: Sequence[Column], output: str, tree: Callable[[Any], Any]
) -> None:
    """Print a listing in one of the formats.

    Args:
        specs: Of the kind that is listed.
        listing: Response of a broker or a member.
        columns: Those of the table.
        output: Format.
        tree: Returns what JSON has of the listing.
    """
    match output:
        case "json":
            print_json(tree(listing), compact=True)
        case "proto":
            print_text(prototext(listing))
        case "yaml":
            print_text(specs.dump(listing))
        case _:
            rows = [[cell(item) for _, cell in columns] for item in specs.items(listing)]
            print_table([title for title, _ in columns], rows, keep="LAG")


def say_nothing_matches(specs: Specs, listing: Any, selector: str) -> None:
    """Say on stderr that a selector matches nothing, if that's so."""
    if selector and not specs.items(listing):
        print_line(f"gazette-aio: no {specs.kind} matches {selector!r}", err=True)
