"""Spool of a pending append, which moves long content to a temporary file."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gazette_aio.aio.file_calls import FileCalls
from gazette_aio.aio.task import start_task
from gazette_aio.client.appends.content_buffer import SPILL_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from aiofiles.threadpool.binary import AsyncFileIO

    from gazette_aio.client.appends.content_buffer import ContentBuffer

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_SLICE_BYTES: Final = 1 << 20


class Spool:
    """Moves content of a buffer to a file in the background, and reads it back.

    The file is opened when it's first needed, and unlinked at once. A full disk loses nothing:
    content stays in memory, and new holders wait.

    One task at a time uses the file. Whatever ends the task, the file isn't used again before its
    thread has left, and then from a known position.

    Args:
        buffer: The content.
        directory: Directory of the file, or None for the system's.
    """

    def __init__(self, buffer: ContentBuffer, directory: str | None = None) -> None:
        self.buffer = buffer
        self._directory = directory
        self._calls = FileCalls()
        self._file: AsyncFileIO | None = None
        self._position: int | None = None
        """Position of the file, or None if it's unknown after a failed call."""
        self._io: asyncio.Task[Any] | None = None
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
        self._begin(self._write(self.buffer.begin_move(), position), self._moved)

    async def idle(self) -> None:
        """Wait until no task uses the file. Cancellation: safe — a move continues."""
        while self._io is not None:
            await asyncio.wait((self._io,))

    def close(self) -> None:
        """Drop the content, and begin to close the file, which `idle()` awaits. Idempotent."""
        self._closed = True
        # Race: the file must not be closed while a thread uses it.
        if self._io is None:
            self._drop()

    async def filed(self) -> AsyncGenerator[bytes]:
        """Yield the content of the file, which must not change meanwhile, after moves have ended.

        Cancellation: aborts — the iteration ends, and the content stays.
        """
        await self.idle()
        position, filed = 0, self.buffer.filed
        while position < filed:
            wanted = min(_SLICE_BYTES, filed - position)
            read = self._begin(self._read(wanted, position), self._fetched)
            yield await asyncio.shield(read)
            position += wanted

    def _begin(
        self, use: Coroutine[Any, Any, T], ended: Callable[[asyncio.Task[T]], None]
    ) -> asyncio.Task[T]:
        """Start a task that uses the file, and have `ended` called when no task uses it."""

        def end(task: asyncio.Task[T]) -> None:
            self._io = None
            ended(task)
            if self._closed and self._io is None:
                self._drop()

        self._io = task = start_task(use, "gazette append spool")
        task.add_done_callback(end)
        return task

    def _moved(self, move: asyncio.Task[int]) -> None:
        # Race: the end of the event loop cancels its tasks.
        written = 0 if move.cancelled() else move.result()
        self._failures = 0 if written else self._failures + 1
        self.buffer.end_move(written)

    def _fetched(self, read: asyncio.Task[bytes]) -> None:
        if not read.cancelled():
            read.exception()  # Its awaiter may have been cancelled.

    async def _write(self, data: bytes, position: int) -> int:
        """Write as much of `data` as possible, and return how much."""
        written = 0
        try:
            file = await self._at(position)
            view = memoryview(data)
            while written < len(data):
                self._position = None
                written += await self._calls.run(file.write(view[written:]))
                self._position = position + written
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started.
            _logger.warning("spooling an append failed and will be retried: %s", error)
        return written

    async def _read(self, size: int, position: int) -> bytes:
        """Return exactly `size` bytes at `position`."""
        file = await self._at(position)
        parts: list[bytes] = []
        while size:
            self._position = None
            part = await self._calls.run(file.read(size))
            if not part:
                raise OSError("the temporary file of an append was cut short")
            position += len(part)
            self._position = position
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _at(self, position: int) -> AsyncFileIO:
        """Return the file at `position`, opened if need be."""
        file = self._file
        if file is None:
            # Imported only here: most programs never append that much at once.
            from aiofiles.tempfile import TemporaryFile  # noqa: PLC0415

            opening = TemporaryFile(
                "w+b",
                buffering=0,
                prefix="gazette-append",
                dir=self._directory,
                executor=self._calls,
            )
            file = self._file = await self._calls.open(opening)
            self._position = 0
        if self._position != position:
            self._position = None
            await self._calls.run(file.seek(position))
            self._position = position
        return file

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return

        def dropped(close: asyncio.Task[None]) -> None:
            if close.cancelled() and not file.closed:
                self._file = file  # `_begin()` closes it once more.

        # Freeing the blocks of a long file takes a while.
        self._begin(self._close(file), dropped)

    async def _close(self, file: AsyncFileIO) -> None:
        try:
            await self._calls.close(file)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started.
            _logger.warning("closing the spool of an append failed: %s", error)
