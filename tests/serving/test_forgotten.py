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
from gazette_aio.consumer.api import connect_shards
from gazette_aio.testing import StubBroker, consumer_harness, create_journals, journal_spec

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
    harness = consumer_harness(Application())
    started = await harness.__aenter__()
    member = await started.start_member()
    return harness, started, member, await connect_shards(member.endpoint).__aenter__()

with asyncio.Runner() as runner:
    forgotten = runner.run(globals()[sys.argv[1]]())
if sys.argv[2] == "collected":
    del forgotten, runner
    gc.collect()
print("over", flush=True)
"""


@pytest.mark.parametrize("when", ["collected", "at the end"])
@pytest.mark.parametrize("what", ["broker", "stub", "reader", "member"])
def test_a_process_ends_in_spite_of_what_it_forgot(what: str, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT, what, when],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr
    assert "Exception ignored" not in done.stderr
    if when == "collected":
        assert "ResourceWarning" in done.stderr
        assert ("a gRPC server was not stopped" in done.stderr) == (what != "reader")
