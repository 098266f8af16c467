"""Recorded directory for coroutines: its calls are made in threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gazette_aio.aio.owner import Owner
from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from gazette_aio.consumer.recoverylog.recording.recorded_dir import OpenMode, RecordedDir
    from gazette_aio.consumer.recoverylog.recording.recorded_file import RecordedFile
    from gazette_aio.protocol import AppendResponse


class AsyncRecordedFile(Owner):
    """Open file of a recorded directory; an async context manager.

    Methods are those of RecordedFile, made in threads. Await one at a time: they share an offset.

    Args:
        directory: Its directory.
        file: The file.
    """

    def __init__(self, directory: RecordedDir, file: RecordedFile) -> None:
        self._directory = directory
        self._file = file

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def tell(self) -> int:
        """Return the offset at which `read()` and `write()` go on."""
        return self._file.tell()

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Go on at another offset, as `RecordedFile.seek()`.

        Cancellation: aborts — the offset may have changed.
        """
        return await in_thread(self._file.seek, offset, whence)

    async def size(self) -> int:
        """Return the length of the file.

        Cancellation: safe.
        """
        return await in_thread(self._file.size)

    async def read(self, size: int = -1) -> bytes:
        """Return bytes at the present offset, as `RecordedFile.read()`.

        Cancellation: aborts — the offset may have advanced.
        """
        return await in_thread(self._file.read, size)

    async def pread(self, size: int, offset: int) -> bytes:
        """Return bytes at `offset`, as `RecordedFile.pread()`.

        Cancellation: safe.
        """
        return await in_thread(self._file.pread, size, offset)

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write at the present offset, as `RecordedFile.write()`.

        Cancellation: aborts — all of it was written and recorded, or nothing.
        """
        return await in_thread(self._file.write, data)

    async def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write at `offset`, as `RecordedFile.pwrite()`.

        Cancellation: aborts — all of it was written and recorded, or nothing.
        """
        return await in_thread(self._file.pwrite, data, offset)

    async def truncate(self, size: int | None = None) -> int:
        """Shorten or lengthen the file, as `RecordedFile.truncate()`.

        Cancellation: aborts — it was truncated, and that was recorded, or not.
        """
        return await in_thread(self._file.truncate, size)

    async def sync(self) -> AppendResponse:
        """Wait until everything recorded so far is committed.

        Raises:
            RecorderError: Recording has failed.

        Cancellation: safe.
        """
        return await self._directory.recorder.barrier()

    async def aclose(self) -> None:
        """Close the file. Idempotent.

        Cancellation: safe — the file is closed.
        """
        self._file.close()


class AsyncRecordedDir:
    """Recorded directory for coroutines. Methods are those of RecordedDir, made in threads.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: RecordedDir) -> None:
        self.directory = directory
        """The directory itself, for use in threads."""

    async def open(
        self, name: str | os.PathLike[str], mode: OpenMode = "rb", *, create: bool = False
    ) -> AsyncRecordedFile:
        """Open a file, as `RecordedDir.open()`.

        Cancellation: aborts — the file may have been created or made empty.
        """
        opened: list[RecordedFile] = []

        def open_file() -> None:
            opened.append(self.directory.open(name, mode, create=create))

        try:
            await in_thread(open_file)
        except asyncio.CancelledError:
            for file in opened:
                file.close()
            raise
        return AsyncRecordedFile(self.directory, opened[0])

    async def remove(self, name: str | os.PathLike[str]) -> None:
        """Remove a file, as `RecordedDir.remove()`.

        Cancellation: aborts — the file was removed, and that was recorded, or not.
        """
        await in_thread(self.directory.remove, name)

    async def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Rename a file, as `RecordedDir.rename()`.

        Cancellation: aborts — the file was renamed, and that was recorded, or not.
        """
        await in_thread(self.directory.rename, source, target)

    async def link(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Give a file a further name, as `RecordedDir.link()`.

        Cancellation: aborts — the file has that name, and that was recorded, or not.
        """
        await in_thread(self.directory.link, source, target)

    async def mkdir(self, name: str | os.PathLike[str]) -> None:
        """Create a directory, as `RecordedDir.mkdir()`.

        Cancellation: aborts — the directory may have been created.
        """
        await in_thread(self.directory.mkdir, name)

    async def write_file_atomic(
        self,
        name: str | os.PathLike[str],
        chunks: bytes | Iterable[bytes],
        *,
        temporary: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write a file in place of one of that name, as `RecordedDir.write_file_atomic()`.

        Cancellation: aborts — the file was written and recorded, or not.
        """
        await in_thread(self.directory.write_file_atomic, name, chunks, temporary=temporary)
