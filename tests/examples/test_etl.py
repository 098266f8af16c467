"""The recipe of exactly once: read, transform, publish, and ten processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from examples import etl, etl_postgres
from gazette_aio import JournalClient, Publisher, ReadCommittedIter, connect, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.contrib.postgres import PostgresIntents
from gazette_aio.protocol.errors import FencedError, StoreError
from tests.postgres import postgres_server
from tests.waiting import eventually

pytestmark = pytest.mark.crash
KILLS = 10
ORDERS = 60
"""Orders published for each process."""


async def publish_orders(client: JournalClient, numbers: range) -> None:
    publisher = Publisher(client.appends, json_adapter(etl.Order))
    for begin in range(numbers.start, numbers.stop, 5):
        async with publisher.transaction():
            for number in range(begin, begin + 5):
                target = (etl.ORDERS[number % 2], "application/x-ndjson")
                await publisher.publish_uncommitted(
                    lambda _, target=target: target, etl.Order(number, number * 10)
                )
        await asyncio.sleep(0)


async def start(module: str, endpoint: str, *options: str) -> Any:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", module, *options,
        env={**os.environ, "BROKER_ADDRESS": endpoint},
    )  # fmt: skip


async def check_kills(
    client: JournalClient, endpoint: str, module: str, *options: str
) -> list[etl.Invoice]:
    """Kill processes amid their work, and find each invoice exactly once at the end."""
    await etl.create_journals(client)
    rng = random.Random(7)
    got: list[etl.Invoice] = []

    async def watch() -> None:
        source = ReadCommittedIter(
            etl.INVOICES, json_adapter(etl.Invoice), client=client, block=True, skip_acks=True
        )
        async with source as invoices:
            async for envelope in invoices:
                got.append(envelope.message)  # noqa: PERF401 - Others watch it grow.

    watching = asyncio.create_task(watch())
    published = 0
    for _ in range(KILLS):
        process = await start(module, endpoint, *options, "--follow")
        before, target = len(got), published + rng.randrange(1, ORDERS)
        publishing = asyncio.create_task(
            publish_orders(client, range(published, published + ORDERS))
        )
        published += ORDERS
        await eventually(lambda before=before, target=target: len(got) >= max(target, before + 1))
        process.kill()
        await process.wait()
        await publishing
    last = await start(module, endpoint, *options)
    assert await last.wait() == 0
    await eventually(lambda: len(got) >= published)
    watching.cancel()
    await asyncio.wait([watching])
    wanted = [etl.transform(etl.Order(number, number * 10)) for number in range(published)]
    assert sorted(got, key=lambda invoice: invoice.order) == wanted
    return wanted


@pytest.mark.slow
async def test_ten_kills(tmp_path: Any) -> None:
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint) as client,
    ):
        log = f"--log={tmp_path / 'invoices.intents'}"
        await check_kills(client, broker.endpoint, "examples.etl", log)


@pytest.fixture
def postgres() -> Iterator[str]:
    """URL of a database, of a server of its own unless POSTGRES_URL names one."""
    with postgres_server() as url:
        yield url


async def connection(url: str, *, autocommit: bool = True) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(url, autocommit=autocommit)


@pytest.mark.slow
async def test_ten_kills_with_postgresql(tmp_path: Any, postgres: str) -> None:
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint) as client,
    ):
        module, option = "examples.etl_postgres", f"--postgres={postgres}"
        invoices = await check_kills(client, broker.endpoint, module, option)
        database: Any = await connection(postgres)
        rows = await database.execute("SELECT id, cents FROM invoices ORDER BY id")
        assert await rows.fetchall() == [(i.order, i.total_cents) for i in invoices]

        # Whoever takes the log fences off the owner before, whose statements have no effect.
        old = PostgresIntents(database, "invoices")
        publisher = Publisher(client.appends, json_adapter(etl.Invoice))
        with pytest.raises(StoreError, match="call recover"):
            await publisher.transaction(intents=old).__aenter__()
        state = await old.recover(client.appends)
        other: Any = await connection(postgres)
        new = PostgresIntents(other, "invoices")
        assert await new.recover(client.appends) == state
        for _ in range(2):
            with pytest.raises(FencedError, match="'invoices' was taken"):  # noqa: PT012
                async with publisher.transaction(intents=old) as transaction:
                    old.execute(etl_postgres.INSERT, ([-1], [0]))
                    transaction.state = {"lost": True}
        with pytest.raises(FencedError):
            await old.recover(client.appends)
        with pytest.raises(StoreError, match="duplicate key"):  # noqa: PT012
            async with publisher.transaction(intents=new) as transaction:
                new.execute(etl_postgres.INSERT, ([0], [0]))
                transaction.state = {"lost": True}
        assert await new.recover(client.appends) == state
        count = await other.execute("SELECT count(*) FROM invoices")
        assert await count.fetchone() == (len(invoices),)
        await database.close()
        await other.close()
        with pytest.raises(StoreError, match="closed"):
            await new.recover(client.appends)
