"""Tables and programs of the tests of SQL stores."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gazette_aio.consumer.stores import SQLStore
from gazette_aio.protocol.consumer import Checkpoint

COUNTS = sa.Table(
    "counts",
    sa.MetaData(),
    sa.Column("shard", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

UPSERT = sa.text(
    "INSERT INTO counts (shard, value) VALUES (:shard, :value) "
    "ON CONFLICT (shard) DO UPDATE SET value = excluded.value"
)


def engine(url: str) -> AsyncEngine:
    # Others may have a file of SQLite locked for long on a busy machine.
    patience = {"timeout": 120} if url.startswith("sqlite") else {}
    return create_async_engine(url, pool_size=5, max_overflow=50, connect_args=patience)


def checkpoint_at(offset: int) -> Checkpoint:
    checkpoint = Checkpoint()
    checkpoint.sources["a/journal"].read_through = offset
    return checkpoint


async def write(store: SQLStore, shard: str, value: str) -> None:
    connection = await store.transaction()
    await connection.execute(UPSERT, {"shard": shard, "value": value})


async def read(store: SQLStore, shard: str) -> str | None:
    connection = await store.transaction()
    selected = sa.select(COUNTS.c.value).where(COUNTS.c.shard == shard)
    value: str | None = (await connection.execute(selected)).scalar()
    return value


async def committed(db: AsyncEngine, shard: Any) -> tuple[int, int, str | None] | None:
    """Return the fence, the offset and the value that are committed for a shard."""
    async with db.connect() as connection:
        row = (
            await connection.execute(
                sa.text("SELECT fence, checkpoint FROM gazette_checkpoints WHERE shard_fqn = :fqn"),
                {"fqn": shard.fqn},
            )
        ).one_or_none()
        value = (
            await connection.execute(sa.select(COUNTS.c.value).where(COUNTS.c.shard == shard.id))
        ).scalar()
    if row is None:
        return None
    checkpoint = Checkpoint.FromString(bytes(row.checkpoint))
    return row.fence, checkpoint.sources["a/journal"].read_through, value
