"""Count words in RocksDB: a consumer whose state may outgrow the memory of its members.

A shard counts the words of lines in a RocksDB, whose files are recorded in the shard's recovery
log. When its member crashes, another one, which has followed the log as a hot standby, goes on with
the next line.

This program runs everything within one process, crashes a member after half of a text, and prints
the counts.

    python -m examples.rocksdb_word_count
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio import ACK_TXN, Envelope, Publisher, json_adapter
from gazette_aio.consumer import Application, RocksDBStore
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.testing import consumer_harness, create_journals, journal_spec

if TYPE_CHECKING:
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec
    from gazette_aio.testing.consumers import ConsumerHarness

LINES = "examples/words/lines"
LOG = "examples/words/recovery/count-000"
WORDS = b"word:"

TEXT = ("the journals of gazette are logs", "the logs of a shard are journals")


class Line(msgspec.Struct):
    """A line of text."""

    text: str


class WordCount(Application[Line, RocksDBStore]):
    """Counts words. The key of a count is its word."""

    def adapter(self, spec: JournalSpec) -> Adapter[Line]:
        """Lines are JSON."""
        return json_adapter(Line)

    def new_store(self, shard: Shard, recorder: Any) -> RocksDBStore:
        """Counts are in a database, which the shard's recovery log restores."""
        return RocksDBStore(recorder)

    def consume_message(
        self,
        shard: Shard,
        store: RocksDBStore,
        envelope: Envelope[Line],
        publisher: Publisher[Any],
    ) -> None:
        """Count the words of a line."""
        if envelope.flags == ACK_TXN:
            return
        for word in envelope.message.text.split():
            key = WORDS + word.encode()
            store.put(key, b"%d" % (int(store.get(key) or 0) + 1))


async def main() -> None:
    """Count words by two members, the first of which crashes."""
    async with consumer_harness(WordCount()) as harness:
        lines = journal_spec(LINES, labels={"content-type": "application/x-ndjson"})
        log = journal_spec(LOG, labels={"content-type": "application/x-gazette-recoverylog"})
        await create_journals(harness.client, lines, log)
        first = await harness.start_member()
        shard = ShardSpec(
            id="count-000",
            recovery_log_prefix="examples/words/recovery",
            hint_prefix="/examples/words/hints",
            hot_standbys=1,
        )
        shard.sources.add(journal=LINES)
        shard.max_txn_duration.seconds = 1
        await harness.create_shards(shard)
        await harness.start_member()
        for text in TEXT:
            await harness.client.append(LINES, msgspec.json.encode(Line(text)) + b"\n")
            await harness.wait_for_shards()
            if text == TEXT[0]:
                await harness.crash_member(first)
        for word, count in await counts(harness):
            print(f"{count} {word}")


async def counts(harness: ConsumerHarness) -> list[tuple[str, int]]:
    """Return words and their counts, as of the member that serves the shard."""
    async with harness.members[0].resolver.resolve("count-000") as resolution:
        return [
            (key.removeprefix(WORDS).decode(), int(count))
            for key, count in resolution.store.items(WORDS, WORDS + b"\xff")
        ]


if __name__ == "__main__":
    asyncio.run(main())
