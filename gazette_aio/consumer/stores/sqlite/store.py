"""Store whose state is one or several SQLite databases."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import apsw
from google.protobuf.message import DecodeError

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import explained
from gazette_aio.consumer.stores.recorder import recorded_as_a_whole
from gazette_aio.consumer.stores.removal import remove_directory
from gazette_aio.consumer.stores.sqlite.databases import DATABASE_NAME, forget_copies
from gazette_aio.consumer.stores.sqlite.vfs import RecordingVFS
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard
    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

_PAGES: Final = "pageDB"
"""Directory in which Gazette's own SQLite store keeps pages."""
_OWN_PRAGMAS: Final = frozenset(
    {"journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint", "wal_checkpoint"}
)
_ERRORS: Final = (apsw.Error, OSError)
_TEMPORARY: Final = "temp"
_CACHED_STATEMENTS: Final = 256
_NAME: Final = re.compile(r"[a-z_]+")
_VALUE: Final = re.compile(r"-?[A-Za-z0-9_]+")

# Wire: the table of Gazette's own SQLite store.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS gazette_checkpoint (
  rowid INTEGER PRIMARY KEY DEFAULT 0 CHECK (rowid = 0),
  checkpoint BLOB
);
INSERT OR IGNORE INTO gazette_checkpoint (rowid, checkpoint) VALUES (0, '');
"""
# The outermost savepoint is a transaction. Its release fails if somebody else has ended it.
_BEGIN: Final = "SAVEPOINT gazette_transaction"
_COMMIT: Final = "RELEASE gazette_transaction"
_UNDO: Final = "ROLLBACK TO gazette_transaction"
_UPDATE: Final = "UPDATE gazette_checkpoint SET checkpoint = ? WHERE rowid = 0"
_SELECT: Final = "SELECT checkpoint FROM gazette_checkpoint WHERE rowid = 0"


class SQLiteStore:
    """Store whose state is one or several SQLite databases, for states of up to some gigabytes.

    With a recorder, the databases are recorded in the recovery log of the shard; once they're
    recovered, they're ordinary SQLite files. Without one, they're databases of this machine: the
    state is lost to a member elsewhere that the shard moves to. Only one process can have them
    open.

    What hooks do by `db`, `execute()` and `run()` is part of the shard's transaction, and commits
    with its checkpoint, atomically across all databases. If a hook ends the transaction itself, the
    commit fails; savepoints can be used.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        schema: Statements to run whenever the database is opened, such as
            `CREATE TABLE IF NOT EXISTS`. It may attach databases by names below the directory, such
            as `ATTACH 'words.db' AS words`. The suffix `.gazette-copy` is reserved.
        pragmas: Settings of the connection, such as `{"foreign_keys": "ON"}`. The way in which
            databases are written is the store's.
        directory: Directory of the databases if there's no recorder. It's made if it's missing, and
            must be of this shard only.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given, or a pragma is
            invalid.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        *,
        schema: str = "",
        pragmas: Mapping[str, str | int] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if (recorder is None) == (directory is None):
            raise ConfigurationError("SQLiteStore takes either a recorder or a directory")
        self.directory: Path = Path(recorder.directory if recorder is not None else directory or "")
        """Directory of the database."""
        self._recorder = recorder
        self._schema = schema
        self._pragmas = dict(pragmas or {})
        for name, value in self._pragmas.items():
            _check_pragma(name, value)
        self._commits = Commits()
        self._connection: apsw.Connection | None = None
        self._vfs: RecordingVFS | None = None
        self._thread = ThreadPoolExecutor(1, "gazette sqlite")
        self._may_begin = asyncio.Event()
        """Set unless the next transaction has to wait for the latest commit."""
        self._may_begin.set()
        self._error: BaseException | None = None
        self._using = threading.RLock()
        """Held while the connection is used: apsw would refuse it to a second thread."""
        self._is_begun = False
        """Whether the connection is in a transaction of the store."""

    @property
    def db(self) -> apsw.Connection:
        """The connection, in a transaction, for statements that don't take long.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            UsageError: The commit before is being written, which blocks nobody: await
                `transaction()` instead.
        """
        if not self._may_begin.is_set():
            raise UsageError("the commit before is being written: await transaction()")
        return self._begun()

    async def transaction(self) -> apsw.Connection:
        """Return `db` once the commit before is written.

        Raises:
            StoreError: The database isn't open, or a commit has failed.

        Cancellation: safe.
        """
        await self._may_begin.wait()
        return self._begun()

    async def run(
        self,
        function: Callable[Concatenate[apsw.Connection, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function with the connection, in the store's thread, and return its result.

        Args:
            function: Plain function, for statements that take long.
            args: Its further arguments.
            kwargs: Its keyword arguments.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            Exception: The function raises it.

        Cancellation: safe — raised after the function has returned.
        """
        await self._may_begin.wait()
        if self._error is not None:
            raise self._unusable()
        return await self._in_thread(lambda: function(self._begun(), *args, **kwargs))

    async def execute(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /
    ) -> list[Any]:
        """Execute a statement in the store's thread, and return its rows.

        Args:
            statement: One statement.
            parameters: Values of its `?` or `:name` parameters.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            apsw.Error: The statement fails.

        Cancellation: safe — raised after the statement has ended.
        """
        return await self.run(_rows, statement, parameters)

    async def execute_many(
        self, statement: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> None:
        """Execute a statement with each of several parameters, in the store's thread.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            apsw.Error: A statement fails, maybe after some.

        Cancellation: safe — raised after the statements have ended.
        """
        await self.run(_execute_many, statement, parameters)

    async def open(self) -> None:
        """Open the database, and run the schema. Restoring the checkpoint does that, too.

        Idempotent.

        Raises:
            ConfigurationError: The directory is that of Gazette's own SQLite store.
            StoreError: It can't be opened or recorded, or another process has it open.

        Cancellation: safe — it may be open.
        """
        if self._error is not None:
            raise self._unusable()
        if self._connection is None:
            await self._in_thread(self._open)

    def start_commit(
        self,
        shard: Shard,  # noqa: ARG002 - The database is of one shard.
        checkpoint: Checkpoint,
        wait_for: Collection[OpFuture[Any]],
        /,
    ) -> OpFuture[None]:
        """Begin to commit the transaction with the checkpoint. See `Store.start_commit()`."""
        if self._connection is None or self._error is not None:
            return finished_operation(self._unusable())
        content = checkpoint.SerializeToString()
        if (recorder := self._recorder) is not None:
            # Invariant: nothing that is recorded after it is committed before `wait_for`.
            opening = recorder.barrier(wait_for)
            self._may_begin.clear()
            commit = self._commits.start_recorded(opening, lambda: self._record(recorder, content))
        else:
            self._may_begin.clear()
            commit = self._commits.start(
                wait_for,
                lambda: self._in_thread(lambda: self._commit(content)),
                lambda: self._in_thread(self._roll_back),
            )
        commit.operation.when_done(lambda: self._note(commit))
        return commit

    async def restore_checkpoint(
        self,
        shard: Shard,  # noqa: ARG002 - The database is of one shard.
        /,
    ) -> Checkpoint:
        """Open the database if it isn't, roll back the transaction, and read the checkpoint.

        Raises:
            ConfigurationError: The directory is that of Gazette's own SQLite store.
            StoreError: The database can't be opened, recorded or read, another process has it open,
                or a commit has failed.

        Cancellation: safe — the database may be open.
        """
        if self._error is not None:
            raise self._unusable()
        await self.open()
        await self._may_begin.wait()
        content = await self._in_thread(self._restore)
        try:
            return Checkpoint.FromString(content)
        except DecodeError as error:
            raise StoreError(f"checkpoint in {self.directory}: {error}") from error

    async def destroy(self) -> None:
        """End the commit under way, close the database, and remove the directory of a recorder.

        A directory without a recorder has the only copy of the state, and stays.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()
        self._error = self._error or StoreError("the store was destroyed")
        with contextlib.suppress(RuntimeError):  # The thread has ended.
            await self._in_thread(self._close)
        self._thread.shutdown(wait=False)
        if self._recorder is not None:
            await in_thread(remove_directory, self.directory)

    async def _record(self, recorder: Recorder, content: bytes) -> OpFuture[Any]:
        """Write a commit, and return the barrier of what was recorded of it."""
        try:
            return await self._in_thread(lambda: self._commit_recorded(recorder, content))
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            # The next transaction needn't wait for the append.
            self._may_begin.set()

    # What follows runs in the store's thread

    def _open(self) -> None:
        if self._connection is not None:
            return
        if (self.directory / _PAGES).exists():
            raise ConfigurationError(
                f"{self.directory} has {_PAGES}: it's a database of Gazette's own SQLite store, "
                "which keeps its pages in RocksDB: use `gazette-aio shards import-pages`"
            )
        with explained("opening the database", _ERRORS):
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                self._connect()
            except BaseException as error:
                if self._recorder is not None:
                    self._error = error  # Files may differ from what is recorded of them.
                raise

    def _connect(self) -> None:
        recorder = self._recorder
        if recorder is not None:
            forget_copies(recorder)
        vfs = RecordingVFS(self.directory, recorder)
        connection = apsw.Connection(
            DATABASE_NAME, vfs=vfs.name, statementcachesize=_CACHED_STATEMENTS
        )
        connection.cursor_factory = functools.partial(_Cursor, self._using)
        try:
            self._set_up(connection)
            if recorder is not None:
                with recorded_as_a_whole(recorder):
                    vfs.record(recorder)
        except BaseException:
            try:
                connection.close()
            except apsw.Error:
                _logger.exception("failed to close the database in %s", self.directory)
            finally:
                vfs.unregister()
            raise
        vfs.is_set_up = recorder is not None
        self._connection, self._vfs = connection, vfs

    def _set_up(self, connection: apsw.Connection) -> None:
        settings: dict[str, str | int] = {
            **self._pragmas,
            # Also lets a recovered database leave its write-ahead log without shared memory.
            "locking_mode": "EXCLUSIVE",
        }
        for name, value in settings.items():
            _rows(connection, f"PRAGMA {name}={value}")
        self._set_databases(connection)
        for script in (_SCHEMA, self._schema):
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

    def _commit_recorded(self, recorder: Recorder, content: bytes) -> OpFuture[Any]:
        with explained("recording the database", _ERRORS), recorded_as_a_whole(recorder):
            self._commit(content)
            assert self._vfs is not None
            self._vfs.record(recorder)
        return recorder.barrier()

    def _commit(self, content: bytes) -> None:
        # Race: another thread may read meanwhile, and find the transaction ended.
        with self._using:
            connection = self._begun()
            with explained("committing the database", _ERRORS):
                _rows(connection, _UPDATE, (content,))
                _rows(connection, _COMMIT)
            self._is_begun = False

    def _restore(self) -> bytes:
        connection = self._connection
        assert connection is not None
        with self._using:
            if self._is_begun:
                try:
                    _rows(connection, _UNDO)
                except apsw.Error as error:
                    # What was committed without a checkpoint can't be rolled back.
                    self._error = _ended()
                    raise self._error from error
            self._roll_back()
        with explained("reading the checkpoint", _ERRORS):
            rows = _rows(connection, _SELECT)
        # Its first value is a text, as of the table's default.
        return bytes(rows[0][0]) if rows and rows[0][0] else b""

    def _roll_back(self) -> None:
        connection = self._connection
        # Race: another thread may read meanwhile, and begin a transaction by that.
        with self._using:
            if connection is not None and connection.in_transaction:
                with explained("rolling back the database", _ERRORS):
                    _rows(connection, "ROLLBACK")
            self._is_begun = False

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        vfs, self._vfs = self._vfs, None
        try:
            if connection is not None:
                connection.close()
        except _ERRORS:
            _logger.exception("failed to close the database of a store: %s", self.directory)

        finally:
            if vfs is not None:
                vfs.unregister()

    # What follows runs in any thread

    def _begun(self) -> apsw.Connection:
        connection = self._connection
        if connection is None or self._error is not None:
            raise self._unusable()
        # Race: of two threads, one begins the transaction.
        with self._using:
            if not self._is_begun:
                _rows(connection, _BEGIN)
                self._is_begun = True
            elif not connection.in_transaction:
                raise _ended()
        return connection

    def _unusable(self) -> StoreError:
        if self._error is not None:
            later = StoreError(f"the store can't be used any longer: {self._error}")
            later.__cause__ = self._error
            return later
        return StoreError("the database isn't open: await open(), or restore the checkpoint")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await finish(asyncio.wrap_future(self._thread.submit(function)))

    def _note(self, commit: OpFuture[None]) -> None:
        if (error := commit.exception()) is not None and self._error is None:
            self._error = error
        self._may_begin.set()

    def __repr__(self) -> str:
        recorded = "recorded " if self._recorder is not None else ""
        return f"<SQLiteStore in the {recorded}directory {str(self.directory)!r}>"


class _Cursor(apsw.Cursor):
    """Cursor whose statements wait for those that another thread executes."""

    def __init__(self, using: threading.RLock, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._using = using

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        with self._using:
            return super().execute(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]

    def executemany(self, *args: Any, **kwargs: Any) -> Any:
        with self._using:
            return super().executemany(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType]

    def fetchone(self) -> Any:
        with self._using:
            return super().fetchone()

    def fetchall(self) -> Any:
        with self._using:
            return super().fetchall()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def __next__(self) -> Any:
        with self._using:
            return super().__next__()


def _check_pragma(name: str, value: str | int) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(str(value)):
        raise ConfigurationError(f"invalid pragma {name}={value}")
    if name in _OWN_PRAGMAS:
        raise ConfigurationError(f"the store itself sets the pragma {name}")


# Types of apsw's parameters aren't all known to checkers, hence `Any` for the connection.


def _rows(
    connection: Any, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
) -> list[Any]:
    # apsw executes statements as their rows are read.
    rows: list[Any] = connection.execute(statement, parameters).fetchall()
    return rows


def _execute_many(
    connection: Any,
    statement: str,
    parameters: Iterable[Sequence[Any] | Mapping[str, Any]],
) -> None:
    for _ in connection.executemany(statement, parameters):
        pass


def _ended() -> StoreError:
    return StoreError("the transaction of the store was ended by somebody else")
