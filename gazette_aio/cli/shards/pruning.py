"""`gazette-aio shards prune`: removes fragments of recovery logs that no shard needs."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.shell.stores import Pruned, Pruning, pruning_options
from gazette_aio.cli.specs.selection import selection_options
from gazette_aio.client.listing.calls import get_journal
from gazette_aio.consumer.api import fetch_hints, list_shards
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.consumer.recoverylog.pruning import PruningPlan, ShardHints

_CHANGED = "nothing was removed, as shards were changed meanwhile: retry"


@dataclasses.dataclass
class _Log(Pruned):
    """Result of a log."""

    skipped: str = ""
    """Reason why nothing was removed, or empty."""
    unpersisted: int = 0
    """Fragments that aren't needed, and that no store has yet."""
    denied: int = 0
    """Fragments whose store denies their removal."""

    def fail(self, reason: str, *, is_denied: bool) -> None:
        """Take why a fragment couldn't be removed, and whether its store denies it."""
        if is_denied:
            self.denied += 1
        else:
            super().fail(reason, is_denied=False)

    @property
    def note(self) -> str:
        """Remark on the result, or a dash."""
        parts = [f"skipped: {self.skipped}"] if self.skipped else []
        parts += [f"{self.unpersisted} not persisted yet"] if self.unpersisted else []
        parts += [f"{self.denied} without permission"] if self.denied else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        return ", ".join(parts) or "-"


@click.command()
@selection_options("shard")
@click.option(
    "--force",
    is_flag=True,
    help="Prune other logs if a shard hasn't stored all its hints. Logs that it's known to need "
    "are skipped.",
)
@pruning_options
@consumer_and_broker_options
def prune(
    consumer: ClientSettings,
    connection: ClientSettings,
    selection: Selection,
    file_root: Path | None,
    origins: Sequence[str],
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Remove fragments of the recovery logs of shards that no shard needs.

    Fragments that hints of any shard of the consumer name are kept, even if the selector doesn't
    match the shard: a shard may have been forked from another shard's log. Each shard must have
    stored its primary hints and all its backups, so that no fragment is removed that later hints
    would name.

    CAUTION: this command doesn't know shards of other consumers that were forked from these logs.
    """
    # Pruning needs an extra. Report a missing extra before any request.
    importlib.import_module("gazette_aio.consumer.recoverylog.pruning")
    pruning = Pruning(file_root, origins, dry_run=dry_run)
    work = _prune(consumer, connection, pruning, selection, force=force)
    results = asyncio.run(work)
    pruning.show("log", results, [each.note for each in results.values()], as_json=as_json)


async def _prune(
    consumer: ClientSettings,
    connection: ClientSettings,
    pruning: Pruning,
    selection: Selection,
    *,
    force: bool,
) -> dict[str, _Log]:
    results: dict[str, _Log] = {}
    unneeded: list[tuple[_Log, pb.Fragment]] = []
    async with consumer.open_shards() as shards:
        listed = await list_shards(shards)
        chosen = {each.spec.id for each in (await list_shards(shards, selection.selector)).shards}
        selection.require(chosen)
        plan = await _plan(shards, listed, chosen)
        if plan.incomplete and not force:
            shard, reason = next(iter(plan.incomplete.items()))
            raise CommandError(
                f"{pruning.nothing_removed}, as shard {shard} {reason} "
                f"({counted(len(plan.incomplete), 'such shard')}): "
                "use --force to prune other logs"
            )
        # No call of `shards` stands in this block: its errors would be those of brokers.
        async with connection.open() as brokers:
            for log in plan.logs:
                skipped = plan.skipped.get(log) or await _unhealthy(brokers, log)
                results[log] = result = _Log(skipped=skipped)
                if not skipped:
                    found = await _unneeded(brokers, plan, log, result)
                    unneeded += [(result, fragment) for fragment in found]
        for url in {fragment.backing_store for _, fragment in unneeded}:
            pruning.open(url)
        # Race: a shard that was applied meanwhile may have been forked from one of these logs.
        if _revisions(listed) != _revisions(await list_shards(shards)):
            raise CommandError(_CHANGED)
    with progress("removing", len(unneeded)) as bar:

        async def remove(pair: tuple[_Log, pb.Fragment]) -> None:
            await pruning.remove(*pair)
            bar.advance(1)

        async for _ in in_batches(remove, unneeded):
            pass
    return results


async def _unneeded(
    brokers: JournalClient, plan: PruningPlan, log: str, result: _Log
) -> list[pb.Fragment]:
    """Return the fragments of a log that aren't needed, and that a store has."""
    try:
        fragments = [each.spec for each in (await brokers.list_fragments(log)).fragments]
    except pb.SuspendedError:
        result.skipped = "the log is suspended"
        return []
    result.fragments = len(fragments)
    result.bytes = sum(map(pb.content_length, fragments))
    unneeded = [each for each in fragments if not plan.needs(log, each.begin, each.end)]
    stored = [each for each in unneeded if each.mod_time and each.backing_store]
    result.unpersisted = len(unneeded) - len(stored)
    return stored


async def _plan(shards: ShardClient, listed: pc.ListResponse, chosen: set[str]) -> PruningPlan:
    from gazette_aio.consumer.recoverylog.pruning import plan_pruning  # noqa: PLC0415 - Of an extra.

    specs = [each.spec for each in listed.shards if pc.recovery_log(each.spec)]
    hints: list[ShardHints] = []
    with progress("reading hints", len(specs)) as bar:
        for spec in specs:
            hints.append(await _hints_of(shards, spec))
            bar.advance(1)
    return plan_pruning(hints, chosen)


async def _hints_of(shards: ShardClient, spec: pc.ShardSpec) -> ShardHints:
    from gazette_aio.consumer.recoverylog.pruning import ShardHints  # noqa: PLC0415 - Of an extra.

    try:
        response = await fetch_hints(shards, spec.id)
    except pb.ShardNotFoundError:
        raise CommandError(_CHANGED) from None
    except pb.TransportError as error:
        if error.code != "UNKNOWN":
            raise
        # Of unreadable hints, the member reports only that they can't be read.
        return ShardHints(spec.id, pc.recovery_log(spec), [None])
    found = [
        each.hints if each.HasField("hints") else None
        for each in (response.primary_hints, *response.backup_hints)
    ]
    missing = 1 + spec.hint_backups - len(found)
    return ShardHints(spec.id, pc.recovery_log(spec), found + [None] * missing)


async def _unhealthy(brokers: JournalClient, log: str) -> str:
    """Return why a log must not be pruned, or an empty text."""
    try:
        spec = (await get_journal(brokers, log)).spec
        for store in spec.fragment.stores:
            health = await brokers.fragment_store_health(store)
            if health.status != pb.Status.OK:
                return f"a fragment store is unhealthy: {health.store_health_error}"
    except pb.BrokerStatusError as error:
        return f"its fragment stores can't be checked: {error}"
    except pb.TransportError as error:
        # Brokers before v0.101 check no stores.
        if error.code != "UNIMPLEMENTED":
            raise
    return ""


def _revisions(listed: pc.ListResponse) -> dict[str, int]:
    return {each.spec.id: each.mod_revision for each in listed.shards}
