"""Processes of the tests of SQL stores. Each holds a store, and does what its arguments say."""

from __future__ import annotations

import asyncio
import sys

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores import SQLStore
from gazette_aio.protocol.errors import FencedError
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at, engine, write


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


async def heard(word: str) -> None:
    line = await asyncio.to_thread(sys.stdin.readline)
    assert line.strip() == word, line


async def commit_forever(store: SQLStore, shard: StubShard) -> None:
    """Commit 1, 2, 3, … until the process is killed."""
    number = 0
    while True:
        number += 1
        await write(store, shard.id, f"state {number}")
        say(f"commits {number}")
        await store.start_commit(shard, checkpoint_at(number), [finished_operation()])
        say(f"committed {number}")


async def race(store: SQLStore, shard: StubShard) -> None:
    """Commit once everybody has restored the checkpoint."""
    say("restored")
    await heard("commit")
    await write(store, shard.id, sys.argv[4])
    try:
        await store.start_commit(shard, checkpoint_at(7), ())
    except FencedError as error:
        say(f"fenced: {error}")
    else:
        say("committed")


async def main() -> None:
    """Arguments: the program, the URL of the database, the shard, and the value of a race."""
    program, url, shard = sys.argv[1], sys.argv[2], StubShard(sys.argv[3])
    db = engine(url)
    store = SQLStore(db)
    await store.restore_checkpoint(shard)
    programs = {"commit_forever": commit_forever, "race": race}
    await programs[program](store, shard)
    await store.destroy()
    await db.dispose()


if __name__ == "__main__":
    asyncio.run(main())
