"""Databases of stores' tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

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
    return _of_psycopg(request.getfixturevalue("postgres_url"))


@pytest_asyncio.fixture
async def db(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Engine of a database of each kind, with the tables of tests."""
    async with _opened(database_url) as made:
        yield made


@pytest_asyncio.fixture
async def postgres_db(postgres_url: str) -> AsyncIterator[AsyncEngine]:
    """Engine of PostgreSQL, with the tables of tests."""
    async with _opened(_of_psycopg(postgres_url)) as made:
        yield made


def _of_psycopg(url: str) -> str:
    with_driver = sa.make_url(url).set(drivername="postgresql+psycopg")
    return with_driver.render_as_string(hide_password=False)


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[AsyncEngine]:
    made = engine(url)
    await SQLStore.create_table(made)
    async with made.begin() as connection:
        await connection.run_sync(COUNTS.metadata.create_all)
    yield made
    await made.dispose()
