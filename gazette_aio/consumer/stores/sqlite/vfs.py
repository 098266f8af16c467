"""SQLite's interface to files, by which all that's written to databases is noted.

A VFS is SQLite's interface to a system's files: https://www.sqlite.org/vfs.html. Nothing in it may
raise but what SQLite itself gets from its disk: the connection would silently write nothing.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from gazette_aio.consumer.stores.sqlite.databases import COPY_SUFFIX, RecordedDatabase, reader_of
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

_numbers: Final = itertools.count()


class _Notes:
    """What has changed in a database file since it was last recorded."""

    def __init__(self, path: str, recorder: Recorder) -> None:
        self.path = path
        self.changed: dict[int, int] = {}
        """Ends of writes by their begins."""
        self.files: list[_NotedFile] = []
        """The open files. The first one has the lock, which others are refused."""
        self.database = RecordedDatabase(path, recorder, self.read)
        self.is_begun = False
        self.has_failed = False
        """Whether a write failed. SQLite may take the next ones for done without trying.

        SQLite also drops other errors: of truncating a file in a rollback, and of removing a
        write-ahead log. But apsw raises what its files have raised, whatever SQLite makes of it,
        and a failed rollback ends the transaction of the store, which then can't be committed.
        """

    def read(self, length: int, offset: int) -> bytes:
        if self.files:
            # Wire: closing another descriptor of the file would end SQLite's lock of it.
            return self.files[0].xRead(length, offset)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return reader_of(descriptor)(length, offset)
        finally:
            os.close(descriptor)

    def size(self) -> int:
        return Path(self.path).stat().st_size

    def record(self) -> None:
        """Record what has changed, and forget it."""
        if self.has_failed:
            raise StoreError(f"a write to {self.path} has failed")
        changed, self.changed = self.changed, {}
        if self.is_begun:
            written = self.database.record(changed.items(), self.size()) if changed else 0
            self.database.renew(written)
        elif size := self.size():
            self.database.begin(changed.items(), size)
            self.is_begun = True


class _NotedFile(apsw.VFSFile):
    """A database file whose writes are noted."""

    def __init__(self, notes: _Notes, path: str, flags: list[int]) -> None:
        super().__init__("", path, flags)
        self._notes = notes
        notes.files.append(self)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name.
        try:
            super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType] - apsw's type.
        except BaseException:
            self._notes.has_failed = True
            raise
        changed, end = self._notes.changed, offset + len(data)
        if changed.get(offset, 0) < end:
            changed[offset] = end

    def xClose(self) -> None:  # noqa: N802 - SQLite's name.
        self._notes.files.remove(self)
        super().xClose()


class RecordingVFS(apsw.VFS):
    """Finds databases by names below a directory, and notes what is written to them.

    Args:
        directory: The directory.
        recorder: Recorder of the directory; None if nothing is noted.
    """

    def __init__(self, directory: Path, recorder: Recorder | None) -> None:
        self.name: str = f"gazette-{next(_numbers)}"
        self.notes: dict[str, _Notes] = {}
        self.removed: set[str] = set()
        """Paths of files that were removed."""
        self.is_set_up = False
        """Whether no further database may write ahead, as that wouldn't be recorded."""
        self._directory = os.path.abspath(directory)  # noqa: PTH100 - Paths are texts here.
        self._recorder = recorder
        super().__init__(self.name, "")

    def xFullPathname(self, name: str) -> str:  # noqa: N802 - SQLite's name.
        """Return the path of a database, relative to the directory, or refuse the name."""
        path = os.path.normpath(self._path(name))
        if not path.startswith(self._directory + os.sep):
            raise apsw.CantOpenError(f"{name} isn't below the directory of the store")
        if path.endswith(COPY_SUFFIX):
            raise apsw.CantOpenError(f"{name} has a reserved suffix, {COPY_SUFFIX}")
        # Wire: journals of a common commit have the name of its super-journal. It must be found,
        # or else they're dropped, also after the directory was moved.
        return path.removeprefix(self._directory + os.sep)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)  # noqa: PTH118 - Names may be absolute.

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802 - SQLite's name.
        """Return whether a file is accessible."""
        return super().xAccess(self._path(pathname), flags)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name.
        """Open a file, whose writes are noted if it's a database to be recorded."""
        given = name.filename() if isinstance(name, apsw.URIFilename) else name
        path = None if given is None else self._path(given)
        if self.is_set_up and flags[0] & apsw.SQLITE_OPEN_WAL:
            raise apsw.CantOpenError(
                f"{path}: databases that write ahead can only be attached by the schema"
            )
        if self._recorder is None or path is None or not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return apsw.VFSFile("", path, flags)
        notes = self.notes.get(path) or _Notes(path, self._recorder)
        file = _NotedFile(notes, path, flags)
        self.notes[path] = notes
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802 - apsw's.
        """Delete a file, and note that."""
        path = self._path(filename)
        super().xDelete(path, syncdir)
        self.removed.add(path)

    def record(self, recorder: Recorder) -> None:
        """Record what was committed since the last call. There's no open transaction.

        Call it within `recorded_as_a_whole()`.

        Raises:
            StoreError: It can't be recorded.
            OSError: A file can't be read.
        """
        removed, self.removed = self.removed, set()
        links = recorder.links() if removed else {}
        for path in sorted(removed):
            if recorder.path_of(path) in links and not Path(path).exists():
                recorder.record_remove(path)
        for notes in self.notes.values():
            notes.record()
