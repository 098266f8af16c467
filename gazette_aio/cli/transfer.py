"""`gazette-aio journals read` and `append`: the content of a journal as raw bytes."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import aiofiles
import click

import gazette_aio.protocol as pb
from gazette_aio.aio.file_calls import FileCalls
from gazette_aio.cli.connection import ClientSettings, connection_options
from gazette_aio.cli.failures import CommandError, InputError
from gazette_aio.cli.output import print_json
from gazette_aio.protocol.selector import is_selector_expression

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import Content, RetryReader

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
        raise InputError(_invalid_request(journal, error)) from None
    asyncio.run(_read(connection, request, output))


async def _read(connection: ClientSettings, request: pb.ReadRequest, output: str | None) -> None:
    if output is None:
        async with connection.open() as client, client.read(request) as reader:
            await _copy(reader, _write_out)
        return
    calls = FileCalls()
    file = await calls.open(aiofiles.open(output, "wb", buffering=0, executor=calls))

    async def write(chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[await calls.run(file.write(view)) :]

    try:
        async with connection.open() as client, client.read(request) as reader:
            await _copy(reader, write)
    finally:
        await calls.close(file)


async def _write_out(chunk: bytes) -> None:
    # A full pipe blocks here, which slows the broker down. This loop has no other work, and nobody
    # could interrupt a thread.
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


async def _copy(reader: RetryReader, write: Callable[[bytes], Awaitable[None]]) -> None:
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
        await write(chunk)
        requested = reader.offset


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
        raise InputError(_invalid_request(journal, error)) from None
    if file != "-" and Path(file).is_file():
        response = asyncio.run(_append_file(connection, request, file))
    else:
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


async def _append_file(
    connection: ClientSettings, request: pb.AppendRequest, path: str
) -> pb.AppendResponse:
    calls = FileCalls()
    file = await calls.open(aiofiles.open(path, "rb", buffering=0, executor=calls))
    try:
        return await _append(connection, request, file)
    finally:
        await calls.close(file)


async def _append(
    connection: ClientSettings, request: pb.AppendRequest, content: Content
) -> pb.AppendResponse:
    async with connection.open() as client:
        return await client.append(request, content)


def _invalid_request(journal: str, error: pb.ValidationError) -> str:
    if is_selector_expression(journal):
        return (
            f"{error}; JOURNAL is one name: `journals list -l SELECTOR` lists those of a selector"
        )
    return str(error)
