"""Transaction of a database on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.consumer.stores.sql_errors import as_store_error
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncTransaction

ROLLBACK_SECONDS: Final = 10.0
"""Seconds after which a connection is dropped that hasn't been rolled back."""

_logger = logging.getLogger(__name__)


class SQLTransaction:
    """A transaction that is begun at once, in the background.

    Cancelling somebody who waits for its begin leaves it alone, so that exactly one connection is
    taken, and is returned by `commit()` or `roll_back()`.
    """

    def __init__(self, db: AsyncEngine, options: dict[str, Any]) -> None:
        self._connection: AsyncConnection = db.connect()
        self._transaction: AsyncTransaction | None = None
        self._options = options
        self._begun = start_task(self._begin(), "gazette begin of a transaction")

    @property
    def has_failed(self) -> bool:
        """Whether it couldn't be begun."""
        return self._begun.done() and (
            self._begun.cancelled() or self._begun.exception() is not None
        )

    async def connection(self) -> AsyncConnection:
        """Return the connection, once the transaction has begun.

        Raises:
            StoreError: It couldn't be begun.

        Cancellation: safe.
        """
        await asyncio.wait((self._begun,))
        if self._begun.cancelled():
            raise StoreError("the begin of the transaction was cancelled")
        self._begun.result()
        return self._connection

    async def commit(self) -> None:
        """Commit, and return the connection.

        Raises:
            StoreError: The application has ended the transaction itself.
            SQLAlchemyError: The commit failed. It may have taken effect.

        Cancellation: aborts — it may have committed.
        """
        if self._transaction is None or not self._transaction.is_active:
            raise StoreError("the application ended the transaction of its store")
        await self._transaction.commit()
        await self._connection.close()

    async def roll_back(self) -> None:
        """Roll back, and return the connection. Idempotent.

        Cancellation: safe — the connection is dropped then, and so the transaction.
        """
        await asyncio.wait((self._begun,))
        if self.has_failed or self._connection.closed:
            return  # One that couldn't be begun has returned its connection itself.
        try:
            async with asyncio.timeout(ROLLBACK_SECONDS):
                await self._connection.close()
        except (SQLAlchemyError, OSError, TimeoutError):
            # The connection is out of the pool then, and its end ends the transaction.
            _logger.warning("a transaction could not be rolled back", exc_info=True)

    async def _begin(self) -> None:
        try:
            await self._connection.start()
            try:
                if self._options:
                    await self._connection.execution_options(**self._options)
                self._transaction = await self._connection.begin()
                if self._connection.dialect.name == "sqlite":
                    await self._lock()
            except BaseException:
                await finish(self._connection.close())
                raise
        except (SQLAlchemyError, OSError) as error:
            raise as_store_error(error) from error

    async def _lock(self) -> None:
        """Begin at once, and to write: SQLite's driver begins only with the first write.

        Transactions of other shards then wait for this one, within the time-out of the driver,
        where otherwise those that have read before would fail.
        """
        raw = await self._connection.get_raw_connection()
        if not getattr(raw.driver_connection, "in_transaction", False):
            await self._connection.exec_driver_sql("BEGIN IMMEDIATE")


def finish_statements(db: AsyncEngine) -> None:
    """Have statements of SQLite run to their end, also if they're cancelled. Idempotent.

    A cancelled statement drops its connection. While a cursor of it is in the midst of its rows,
    which the traceback of the cancellation may hold until garbage is collected, SQLite wouldn't
    close it, and its locks would be in the way of everybody.
    """
    for name, listener in (
        ("do_execute", _execute),
        ("do_executemany", _execute_many),
        ("do_execute_no_params", _execute_without),
    ):
        if not event.contains(db.sync_engine, name, listener):
            event.listen(db.sync_engine, name, listener)


def _execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    return _run(context, cursor.execute, statement, parameters)


def _execute_many(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
    return _run(context, cursor.executemany, statement, parameters)


def _execute_without(cursor: Any, statement: str, context: Any) -> bool:
    return _run(context, cursor.execute, statement)


def _run(context: Any, execute: Callable[..., Any], *arguments: Any) -> bool:
    """Execute in place of SQLAlchemy, which the result says, within the greenlet of a statement."""
    connection = context.root_connection.connection.dbapi_connection

    async def executed(_: object) -> None:
        await finish(greenlet_spawn(execute, *arguments))

    connection.run_async(executed)
    return True
