"""SQLStore on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateTable

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.stores import SQLStore, checkpoint_table
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.protocol.errors import (
    ConfigurationError,
    DependencyError,
    FencedError,
    StoreError,
)
from gazette_aio.testing import StubShard
from tests.blocking import blocking_calls_refused
from tests.cancellation import cancel_at_every_await
from tests.consumer.stores.databases import checkpoint_at, committed, engine, read, write
from tests.waiting import eventually, turns

FENCED = r"^checkpoint fence was updated \(ie, by a new primary\)$"


@pytest.fixture
def shard() -> StubShard:
    return StubShard(f"shard-{uuid.uuid4().hex}")


async def opened(db: AsyncEngine, shard: StubShard, **options: Any) -> SQLStore:
    store = SQLStore(db, **options)
    await store.restore_checkpoint(shard)
    return store


def in_use(db: AsyncEngine) -> int:
    """Return how many connections aren't in the pool."""
    count: int = db.pool.checkedout()  # type: ignore[attr-defined]
    return count


async def run_sql(db: AsyncEngine, statement: str, shard: StubShard) -> None:
    async with db.begin() as connection:
        await connection.execute(sa.text(statement), {"fqn": shard.fqn, "nothing": b""})


async def test_a_fence_that_others_have_raised(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    await run_sql(
        db, "UPDATE gazette_checkpoints SET fence = fence + 1 WHERE shard_fqn = :fqn", shard
    )
    with pytest.raises(FencedError, match=FENCED):
        await store.start_commit(shard, checkpoint_at(1), ())
    with pytest.raises(FencedError, match=FENCED):
        await store.transaction()


async def test_a_row_with_a_fence_below_zero(db: AsyncEngine, shard: StubShard) -> None:
    insert = (
        "INSERT INTO gazette_checkpoints (shard_fqn, fence, checkpoint) VALUES (:fqn, -1, :nothing)"
    )
    await run_sql(db, insert, shard)
    text = {
        "sqlite": r"^UNIQUE constraint failed: gazette_checkpoints\.shard_fqn$",
        "postgresql": r"^duplicate key value violates unique constraint",
    }[db.dialect.name]
    with pytest.raises(StoreError, match=text):
        await SQLStore(db).restore_checkpoint(shard)
    assert in_use(db) == 0


async def test_writes_are_part_of_the_commit(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard, cache={"kept": 1})
    connection = await store.transaction()
    await write(store, shard.id, "one")
    assert await store.transaction(isolation_level="ignored") is connection
    assert await read(store, shard.id) == "one"
    assert await committed(db, shard) == (1, 0, None)
    dependency = AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [dependency])
    # The next transaction sees what this one has written, so it waits for the commit.
    following = asyncio.create_task(store.transaction())
    await asyncio.sleep(0)
    assert not following.done()
    dependency.resolve()
    await commit
    await following
    assert await read(store, shard.id) == "one"
    assert await committed(db, shard) == (1, 1, "one")
    assert store.cache == {"kept": 1}
    await store.destroy()
    await store.destroy()
    assert in_use(db) == 0


async def test_an_engine_is_shared_by_tasks(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    connections = await asyncio.gather(*(store.transaction() for _ in range(5)))
    assert len(set(map(id, connections))) == 1
    assert in_use(db) == 1
    await store.destroy()


async def test_a_failing_dependency_rolls_back_at_once(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    await write(store, shard.id, "lost")
    pending, failing = AsyncOperation(), AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [pending, failing])
    await asyncio.sleep(0)
    failing.resolve(OSError("no space"))
    with pytest.raises(DependencyError, match=r"^dependency failed: no space$"):
        await commit
    assert in_use(db) == 0
    with pytest.raises(DependencyError):
        await store.transaction()
    assert await committed(db, shard) == (1, 0, None)


async def test_a_failing_statement_fails_the_commit(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    await write(store, shard.id, "lost")
    connection = await store.transaction()
    if db.dialect.name == "sqlite":
        # There, only the statement is undone that failed; so the commit itself has to fail.
        await connection.execute(sa.text("DROP TABLE gazette_checkpoints"))
    else:
        with pytest.raises(sa.exc.ProgrammingError):
            await connection.execute(sa.text("SELECT * FROM missing"))
    with pytest.raises(StoreError, match=r"no such table|current transaction is aborted"):
        await store.start_commit(shard, checkpoint_at(1), ())
    assert in_use(db) == 0
    assert await committed(db, shard) == (1, 0, None)


async def test_applications_do_not_commit(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    await (await store.transaction()).rollback()
    with pytest.raises(StoreError, match="the application ended the transaction"):
        await store.start_commit(shard, checkpoint_at(1), ())
    assert in_use(db) == 0
    assert await committed(db, shard) == (1, 0, None)


async def test_pipelined_transactions(postgres_db: AsyncEngine, shard: StubShard) -> None:
    db = postgres_db
    store = await opened(db, shard, pipeline=True)
    await write(store, shard.id, "one")
    dependency = AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [dependency])
    # It begins now, and sees nothing of the one before.
    assert await read(store, shard.id) is None
    assert in_use(db) == 2
    dependency.resolve()
    await commit
    await write(store, shard.id, "two")
    await store.start_commit(shard, checkpoint_at(2), ())
    assert await committed(db, shard) == (1, 2, "two")
    dependency = AsyncOperation()
    await write(store, shard.id, "three")
    commit = store.start_commit(shard, checkpoint_at(3), [dependency])
    await store.transaction()
    dependency.resolve(OSError("no space"))
    with pytest.raises(DependencyError):
        await commit
    with pytest.raises(DependencyError):
        await store.transaction()
    await store.destroy()
    assert in_use(db) == 0


async def test_isolation_levels(postgres_db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(postgres_db, shard)
    connection = await store.transaction(isolation_level="SERIALIZABLE")
    shown = (await connection.execute(sa.text("SHOW transaction_isolation"))).scalar()
    assert shown == "serializable"
    await store.start_commit(shard, checkpoint_at(1), ())
    connection = await store.transaction()
    shown = (await connection.execute(sa.text("SHOW transaction_isolation"))).scalar()
    assert shown == "read committed"
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        await store.transaction(isolation_level="autocommit")
    await store.destroy()


async def test_destroying_rolls_back_a_commit_that_waits(db: AsyncEngine, shard: StubShard) -> None:
    store = await opened(db, shard)
    await write(store, shard.id, "lost")
    dependency = AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [dependency])
    await store.destroy()
    with pytest.raises(StoreError, match="the store was destroyed"):
        await commit
    dependency.resolve()
    assert in_use(db) == 0
    assert await committed(db, shard) == (1, 0, None)


async def test_destroying_waits_for_a_commit_that_executes(
    postgres_db: AsyncEngine, shard: StubShard
) -> None:
    db = postgres_db
    store = await opened(db, shard)
    await write(store, shard.id, "kept")
    async with db.begin() as other:
        locked = sa.text("SELECT 1 FROM gazette_checkpoints WHERE shard_fqn = :fqn FOR UPDATE")
        await other.execute(locked, {"fqn": shard.fqn})
        commit = store.start_commit(shard, checkpoint_at(1), ())
        destroying = asyncio.create_task(store.destroy())
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not (await other.execute(waiting)).scalar():
            assert not commit.done()
        assert not destroying.done()
    await destroying
    await commit
    assert await committed(db, shard) == (1, 1, "kept")


async def test_calls_are_cancelled_at_every_await(db: AsyncEngine, shard: StubShard) -> None:
    await (await opened(db, shard)).start_commit(shard, checkpoint_at(4), ())
    stores: list[SQLStore] = []

    async def restore() -> None:
        stores.append(SQLStore(db))
        await stores[-1].restore_checkpoint(shard)

    async def change() -> None:
        stores.append(SQLStore(db))
        await stores[-1].restore_checkpoint(shard)
        await write(stores[-1], shard.id, "one")
        await stores[-1].destroy()

    async def check() -> None:
        await stores[-1].destroy()
        assert in_use(db) == 0
        store = SQLStore(db)
        assert await store.restore_checkpoint(shard) == checkpoint_at(4)
        await write(store, shard.id, "two")
        await store.destroy()
        assert (await committed(db, shard) or ())[1:] == (4, None)

    assert await cancel_at_every_await(restore, check) > 2
    assert await cancel_at_every_await(change, check) > 4


async def test_a_begin_that_is_cancelled_again_and_again_returns_its_connection(
    db: AsyncEngine, shard: StubShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries do that cancel all tasks of an event loop."""
    store = await opened(db, shard)
    beginning, may_close, close = asyncio.Event(), asyncio.Event(), AsyncConnection.close

    async def begin_never(_: Any) -> None:
        beginning.set()
        await asyncio.Event().wait()

    async def close_slowly(connection: Any) -> None:
        await may_close.wait()
        await close(connection)

    monkeypatch.setattr(AsyncConnection, "begin", begin_never)
    monkeypatch.setattr(AsyncConnection, "close", close_slowly)
    asking = asyncio.create_task(store.transaction())
    await beginning.wait()
    name = "gazette begin of a transaction"
    (begin,) = (each for each in asyncio.all_tasks() if each.get_name() == name)
    for _ in range(3):
        begin.cancel()
        await turns()
        assert not begin.done(), "it left although its connection is in use"
    may_close.set()
    with pytest.raises(StoreError, match="the begin of the transaction was cancelled"):
        await asking
    assert in_use(db) == 0
    await store.destroy()


async def test_a_commit_that_is_cancelled_again_and_again_is_undone(shard: StubShard) -> None:
    undoing, may_end = asyncio.Event(), asyncio.Event()
    undone: list[bool] = []

    async def apply() -> None:
        raise ValueError("not today")

    async def abandon() -> None:
        undoing.set()
        await may_end.wait()
        undone.append(True)

    commit = Commits().start((), apply, abandon)
    await undoing.wait()
    name = "gazette commit of a store"
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == name)
    for _ in range(3):
        task.cancel()
        await turns()
        assert not commit.done(), "it ended before it was undone"
    may_end.set()
    with pytest.raises(StoreError, match="it was cancelled"):
        await commit
    assert undone == [True]


async def test_a_cancelled_statement_fails_the_commit(
    postgres_db: AsyncEngine, shard: StubShard
) -> None:
    db = postgres_db
    store = await opened(db, shard)
    await write(store, shard.id, "lost")
    connection = await store.transaction()
    sleeping = asyncio.create_task(connection.execute(sa.text("SELECT pg_sleep(600)")))
    async with db.connect() as other:
        asleep = sa.text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE query LIKE 'SELECT pg_sleep(600)%' AND state = 'active'"
        )
        while not (await other.execute(asleep)).scalar():
            await other.rollback()
    sleeping.cancel()
    await asyncio.wait((sleeping,))
    assert sleeping.cancelled()
    with pytest.raises(StoreError):
        await store.start_commit(shard, checkpoint_at(1), ())
    assert in_use(db) == 0
    assert await committed(db, shard) == (1, 0, None)


async def test_no_call_blocks_the_event_loop(db: AsyncEngine, shard: StubShard) -> None:
    await (await opened(db, shard)).destroy()  # What is imported and inspected first, may.
    with blocking_calls_refused():
        store = await opened(db, shard)
        await write(store, shard.id, "one")
        await store.start_commit(shard, checkpoint_at(1), ())
        await store.destroy()


async def test_shards_share_a_file_of_sqlite(tmp_path: Path) -> None:
    db = engine(f"sqlite+aiosqlite:///{tmp_path}/shared.db")
    await asyncio.gather(*(SQLStore.create_table(db) for _ in range(3)))
    shards = [StubShard(f"shard-{number}") for number in range(8)]

    async def work(shard: StubShard) -> None:
        store = await opened(db, shard)
        for offset in range(5):
            connection = await store.transaction()
            await connection.execute(sa.text("SELECT * FROM gazette_checkpoints"))
            await store.start_commit(shard, checkpoint_at(offset), ())

    await asyncio.gather(*map(work, shards))
    async with db.connect() as connection:
        rows = sa.select(sa.func.count()).select_from(checkpoint_table())
        assert (await connection.execute(rows)).scalar() == len(shards)
    await db.dispose()


async def test_errors_of_the_database(tmp_path: Path, shard: StubShard) -> None:
    db = engine(f"sqlite+aiosqlite:///{tmp_path}/empty.db")
    with pytest.raises(StoreError, match=r"^no such table: gazette_checkpoints$"):
        await SQLStore(db).restore_checkpoint(shard)
    await SQLStore.create_table(db, table="others")
    await SQLStore(db, table="others").restore_checkpoint(shard)
    await run_sql(db, "UPDATE others SET checkpoint = x'ff' WHERE shard_fqn = :fqn", shard)
    with pytest.raises(StoreError, match=f"^checkpoint of {shard.fqn}: "):
        await SQLStore(db, table="others").restore_checkpoint(shard)
    assert in_use(db) == 0
    await db.dispose()
    db = engine(f"sqlite+aiosqlite:///{tmp_path}/missing/directory.db")
    for call in (SQLStore(db).restore_checkpoint(shard), SQLStore.create_table(db)):
        with pytest.raises(StoreError, match="unable to open database file"):
            await call
    await db.dispose()
    # The driver doesn't wait for the thread of a connection that couldn't be opened.
    await eventually(
        lambda: not any("_connection_worker" in each.name for each in threading.enumerate())
    )


async def test_engines_that_cannot_be_used(
    tmp_path: Path, postgres_db: AsyncEngine, shard: StubShard
) -> None:
    with pytest.raises(ConfigurationError, match="takes an AsyncEngine"):
        SQLStore(sa.create_engine("sqlite://"))  # type: ignore[arg-type]
    single = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/single.db", poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="connections are separate"):
        SQLStore(single)
    uncounted = engine(f"sqlite+aiosqlite:///{tmp_path}/uncounted.db")
    uncounted.dialect.supports_sane_rowcount = False
    with pytest.raises(ConfigurationError, match=r"counts the rows .* unlike sqlite\+aiosqlite"):
        SQLStore(uncounted)
    careless = postgres_db.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="commits by AUTOCOMMIT"):
        await SQLStore(careless).restore_checkpoint(shard)


def test_tables_of_dialects() -> None:
    metadata = sa.MetaData()
    table = checkpoint_table(metadata)
    assert metadata.tables["gazette_checkpoints"] is table

    def types(dialect: Any) -> list[str]:
        lines = str(CreateTable(table).compile(dialect=dialect)).strip().split("\n")[1:4]
        return [line.strip(" \t,").split(" ", 1)[1] for line in lines]

    assert types(sqlite.dialect()) == ["TEXT NOT NULL", "INTEGER NOT NULL", "BLOB NOT NULL"]
    assert types(postgresql.dialect()) == ["TEXT NOT NULL", "BIGINT NOT NULL", "BYTEA NOT NULL"]
    assert types(mysql.dialect()) == [
        "VARCHAR(700) NOT NULL",
        "BIGINT NOT NULL",
        "LONGBLOB NOT NULL",
    ]


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.delitem(sys.modules, "gazette_aio.consumer.stores.sql")
    with pytest.raises(ImportError, match=r"pip install 'gazette-aio\[postgres\]'"):
        importlib.import_module("gazette_aio.consumer.stores.sql")


class Process:
    """A process of `members`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str) -> Process:
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.consumer.stores.members", *arguments,
                stdin=pipe, stdout=pipe,
            )
        )  # fmt: skip

    async def line(self) -> str:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the process has ended"
        return line.decode().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())

    async def kill(self) -> list[str]:
        """Kill it, and return what it has said that wasn't read."""
        self.process.kill()
        rest, _ = await self.process.communicate()
        return rest.decode().splitlines()


@pytest.mark.slow
@pytest.mark.crash
async def test_kills_amid_commits(db: AsyncEngine, database_url: str, shard: StubShard) -> None:
    latest = 0
    for kill in range(4):
        process = await Process.start("commit_forever", database_url, shard.id)
        lines = [await process.line() for _ in range(2 * kill + 1)]
        lines += await process.kill()
        began = max(int(line.split()[1]) for line in lines if line.startswith("commits "))
        ended = [int(line.split()[1]) for line in lines if line.startswith("committed ")]
        store = SQLStore(db)
        checkpoint = await store.restore_checkpoint(shard)
        offset = checkpoint.sources["a/journal"].read_through
        # State and checkpoint are of one commit: the last that was acknowledged, or one begun after.
        assert offset in {*range(max(ended, default=0), began + 1), *([] if ended else [latest])}
        assert await read(store, shard.id) == (f"state {offset}" if offset else None)
        await store.destroy()
        latest = offset
    assert (await committed(db, shard) or (0,))[0] == 8


@pytest.mark.crash
async def test_exactly_one_of_two_processes_commits(
    db: AsyncEngine, database_url: str, shard: StubShard
) -> None:
    before = SQLStore(db)  # Of two which insert the row, one would fail before it has restored.
    await before.restore_checkpoint(shard)
    await before.destroy()
    first, second = [
        await Process.start("race", database_url, shard.id, value) for value in ("one", "two")
    ]
    assert await first.line() == await second.line() == "restored"
    for process in (first, second):
        process.tell("commit")
    said = [await process.line() for process in (first, second)]
    fence, offset, value = await committed(db, shard) or (0, 0, None)
    assert sorted(said) == [
        "committed",
        "fenced: checkpoint fence was updated (ie, by a new primary)",
    ]
    assert (fence, offset, value) == (3, 7, ["one", "two"][said.index("committed")])
    assert [await process.process.wait() for process in (first, second)] == [0, 0]
