"""Directory whose changes are made locally, and recorded in the same order."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from gazette_aio.consumer.recoverylog.recording.encoder import PROPERTY_PATHS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

OpenMode = Literal["r", "w", "x"]
"""Mode of an open file: `r` for one that exists, `w` for an empty one in place of one that may
exist, `x` for one that mustn't exist."""

_FLAGS: Final[dict[str, int]] = {
    "r": os.O_RDWR,
    "w": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class RecordedFile:
    """Open file of a recorded directory; a context manager. `RecordedDir.open()` makes it.

    Writes are made locally and recorded at once. A file that was removed while it's open is only
    changed locally. Read by functions that take a file, such as `os.pread()`.
    """

    def __init__(self, directory: RecordedDir, descriptor: int, fnode: int) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._fnode = fnode

    def fileno(self) -> int:
        """Return the descriptor of the file.

        Raises:
            ValueError: The file is closed.
        """
        if self._descriptor < 0:
            raise ValueError("the file is closed")
        return self._descriptor

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write at `offset`, and return the length of the data.

        Raises:
            ValueError: The file is closed.
            OSError: Writing fails. What was written is recorded.
            RecorderError: Recording has failed.
        """
        with self._directory.lock:
            return _write(self._directory.recorder, self.fileno(), self._fnode, data, offset)

    def close(self) -> None:
        """Close the file. Idempotent.

        Raises:
            OSError: Closing fails. The file is closed anyway.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class RecordedDir:
    """Directory whose changes are made locally, and recorded in the same order.

    Names are relative to the directory. Files can't be truncated, as logs have no such operation.
    Modes, times and directories themselves aren't recorded. Methods may be called from any thread,
    and one at a time makes its change; coroutines call them by `asyncio.to_thread()`. What fails
    locally isn't recorded.

    Args:
        recorder: Recorder of the directory, whose files nobody else changes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        """Recorder of the directory."""
        self.lock: threading.RLock = threading.RLock()
        """Held during a change, until it's recorded."""

    def path(self, name: str | os.PathLike[str]) -> Path:
        """Return the local path of a name.

        Raises:
            ValueError: The name isn't relative, or leads out of the directory.
        """
        if Path(name).is_absolute():
            raise ValueError(f"name {os.fspath(name)!r} isn't relative")
        root = self.recorder.directory
        return Path(root + self.recorder.path_of(Path(root, name)))

    def open(self, name: str | os.PathLike[str], mode: OpenMode) -> RecordedFile:
        """Open a file for writing and reading.

        Args:
            name: Name of the file.
            mode: `r` for a file that exists; `w` for an empty one, which replaces one of that name,
                whose other names and open files stay as they are; `x` for one that mustn't exist.

        Raises:
            ValueError: The name or the mode is invalid, the path is that of a property, or the file
                was made without being recorded.
            OSError: Opening fails.
            RecorderError: Recording has failed.
        """
        if mode not in _FLAGS:
            raise ValueError(f"invalid mode {mode!r}")
        return RecordedFile(self, *self._open(self._unless_property(name), mode))

    def _open(self, path: Path, mode: OpenMode) -> tuple[int, int]:
        """Open a file, and return its descriptor and its fnode."""
        recorder = self.recorder
        with self.lock, recorder.atomic():
            fnode = self._recorded(path) if mode == "r" else None
            if mode == "w":
                path.unlink(missing_ok=True)
                if recorder.fnode_of(path) is not None:
                    recorder.record_remove(path)
            descriptor = os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o600)
            try:
                if fnode is None:
                    fnode = recorder.record_open(path, create=True, exclusive=True)
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor, fnode

    def remove(self, name: str | os.PathLike[str]) -> None:
        """Remove a file.

        Raises:
            ValueError: The name is invalid, or the file isn't recorded.
            OSError: Removing fails.
            RecorderError: Recording has failed.
        """
        path = self.path(name)
        with self.lock:
            self._recorded(path)
            path.unlink()
            self.recorder.record_remove(path)

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Rename a file, which replaces another one at its new name.

        A file that is renamed to `IDENTITY` at the root of the directory becomes a property.

        Args:
            source: Name of the file.
            target: Its new name.

        Raises:
            ValueError: A name is invalid, the file isn't recorded, or a property isn't UTF-8.
            OSError: Renaming fails.
            RecorderError: Recording has failed.
        """
        source_path, target_path = self.path(source), self.path(target)
        with self.lock:
            self._recorded(source_path)
            if self.recorder.path_of(target_path) in PROPERTY_PATHS:
                source_path.read_bytes().decode()
            source_path.rename(target_path)
            self.recorder.record_rename(source_path, target_path)

    def link(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Give a file a further name.

        Args:
            source: Name of the file.
            target: Its further name.

        Raises:
            ValueError: A name is invalid, the file isn't recorded, or `target` is a property.
            OSError: Linking fails.
            RecorderError: Recording has failed.
        """
        source_path, target_path = self.path(source), self._unless_property(target)
        with self.lock:
            self._recorded(source_path)
            target_path.hardlink_to(source_path)
            self.recorder.record_link(source_path, target_path)

    def write_file_atomic(
        self,
        name: str | os.PathLike[str],
        chunks: bytes | bytearray | Iterable[bytes],
        *,
        temporary: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write a file in place of one of that name, in one append.

        Args:
            name: Name of the file.
            chunks: Its content.
            temporary: Name under which it's written; None for `name` and `.next`.

        Raises:
            ValueError: A name is invalid.
            OSError: Writing fails. The file of that name is as before.
            RecorderError: Recording has failed.
        """
        temporary = temporary if temporary is not None else f"{os.fspath(name)}.next"
        with self.lock, self.recorder.atomic():
            descriptor, fnode = self._open(self._unless_property(temporary), "w")
            try:
                offset = 0
                for chunk in (chunks,) if isinstance(chunks, bytes | bytearray) else chunks:
                    offset += _write(self.recorder, descriptor, fnode, chunk, offset)
            finally:
                os.close(descriptor)
            self.rename(temporary, name)

    def _unless_property(self, name: str | os.PathLike[str]) -> Path:
        """Return the local path of a name.

        Raises:
            ValueError: The name is invalid, or that of a property.
        """
        path = self.path(name)
        if self.recorder.path_of(path) in PROPERTY_PATHS:
            raise ValueError(f"{path} is a property, which is written by a rename")
        return path

    def _recorded(self, path: Path) -> int:
        """Return the fnode of a file.

        Raises:
            FileNotFoundError: It doesn't exist.
            ValueError: It was made without being recorded.
        """
        fnode = self.recorder.fnode_of(path)
        if fnode is None:
            if not path.exists():
                raise FileNotFoundError(f"{path} doesn't exist")
            raise ValueError(f"{path} isn't a recorded file")
        return fnode

    def __repr__(self) -> str:
        return f"<RecordedDir {self.recorder.directory!r}>"


def _write(
    recorder: Recorder,
    descriptor: int,
    fnode: int,
    data: bytes | bytearray | memoryview,
    offset: int,
) -> int:
    """Write to a file, record what was written if the file has a name, and return its length."""
    # Not `bytes(data)`, which makes a number as many zeros.
    content, written = bytes(memoryview(data)), 0
    try:
        while written < len(content):
            written += os.pwrite(descriptor, content[written:], offset + written)
    finally:
        if written and recorder.is_live(fnode):
            recorder.record_write_at(fnode, content[:written], offset)
    return written
