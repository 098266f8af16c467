"""A VFS of SQLite that notes what is written to databases, and the store by it.

A VFS is SQLite's interface to a system's files: https://www.sqlite.org/vfs.html.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gazette_aio.consumer.stores.recorder import recorded_as_a_whole
from gazette_aio.consumer.stores.sqlite.databases import (
    COPY_SUFFIX,
    DATABASE_NAME,
    RecordedDatabase,
    forget_copies,
    reader_of,
)
from gazette_aio.consumer.stores.sqlite.engine import Engine
from gazette_aio.consumer.stores.sqlite.store import EngineStore
from gazette_aio.protocol.errors import StoreError

try:
    import apsw
except ImportError as _error:
    raise ImportError("SQLiteVFSStore needs apsw: pip install 'gazette-aio[sqlite]'") from _error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

_logger = logging.getLogger(__name__)

_numbers: Final = itertools.count()
_TEMPORARY: Final = "temp"


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


class _RecordingVFS(apsw.VFS):
    """Finds databases by names below a directory, and notes what is written to them.

    Args:
        directory: The directory.
        recorder: Recorder of the directory; None if nothing is noted.
    """

    def __init__(self, directory: Path, recorder: Recorder | None) -> None:
        self.name = f"gazette-{next(_numbers)}"
        self.notes: dict[str, _Notes] = {}
        self.removed: set[str] = set()
        """Paths of files that were removed."""
        self.is_set_up = False
        """Whether no further database may write ahead, as that wouldn't be recorded."""
        self._directory = os.path.abspath(directory)  # noqa: PTH100 - Paths are texts here.
        self._recorder = recorder
        super().__init__(self.name, "")

    def xFullPathname(self, name: str) -> str:  # noqa: N802 - SQLite's name.
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
        return super().xAccess(self._path(pathname), flags)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name.
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
        path = self._path(filename)
        super().xDelete(path, syncdir)
        self.removed.add(path)


class VFSEngine(Engine[apsw.Connection]):
    """SQLite of apsw, whose writes are noted as they happen, and recorded when they're committed.

    Journals of SQLite aren't recorded: what a transaction of the store has changed, in all its
    databases, is in one append. Arguments are those of `Engine`.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (apsw.Error,)
    _vfs: _RecordingVFS | None = None

    def open(self, schema: Iterable[str]) -> None:
        """Open the database, run scripts, and record it. See `Engine.open()`."""
        recorder = self._recorder
        if recorder is not None:
            forget_copies(recorder)
        vfs = _RecordingVFS(self._directory, recorder)
        connection = apsw.Connection(DATABASE_NAME, vfs=vfs.name)
        try:
            self._set_up(connection, schema)
            if recorder is not None:
                with recorded_as_a_whole(recorder):
                    _record(vfs, recorder)
        except BaseException:
            try:
                connection.close()
            except apsw.Error:
                _logger.exception("failed to close the database in %s", self._directory)
            finally:
                vfs.unregister()
            raise
        vfs.is_set_up = recorder is not None
        self.connection, self._vfs = connection, vfs

    def _set_up(self, connection: apsw.Connection, schema: Iterable[str]) -> None:
        settings: dict[str, str | int] = {
            **self._pragmas,
            # Also lets a recovered database leave its write-ahead log without shared memory.
            "locking_mode": "EXCLUSIVE",
        }
        for name, value in settings.items():
            _rows(connection, f"PRAGMA {name}={value}")
        self._set_databases(connection)
        for script in schema:
            _rows(connection, script)
        if connection.in_transaction:
            raise StoreError("the schema leaves a transaction open")
        self._set_databases(connection)

    def _set_databases(self, connection: apsw.Connection) -> None:
        """Have no database write ahead: what is committed is in its file."""
        # With a recorder, the log of the shard is what lasts.
        mode, level = ("delete", "FULL") if self._recorder is None else ("memory", "OFF")
        for _, name, _ in _rows(connection, "PRAGMA database_list"):
            if name == _TEMPORARY:
                continue
            quoted = name.replace('"', '""')
            _rows(connection, f'PRAGMA "{quoted}".synchronous={level}')
            ((found,),) = _rows(connection, f'PRAGMA "{quoted}".journal_mode={mode}')
            # Databases in memory have no other mode.
            if found not in (mode, "memory"):
                raise StoreError(f"the journal of database {name} can't be of mode {mode}")

    def record(self) -> None:
        """Record what was committed. See `Engine.record()`."""
        assert self._vfs is not None
        assert self._recorder is not None
        _record(self._vfs, self._recorder)

    def close(self) -> None:
        """Close the databases. Idempotent."""
        connection, self.connection = self.connection, None
        vfs, self._vfs = self._vfs, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if vfs is not None:
                vfs.unregister()


def _record(vfs: _RecordingVFS, recorder: Recorder) -> None:
    removed, vfs.removed = vfs.removed, set()
    links = recorder.links() if removed else {}
    for path in sorted(removed):
        if recorder.path_of(path) in links and not Path(path).exists():
            recorder.record_remove(path)
    for notes in vfs.notes.values():
        notes.record()


def _rows(connection: Any, script: str) -> list[Any]:
    # apsw executes statements as their rows are read.
    rows: list[Any] = connection.execute(script).fetchall()
    return rows


class SQLiteVFSStore(EngineStore[apsw.Connection]):
    """Store whose state is one or several SQLite databases, by apsw. Needs `gazette-aio[sqlite]`.

    It's like `SQLiteStore`, and reads databases of that, with these differences:

    - `db` is an `apsw.Connection`, and errors of SQL are of `apsw.Error`.
    - `schema` may attach databases by names below the directory, such as `ATTACH 'words.db' AS
      words`. The suffix `.gazette-copy` is reserved. Transactions are atomic across all of them,
      also without a recorder.
    - Each page is recorded once for a transaction, and not once more when a write-ahead log ends.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        schema: Statements to run whenever the database is opened, such as `ATTACH` and
            `CREATE TABLE IF NOT EXISTS`.
        pragmas: Settings of the connection, such as `{"foreign_keys": "ON"}`. The way in which
            databases are written is the store's.
        directory: Directory of the databases if there's no recorder. It's made if it's missing, and
            must be of this shard only.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given, or a pragma is
            invalid.
    """

    _engine_type = VFSEngine
