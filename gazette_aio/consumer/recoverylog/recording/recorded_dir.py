"""Directory whose changes are made locally, and recorded in the same order."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from gazette_aio.consumer.recoverylog.recording.encoder import MAX_WRITE_BYTES, PROPERTY_PATHS
from gazette_aio.consumer.recoverylog.recording.errors import RecorderError
from gazette_aio.consumer.recoverylog.recording.recorded_file import Inode, RecordedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

OpenMode = Literal["rb", "r+b", "wb", "w+b", "xb", "x+b"]
"""Mode of an open file, as of Python's `open()`."""

TRUNCATING_PATH: Final = "/.truncating"
"""Path in the log at which files are recorded anew while they're shortened."""

_FLAGS: Final[dict[str, int]] = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "wb": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "w+b": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "x+b": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class RecordedDir:
    """Directory whose changes are made locally, and recorded in the same order.

    Names are relative to the directory. Modes, times and directories themselves aren't recorded.
    Methods may be called from any thread, one at a time makes its change, and none waits for
    brokers. What fails locally isn't recorded. `AsyncRecordedDir` is for coroutines.

    Args:
        recorder: Recorder of the directory, whose files nobody else changes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        """Recorder of the directory."""
        self.lock: threading.RLock = threading.RLock()
        """Held during a change, until it's recorded."""
        self._inodes: weakref.WeakValueDictionary[int, Inode] = weakref.WeakValueDictionary()
        if TRUNCATING_PATH in recorder.links():
            # A crash left it.
            self._unlink(self._truncating)

    def path(self, name: str | os.PathLike[str]) -> Path:
        """Return the local path of a name.

        Raises:
            ValueError: The name isn't relative, leads out of the directory, or is reserved.
        """
        given = Path(name)
        if given.is_absolute():
            raise ValueError(f"name {os.fspath(name)!r} isn't relative")
        path = self.recorder.path_of(self._root / given)
        if path == TRUNCATING_PATH:
            raise ValueError(f"name {os.fspath(name)!r} is reserved")
        return Path(self.recorder.directory + path)

    @property
    def _root(self) -> Path:
        return Path(self.recorder.directory)

    @property
    def _truncating(self) -> str:
        return self.recorder.directory + TRUNCATING_PATH

    def open(
        self, name: str | os.PathLike[str], mode: OpenMode = "rb", *, create: bool = False
    ) -> RecordedFile:
        """Open a file.

        Args:
            name: Name of the file.
            mode: `rb` to read only, which may be a file that isn't recorded; `r+b` for a file that
                exists; `wb` or `w+b` to begin with an empty one; `xb` or `x+b` to create one that
                mustn't exist. There's no appending mode: use `seek()`.
            create: Whether `r+b` creates a file that doesn't exist.

        Raises:
            ValueError: The name or the mode is invalid, the path is that of a property, or the file
                was made without being recorded.
            OSError: Opening fails.
            RecorderError: Recording has failed.
        """
        if mode not in _FLAGS:
            raise ValueError(f"invalid mode {mode!r}")
        path = self.path(name)
        if mode == "rb":
            return RecordedFile(self, os.open(path, os.O_RDONLY | os.O_CLOEXEC), None)
        flags = _FLAGS[mode] | (os.O_CREAT if create else 0) | os.O_CLOEXEC
        with self.lock:
            fnode = self._fnode(path)
            if self._is_property(path):
                raise ValueError(f"{path} is a property, which is written by a rename")
            if fnode is None and not flags & (os.O_TRUNC | os.O_EXCL) and path.exists():
                raise ValueError(f"{path} isn't recorded")
            if fnode is not None and flags & os.O_EXCL:
                raise FileExistsError(f"{path} is recorded")
            descriptor = os.open(path, flags, 0o666)
            try:
                if fnode is None:
                    fnode = self.recorder.record_open(path, create=True)
                elif flags & os.O_TRUNC:
                    fnode = self._empty(fnode, path)
            except BaseException:
                os.close(descriptor)
                raise
            return RecordedFile(self, descriptor, self._inode(fnode))

    def remove(self, name: str | os.PathLike[str]) -> None:
        """Remove a file.

        Raises:
            ValueError: The name is invalid, or the file isn't recorded.
            OSError: Removing fails.
            RecorderError: Recording has failed.
        """
        path = self.path(name)
        with self.lock:
            self._check_recorded(path)
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
            self._check_recorded(source_path)
            if self._is_property(target_path):
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
        source_path, target_path = self.path(source), self.path(target)
        with self.lock:
            self._check_recorded(source_path)
            if self._is_property(target_path):
                raise ValueError(f"{target_path} is a property, which is written by a rename")
            if self._fnode(target_path) is not None:
                raise FileExistsError(f"{target_path} is recorded")
            target_path.hardlink_to(source_path)
            self.recorder.record_link(source_path, target_path)

    def mkdir(self, name: str | os.PathLike[str]) -> None:
        """Create a directory and its parents, unless they exist. It isn't recorded.

        Raises:
            ValueError: The name is invalid.
            OSError: Creating fails.
        """
        self.path(name).mkdir(parents=True, exist_ok=True)

    def write_file_atomic(
        self,
        name: str | os.PathLike[str],
        chunks: bytes | Iterable[bytes],
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
            with self.open(temporary, "w+b") as file:
                for chunk in (chunks,) if isinstance(chunks, bytes) else chunks:
                    file.write(chunk)
            self.rename(temporary, name)

    def shorten(self, inode: Inode, descriptor: int, size: int) -> None:
        """Record that a file was truncated, by recording what is left as another file.

        RecordedFile calls this, and holds the lock.

        Raises:
            OSError: What is left can't be read. Recording has failed then.
            RecorderError: Recording has failed.
        """
        paths = sorted(self._paths(inode.fnode))
        if not size:
            inode.fnode = self._empty(inode.fnode, paths[0])
            return
        recorder = self.recorder
        # Not beside the file: with a suffix, its name could be longer than file systems permit.
        temporary = self._truncating
        fnode = recorder.record_create(temporary)
        offset = 0
        while offset < size:
            part = self._left(descriptor, min(MAX_WRITE_BYTES, size - offset), offset)
            recorder.record_write_at(fnode, part, offset)
            offset += len(part)
        with recorder.atomic():
            for path in paths:
                recorder.record_remove(path)
                recorder.record_link(temporary, path)
            recorder.record_remove(temporary)
        self._move(inode.fnode, fnode)

    def _left(self, descriptor: int, size: int, offset: int) -> bytes:
        """Return some of what is left of a shortened file, whose change is to be recorded."""
        try:
            if part := os.pread(descriptor, size, offset):
                return part
            raise OSError(errno.EIO, f"it ends at {offset}")
        except OSError as error:
            self.recorder.fail(RecorderError(f"a truncated file can't be read: {error}"))
            raise

    def _empty(self, fnode: int, path: str | os.PathLike[str]) -> int:
        """Record that a file was made empty, under all of its paths, and return its new fnode."""
        recorder = self.recorder
        others = self._paths(fnode) - {os.fspath(path)}
        with recorder.atomic():
            new = recorder.record_create(path)
            for other in sorted(others):
                recorder.record_remove(other)
                recorder.record_link(path, other)
        self._move(fnode, new)
        return new

    def _move(self, fnode: int, new: int) -> None:
        """Have open files of a fnode be those of another one."""
        if (inode := self._inodes.pop(fnode, None)) is not None:
            inode.fnode = new
            self._inodes[new] = inode

    def _inode(self, fnode: int) -> Inode:
        inode = self._inodes.get(fnode)
        if inode is None:
            inode = self._inodes[fnode] = Inode(fnode)
        return inode

    def _fnode(self, path: Path) -> int | None:
        return self.recorder.fnode_of(path)

    def _paths(self, fnode: int) -> set[str]:
        return {self.recorder.directory + path for path in self.recorder.paths_of(fnode)}

    def _is_property(self, path: Path) -> bool:
        return self.recorder.path_of(path) in PROPERTY_PATHS

    def _check_recorded(self, path: Path) -> None:
        if self._fnode(path) is None:
            if not path.exists():
                raise FileNotFoundError(f"{path} doesn't exist")
            raise ValueError(f"{path} isn't a recorded file")

    def _unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self.recorder.record_remove(path)

    def __repr__(self) -> str:
        return f"<RecordedDir {self.recorder.directory!r}>"
