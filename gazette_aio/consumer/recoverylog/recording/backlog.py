"""Content that a recorder's threads have handed over, and the event loop hasn't appended so far.

Threads may record faster than the event loop takes over, which may also be blocked. So only some of
the content is in memory, and the rest in temporary files.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterable, Iterator

_logger = logging.getLogger(__name__)

KEPT_BYTES: Final = 8 << 20
"""Content that is in memory. What doesn't fit is in files."""
FILE_BYTES: Final = 64 << 20
"""Length of a file from which another one is begun, so that files go as they're read."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes that are joined, or read, at once."""


class _File:
    """A temporary file, which is unlinked at once."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(buffering=0, prefix="gazette-recorder")  # noqa: SIM115
        self.size = 0
        self.parts = 0
        """Parts that weren't dropped."""


class Spilled(NamedTuple):
    """Content in a file."""

    file: _File
    begin: int
    end: int


class Backlog:
    """Content to be appended. One thread at a time adds to it, and the event loop takes it.

    A full disk loses nothing: content stays in memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = 0
        self._last: _File | None = None

    @property
    def memory_bytes(self) -> int:
        """Length of the content in memory."""
        return self._kept

    def add(self, content: Collection[bytes]) -> Spilled | None:
        """Move content to a file, and return where it is; or None if it's to stay in memory."""
        size = sum(map(len, content))
        with self._lock:
            file = None if self._kept + size <= KEPT_BYTES else self._file()
            if file is None:
                self._kept += size
                return None
            # Before the write, so that the file isn't closed meanwhile.
            file.parts += 1
        try:
            part = _write(file, content)
        except OSError as error:
            _logger.warning("recorded content stays in memory, as it can't be spooled: %s", error)
            with self._lock:
                self._kept += size
            self._close(self._dropped(file))
            return None
        return part

    async def chunks(self, part: Spilled) -> AsyncGenerator[bytes]:
        """Yield content of a file.

        Raises:
            OSError: It can't be read.

        Cancellation: safe.
        """
        descriptor = part.file.file.fileno()
        for begin in range(part.begin, part.end, CHUNK_BYTES):
            yield await in_thread(_read, descriptor, min(CHUNK_BYTES, part.end - begin), begin)

    async def take(self, content: Collection[bytes], part: Spilled | None) -> None:
        """Forget content that was added.

        Cancellation: safe — it's forgotten.
        """
        if (file := self._taken(content, part)) is not None:
            # Freeing the blocks of a long file takes a while.
            await finish(in_thread(self._close, file))

    def drop(self, content: Collection[bytes], part: Spilled | None) -> None:
        """Forget content that was added, which may block for a moment."""
        self._close(self._taken(content, part))

    def _taken(self, content: Collection[bytes], part: Spilled | None) -> _File | None:
        """Forget content, and return a file that is to be closed."""
        if part is not None:
            return self._dropped(part.file)
        with self._lock:
            self._kept -= sum(map(len, content))
        return None

    def _dropped(self, file: _File) -> _File | None:
        with self._lock:
            file.parts -= 1
            if file.parts:
                return None
            if file is self._last:
                self._last = None
            return file

    def _file(self) -> _File | None:
        """Return the file to write to, or None if there can't be one. The lock is held."""
        if self._last is None or self._last.size >= FILE_BYTES:
            try:
                self._last = _File()
            except OSError as error:
                _logger.warning("no temporary file for recorded content: %s", error)
                return None
        return self._last

    @staticmethod
    def _close(file: _File | None) -> None:
        if file is not None:
            file.file.close()


def joined(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield content in chunks of about `CHUNK_BYTES`."""
    chunk: list[bytes] = []
    size = 0
    for part in content:
        chunk.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk.clear()
            size = 0
    if chunk:
        yield b"".join(chunk)


def _write(file: _File, content: Iterable[bytes]) -> Spilled:
    """Write to the end of a file. After an error, the next write goes to the same place."""
    begin = at = file.size
    for chunk in joined(content):
        view = memoryview(chunk)
        while view:
            written = os.pwrite(file.file.fileno(), view, at)
            view = view[written:]
            at += written
    file.size = at
    return Spilled(file, begin, at)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(descriptor, size, offset)
        if not part:
            raise OSError("a temporary file of recorded content was cut short")
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)
