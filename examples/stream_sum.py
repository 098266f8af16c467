"""Sum streams whose chunks come interleaved: a consumer with state that survives its members.

Chunks of many streams are published in transactions. A shard of each partition sums the chunks of
its streams, keeps running sums in a file recorded in the shard's recovery log, and publishes the
final sum of a stream with its last chunk. Sums, offsets and published messages commit together.

This program runs everything within one process: it publishes random streams, crashes a member in
the middle, lets another one take over, and checks each sum.

    python -m examples.stream_sum

The consumer alone, as a member of a group on Etcd, with a real or embedded broker:

    python -m examples.stream_sum serve --broker.address=http://localhost:8080
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio import (
    Envelope,
    JournalClient,
    Publisher,
    ReadCommittedIter,
    connect,
    json_adapter,
    load_journal_space,
)
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.consumer import Application, ConsumerOptions, EmbeddedStore, Service, main
from gazette_aio.consumer.api import apply_shards, connect_shards
from gazette_aio.consumer.shardspace import load_shard_space
from gazette_aio.consumer.stores import JSONFileStore
from gazette_aio.message import ACK_TXN

if TYPE_CHECKING:
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

CHUNKS = ["examples/stream-sum/chunks/part-000", "examples/stream-sum/chunks/part-001"]
SUMS = "examples/stream-sum/sums"
LINES = "application/x-ndjson"

JOURNALS = """
name: examples/stream-sum/
replication: 1
labels:
  - {name: content-type, value: application/x-ndjson}
fragment: {length: 16777216, compression_codec: ZSTANDARD, refresh_interval: 1m0s}
children:
  - name: examples/stream-sum/chunks/
    children: [{name: examples/stream-sum/chunks/part-000}, {name: examples/stream-sum/chunks/part-001}]
  - name: examples/stream-sum/recovery/
    labels: [{name: content-type, value: application/x-gazette-recoverylog}]
    children: [{name: examples/stream-sum/recovery/sum-000}, {name: examples/stream-sum/recovery/sum-001}]
  - name: examples/stream-sum/sums
"""  # noqa: E501

SHARDS = """
common:
  recovery_log_prefix: examples/stream-sum/recovery
  hint_prefix: /examples/stream-sum/hints
  hint_backups: 2
  max_txn_duration: 1s
shards:
  - id: sum-000
    sources: [{journal: examples/stream-sum/chunks/part-000}]
  - id: sum-001
    sources: [{journal: examples/stream-sum/chunks/part-001}]
"""


class Chunk(msgspec.Struct):
    """A chunk of a stream. The last one has no data."""

    id: str
    seq_no: int
    data: bytes


class Sum(msgspec.Struct):
    """Sum of the chunks of a stream, up to one of them."""

    id: str
    seq_no: int = 0
    value: int = 0

    def add(self, chunk: Chunk) -> bool:
        """Add a chunk, and return whether it's the last one."""
        if chunk.seq_no != self.seq_no + 1:
            raise ValueError(f"chunk {chunk.seq_no} of stream {self.id} follows {self.seq_no}")
        self.seq_no = chunk.seq_no
        self.value = zlib.crc32(chunk.data, self.value)
        return not chunk.data


Sums = dict[str, Sum]


class StreamSum(Application[Chunk, JSONFileStore[Sums]]):
    """Sums streams."""

    def adapter(self, spec: JournalSpec) -> Adapter[Chunk]:
        """Chunks are lines of JSON."""
        return json_adapter(Chunk)

    def output_adapter(self, shard: Shard) -> Adapter[Sum]:
        """Sums are, too."""
        return json_adapter(Sum)

    def new_store(self, shard: Shard, recorder: Any) -> JSONFileStore[Sums]:
        """Running sums are in one file, which the shard's recovery log restores."""
        return JSONFileStore(recorder, Sums(), loads=msgspec.json.Decoder(Sums).decode)

    async def consume_message(
        self,
        shard: Shard,
        store: JSONFileStore[Sums],
        envelope: Envelope[Chunk],
        publisher: Publisher[Sum],
    ) -> None:
        """Add a chunk to the sum of its stream."""
        if envelope.flags == ACK_TXN:
            return
        chunk = envelope.message
        total = store.state.setdefault(chunk.id, Sum(chunk.id))
        if total.add(chunk):
            del store.state[chunk.id]
            await publisher.publish_uncommitted(lambda _: (SUMS, LINES), total)


def partition_of(chunk: Chunk) -> tuple[str, str]:
    """Return the journal of a chunk: one for each stream."""
    return CHUNKS[zlib.crc32(chunk.id.encode()) % len(CHUNKS)], LINES


async def publish_streams(client: JournalClient, streams: int, chunks: int, seed: int) -> Sums:
    """Publish random streams, interleaved, and return their sums."""
    rng = random.Random(seed)
    sums = {f"{rng.getrandbits(64):016x}": Sum("") for _ in range(streams)}
    for name, total in sums.items():
        total.id = name
    publisher = Publisher(client.appends, json_adapter(Chunk))
    for number in range(1, chunks + 1):
        async with publisher.transaction():
            for name in rng.sample(list(sums), len(sums)):
                data = rng.randbytes(rng.randrange(1, 100)) if number < chunks else b""
                chunk = Chunk(name, number, data)
                sums[name].add(chunk)
                await publisher.publish_uncommitted(partition_of, chunk)
    return sums


async def read_sums(client: JournalClient, count: int) -> Sums:
    """Read committed sums until there are `count` of them. Each stream has one."""
    sums: Sums = {}
    async with ReadCommittedIter(
        SUMS, json_adapter(Sum), client=client, skip_acks=True, block=True
    ) as envelopes:
        async for envelope in envelopes:
            assert envelope.message.id not in sums, "a stream was summed twice"
            sums[envelope.message.id] = envelope.message
            if len(sums) == count:
                break
    return sums


async def demonstrate(streams: int, chunks: int, seed: int) -> None:
    """Run members, one of which crashes, and check that all sums are right."""
    async with (
        EmbeddedBroker() as broker,
        connect(broker.endpoint) as client,
        EmbeddedStore() as store,
    ):
        await client.apply(load_journal_space(JOURNALS).to_apply_request())

        def member(name: str) -> Service:
            options = ConsumerOptions(id=name, host="127.0.0.1", bind="127.0.0.1")
            return Service(StreamSum(), store, client, options)

        crashing = member("first")
        await crashing.start()
        async with connect_shards(crashing.endpoint) as shards:
            await apply_shards(shards, load_shard_space(SHARDS).to_apply_request())
        reading = asyncio.create_task(read_sums(client, streams))
        expected = await publish_streams(client, streams, chunks, seed)
        async with member("second"):
            await crashing.aclose()
            print(f"{crashing.process_id.suffix} has gone, second takes over")
            actual = await reading
        assert actual == expected, "the sums differ"
        print(f"{len(actual)} streams of {chunks} chunks were summed exactly once (seed {seed})")


if __name__ == "__main__":
    if sys.argv[1:2] in (["serve"], ["print-config"]):
        main(StreamSum())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    args = parser.parse_args()
    asyncio.run(demonstrate(args.streams, args.chunks, args.seed))
