"""`gazette-aio shards`: list, apply, edit and unassign shards, and show their progress.

Modules `recovery`, `pruning` and `page_databases` have further commands.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shards.page_databases import import_pages
from gazette_aio.cli.shards.pruning import prune
from gazette_aio.cli.shards.recovery import recover
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError, InputError
from gazette_aio.cli.shell.groups import CommandGroup
from gazette_aio.cli.shell.messages import prototext, tree_of
from gazette_aio.cli.shell.output import print_json, print_line, print_table, print_text
from gazette_aio.cli.specs.editing import edit_specs
from gazette_aio.cli.specs.files import load_request, parse_selector, print_applied, read_text
from gazette_aio.cli.specs.listing import (
    NONE,
    label_columns,
    listing_options,
    print_columns,
    route_columns,
    split_members,
)
from gazette_aio.cli.specs.transactions import apply_changes, transaction_size_option
from gazette_aio.consumer.api import (
    apply_shards,
    list_shards,
    stat_shard,
    unassign_shards,
    verify_referenced_journals,
)
from gazette_aio.consumer.api.lags import lags_of
from gazette_aio.consumer.shardspace import Set, dump_shard_space, load_shard_space
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.shown import shown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.cli.specs.listing import Column
    from gazette_aio.cli.specs.transactions import OnApplied
    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.consumer.api.lags import Lag

_UNASSIGN_BATCH = 100
_LARGEST_OFFSET = (1 << 63) - 1


@click.group(cls=CommandGroup)
def shards() -> None:
    """List, apply, edit and unassign shards of a consumer, and look after their recovery logs."""


shards.add_command(import_pages)
shards.add_command(prune)
shards.add_command(recover)


@shards.command("list")
@listing_options("shard", "`id=shard-one` or `tag in (x)`", "replicas that there should be")
@click.option("--lag", is_flag=True, help="Show the bytes that are left to read, by source.")
@click.option("--json", "as_json", is_flag=True, help="The same as `-o json`.")
@consumer_and_broker_options
def list_(
    consumer: ClientSettings,
    connection: ClientSettings,
    selector: str,
    output: str,
    labels: Sequence[str],
    *,
    as_json: bool,
    **columns: bool,
) -> None:
    """List the shards that a selector matches, by ID."""
    parsed = parse_selector(selector)
    output = "json" if as_json else output
    asked = columns["lag"] and output in {"table", "json"}
    listing, lags = asyncio.run(_list(consumer, connection, parsed, lag=asked))
    if selector and not listing.shards:
        print_line(f"gazette-aio: no shard matches {selector!r}", err=True)
    match output:
        case "json":
            tree = tree_of(listing)
            for shard, lag in zip(tree["shards"], lags, strict=False):
                shard["lag"] = lag
            print_json(tree)
        case "yaml":
            print_text(dump_shard_space(Set.from_list_response(listing)))
        case "proto":
            print_text(prototext(listing))
        case _:
            _print_listing(listing, labels, lags if asked else None, columns)


async def _list(
    consumer: ClientSettings, connection: ClientSettings, selector: pb.LabelSelector, *, lag: bool
) -> tuple[pc.ListResponse, Sequence[Lag]]:
    async with consumer.open_shards() as client:
        listing = await list_shards(client, selector)
        if not lag:
            return listing, []
        async with connection.open() as brokers:
            shards = [shard.spec.id for shard in listing.shards]
            return listing, await lags_of(client, brokers, shards)


def _print_listing(
    listing: pc.ListResponse,
    labels: Sequence[str],
    lags: Sequence[Lag] | None,
    columns: dict[str, bool],
) -> None:
    table: list[Column] = [
        ("ID", lambda shard: shard.spec.id),
        ("STATUS", lambda shard: _status(shard.status)),
    ]
    table += route_columns(
        columns, lambda shard: pc.desired_replication(shard.spec), _replicas
    ) + label_columns(labels)
    if lags is not None:
        by_shard = dict(zip((each.spec.id for each in listing.shards), lags, strict=True))
        table.append(("LAG", lambda shard: _lag(by_shard[shard.spec.id])))
    print_columns(table, listing.shards)


def _status(statuses: Iterable[pc.ReplicaStatus]) -> str:
    reduced = pc.ReplicaStatus()
    for status in statuses:
        pc.reduce_status(reduced, status)
    return shown_name(pc.ReplicaStatus.Code, reduced.code)


def _replicas(shard: pc.ListResponse.Shard) -> tuple[str, list[str]]:
    shown = [
        f"{member.suffix}:{shown_name(pc.ReplicaStatus.Code, status.code)}"
        for member, status in zip(shard.route.members, shard.status, strict=True)
    ]
    return split_members(shard.route, shown)


def _lag(lag: Lag) -> str:
    if lag is None:
        return NONE
    return ", ".join(f"{name}:{NONE if left is None else left}" for name, left in lag.items())


@shards.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), required=False)
@click.option("--specs", type=click.Path(dir_okay=False, allow_dash=True), help="The same as FILE.")
@click.option("--dry-run", is_flag=True, help="Check the shards, and print the request only.")
@transaction_size_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@consumer_and_broker_options
def apply(
    consumer: ClientSettings,
    connection: ClientSettings,
    file: str | None,
    specs: str | None,
    max_txn_size: int | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Apply the shard space of a YAML FILE (default: stdin).

    First, the journals that the shards name are checked: sources must exist and have a framing;
    recovery logs must exist and have the content type of recovery logs.
    """
    if file is not None and specs is not None:
        raise InputError("give FILE or --specs, but not both")
    request = _request_of(*read_text(specs or file or "-"))
    if dry_run:
        asyncio.run(_check(connection, request))
        print_applied(request.changes, None, as_json=as_json, dry_run=True)
    else:
        revision = asyncio.run(_apply(consumer, connection, request, max_txn_size))
        print_applied(request.changes, revision, as_json=as_json)
    if dry_run and not as_json:
        print_text(prototext(request))


def _request_of(text: str, source: str) -> pc.ApplyRequest:
    return load_request(
        lambda: load_shard_space(text, source=source).to_apply_request(), source, "shards"
    )


async def _apply(
    consumer: ClientSettings,
    connection: ClientSettings,
    request: pc.ApplyRequest,
    max_txn_size: int | None,
    on_applied: OnApplied | None = None,
) -> int:
    await _check(connection, request)
    return await apply_changes(
        consumer.open_shards(), apply_shards, request.changes, max_txn_size, on_applied
    )


async def _check(connection: ClientSettings, request: pc.ApplyRequest) -> None:
    async with connection.open() as brokers:
        await verify_referenced_journals(brokers, request)


@shards.command()
@click.option("-l", "--selector", required=True, help="Label selector of the shards to edit.")
@transaction_size_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@consumer_and_broker_options
def edit(
    consumer: ClientSettings,
    connection: ClientSettings,
    selector: str,
    max_txn_size: int | None,
    *,
    as_json: bool,
) -> None:
    """Edit shards in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the shards can't be applied, the editor opens again and shows the reason. To give up, don't
    change the text, or empty it. To delete a shard, add `delete: true`.
    """
    parsed = parse_selector(selector)
    listing = consumer.run_shards(lambda client: list_shards(client, parsed))
    if not listing.shards:
        raise CommandError(f"no shard matches {selector!r}")
    edit_specs(
        dump_shard_space(Set.from_list_response(listing)),
        lambda text: load_shard_space(text, source="<editor>").to_apply_request(),
        lambda request, on_applied: asyncio.run(
            _apply(consumer, connection, request, max_txn_size, on_applied)
        ),
        as_json=as_json,
    )


@shards.command()
@click.argument("shard")
@click.option(
    "--read-through",
    "offsets",
    multiple=True,
    metavar="JOURNAL:OFFSET",
    help="Wait until the shard has read a source through an offset; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the progress as JSON.")
@consumer_and_broker_options
def stat(
    consumer: ClientSettings,
    connection: ClientSettings,  # noqa: ARG001 - Options that all commands of the group share.
    shard: str,
    offsets: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Show the progress of a SHARD."""
    request = pc.StatRequest(shard=shard, read_through=dict(map(_offset, offsets)))
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    response = consumer.run_shards(lambda client: stat_shard(client, request))
    if as_json:
        print_json(
            {
                "read_through": dict(sorted(response.read_through.items())),
                "publish_at": dict(sorted(response.publish_at.items())),
            }
        )
        return
    rows = [("read", name, at) for name, at in sorted(response.read_through.items())]
    rows += [("published", name, at) for name, at in sorted(response.publish_at.items())]
    print_table(("WHAT", "JOURNAL", "OFFSET"), rows)


def _offset(text: str) -> tuple[str, int]:
    journal, _, offset = text.rpartition(":")
    if not journal or not (offset.isascii() and offset.isdecimal()):
        raise InputError(f"--read-through {text!r}: expected JOURNAL:OFFSET")
    if int(offset) > _LARGEST_OFFSET:
        raise InputError(f"--read-through {text!r}: the offset is too large")
    return journal, int(offset)


@shards.command()
@click.option("-l", "--selector", required=True, help="Label selector of the shards.")
@click.option("--failed", is_flag=True, help="Only failed replicas.")
@click.option("--dry-run", is_flag=True, help="Print the shards; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the shards as JSON.")
@consumer_and_broker_options
def unassign(
    consumer: ClientSettings,
    connection: ClientSettings,  # noqa: ARG001 - Options that all commands of the group share.
    selector: str,
    *,
    failed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the primaries and the failed replicas of shards, so that they are assigned again."""
    parsed = parse_selector(selector)
    affected = consumer.run_shards(
        lambda client: _unassign(client, parsed, failed=failed, dry_run=dry_run)
    )
    if as_json:
        print_json({"shards": affected, "dry_run": dry_run})
        return
    for shard in affected:
        print_line(f"{'would unassign' if dry_run else 'unassigned'} {shard}")


async def _unassign(
    client: ShardClient, selector: pb.LabelSelector, *, failed: bool, dry_run: bool
) -> list[str]:
    listing = await list_shards(client, selector)
    chosen = [
        shard.spec.id
        for shard in listing.shards
        if not failed or any(each.code == pc.ReplicaStatus.FAILED for each in shard.status)
    ]
    affected: list[str] = []
    for begin in range(0, len(chosen), _UNASSIGN_BATCH):
        response = await unassign_shards(
            client, chosen[begin : begin + _UNASSIGN_BATCH], only_failed=failed, dry_run=dry_run
        )
        affected += response.shards
    return affected
