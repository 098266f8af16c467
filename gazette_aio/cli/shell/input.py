"""Input of a command: names of journals, paths of UUIDs, and files, open pipes, or stdin."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.protocol.selector import is_selector_expression

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_CHUNK_BYTES: Final = 1 << 17
_AHEAD: Final = 4
"""Chunks that are read ahead."""


uuid_path_option = click.option(
    "--uuid-path",
    default="_meta.uuid",
    show_default=True,
    help="Members on the path to the UUID of a message.",
)


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


async def input_chunks(path: str) -> AsyncGenerator[bytes]:
    """Yield the bytes of a file as they arrive; `-` is stdin.

    Raises:
        OSError: The file can't be read.

    Cancellation: aborts — a read that blocks is left to its thread.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)
    is_over = threading.Event()

    def deliver(item: bytes | OSError) -> None:
        if not is_over.is_set():
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def read() -> None:
        try:
            file = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while room.acquire() and not is_over.is_set():
                    chunk = os.read(file, _CHUNK_BYTES)
                    deliver(chunk)
                    if not chunk:
                        return
            finally:
                if path != "-":
                    os.close(file)
        except OSError as error:
            deliver(error)
        except RuntimeError:
            pass  # Race: the event loop was closed meanwhile.

    # A daemon, since nobody can interrupt a read of a pipe, nor opening one.
    threading.Thread(target=read, name="gazette input", daemon=True).start()
    try:
        while item := await arrived.get():
            if isinstance(item, OSError):
                raise item
            yield item
            room.release()
    finally:
        is_over.set()
        room.release()
