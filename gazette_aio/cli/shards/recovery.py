"""`gazette-aio shards recover`: the files of a shard, played back from its recovery log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.connection import ClientSettings, consumer_and_broker_options
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.output import json_option, print_line, print_result, progress
from gazette_aio.cli.shell.quantities import counted
from gazette_aio.consumer.api import fetch_hints, list_shards, pick_first_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.shown import shown_text

if TYPE_CHECKING:
    from gazette_aio.consumer.recoverylog import PlaybackProgress, Resolved


@click.command()
@click.option("--id", "shard", required=True, metavar="SHARD", help="ID of the shard.")
@click.option(
    "-d",
    "--dir",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to recover files in, which must be empty or missing.",
)
@click.option("--wipe", is_flag=True, help="Remove what the directory has.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Recover files as of a hole of the log if what it held can't be known. The holes are "
    "named on stderr.",
)
@json_option()
@consumer_and_broker_options
def recover(
    consumer: ClientSettings,
    connection: ClientSettings,
    shard: str,
    directory: Path,
    *,
    wipe: bool,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Recover the files of a shard, as of the end of its recovery log.

    The log is played from the hints of the shard, while the shard continues to run. The head of the
    log is found by empty appends, which resume a suspended log.
    """
    resolved = asyncio.run(
        _recover(consumer, connection, shard, directory, wipe=wipe, accept_loss=accept_loss)
    )
    for hole in resolved.holes:
        print_line(f"accepted the loss of what {hole} may have held", err=True)
    files = sorted({*resolved.fsm.links, *resolved.fsm.properties})
    result: dict[str, Any] = {
        "shard": shard,
        "log": resolved.log,
        "read_through": resolved.read_through,
        "directory": str(resolved.directory),
        "files": [path[1:] for path in files],
        "holes": [
            {"log": hole.log, "begin": hole.begin, "end": hole.end} for hole in resolved.holes
        ],
    }
    text = (
        f"recovered {counted(len(files), 'file')} in {resolved.directory}, as of {resolved.log} "
        f"through {resolved.read_through}"
    )
    print_result(result, text, as_json=as_json)


async def _recover(
    consumer: ClientSettings,
    connection: ClientSettings,
    shard: str,
    directory: Path,
    *,
    wipe: bool,
    accept_loss: bool,
) -> Resolved:
    from gazette_aio.consumer.recoverylog import Player  # noqa: PLC0415 - Of an extra.

    async with consumer.open_shards() as shards:
        selector = pb.LabelSelector(include=pb.label_set("id", shard))
        listing = await list_shards(shards, selector)
        if len(listing.shards) != 1:
            raise CommandError(f"no shard exists with the given id: {shard}")
        log = pc.recovery_log(listing.shards[0].spec)
        if not log:
            raise CommandError(f"shard {shard} has no recovery log")
        hints = pick_first_hints(await fetch_hints(shards, shard), log)
    with progress(shown_text(f"playing {log}"), 0, in_bytes=True) as bar:
        shown = 0

        def show(played: PlaybackProgress) -> None:
            nonlocal shown
            bar.advance(played.bytes_played - shown, total=played.bytes_total)
            shown = played.bytes_played

        player = Player(wipe=wipe, accept_loss=accept_loss, on_progress=show)
        player.finish_at_write_head()
        async with connection.open() as brokers:
            return await player.play(hints, directory, brokers)
