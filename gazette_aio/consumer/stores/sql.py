"""Store in a SQL database: state and checkpoint of a shard commit in one transaction."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

try:
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import StaticPool
except ImportError as _error:
    raise ImportError(
        "SQLStore needs SQLAlchemy: pip install 'gazette-aio[postgres]' for PostgreSQL, or "
        "'gazette-aio[sql]' for SQLite and others"
    ) from _error

from google.protobuf.message import DecodeError

from gazette_aio.aio.finish import finish
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import fenced
from gazette_aio.consumer.stores.sql_errors import as_store_error
from gazette_aio.consumer.stores.sql_table import TABLE, checkpoint_table, create_checkpoint_table
from gazette_aio.consumer.stores.sql_transaction import SQLTransaction, finish_statements
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.ext.asyncio import AsyncConnection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard


class SQLStore:
    """Store in a SQL database: state and checkpoint of a shard commit in one transaction.

    Members anywhere restore it, and fence each other off by a counter beside the checkpoint. The
    application reads and writes through the connection that `transaction()` returns.

    Args:
        db: Engine of SQLAlchemy, which shards of a process share. Each shard takes one of its
            connections, with `pipeline` two, so its pool must not be smaller. It isn't closed.
        pipeline: Whether transactions begin while the one before commits. They then don't see its
            writes, which is only right for an application that keeps what it has written in
            `cache`. SQLite has one writer at a time, so there it has no effect.
        table: Name of the table of checkpoints, see `create_table()`.
        cache: Initial `cache`, which has to support `copy.deepcopy()`.

    Raises:
        ConfigurationError: The engine isn't an AsyncEngine, has one connection for all, or its
            driver doesn't count the rows that an update matches.
    """

    def __init__(
        self, db: AsyncEngine, *, pipeline: bool = False, table: str = TABLE, cache: Any = None
    ) -> None:
        _check_engine(db)
        self.db = db
        """The engine."""
        self.cache: Any = cache
        """Of the application: what it keeps in memory of this shard. The store doesn't use it.

        If a transaction is repeated, it's a copy of the initial one.
        """
        self._initial_cache = copy.deepcopy(cache)
        self._is_restored = False
        self._pipeline = pipeline and db.dialect.name != "sqlite"
        self._table = checkpoint_table(name=table)
        self._fence = 0
        self._commits = Commits()
        self._open: SQLTransaction | None = None
        if db.dialect.name == "sqlite":
            finish_statements(db)

    @staticmethod
    async def create_table(db: AsyncEngine, *, table: str = TABLE) -> None:
        """Create the table of checkpoints unless it exists.

        Args:
            db: Engine of the database.
            table: Name of the table.

        Raises:
            StoreError: It can't be created.

        Cancellation: aborts — the table may have been created.
        """
        await create_checkpoint_table(db, checkpoint_table(name=table))

    async def transaction(self, *, isolation_level: str | None = None) -> AsyncConnection:
        """Return the connection of the current transaction, which is begun if none is open.

        A transaction begins after the commit of the one before, unless the store is pipelined. The
        store commits it and rolls it back; the application does neither.

        Args:
            isolation_level: Level of a transaction that is begun, such as `REPEATABLE READ`; by
                default, that of the engine. It's ignored if one is open.

        Raises:
            StoreError: The transaction can't be begun.
            GazetteError: The commit before has failed.
            ConfigurationError: `isolation_level` is `AUTOCOMMIT`.

        Cancellation: safe — call again. A statement that is cancelled ends the transaction, and its
            commit fails. SQLite finishes the statement before.
        """
        if isolation_level is not None and isolation_level.upper() == "AUTOCOMMIT":
            raise ConfigurationError("a store can't commit by AUTOCOMMIT")
        while (last := self._commits.last) is not None:
            if last.done() or not self._pipeline:
                await last
            if self._commits.last is last:
                break
        if self._open is None or self._open.has_failed:
            level = {} if isolation_level is None else {"isolation_level": isolation_level}
            self._open = SQLTransaction(self.db, level)
        return await self._open.connection()

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> OpFuture[None]:
        """Begin to commit the open transaction and the checkpoint. See `Store.start_commit()`.

        If anything fails, the transaction is rolled back at once.
        """
        transaction, self._open = self._open or SQLTransaction(self.db, {}), None
        fqn, content = shard.fqn, checkpoint.SerializeToString()
        return self._commits.start(
            wait_for, lambda: self._apply(transaction, fqn, content), transaction.roll_back
        )

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        """Roll back the transaction, return the checkpoint, and fence off other stores.

        Raises:
            StoreError: The table is missing, the database can't be reached, or it refuses.

        Cancellation: aborts — other stores may have been fenced off.
        """
        await self._roll_back()
        if self._is_restored:
            self.cache = copy.deepcopy(self._initial_cache)
        self._is_restored = True
        connection = await self.transaction()
        table, of_shard = self._table, self._table.c.shard_fqn == shard.fqn
        try:
            _check_autocommit(await connection.get_raw_connection(), self.db)
            await connection.execute(
                sa.update(table).where(of_shard).values(fence=table.c.fence + 1)
            )
            selected = sa.select(table.c.fence, table.c.checkpoint).where(of_shard)
            row = (await connection.execute(selected)).one_or_none()
            self._fence, content = (0, b"") if row is None else (int(row[0]), bytes(row[1]))
            checkpoint = Checkpoint.FromString(content)
        except BaseException as error:
            await self._roll_back()
            if isinstance(error, SQLAlchemyError):
                raise as_store_error(error) from error
            if isinstance(error, DecodeError):
                raise StoreError(f"checkpoint of {shard.fqn}: {error}") from error
            raise
        await self.start_commit(shard, checkpoint, ())
        return checkpoint

    async def destroy(self) -> None:
        """Roll back the open transaction, and end the commit under way. `db` stays open.

        A commit that waits for its dependencies is rolled back, and another one is waited for.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()
        await self._roll_back()

    async def _roll_back(self) -> None:
        transaction, self._open = self._open, None
        if transaction is not None:
            await finish(transaction.roll_back())

    async def _apply(self, transaction: SQLTransaction, fqn: str, content: bytes) -> None:
        connection, table = await transaction.connection(), self._table
        statement: sa.Insert | sa.Update
        if self._fence == 0:
            # Somebody else who has inserted the row meanwhile makes this fail.
            statement = sa.insert(table).values(shard_fqn=fqn, checkpoint=content, fence=1)
        else:
            is_owned = sa.and_(table.c.shard_fqn == fqn, table.c.fence == self._fence)
            statement = sa.update(table).where(is_owned).values(checkpoint=content)
        try:
            stored = await connection.execute(statement)
            if stored.rowcount == 0:
                raise fenced()
            await transaction.commit()
        except SQLAlchemyError as error:
            raise as_store_error(error) from error
        self._fence = self._fence or 1

    def __repr__(self) -> str:
        state = "with" if self._open is not None else "without"
        return f"<SQLStore fence={self._fence} {state} an open transaction>"


def _check_engine(db: Any) -> None:
    if not isinstance(db, AsyncEngine):
        raise ConfigurationError(f"SQLStore takes an AsyncEngine of SQLAlchemy (not {db!r})")
    if isinstance(db.pool, StaticPool):
        raise ConfigurationError(
            "SQLStore needs an engine whose connections are separate: SQLite within memory has one"
        )
    if not db.dialect.supports_sane_rowcount:
        # MySQL counts the rows that have changed, unless its driver asks for those found.
        raise ConfigurationError(
            f"SQLStore needs a driver that counts the rows which an update matches, unlike "
            f"{db.dialect.name}+{db.dialect.driver}"
        )


def _check_autocommit(raw: Any, db: AsyncEngine) -> None:
    """Raise ConfigurationError if each statement would commit by itself."""
    try:
        commits = db.dialect.detect_autocommit_setting(raw.dbapi_connection)
    except NotImplementedError:
        return
    # SQLite's driver calls it so if statements begin transactions, as ours do.
    if commits and db.dialect.name != "sqlite":
        raise ConfigurationError("SQLStore takes no engine that commits by AUTOCOMMIT")
