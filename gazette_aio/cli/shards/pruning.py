"""`gazette-aio shards prune`: removes fragments of recovery logs that no shard needs."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.broker.stores.fragment_store import StoreAccessError
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.output import print_json, print_table
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.shell.stores import FragmentStores, store_options
from gazette_aio.cli.specs.files import parse_selector
from gazette_aio.client.listing.calls import get_journal
from gazette_aio.consumer.api import fetch_hints, list_shards
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.consumer.recoverylog.pruning import PruningPlan, ShardHints

_CONCURRENT = 32
_CHANGED = "nothing was removed, as shards were changed meanwhile: retry"


@dataclasses.dataclass(slots=True)
class LogResult:
    """Result of a log."""

    log: str
    skipped: str = ""
    """Reason why nothing was removed, or empty."""
    fragments: int = 0
    bytes: int = 0
    pruned_fragments: int = 0
    pruned_bytes: int = 0
    unpersisted: int = 0
    """Fragments that aren't needed, and that no store has yet."""
    denied: int = 0
    """Fragments whose store denies their removal."""
    failed: list[str] = dataclasses.field(default_factory=list)
    """Reasons why fragments couldn't be removed."""

    @property
    def pruned(self) -> tuple[int, int]:
        """Number and bytes of the fragments that were removed, or would be."""
        return self.pruned_fragments, self.pruned_bytes

    @property
    def note(self) -> str:
        """Remark on the result, or empty."""
        parts = [f"skipped: {self.skipped}"] if self.skipped else []
        parts += [f"{self.unpersisted} not persisted yet"] if self.unpersisted else []
        parts += [f"{self.denied} without permission"] if self.denied else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        return ", ".join(parts) or "-"


@click.command()
@click.option("-l", "--selector", required=True, help="Label selector of the shards.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Prune other logs if a shard hasn't stored all its hints. Logs that it's known to need "
    "are skipped.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@consumer_and_broker_options
def prune(
    consumer: ClientSettings,
    connection: ClientSettings,
    selector: str,
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
    pruning = _Pruning(FragmentStores(file_root, origins), dry_run=dry_run, force=force)
    results = asyncio.run(pruning.run(consumer, connection, parse_selector(selector)))
    if as_json:
        print_json({"dry_run": dry_run, "logs": [dataclasses.asdict(each) for each in results]})
    else:
        what = "PRUNABLE" if dry_run else "PRUNED"
        header = ("LOG", "FRAGMENTS", "BYTES", what, f"{what} BYTES", "NOTE")
        rows = [(each.log, each.fragments, each.bytes, *each.pruned, each.note) for each in results]
        print_table(header, rows)
    if failures := [reason for each in results for reason in each.failed]:
        raise CommandError(
            f"{counted(len(failures), 'fragment')} couldn't be removed: {failures[0]}"
        )


class _Pruning:
    def __init__(self, stores: FragmentStores, *, dry_run: bool, force: bool) -> None:
        self._dry_run = dry_run
        self._force = force
        self._stores = stores

    async def run(
        self, consumer: ClientSettings, connection: ClientSettings, selector: pb.LabelSelector
    ) -> list[LogResult]:
        results: list[LogResult] = []
        prunable: list[tuple[LogResult, pb.Fragment]] = []
        async with consumer.open_shards() as shards:
            listed = await list_shards(shards)
            chosen = {each.spec.id for each in (await list_shards(shards, selector)).shards}
            plan = await _plan(shards, listed, chosen)
            if plan.incomplete and not self._force:
                shard, reason = next(iter(plan.incomplete.items()))
                raise CommandError(
                    f"nothing was removed, as shard {shard} {reason} "
                    f"({counted(len(plan.incomplete), 'such shard')}): "
                    "use --force to prune other logs"
                )
            # No call of `shards` stands in this block: its errors would be those of brokers.
            async with connection.open() as brokers:
                for log in plan.logs:
                    result = LogResult(log, plan.skipped.get(log) or await _unhealthy(brokers, log))
                    results.append(result)
                    if not result.skipped:
                        await self._examine(brokers, plan, result, prunable)
            # Race: a shard that was applied meanwhile may have been forked from one of these logs.
            if _revisions(listed) != _revisions(await list_shards(shards)):
                raise CommandError(_CHANGED)
        await self._remove_all(prunable)
        return results

    async def _examine(
        self,
        brokers: JournalClient,
        plan: PruningPlan,
        result: LogResult,
        prunable: list[tuple[LogResult, pb.Fragment]],
    ) -> None:
        """Find the fragments of a log that aren't needed."""
        try:
            listed = await brokers.list_fragments(result.log)
        except pb.SuspendedError:
            result.skipped = "the log is suspended"
            return
        for each in listed.fragments:
            fragment = each.spec
            size = pb.content_length(fragment)
            result.fragments += 1
            result.bytes += size
            if plan.needs(result.log, fragment.begin, fragment.end):
                continue
            if not fragment.mod_time or not fragment.backing_store:
                result.unpersisted += 1
            elif self._dry_run:
                result.pruned_fragments += 1
                result.pruned_bytes += size
            else:
                self._stores.open(fragment.backing_store)
                prunable.append((result, fragment))

    async def _remove_all(self, prunable: list[tuple[LogResult, pb.Fragment]]) -> None:
        limit = asyncio.Semaphore(_CONCURRENT)
        with _progress(len(prunable), "removing") as bar:

            async def remove(result: LogResult, fragment: pb.Fragment) -> None:
                async with limit:
                    await self._remove(result, fragment)
                bar.update(1)

            async with asyncio.TaskGroup() as group:
                for result, fragment in prunable:
                    group.create_task(remove(result, fragment))

    async def _remove(self, result: LogResult, fragment: pb.Fragment) -> None:
        store = self._stores.open(fragment.backing_store)
        path = pb.content_path(fragment)
        try:
            await in_thread(store.remove, path)
        except FileNotFoundError:
            pass  # Somebody else has removed it, and the broker's listing is older.
        except (StoreAccessError, PermissionError):
            result.denied += 1
            return
        except (OSError, pb.StoreError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
            result.failed.append(f"{path}: {reason or error}")
            return
        result.pruned_fragments += 1
        result.pruned_bytes += pb.content_length(fragment)


async def _plan(shards: ShardClient, listed: pc.ListResponse, chosen: set[str]) -> PruningPlan:
    from gazette_aio.consumer.recoverylog.pruning import plan_pruning  # noqa: PLC0415 - Of an extra.

    specs = [each.spec for each in listed.shards if pc.recovery_log(each.spec)]
    hints: list[ShardHints] = []
    with _progress(len(specs), "reading hints") as bar:
        for spec in specs:
            hints.append(await _hints_of(shards, spec))
            bar.update(1)
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


def _progress(length: int, label: str) -> Any:
    """Return a progress bar, which is shown on a terminal only."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=hidden)


def _revisions(listed: pc.ListResponse) -> dict[str, int]:
    return {each.spec.id: each.mod_revision for each in listed.shards}
