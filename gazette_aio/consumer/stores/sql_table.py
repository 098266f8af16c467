"""Table of the checkpoints and fences of SQL stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from gazette_aio.consumer.stores.sql_errors import as_store_error

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

TABLE: Final = "gazette_checkpoints"
"""Default name of the table. Stores of Go and Python may share it."""

_NAME: Final = sa.Text().with_variant(sa.String(700), "mysql", "mariadb")
_FENCE: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_CHECKPOINT: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def checkpoint_table(metadata: sa.MetaData | None = None, name: str = TABLE) -> sa.Table:
    """Return the table of checkpoints, for migrations that are generated of `metadata`.

    Args:
        metadata: Collection that the table becomes part of, if given.
        name: Name of the table.
    """
    return sa.Table(
        name,
        sa.MetaData() if metadata is None else metadata,
        sa.Column("shard_fqn", _NAME, primary_key=True, nullable=False),
        sa.Column("fence", _FENCE, nullable=False, autoincrement=False),
        sa.Column("checkpoint", _CHECKPOINT, nullable=False),
    )


async def create_checkpoint_table(db: AsyncEngine, table: sa.Table) -> None:
    """Create the table of checkpoints unless it exists.

    Raises:
        StoreError: It can't be created.

    Cancellation: aborts — the table may have been created.
    """
    try:
        if await _is_there(db, table):
            return
        try:
            async with db.begin() as connection:
                await connection.execute(CreateTable(table))
        except DBAPIError:
            # Race: another member may have created it meanwhile.
            if not await _is_there(db, table):
                raise
    except (SQLAlchemyError, OSError) as error:
        raise as_store_error(error) from error


async def _is_there(db: AsyncEngine, table: sa.Table) -> bool:
    async with db.connect() as connection:
        return await connection.run_sync(_has, table)


def _has(connection: sa.Connection, table: sa.Table) -> bool:
    return sa.inspect(connection).has_table(table.name, schema=table.schema)
