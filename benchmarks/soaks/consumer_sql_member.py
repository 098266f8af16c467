"""Member of the soak of consumers, which counts in a SQL database that $SOAK_DATABASE names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.soaks.consumer_member import LINES, OUT, Number
from gazette_aio import ACK_TXN, json_adapter
from gazette_aio.consumer import Application, SQLStore, main

if TYPE_CHECKING:
    from gazette_aio import Envelope, Publisher
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

_IDLE_MS = 8000
"""How long a paused member keeps the rows that others need: until its lease has ended for sure.

A shorter time would fail shards of a member that goes on before its lease ends.
"""
_CHECKPOINTS = "soak_checkpoints"
_BROKEN = "BROKEN"
_NUMBERS = sa.Table(
    "soak_numbers",
    sa.MetaData(),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
_READ = sa.select(_NUMBERS.c.number).where(_NUMBERS.c.key == sa.bindparam("key"))
_FIRST_BROKEN = sa.select(_NUMBERS.c.key).where(_NUMBERS.c.key.startswith(_BROKEN)).limit(1)
_CUT = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < :share"
)
_WRITE = sa.text(
    "INSERT INTO soak_numbers (key, number) VALUES (:key, :number) "
    "ON CONFLICT (key) DO UPDATE SET number = excluded.number"
)


def engine(url: str, connections: int = 32) -> AsyncEngine:
    """Return an engine of PostgreSQL."""
    return create_async_engine(
        sa.make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=connections,
        max_overflow=0,
        connect_args={"options": f"-c idle_in_transaction_session_timeout={_IDLE_MS}"},
    )


async def create_tables(url: str) -> None:
    """Create the tables of the soak, empty ones."""
    db = engine(url, 1)
    try:
        async with db.begin() as connection:
            await connection.execute(sa.text(f"DROP TABLE IF EXISTS {_CHECKPOINTS}"))
            await connection.run_sync(_NUMBERS.metadata.drop_all)
            await connection.run_sync(_NUMBERS.metadata.create_all)
        await SQLStore.create_table(db, table=_CHECKPOINTS)
    finally:
        await db.dispose()


async def first_broken(url: str) -> str:
    """Return what was committed though it was out of order, or an empty text."""
    db = engine(url, 1)
    try:
        async with db.connect() as connection:
            found = await connection.execute(_FIRST_BROKEN)
            return found.scalar_one_or_none() or ""
    finally:
        await db.dispose()


async def cut_connections(url: str, share: float) -> int:
    """Have the server end a share of the connections of others, and return how many."""
    db = engine(url, 1)
    try:
        async with db.begin() as connection:
            ended = await connection.execute(_CUT, {"share": share})
            return len(ended.fetchall())
    finally:
        await db.dispose()


class SQLCounting(Application[Number, SQLStore]):
    """Holds the last number of each key, and tells of any but the next one."""

    def __init__(self, db: AsyncEngine) -> None:
        self._db = db

    def adapter(self, spec: JournalSpec) -> Adapter[Number]:
        return json_adapter(Number)

    def output_adapter(self, shard: Shard) -> Adapter[Number]:
        return json_adapter(Number)

    def new_store(self, shard: Shard, recorder: Any) -> SQLStore:
        return SQLStore(self._db, table=_CHECKPOINTS, cache={})

    async def consume_message(
        self,
        shard: Shard,
        store: SQLStore,
        envelope: Envelope[Number],
        publisher: Publisher[Number],
    ) -> None:
        if envelope.flags == ACK_TXN:
            return
        message = envelope.message
        last = store.cache.get(message.key)
        if last is None:
            connection = await store.transaction()
            found = await connection.execute(_READ, {"key": message.key})
            last = found.scalar_one_or_none() or 0
        if message.number != last + 1:
            # A primary that was fenced off may see what its successor has committed. So it counts
            # only if the transaction commits, which its fence decides.
            connection = await store.transaction()
            text = f"{_BROKEN}: {message.number} of {message.key} follows {last}"
            await connection.execute(_WRITE, {"key": text, "number": 0})
        store.cache[message.key] = message.number
        await publisher.publish_uncommitted(lambda _: (OUT, LINES), message)

    async def finalize_txn(
        self, shard: Shard, store: SQLStore, publisher: Publisher[Number]
    ) -> None:
        if store.cache:
            rows = [{"key": key, "number": number} for key, number in store.cache.items()]
            await (await store.transaction()).execute(_WRITE, rows)
            # The next transaction reads what this one has committed.
            store.cache.clear()


if __name__ == "__main__":
    main(SQLCounting(engine(os.environ["SOAK_DATABASE"])))
