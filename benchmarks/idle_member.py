"""A member with idle shards in a process of its own.

`python -m benchmarks.idle_member BROKER SHARDS`: once all shards are primaries, and some seconds
have passed, it prints the bytes of memory that the process holds, and its part of a core.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_aio import connect, json_adapter
from gazette_aio.consumer import Application, ConsumerOptions, EmbeddedStore, MemoryStore, Service
from gazette_aio.consumer.api import apply_shards, connect_shards, list_shards
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from gazette_aio.consumer import Shard
    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.message import Envelope, Publisher

SECONDS = 10.0
_SHARDS_AT_ONCE = 100


def source_of(number: int) -> str:
    """Return the name of a shard's journal."""
    return f"bench/source-{number:04}"


class Idle(Application[Any, Any]):
    """Counts messages, of which there are none."""

    def adapter(self, _spec: object) -> Any:
        """Return the adapter of JSON lines."""
        return json_adapter()

    def new_store(self, _shard: Shard, _recorder: object) -> MemoryStore[Any]:
        """Return a store in memory."""
        return MemoryStore({"count": 0})

    def consume_message(
        self, _shard: Shard, store: Any, _envelope: Envelope[Any], _publisher: Publisher[Any]
    ) -> None:
        """Count a message."""
        store.state["count"] += 1


def shards_of(count: int) -> list[pc.ShardSpec]:
    """Return the specs of so many shards, each of a journal of its own."""
    specs: list[pc.ShardSpec] = []
    for number in range(count):
        spec = pc.ShardSpec(id=f"shard-{number:04}")
        spec.sources.add(journal=source_of(number))
        spec.max_txn_duration.FromSeconds(1)
        specs.append(spec)
    return specs


async def primaries(shards: ShardClient) -> int:
    """Return the number of shards that have a primary which is at work."""
    listing = await list_shards(shards)
    codes = [status.code for shard in listing.shards for status in shard.status]
    return codes.count(pc.ReplicaStatus.PRIMARY)


def resident_bytes() -> int:
    """Return the memory of this process, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run(broker: str, count: int) -> tuple[int, float]:
    """Run a member, and return its bytes, and its part of a core."""
    options = ConsumerOptions(prefix="/bench", host="127.0.0.1", bind="127.0.0.1", limit=count)
    async with (
        connect(broker) as client,
        EmbeddedStore() as store,
        Service(Idle(), store, client, options) as member,
        connect_shards(member.endpoint) as shards,
    ):
        specs = shards_of(count)
        for begin in range(0, count, _SHARDS_AT_ONCE):
            changes = [
                pc.ApplyRequest.Change(upsert=spec)
                for spec in specs[begin : begin + _SHARDS_AT_ONCE]
            ]
            await apply_shards(shards, pc.ApplyRequest(changes=changes))
        while await primaries(shards) < count:  # noqa: ASYNC110 - It's asked by an RPC.
            await asyncio.sleep(0.2)
        await asyncio.sleep(SECONDS)
        begun, used = time.monotonic(), time.process_time()
        await asyncio.sleep(SECONDS)
        part = (time.process_time() - used) / (time.monotonic() - begun)
        return resident_bytes(), part


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2])))))
