"""Databases of stores' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gazette_aio.consumer.stores import SQLStore
from tests.consumer.stores.databases import COUNTS, engine
from tests.postgres import postgres_server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a PostgreSQL that tests of a process share. Shards tell their rows apart."""
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database of each kind."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/stores.db"
    url: str = request.getfixturevalue("postgres_url")
    return sa.make_url(url).set(drivername="postgresql+psycopg").render_as_string(False)


@pytest_asyncio.fixture
async def db(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Engine of a database with the tables of tests."""
    made: Any = engine(database_url)
    await SQLStore.create_table(made)
    async with made.begin() as connection:
        await connection.run_sync(COUNTS.metadata.create_all)
    yield made
    await made.dispose()
