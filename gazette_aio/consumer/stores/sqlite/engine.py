"""Ways to use SQLite: what a store needs of them, and that by the standard library."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from gazette_aio.consumer.stores.recorder import recorded_as_a_whole
from gazette_aio.consumer.stores.sqlite.capture import DatabaseCapture
from gazette_aio.consumer.stores.sqlite.databases import DATABASE_NAME, forget_copies
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

_CACHED_STATEMENTS: Final = 256


class Connection(Protocol):
    """What is common to connections of sqlite3 and apsw, as far as stores use it."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    @property
    def execute(self) -> Any:
        """Execute a statement, and return a cursor."""
        ...

    @property
    def executemany(self) -> Any:
        """Execute a statement with each of several parameters."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Engine(ABC, Generic[ConnectionT]):
    """A connection of SQLite, and the recording of its databases. Calls block, in one thread.

    Args:
        directory: Directory of the databases.
        recorder: Recorder of the directory, or None.
        pragmas: Settings of the connection.
    """

    errors: ClassVar[tuple[type[Exception], ...]]
    """Classes of errors of SQLite."""

    def __init__(
        self,
        directory: Path,
        recorder: Recorder | None,
        pragmas: Mapping[str, str | int],
    ) -> None:
        self.connection: ConnectionT | None = None
        """The connection, once it's open."""
        self._directory = directory
        self._recorder = recorder
        self._pragmas = pragmas

    @abstractmethod
    def open(self, schema: Iterable[str]) -> None:
        """Open the database, run scripts, and record it. If it fails, nothing is open.

        Raises:
            StoreError: It can't be recorded, or a script leaves it in a state that can't be.
            Exception: One of `errors`, or OSError.
        """

    @abstractmethod
    def record(self) -> None:
        """Record what was committed since the last call. There's no open transaction.

        It's called within `recorded_as_a_whole()`, and only if there's a recorder.

        Raises:
            StoreError: It can't be recorded.
            Exception: One of `errors`, or OSError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the databases. Idempotent."""


class WALEngine(Engine[sqlite3.Connection]):
    """SQLite of the standard library, in write-ahead mode. Its arguments are those of `Engine`."""

    errors: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error,)
    _capture: DatabaseCapture | None = None

    def open(self, schema: Iterable[str]) -> None:
        """Open the database, run scripts, and record it. See `Engine.open()`."""
        capture = None
        if self._recorder is not None:
            capture = DatabaseCapture(self._directory, self._recorder)
            forget_copies(self._recorder)
        connection = sqlite3.connect(
            self._directory / DATABASE_NAME,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
        )
        try:
            self._set_up(connection)
            if capture is not None and self._recorder is not None:
                with recorded_as_a_whole(self._recorder):
                    # Invariant: the write-ahead log that was recovered is recorded in the
                    # database before the schema may move it there unseen.
                    capture.begin(connection)
                    _run_scripts(connection, schema)
                    capture.record_frames()
            else:
                _run_scripts(connection, schema)
        except BaseException:
            # Closing moves the write-ahead log, so the file isn't that of the log any longer.
            connection.close()
            if capture is not None:
                capture.close()
            raise
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self.connection, self._capture = connection, capture

    def _set_up(self, connection: sqlite3.Connection) -> None:
        is_recorded = self._recorder is not None
        settings: dict[str, str | int] = {
            **self._pragmas,
            # Nobody else moves the write-ahead log to the database.
            "locking_mode": "EXCLUSIVE",
            "journal_mode": "WAL",
            # The log of the shard is what lasts.
            "synchronous": "OFF" if is_recorded else "FULL",
        }
        if is_recorded:
            settings["wal_autocheckpoint"] = 0
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name}={value}").fetchall()
        # The first statement that reads opens the write-ahead log.
        connection.execute("SELECT name FROM sqlite_schema").fetchall()

    def record(self) -> None:
        """Record what was committed. See `Engine.record()`."""
        assert self._capture is not None
        assert self.connection is not None
        self._capture.capture(self.connection)

    def close(self) -> None:
        """Close the database. Idempotent."""
        connection, self.connection = self.connection, None
        capture, self._capture = self._capture, None
        try:
            if connection is not None:
                connection.close()
        finally:
            if capture is not None:
                capture.close()


def _run_scripts(connection: sqlite3.Connection, scripts: Iterable[str]) -> None:
    attached: list[str | None] = []

    def authorize(action: int, name: str | None, *_: object) -> int:
        # VACUUM attaches a database without a name.
        if action == sqlite3.SQLITE_ATTACH and name != "":
            attached.append(name)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    connection.set_authorizer(authorize)
    try:
        for script in scripts:
            connection.executescript(script)
    except sqlite3.DatabaseError as error:
        if attached:
            text = f"the schema attaches another database, {attached[0]}"
            raise StoreError(f"{text}: SQLiteVFSStore has them recorded") from error
        raise
    finally:
        connection.set_authorizer(None)
    if connection.in_transaction:
        raise StoreError("the schema leaves a transaction open")
