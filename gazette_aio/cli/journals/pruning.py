"""`gazette-aio journals prune`: removes fragments that are older than their journal's retention."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.aio.threads import in_thread
from gazette_aio.broker.stores.fragment_store import StoreAccessError
from gazette_aio.cli.journals.retention import RetentionPlan, plan_retention
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.output import print_json, print_table, progress
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.cli.shell.stores import FragmentStores, store_options
from gazette_aio.cli.specs.files import parse_selector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_aio.client import JournalClient


@dataclasses.dataclass(slots=True)
class _Result:
    """Result of a journal."""

    journal: str
    fragments: int
    bytes: int
    pruned_fragments: int = 0
    pruned_bytes: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)


@click.command()
@click.option("-l", "--selector", required=True, help="Label selector of the journals.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; remove nothing.")
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@connection_options
def prune(
    connection: ClientSettings,
    selector: str,
    file_root: Path | None,
    origins: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove fragments of journals that are older than the retention of their journal.

    A journal without a retention keeps all its fragments. Brokers list only the largest of several
    fragments of the same content: prune again later to remove the smaller ones.
    """
    pruning = _Pruning(FragmentStores(file_root, origins), dry_run=dry_run)
    results = asyncio.run(pruning.run(connection, parse_selector(selector)))
    if not results:
        raise CommandError(f"no journal matches {selector!r}")
    if as_json:
        print_json({"dry_run": dry_run, "journals": [dataclasses.asdict(each) for each in results]})
    else:
        what = "PRUNABLE" if dry_run else "PRUNED"
        header = ("JOURNAL", "FRAGMENTS", "BYTES", what, f"{what} BYTES")
        rows = [
            (each.journal, each.fragments, each.bytes, each.pruned_fragments, each.pruned_bytes)
            for each in results
        ]
        print_table(header, rows)
    if failures := [reason for each in results for reason in each.failed]:
        raise CommandError(
            f"{counted(len(failures), 'fragment')} couldn't be removed: {failures[0]}"
        )


class _Pruning:
    def __init__(self, stores: FragmentStores, *, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._stores = stores

    async def run(self, connection: ClientSettings, selector: pb.LabelSelector) -> list[_Result]:
        results: list[_Result] = []
        async with connection.open() as client:
            specs = [item.spec for item in (await client.list(selector)).journals]
            with progress("pruning", len(specs)) as bar:

                async def plan(spec: pb.JournalSpec) -> RetentionPlan:
                    return await _plan(client, spec)

                # Only few journals' fragments are in memory at a time.
                async for planned in in_batches(plan, specs):
                    results.append(await self._apply(planned))
                    bar.advance(1)
        return results

    async def _apply(self, plan: RetentionPlan) -> _Result:
        result = _Result(plan.journal, plan.fragments, plan.bytes)
        if not self._dry_run:
            for url in {fragment.backing_store for fragment in plan.aged}:
                self._stores.open(url)
        async for failure, size in in_batches(self._remove, plan.aged):
            if failure:
                result.failed.append(failure)
            else:
                result.pruned_fragments += 1
                result.pruned_bytes += size
        return result

    async def _remove(self, fragment: pb.Fragment) -> tuple[str, int]:
        """Remove a fragment, and return why it wasn't, and its bytes."""
        size = fragment.end - fragment.begin
        if self._dry_run:
            return "", size
        path = pb.content_path(fragment)
        try:
            await in_thread(self._stores.open(fragment.backing_store).remove, path)
        except FileNotFoundError:
            pass  # Somebody else has removed it, and the broker's listing is older.
        except (OSError, StoreAccessError, pb.StoreError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
            return f"{path}: {reason or error}", size
        return "", size


async def _plan(client: JournalClient, spec: pb.JournalSpec) -> RetentionPlan:
    if spec.suspend.level == pb.JournalSpec.Suspend.FULL:
        return RetentionPlan(spec.name)
    try:
        listed = await client.list_fragments(spec.name)
    except pb.SuspendedError:
        return RetentionPlan(spec.name)  # Suspended since it was listed.
    return plan_retention(spec, (each.spec for each in listed.fragments), time.time())
