"""`gazette-aio attach-uuids`: attaches UUIDs of messages to the lines of files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import progress
from gazette_aio.cli.tools.uuid_lines import LineStamper
from gazette_aio.message.uuid import Clock, new_producer_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BufferedReader

_CHUNK_BYTES = 1 << 16


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--template",
    default="{{.UUID}},{{.Line}}\n",
    help="Output of each line: text with {{.UUID}} and {{.Line}}. [default: UUID,LINE]",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    default=4 << 20,
    show_default=True,
    help="Bytes of a line that is too long.",
)
@click.option("--skip-header", is_flag=True, help="Leave out the first line of each file.")
@log_options
def attach_uuids(
    paths: Sequence[Path], template: str, max_length: int, *, skip_header: bool
) -> None:
    r"""Attach a UUID to each line of the files PATHS (default: stdin), and print the lines.

    UUIDs are those of committed messages, which readers deliver exactly once. Write the output to a
    file, and append the file: if it's appended twice, readers drop the second copy. Each run is a
    new producer, and readers keep some state of each producer: prefer few large files to many small
    ones.
    """
    clock = Clock.now()
    try:
        stamper = LineStamper(
            template, new_producer_id(), clock, max_length=max_length, skip_header=skip_header
        )
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    with contextlib.ExitStack() as files, progress("attaching", in_bytes=True) as bar:
        # All files are opened first, so that nothing is printed if one is missing.
        inputs: list[BufferedReader] = [files.enter_context(path.open("rb")) for path in paths]
        for source in inputs or [cast("BufferedReader", sys.stdin.buffer)]:
            stamper.restart()
            # Not read(), which would wait until a pipe has filled the chunk.
            while chunk := source.read1(_CHUNK_BYTES):
                clock.update()
                sys.stdout.buffer.write(stamper.feed(chunk))
                sys.stdout.buffer.flush()
                bar.advance(len(chunk))
            sys.stdout.buffer.write(stamper.end())
    sys.stdout.buffer.flush()
