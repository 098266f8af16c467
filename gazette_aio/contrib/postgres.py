"""Transactions of a Publisher whose acknowledgements and state are kept in PostgreSQL.

Needs the extra `postgres`: `pip install "gazette-aio[postgres]"`. The log has this table:

    CREATE TABLE gazette_intents (
        name TEXT PRIMARY KEY NOT NULL, fence BIGINT NOT NULL, record BYTEA
    )
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, LiteralString

from gazette_aio.message.publishing.intent_record import IntentRecord, decode_record, encode_record
from gazette_aio.message.publishing.intents import append_intents
from gazette_aio.protocol.errors import ConfigurationError, FencedError, StoreError

try:
    import psycopg
except ImportError as _error:
    raise ImportError(
        "gazette_aio.contrib.postgres needs psycopg: pip install 'gazette-aio[postgres]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.client import AsyncJournalClient
    from gazette_aio.message import AckIntent
    from gazette_aio.message.publishing.intent_record import State

CREATE_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS gazette_intents (
        name TEXT PRIMARY KEY NOT NULL, fence BIGINT NOT NULL, record BYTEA
    )
"""
"""Statement that creates the table, which any number of logs may share."""

_TAKE: Final = """
    INSERT INTO gazette_intents AS held (name, fence) VALUES (%s, 1)
    ON CONFLICT (name) DO UPDATE SET fence = held.fence + 1 RETURNING fence, record
"""
_TAKE_AGAIN: Final = """
    UPDATE gazette_intents SET fence = fence + 1 WHERE name = %s AND fence = %s
    RETURNING fence, record
"""
_STORE: Final = "UPDATE gazette_intents SET record = %s WHERE name = %s AND fence = %s"


class PostgresIntents:
    """Log of a Publisher's transactions in a table, with a state and your own rows.

    The name is the identity of the publisher. `recover()` acquires the name; the former holder, on
    any machine, fails with FencedError at its next commit.

    Args:
        connection: Connection with `autocommit=True`, for the exclusive use of the log. It isn't
            closed.
        name: Name of the log.

    Raises:
        ConfigurationError: The connection isn't in autocommit mode.
    """

    exclusive: bool = True
    """Whether a transaction needs its turn before its block; always True."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], name: str) -> None:
        if not connection.autocommit:
            raise ConfigurationError("the connection needs autocommit=True")
        self.name = name
        self.turn: asyncio.Lock = asyncio.Lock()
        """Held while a transaction commits, and while `recover()` runs."""
        self._connection = connection
        self._fence = 0
        self._fenced = False
        self._record = IntentRecord()
        self._in_doubt = False
        self._statements: list[tuple[LiteralString, Sequence[object]]] = []

    @property
    def state(self) -> State:
        """State of the latest recovered or committed transaction, or None."""
        return self._record.state

    @property
    def in_doubt(self) -> bool:
        """Whether the latest transaction may be stored without its acknowledgements appended."""
        return self._in_doubt

    @property
    def is_ready(self) -> bool:
        """Whether a transaction may begin without `prepare()`; always False."""
        return False

    def execute(self, query: LiteralString, parameters: Sequence[object] = ()) -> None:
        """Add a statement to the open transaction, which executes it at its commit.

        Args:
            query: Statement, as for `AsyncConnection.execute()` of psycopg.
            parameters: Its parameters.
        """
        self._statements.append((query, parameters))

    async def recover(self, appends: AsyncJournalClient) -> State:
        """Acquire the log, append the stored acknowledgements, and return the stored state.

        Args:
            appends: Append service to use.

        Raises:
            FencedError: Another process has taken the log from this object.
            StoreError: The record can't be read, or is damaged.
            GazetteError: An append failed. Call again.

        Cancellation: safe — call again.
        """
        async with self.turn:
            self._check_fenced()
            try:
                if self._fence:
                    cursor = await self._connection.execute(_TAKE_AGAIN, (self.name, self._fence))
                else:
                    cursor = await self._connection.execute(_TAKE, (self.name,))
                row = await cursor.fetchone()
            except psycopg.Error as error:
                raise StoreError(f"log {self.name!r}: {error}") from error
            if row is None:
                self._fenced = True
                self._check_fenced()
            assert row is not None
            self._fence, stored = int(row[0]), row[1]
            self._in_doubt = True
            self._record = IntentRecord() if stored is None else decode_record(stored)
            await append_intents(appends, self._record.intents)
            self._in_doubt = False
            return self.state

    async def prepare(self, appends: AsyncJournalClient) -> None:
        """Forget statements of earlier transactions, and recover one that is in doubt.

        Args:
            appends: Append service to use.

        Raises:
            FencedError: Another process has taken the log.
            StoreError: `recover()` must be called first, which takes the log.
            GazetteError: An append failed. Call again.

        Cancellation: safe — call again.
        """
        self._check_fenced()
        if not self._fence:
            raise StoreError(f"log {self.name!r}: call recover()")
        if self._in_doubt:
            await self.recover(appends)
        self._statements.clear()

    async def persist(self, intents: Sequence[AckIntent], state: State = None) -> None:
        """Store acknowledgements and state, and execute the statements, in one transaction.

        Raises:
            FencedError: Another process has taken the log. Nothing is stored.
            StoreError: A statement failed, or the commit. If `in_doubt` is set afterwards, the
                transaction may be stored nevertheless.

        Cancellation: poisons — the transaction may be stored; call `recover()`.
        """
        content = encode_record(intents, state)
        self._in_doubt = True
        is_executed = False
        try:
            async with self._connection.transaction():
                # First, so that the statements of a former owner wait, and then fail.
                stored = await self._connection.execute(_STORE, (content, self.name, self._fence))
                if stored.rowcount != 1:
                    self._fenced = True
                    self._check_fenced()
                for query, parameters in self._statements:
                    await self._connection.execute(query, parameters)
                is_executed = True
        except psycopg.Error as error:
            self._in_doubt = is_executed
            raise StoreError(f"log {self.name!r}: {error}") from error
        self._record = decode_record(content)

    async def decide(self, appends: AsyncJournalClient) -> None:
        """Do nothing: stored acknowledgements are decided.

        Cancellation: safe — never suspends.
        """

    async def mark_written(self) -> None:
        """Record that the acknowledgements were appended. `recover()` repeats them anyway.

        Cancellation: safe — never suspends.
        """
        self._in_doubt = False

    def _check_fenced(self) -> None:
        if self._fenced:
            raise FencedError(f"log {self.name!r} was taken by another process")

    def __repr__(self) -> str:
        return f"<PostgresIntents {self.name!r} fence={self._fence}>"
