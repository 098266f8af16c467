"""Transfers of the raw content of one journal."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import aiofiles

import gazette_aio.protocol as pb
from gazette_aio.aio.file_calls import FileCalls
from gazette_aio.cli.shell.content_forms import plain
from gazette_aio.cli.shell.failures import CommandError, InputError
from gazette_aio.cli.shell.output import print_line
from gazette_aio.protocol.selector import is_selector_expression

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.cli.shell.connection import ClientSettings
    from gazette_aio.cli.shell.content_forms import ContentForm
    from gazette_aio.client import Content, RetryReader

_SPOOLED_BYTES = 1 << 20


async def read_one(
    connection: ClientSettings,
    request: pb.ReadRequest,
    output: str | None,
    file_root: str | None = None,
    form: ContentForm = plain,
) -> None:
    """Copy the raw content of a journal to a file, or to stdout.

    Args:
        connection: Settings of the client.
        request: What to read.
        output: Path of the file; None or `-` is stdout.
        file_root: Directory of fragment files with `file` URLs, or None for the default.
        form: Form of the content.

    Raises:
        CommandError: The offset is beyond the write head.
        OSError: Writing failed.
        GazetteError: The read failed for good.

    Cancellation: aborts — the file has a part of the content.
    """
    if output is None or output == "-":
        async with connection.open(file_root=file_root) as client, client.read(request) as reader:
            await _copy(reader, _write_out, form)
        return
    calls = FileCalls()
    file = await calls.open(aiofiles.open(output, "wb", buffering=0, executor=calls))

    async def write(chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[await calls.run(file.write(view)) :]

    try:
        async with connection.open(file_root=file_root) as client, client.read(request) as reader:
            await _copy(reader, write, form)
    finally:
        await calls.close(file)


async def _write_out(chunk: bytes) -> None:
    # A full pipe blocks here, which slows the broker down. This loop has no other work, and a
    # thread couldn't be interrupted.
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


async def _copy(
    reader: RetryReader, write: Callable[[bytes], Awaitable[None]], form: ContentForm
) -> None:
    requested = reader.offset
    while True:
        try:
            chunk = await anext(reader)
        except StopAsyncIteration:
            return
        except pb.OffsetJumpError as error:
            text = f"{reader.journal}: no content from {requested}, continuing at {error.offset}"
            print_line(f"gazette-aio: {text}", err=True)
            continue
        except pb.OffsetNotYetAvailableError:
            head = reader.response.write_head
            if requested > head:
                text = f"offset {requested} is beyond the write head {head}: {reader.journal}"
                raise CommandError(text) from None
            return
        await write(form(str(reader.journal), reader.offset - len(chunk), chunk))
        requested = reader.offset


def append_one(connection: ClientSettings, request: pb.AppendRequest, path: str) -> pb.Fragment:
    """Append a file to a journal, all of it or nothing, and return its offsets.

    Args:
        connection: Settings of the client.
        request: Journal and preconditions.
        path: Path of the file; `-` is stdin.

    Raises:
        OSError: The file can't be read.
        GazetteError: The append failed.
    """
    if path != "-" and Path(path).is_file():
        return asyncio.run(_append_file(connection, request, path)).commit
    # The input is read before anything is sent: a slow input would block other appends.
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as spool:
        if path == "-":
            shutil.copyfileobj(sys.stdin.buffer, spool)
        else:
            with Path(path).open("rb") as source:
                shutil.copyfileobj(source, spool)
        return asyncio.run(_append(connection, request, spool)).commit


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


def checked_journal(journal: str) -> str:
    """Return the name of a journal.

    Raises:
        InputError: The text isn't a name.
    """
    try:
        pb.validate_journal(journal)
    except pb.ValidationError as error:
        hint = "; use --selector for a label selector" if is_selector_expression(journal) else ""
        raise InputError(f"journal {journal!r}: {error}{hint}") from None
    return journal
