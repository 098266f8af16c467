"""`gazette-aio journals prune`: removes fragments that are older than their journal's retention."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.batches import in_batches
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.shell.stores import Pruned, Pruning, pruning_options
from gazette_aio.cli.specs.selection import selection_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_aio.cli.specs.selection import Selection
    from gazette_aio.client import JournalClient


@click.command()
@selection_options("journal")
@pruning_options
@connection_options
def prune(
    connection: ClientSettings,
    selection: Selection,
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
    pruning = Pruning(file_root, origins, dry_run=dry_run)
    results = asyncio.run(_prune(connection, pruning, selection))
    pruning.show("journal", results, as_json=as_json)


async def _prune(
    connection: ClientSettings, pruning: Pruning, selection: Selection
) -> dict[str, Pruned]:
    results: dict[str, Pruned] = {}
    async with connection.open() as client:
        specs = [item.spec for item in await selection.journals(client, some=True)]

        async def list_one(spec: pb.JournalSpec) -> tuple[pb.JournalSpec, list[pb.Fragment]]:
            return spec, await _fragments(client, spec)

        with progress("pruning", len(specs)) as bar:
            # Only few journals' fragments are in memory at a time.
            async for spec, fragments in in_batches(list_one, specs):
                results[spec.name] = await _prune_one(pruning, spec, fragments)
                bar.advance(1)
    return results


async def _fragments(client: JournalClient, spec: pb.JournalSpec) -> list[pb.Fragment]:
    if spec.suspend.level == pb.JournalSpec.Suspend.FULL:
        return []
    try:
        listed = await client.list_fragments(spec.name)
    except pb.SuspendedError:
        return []  # Suspended since it was listed.
    return [each.spec for each in listed.fragments]


async def _prune_one(
    pruning: Pruning, spec: pb.JournalSpec, fragments: Sequence[pb.Fragment]
) -> Pruned:
    result = Pruned(len(fragments), sum(map(pb.content_length, fragments)))
    now = time.time()
    aged = [fragment for fragment in fragments if is_aged(spec, fragment, now)]
    for url in {fragment.backing_store for fragment in aged}:
        pruning.open(url)
    async for _ in in_batches(functools.partial(pruning.remove, result), aged):
        pass
    return result


def is_aged(spec: pb.JournalSpec, fragment: pb.Fragment, now: float) -> bool:
    """Return whether a store has a fragment for longer than the retention of its journal.

    A journal without a retention keeps its fragments, as its specification says; `gazctl` removes
    them all. Fragments that no store has are kept.

    Args:
        spec: Specification of the journal.
        fragment: One of its fragments.
        now: Unix time.
    """
    retention = spec.fragment.retention.seconds + spec.fragment.retention.nanos / 1e9
    is_stored = bool(fragment.backing_store and fragment.mod_time)
    return is_stored and retention > 0 and now - fragment.mod_time >= retention
