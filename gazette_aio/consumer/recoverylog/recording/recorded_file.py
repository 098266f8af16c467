"""Open file of a recorded directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from gazette_aio.consumer.recoverylog.recording.recorded_dir import RecordedDir


class Inode:
    """File of a recorded directory, which open files of it share."""

    __slots__ = ("__weakref__", "fnode")

    def __init__(self, fnode: int) -> None:
        self.fnode: int = fnode
        """Its fnode, which changes when it's truncated."""


class RecordedFile:
    """Open file of a recorded directory; a context manager.

    Writes are made locally and recorded at once. A file that was removed while it's open is only
    changed locally. Use `RecordedDir.open()` to open one.
    """

    def __init__(self, directory: RecordedDir, descriptor: int, inode: Inode | None) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._inode = inode
        self._position = 0

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._descriptor < 0

    def size(self) -> int:
        """Return the length of the file."""
        return os.fstat(self._open()).st_size

    def tell(self) -> int:
        """Return the offset at which `read()` and `write()` go on."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on at another offset, and return it.

        Args:
            offset: The offset, which may be beyond the end.
            whence: `os.SEEK_SET` from the beginning, `os.SEEK_CUR` from the present offset, or
                `os.SEEK_END` from the end.

        Raises:
            ValueError: The offset would be negative, or `whence` is something else.
        """
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence {whence}")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        target = (self.size() if base is None else base) + offset
        if target < 0:
            raise ValueError(f"negative offset {target}")
        self._position = target
        return target

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes at the present offset, or all up to the end, and advance.

        Raises:
            OSError: Reading fails.
        """
        data = self.pread(
            size if size >= 0 else max(self.size() - self._position, 0), self._position
        )
        self._position += len(data)
        return data

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer only at the end.

        Raises:
            OSError: Reading fails.
        """
        descriptor = self._open()
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(descriptor, size, offset)):
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write at the present offset, advance, and return the length of the data.

        Raises:
            OSError: Writing fails. What was written is recorded.
            RecorderError: Recording has failed.
        """
        with self._directory.lock:
            written = self.pwrite(data, self._position)
            self._position += written
            return written

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write at `offset`, and return the length of the data.

        Raises:
            OSError: Writing fails. What was written is recorded.
            RecorderError: Recording has failed.
        """
        content = data if type(data) is bytes else bytes(data)
        directory = self._directory
        with directory.lock:
            descriptor = self._open()
            written = 0
            try:
                written = os.pwrite(descriptor, content, offset)
                while written < len(content):
                    written += os.pwrite(descriptor, content[written:], offset + written)
            finally:
                if written and self._inode is not None:
                    recorder, fnode = directory.recorder, self._inode.fnode
                    if recorder.is_live(fnode):
                        recorder.record_write_at(fnode, content[:written], offset)
            return written

    def truncate(self, size: int | None = None) -> int:
        """Shorten or lengthen the file, and return its length.

        Shortening to some length records what is left once more: it takes time and space of the
        log in proportion to that.

        Args:
            size: The new length; None for the present offset.

        Raises:
            ValueError: `size` is negative.
            OSError: Truncating fails. If that's because what is left can't be read, recording has
                failed, too.
            RecorderError: Recording has failed.
        """
        size = self._position if size is None else size
        if size < 0:
            raise ValueError(f"negative size {size}")
        directory, inode = self._directory, self._inode
        with directory.lock:
            descriptor = self._open()
            before = self.size()
            os.ftruncate(descriptor, size)
            if inode is None or size == before or not directory.recorder.is_live(inode.fnode):
                return size
            if size > before:
                # Playback fills what is before a write with zeros.
                directory.recorder.record_write_at(inode.fnode, b"\0", size - 1)
            else:
                directory.shorten(inode, descriptor, size)
            return size

    def sync(self) -> None:
        """Block this thread until everything recorded so far is committed.

        Raises:
            RecorderError: Recording has failed.
            RuntimeError: This is the thread of the event loop.
        """
        self._directory.recorder.wait_committed()

    def close(self) -> None:
        """Close the file. Idempotent.

        Raises:
            OSError: Closing fails. The file is closed anyway.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor < 0:
            raise ValueError("the file is closed")
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._position}"
        return f"<RecordedFile of {self._directory.recorder.directory!r}, {state}>"
