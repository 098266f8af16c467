"""`gazette-aio journals read` and `append`: the content of a journal as raw bytes."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.connection import ClientSettings, connection_options
from gazette_aio.cli.failures import CommandError, InputError
from gazette_aio.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Generator

    from gazette_aio.client import RetryReader

_SPOOLED_BYTES = 1 << 20


@click.command()
@click.argument("journal")
@click.option(
    "--offset",
    type=click.IntRange(min=-1),
    default=0,
    show_default=True,
    help="First byte to read; -1 is the write head.",
)
@click.option(
    "--end-offset",
    type=click.IntRange(min=0),
    default=0,
    help="Stop before this offset. [default: none]",
)
@click.option(
    "--block", is_flag=True, help="At the write head, wait for more content instead of stopping."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write to instead of stdout.",
)
@connection_options
def read(
    connection: ClientSettings,
    journal: str,
    offset: int,
    end_offset: int,
    output: str | None,
    *,
    block: bool,
) -> None:
    """Print the raw content of JOURNAL."""
    request = pb.ReadRequest(journal=journal, offset=offset, end_offset=end_offset, block=block)
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    with _output_file(output) as sink:
        asyncio.run(_read(connection, request, sink))


@contextmanager
def _output_file(path: str | None) -> Generator[IO[bytes], None, None]:
    if path is None:
        yield sys.stdout.buffer
        return
    with Path(path).open("wb") as file:
        yield file


async def _read(connection: ClientSettings, request: pb.ReadRequest, sink: IO[bytes]) -> None:
    async with connection.open() as client, client.read(request) as reader:
        await _copy(reader, sink)
    sink.flush()


async def _copy(reader: RetryReader, sink: IO[bytes]) -> None:
    requested = reader.offset
    while True:
        try:
            chunk = await anext(reader)
        except StopAsyncIteration:
            return
        except pb.OffsetJumpError as error:
            text = f"{reader.journal}: no content from {requested}, continuing at {error.offset}"
            click.echo(f"gazette-aio: {text}", err=True)
            continue
        except pb.OffsetNotYetAvailableError:
            head = reader.response.write_head
            if requested > head:
                text = f"offset {requested} is beyond the write head {head}: {reader.journal}"
                raise CommandError(text) from None
            return
        # A full pipe blocks here, which slows the broker down. This loop has no other work.
        sink.write(chunk)
        requested = reader.offset
        if reader.request.block:
            sink.flush()


@click.command()
@click.argument("journal")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option(
    "--offset",
    type=click.IntRange(min=1),
    default=None,
    help="Append only if this is the journal's write head.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@connection_options
def append(
    connection: ClientSettings, journal: str, file: str, offset: int | None, *, as_json: bool
) -> None:
    """Append FILE (default: stdin) to JOURNAL, as a whole or not at all."""
    request = pb.AppendRequest(journal=journal, offset=offset or 0)
    try:
        pb.validate(request)
    except pb.ValidationError as error:
        raise InputError(str(error)) from None
    # The input is read before anything is sent: a slow input would block other appends.
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as spool:
        if file == "-":
            shutil.copyfileobj(sys.stdin.buffer, spool)
        else:
            with Path(file).open("rb") as source:
                shutil.copyfileobj(source, spool)
        response = asyncio.run(_append(connection, request, spool))
    begin, end = response.commit.begin, response.commit.end
    if as_json:
        print_json({"journal": response.commit.journal, "begin": begin, "end": end})
    else:
        click.echo(f"{response.commit.journal}: appended {end - begin} bytes at {begin}")


async def _append(
    connection: ClientSettings, request: pb.AppendRequest, content: IO[bytes]
) -> pb.AppendResponse:
    async with connection.open() as client:
        return await client.append(request, content)
