"""`gazette-aio shards`: list, apply, edit and unassign shards, and show their progress.

Modules `recovery`, `pruning` and `page_databases` have further commands.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shards.page_databases import import_pages
from gazette_aio.cli.shards.pruning import prune
from gazette_aio.cli.shards.recovery import recover
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError, InputError, explain
from gazette_aio.cli.shell.groups import CommandGroup
from gazette_aio.cli.shell.messages import MOST_FAILURES, failure_of, tree_of
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_table
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.specs.commands import (
    Specs,
    apply_file,
    apply_options,
    edit_options,
    edit_selected,
)
from gazette_aio.cli.specs.listing import (
    NONE,
    label_columns,
    listing_options,
    print_listing,
    route_columns,
    say_nothing_matches,
    split_members,
)
from gazette_aio.cli.specs.selection import parse_selector, selection_options
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
    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.consumer.api.lags import Lag

_UNASSIGN_BATCH = 100
_OPTIONAL_LAG_SECONDS = 1.0
_OPTIONAL_PROGRESS_SECONDS = 2.0
_LARGEST_OFFSET = (1 << 63) - 1


@click.group(cls=CommandGroup)
def shards() -> None:
    """List, apply, edit and unassign shards of a consumer, and look after their recovery logs."""


shards.add_command(import_pages)
shards.add_command(prune)
shards.add_command(recover)


def shard_specs(consumer: ClientSettings, connection: ClientSettings) -> Specs:
    """Return how specs of shards are read, listed and applied."""

    async def check(request: pc.ApplyRequest) -> None:
        async with connection.open() as brokers:
            await verify_referenced_journals(brokers, request)

    return Specs(
        kind="shard",
        load=load_shard_space,
        dump=lambda listing: dump_shard_space(Set.from_list_response(listing)),
        open=consumer.open_shards,
        fetch=list_shards,
        check=check,
        send=apply_shards,
    )


@shards.command("list")
@listing_options("shard", "`id=shard-one` or `tag in (x)`", "replicas that there should be")
@click.option("--lag", is_flag=True, help="Show the bytes that are left to read, by source.")
@consumer_and_broker_options
def list_(
    consumer: ClientSettings,
    connection: ClientSettings,
    selector: str,
    output: str,
    labels: Sequence[str],
    *,
    lag: bool,
    as_json: bool,
    **chosen: bool,
) -> None:
    """List the shards that a selector matches, by ID.

    Without options of columns, the table has primaries, and the bytes that are left to read, unless
    no broker answers.
    """
    output = "json" if as_json else output
    is_common = output == "table" and not (lag or labels or any(chosen.values()))
    wants_lag = is_common or (lag and output in {"table", "json"})
    listing, lags = asyncio.run(
        _listed(
            consumer,
            parse_selector(selector),
            connection if wants_lag else None,
            is_optional=is_common,
        )
    )
    columns: list[Column] = [
        ("ID", lambda shard: shard.spec.id),
        ("STATUS", lambda shard: _status(shard.status)),
        *route_columns(
            chosen | {"primary": chosen["primary"] or is_common},
            lambda shard: pc.desired_replication(shard.spec),
            _replicas,
        ),
        *label_columns(labels),
    ]
    if lags:
        shown = _total if is_common else _by_source
        columns.append(("LAG", lambda shard: shown(lags[shard.spec.id])))

    def tree(listing: pc.ListResponse) -> Any:
        tree = tree_of(listing)
        for shard in tree["shards"] if lags else ():
            shard["lag"] = lags[shard["spec"]["id"]]
        return tree

    specs = shard_specs(consumer, connection)
    say_nothing_matches(specs, listing, selector)
    print_listing(specs, listing, columns, output, tree)
    if output == "table":
        _say_failures(listing)


async def _listed(
    consumer: ClientSettings,
    selector: pb.LabelSelector,
    connection: ClientSettings | None,
    *,
    is_optional: bool,
) -> tuple[pc.ListResponse, dict[str, Lag]]:
    """Return a listing of shards and, with a connection to brokers, the lags by shard.

    Lags that are optional may be missing, and aren't waited for as long as others.
    """
    async with consumer.open_shards() as client:
        listing = await list_shards(client, selector)
        if connection is None:
            return listing, {}
        shards = [shard.spec.id for shard in listing.shards]
        members = {shard.spec.id: name for shard in listing.shards if (name := _primary(shard))}
        silent = set[str]()
        progress_timeout = connection.timeout
        if is_optional:
            progress_timeout = min(progress_timeout, _OPTIONAL_PROGRESS_SECONDS)
            timeout = min(connection.timeout, _OPTIONAL_LAG_SECONDS)
            connection = dataclasses.replace(connection, timeout=timeout)
        try:
            async with connection.open() as brokers:
                lags = await lags_of(
                    client,
                    brokers,
                    shards,
                    timeout=progress_timeout,
                    members=members,
                    silent=silent,
                )
        except (pb.GazetteError, CommandError, InputError) as error:
            if not is_optional:
                raise
            print_line(f"gazette-aio: the lag is unknown: {explain(error)}", err=True)
            return listing, {}
    for member in sorted(silent):
        text = f"member {member} doesn't answer: the lag of its shards is unknown"
        print_line(f"gazette-aio: {text}", err=True)
    return listing, dict(zip(shards, lags, strict=True))


def _primary(shard: pc.ListResponse.Shard) -> str:
    """Return the member that is a shard's primary and ready, or an empty text."""
    for member, status in zip(shard.route.members, shard.status, strict=True):
        if status.code == pc.ReplicaStatus.PRIMARY:
            return member.suffix
    return ""


def _say_failures(listing: pc.ListResponse) -> None:
    failures = [(each.spec.id, text) for each in listing.shards if (text := failure_of(each))]
    for shard, text in failures[:MOST_FAILURES]:
        print_line(f"gazette-aio: {shard} has failed: {text}", err=True)
    if more := len(failures[MOST_FAILURES:]):
        print_line(f"gazette-aio: {counted(more, 'more shard')} failed", err=True)


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


def _total(lag: Lag) -> str:
    left = None if lag is None else list(lag.values())
    return NONE if left is None or None in left else str(sum(each or 0 for each in left))


def _by_source(lag: Lag) -> str:
    if lag is None:
        return NONE
    return ", ".join(f"{name}:{NONE if left is None else left}" for name, left in lag.items())


@shards.command()
@apply_options
@consumer_and_broker_options
def apply(consumer: ClientSettings, connection: ClientSettings, **given: Any) -> None:
    """Apply the shard space of a YAML FILE (default: stdin).

    First, the journals that the shards name are checked: sources must exist and have a framing;
    recovery logs must exist and have the content type of recovery logs.
    """
    apply_file(shard_specs(consumer, connection), **given)


@shards.command()
@edit_options("shard")
@consumer_and_broker_options
def edit(consumer: ClientSettings, connection: ClientSettings, **given: Any) -> None:
    """Edit shards in $GAZ_EDITOR, $EDITOR or vi, and apply those that were changed.

    If the shards can't be applied, the editor opens again and shows the reason. To give up, don't
    change the text, or empty it. To delete a shard, add `delete: true`.
    """
    edit_selected(shard_specs(consumer, connection), **given)


@shards.command()
@click.argument("shard")
@click.option(
    "--read-through",
    "offsets",
    multiple=True,
    metavar="JOURNAL:OFFSET",
    help="Wait until the shard has read a source through an offset; repeatable.",
)
@json_option("Print the progress as JSON.")
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
@selection_options("shard")
@click.option("--failed", is_flag=True, help="Only failed replicas.")
@click.option("--dry-run", is_flag=True, help="Print the shards; change nothing.")
@json_option("Print the shards as JSON.")
@consumer_and_broker_options
def unassign(
    consumer: ClientSettings,
    connection: ClientSettings,  # noqa: ARG001 - Options that all commands of the group share.
    selection: Selection,
    *,
    failed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the primaries and the failed replicas of shards, so that they are assigned again."""
    affected = consumer.run_shards(
        lambda client: _unassign(client, selection, failed=failed, dry_run=dry_run)
    )
    if as_json:
        print_json({"shards": affected, "dry_run": dry_run})
        return
    for shard in affected:
        print_line(f"{'would unassign' if dry_run else 'unassigned'} {shard}")


async def _unassign(
    client: ShardClient, selection: Selection, *, failed: bool, dry_run: bool
) -> list[str]:
    listing = await list_shards(client, selection.selector)
    selection.require(shard.spec.id for shard in listing.shards)
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
