"""Outputs of reads: stdout, a file, or a directory with a file by journal."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import urllib.parse
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

_LONGEST_NAME: Final = 200
_DIGEST: Final = 16


class Output:
    """Takes the content of journals.

    Invariant: no name of a journal, and no link in a directory, leads out of the directory.

    Args:
        descriptor: Of a file or a directory; None is stdout.
        is_directory: Whether each journal has a file of its own, which isn't kept open.
    """

    def __init__(self, descriptor: int | None, *, is_directory: bool = False) -> None:
        self._descriptor = descriptor
        self._is_directory = is_directory
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def turn(self, journal: str) -> asyncio.Lock:
        """Return the lock that a journal holds from the first byte of a message to the last."""
        return self._locks[journal if self._is_directory else ""]

    async def write(self, journal: str, content: bytes, *, afresh: bool) -> None:
        """Write content of a journal.

        Args:
            journal: Name of the journal.
            content: The content.
            afresh: Whether this is the first content of a journal that isn't resumed.

        Raises:
            OSError: Writing failed.

        Cancellation: safe — raised after the content was written.
        """
        if self._descriptor is None:
            # A full pipe blocks here, which slows brokers down: a thread couldn't be interrupted.
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        elif self._is_directory:
            truncating = os.O_TRUNC if afresh else 0
            await in_thread(self._write_file, file_name_of(journal), content, truncating)
        else:
            await in_thread(_write_all, self._descriptor, content)

    def _write_file(self, name: str, content: bytes, flags: int) -> None:
        flags |= os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o666, dir_fd=self._descriptor)
        try:
            _write_all(file, content)
        finally:
            os.close(file)


def file_name_of(journal: str) -> str:
    """Return the name of a journal's file: unique, and without separators.

    `/` and other special characters are percent-encoded. A long name ends in a digest.
    """
    name = urllib.parse.quote(journal, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) <= _LONGEST_NAME:
        return name
    # Encoded names have no plus.
    return f"{name[:_LONGEST_NAME]}+{hashlib.sha256(journal.encode()).hexdigest()[:_DIGEST]}"


@asynccontextmanager
async def open_output(path: Path | None, *, is_directory: bool) -> AsyncGenerator[Output]:
    """Open an output while the context is entered.

    Args:
        path: File to create or truncate, or directory to create unless it exists; None is stdout.
        is_directory: Whether the path is of a directory.

    Raises:
        OSError: The file or directory can't be opened.

    Cancellation: safe.
    """
    if path is None:
        yield Output(None)
        return
    if is_directory:
        await in_thread(path.mkdir, parents=True, exist_ok=True)
    flags = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield Output(descriptor, is_directory=is_directory)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
