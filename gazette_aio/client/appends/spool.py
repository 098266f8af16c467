"""Spool of a pending append, which moves long content to a temporary file."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from typing import TYPE_CHECKING, Final

from gazette_aio.client.appends.content_buffer import SPILL_BYTES

if TYPE_CHECKING:
    import io
    from collections.abc import AsyncGenerator

    from gazette_aio.client.appends.content_buffer import ContentBuffer

_logger = logging.getLogger(__name__)

_SLICE_BYTES: Final = 1 << 20


class Spool:
    """Moves content of a buffer to a file in the background, and reads it back.

    The file is opened when it's first needed, and unlinked at once. A full disk loses nothing:
    content stays in memory, and new holders wait.

    Args:
        buffer: The content.
        directory: Directory of the file, or None for the system's.
    """

    def __init__(self, buffer: ContentBuffer, directory: str | None = None) -> None:
        self.buffer = buffer
        self._directory = directory
        self._file: io.FileIO | None = None
        self._io: asyncio.Future[int] | asyncio.Future[bytes] | None = None
        self._failures = 0
        self._closed = False

    @property
    def failures(self) -> int:
        """Failed moves since the last successful one."""
        return self._failures

    def spill(self) -> None:
        """Begin to move content to the file, if there is enough and no move is in progress."""
        if self._io is not None or self._closed or self.buffer.tail_bytes < SPILL_BYTES:
            return
        position = self.buffer.filed
        data = self.buffer.begin_move()
        loop = asyncio.get_running_loop()
        move = loop.run_in_executor(None, self._write, data, position)
        self._io = move
        move.add_done_callback(self._moved)

    async def idle(self) -> None:
        """Wait until no thread uses the file. Cancellation: safe — a move continues."""
        while self._io is not None:
            await asyncio.wait((self._io,))

    def close(self) -> None:
        """Drop the content. Idempotent."""
        self._closed = True
        # Race: the file must not be closed while a thread uses it.
        if self._io is None:
            self._drop()

    async def chunks(self, size: int) -> AsyncGenerator[bytes | memoryview]:
        """Yield the content, in chunks of at most `size` bytes. It must not change meanwhile."""
        await self.idle()
        position, filed = 0, self.buffer.filed
        while position < filed:
            wanted = min(_SLICE_BYTES, filed - position)
            view = memoryview(await self._fetch(wanted, position))
            for begin in range(0, wanted, size):
                yield view[begin : begin + size]
            position += wanted
        for piece in self.buffer.pieces(size):
            yield piece

    def _moved(self, move: asyncio.Future[int]) -> None:
        self._io = None
        # Race: an executor that shuts down cancels calls it hasn't begun.
        written = 0 if move.cancelled() else move.result()
        self._failures = 0 if written else self._failures + 1
        self.buffer.end_move(written)
        if self._closed:
            self._drop()

    async def _fetch(self, size: int, position: int) -> bytes:
        loop = asyncio.get_running_loop()
        read = loop.run_in_executor(None, self._read, size, position)
        self._io = read
        read.add_done_callback(self._fetched)
        return await asyncio.shield(read)

    def _fetched(self, read: asyncio.Future[bytes]) -> None:
        self._io = None
        if not read.cancelled():
            read.exception()  # Its awaiter may have been cancelled.
        if self._closed:
            self._drop()

    def _write(self, data: bytes, position: int) -> int:
        """Write as much of `data` as possible. Runs in a worker thread."""
        written = 0
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115
                    prefix="gazette-append", dir=self._directory, buffering=0
                )
            view = memoryview(data)
            self._file.seek(position)
            while written < len(data):
                written += self._file.write(view[written:]) or 0
        except OSError as error:
            _logger.warning("spooling an append failed and will be retried: %s", error)
        return written

    def _read(self, size: int, position: int) -> bytes:
        """Read exactly `size` bytes at `position`. Runs in a worker thread."""
        assert self._file is not None
        parts: list[bytes] = []
        self._file.seek(position)
        while size:
            part = self._file.read(size)
            if not part:
                raise OSError("the temporary file of an append was cut short")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
