"""Stores whose state is an SQLite database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sqlite3
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, ParamSpec, TypeVar

from google.protobuf.message import DecodeError

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.recorder import recorded_as_a_whole
from gazette_aio.consumer.stores.removal import remove_directory
from gazette_aio.consumer.stores.sqlite.engine import ConnectionT, Engine, WALEngine
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard
    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder
    from gazette_aio.consumer.stores.sqlite.engine import Connection

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

_PAGES: Final = "pageDB"
"""Directory in which Gazette's own SQLite store keeps pages."""
_OWN_PRAGMAS: Final = frozenset(
    {"journal_mode", "locking_mode", "synchronous", "wal_autocheckpoint", "wal_checkpoint"}
)
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


class EngineStore(Generic[ConnectionT]):
    """What stores on SQLite have in common, whichever way they use it.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        schema: Statements to run whenever the database is opened.
        pragmas: Settings of the connection.
        directory: Directory of the database if there's no recorder.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given, or a pragma is
            invalid.
    """

    _engine_type: ClassVar[type[Engine[Any]]]

    def __init__(
        self,
        recorder: Recorder | None,
        *,
        schema: str = "",
        pragmas: Mapping[str, str | int] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if (recorder is None) == (directory is None):
            raise ConfigurationError(
                f"{type(self).__name__} takes either a recorder or a directory"
            )
        self.directory: Path = Path(recorder.directory if recorder is not None else directory or "")
        """Directory of the database."""
        self._recorder = recorder
        self._schema = schema
        for name, value in (pragmas or {}).items():
            _check_pragma(name, value)
        self._commits = Commits()
        self._engine: Engine[ConnectionT] = self._engine_type(
            self.directory, recorder, dict(pragmas or {})
        )
        self._failures: tuple[type[Exception], ...] = (*self._engine.errors, OSError)
        self._thread = ThreadPoolExecutor(1, "gazette sqlite")
        self._local: Future[Any] | None = None
        """The latest commit, as far as the next transaction has to wait for it."""
        self._error: BaseException | None = None
        self._beginning = threading.Lock()
        self._is_begun = False
        """Whether the connection is in a transaction of the store."""

    @property
    def db(self) -> ConnectionT:
        """The connection, in a transaction, for statements that don't take long.

        It blocks for a moment if the commit before is being written. Without a recorder, that may
        have to wait for appends: call `await transaction()` first, or use it in a thread.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            UsageError: The commit before waits for appends, which this call would keep from
                ending.
        """
        local = self._local
        if local is not None and not local.done():
            if self._recorder is None and _is_in_event_loop():
                raise UsageError("the commit before is pending: await transaction()")
            with contextlib.suppress(Exception):
                local.result()  # The error is told below.
        return self._begun()

    async def transaction(self) -> ConnectionT:
        """Return `db` once the commit before is written, without blocking the event loop.

        Raises:
            StoreError: The database isn't open, or a commit has failed.

        Cancellation: safe.
        """
        await self._settled()
        return self._begun()

    async def run(
        self,
        function: Callable[Concatenate[ConnectionT, P], T],
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
        await self._settled()
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
            Exception: The statement fails: `sqlite3.Error`, or `apsw.Error` by a VFS.

        Cancellation: safe — raised after the statement has ended.
        """
        return await self.run(_rows, statement, parameters)

    async def execute_many(
        self, statement: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> None:
        """Execute a statement with each of several parameters, in the store's thread.

        Raises:
            StoreError: The database isn't open, or a commit has failed.
            Exception: A statement fails, maybe after some: `sqlite3.Error`, or `apsw.Error` by a
                VFS.

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
        if self._engine.connection is None:
            await self._in_thread(self._open)

    def start_commit(
        self,
        shard: Shard,  # noqa: ARG002 - The database is of one shard.
        checkpoint: Checkpoint,
        wait_for: Collection[OpFuture[Any]],
        /,
    ) -> OpFuture[None]:
        """Begin to commit the transaction with the checkpoint. See `Store.start_commit()`."""
        if self._engine.connection is None or self._error is not None:
            return finished_operation(self._unusable())
        content = checkpoint.SerializeToString()
        if (recorder := self._recorder) is not None:
            # Invariant: nothing that is recorded after it is committed before `wait_for`.
            opening = recorder.barrier(wait_for)
            # It begins here rather than in a task: `db` may block the event loop until it's over.
            recorded = self._local = self._thread.submit(self._commit_recorded, recorder, content)
            commit = self._commits.start_recorded(opening, lambda: asyncio.wrap_future(recorded))
        else:
            self._local = Future()
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
        await self._settled()
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

    # What follows runs in the store's thread

    def _open(self) -> None:
        if self._engine.connection is not None:
            return
        if (self.directory / _PAGES).exists():
            raise ConfigurationError(
                f"{self.directory} has {_PAGES}: it's a database of Gazette's own SQLite store, "
                "which keeps its pages in RocksDB: use import_page_database()"
            )
        with self._explained("opening"):
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                self._engine.open([_SCHEMA, self._schema])
            except BaseException as error:
                if self._recorder is not None:
                    self._error = error  # Files may differ from what is recorded of them.
                raise

    def _commit_recorded(self, recorder: Recorder, content: bytes) -> OpFuture[Any]:
        with self._explained("recording"), recorded_as_a_whole(recorder):
            self._commit(content)
            self._engine.record()
        return recorder.barrier()

    def _commit(self, content: bytes) -> None:
        connection = self._begun()
        with self._explained("committing"):
            connection.execute(_UPDATE, (content,))
            connection.execute(_COMMIT)
        self._is_begun = False

    def _restore(self) -> bytes:
        connection = self._engine.connection
        assert connection is not None
        if self._is_begun:
            try:
                connection.execute(_UNDO)
            except self._engine.errors as error:
                # What was committed without a checkpoint can't be rolled back.
                self._error = _ended()
                raise self._error from error
        self._roll_back()
        with self._explained("reading the checkpoint"):
            rows = connection.execute(_SELECT).fetchall()
        # Its first value is a text, as of the table's default.
        return bytes(rows[0][0]) if rows and rows[0][0] else b""

    def _roll_back(self) -> None:
        connection = self._engine.connection
        if connection is not None and connection.in_transaction:
            with self._explained("rolling back"):
                connection.execute("ROLLBACK")
        self._is_begun = False

    def _close(self) -> None:
        try:
            self._engine.close()
        except self._failures:
            _logger.exception("failed to close the database of a store: %s", self.directory)

    # What follows runs in any thread

    def _begun(self) -> ConnectionT:
        connection = self._engine.connection
        if connection is None or self._error is not None:
            raise self._unusable()
        # Race: of two threads, one begins the transaction.
        with self._beginning:
            if not self._is_begun:
                connection.execute(_BEGIN)
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

    async def _settled(self) -> None:
        """Wait until a transaction can begin."""
        local = self._local
        if local is not None and not local.done():
            with contextlib.suppress(Exception):
                await asyncio.shield(asyncio.wrap_future(local))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await finish(asyncio.wrap_future(self._thread.submit(function)))

    def _note(self, commit: OpFuture[None]) -> None:
        if (error := commit.exception()) is not None and self._error is None:
            self._error = error
        if self._recorder is None and self._local is not None:
            self._local.set_result(None)

    def __repr__(self) -> str:
        recorded = "recorded " if self._recorder is not None else ""
        return f"<{type(self).__name__} in the {recorded}directory {str(self.directory)!r}>"

    @contextlib.contextmanager
    def _explained(self, step: str) -> Generator[None]:
        try:
            yield
        except self._failures as error:
            raise StoreError(f"{step} the database: {error}") from error


class SQLiteStore(EngineStore[sqlite3.Connection]):
    """Store whose state is an SQLite database, for states of up to some gigabytes.

    With a recorder, the database is recorded in the recovery log of the shard; once it's recovered,
    it's an ordinary SQLite file. Without one, it's a database of this machine: the state is lost to
    a member elsewhere that the shard moves to. Only one process can have it open.

    What hooks do by `db`, `execute()` and `run()` is part of the shard's transaction, and commits
    with its checkpoint. If a hook ends the transaction itself, the commit fails. Databases can't be
    attached, except to a `SQLiteVFSStore`; savepoints can be used. A cursor that a hook leaves open
    amid its rows keeps the write-ahead log growing: that is logged, and with a recorder, the commit
    fails once the log has grown by 256 MiB.

    Args:
        recorder: Recorder that `Application.new_store()` was given, or None.
        schema: Statements to run whenever the database is opened, such as
            `CREATE TABLE IF NOT EXISTS`.
        pragmas: Settings of the connection, such as `{"foreign_keys": "ON"}`. The way in which the
            database is written is the store's.
        directory: Directory of the database if there's no recorder. It's made if it's missing, and
            must be of this shard only.

    Raises:
        ConfigurationError: Both or none of `recorder` and `directory` are given, or a pragma is
            invalid.
    """

    _engine_type = WALEngine


def _check_pragma(name: str, value: str | int) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(str(value)):
        raise ConfigurationError(f"invalid pragma {name}={value}")
    if name in _OWN_PRAGMAS:
        raise ConfigurationError(f"the store itself sets the pragma {name}")


def _rows(
    connection: Connection, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> list[Any]:
    rows: list[Any] = connection.execute(statement, parameters).fetchall()
    return rows


def _execute_many(
    connection: Connection,
    statement: str,
    parameters: Iterable[Sequence[Any] | Mapping[str, Any]],
) -> None:
    connection.executemany(statement, parameters)


def _ended() -> StoreError:
    return StoreError("the transaction of the store was ended by somebody else")


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
