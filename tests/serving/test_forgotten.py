"""Servers and clients that are forgotten, and collected after their event loop was closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, gc, sys
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.consumer import EmbeddedStore
from gazette_aio.consumer.api import connect_shards
from gazette_aio.testing import ConsumerHarness, StubBroker, create_journals, journal_spec

class Application:
    def adapter(self, spec): ...
    def new_store(self, shard, recorder): ...
    def consume_message(self, shard, store, envelope, publisher): ...

async def broker():
    broker = await EmbeddedBroker().__aenter__()
    client = await connect(broker.endpoint).__aenter__()
    await client.list()
    return broker, client

async def stub():
    return await StubBroker().__aenter__()

async def reader():
    async with EmbeddedBroker() as broker:
        client = await connect(broker.endpoint).__aenter__()
        await create_journals(client, journal_spec("a/journal"))
        await client.append("a/journal", b"content")
        reader = client.read("a/journal", block=True)
        assert await reader.read() == b"content"
        reading = asyncio.ensure_future(reader.read())
        await client.append("a/journal")
        return client, reader, reading

async def member():
    server, client = await broker()
    store = await EmbeddedStore().__aenter__()
    harness = await ConsumerHarness(Application(), client, store).__aenter__()
    member = await harness.start_member()
    return server, harness, await connect_shards(member.endpoint).__aenter__()

with asyncio.Runner() as runner:
    forgotten = runner.run(globals()[sys.argv[1]]())
if sys.argv[2] == "collected":
    del forgotten, runner
    gc.collect()
print("over", flush=True)
"""


def run(warnings: str, what: str, when: str) -> str:
    """Run the script, and return its remarks."""
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", SCRIPT, what, when],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    return done.stderr


@pytest.mark.parametrize("what", ["broker", "stub", "member"])
def test_a_process_ends_though_warnings_are_errors(what: str) -> None:
    assert "ResourceWarning: a gRPC server was not stopped" in run("error", what, "collected")


@pytest.mark.parametrize("when", ["collected", "at the end"])
@pytest.mark.parametrize("what", ["broker", "stub", "reader", "member"])
def test_a_process_ends_in_spite_of_what_it_forgot(what: str, when: str) -> None:
    remarks = run("default", what, when)
    assert "Exception ignored" not in remarks
    if when == "collected":
        assert "ResourceWarning" in remarks
        assert ("a gRPC server was not stopped" in remarks) == (what != "reader")
