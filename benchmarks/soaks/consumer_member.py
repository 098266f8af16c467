"""Member of the soak of consumers: it counts numbers by key, and publishes each of them on.

$SOAK_STORE names the store, whose files are recorded in recovery logs.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from gazette_aio import ACK_TXN, json_adapter
from gazette_aio.consumer import Application, JSONFileStore, RocksDBStore, SQLiteStore, main

if TYPE_CHECKING:
    from gazette_aio import Envelope, Publisher
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter
    from gazette_aio.protocol import JournalSpec

OUT = "soak/out"
LINES = "application/x-ndjson"


class Number(msgspec.Struct):
    """A number of a key. Those of a key ascend by one."""

    key: str
    number: int


Counts = dict[str, int]
S = TypeVar("S")


class Counting(Application[Number, S], ABC):
    """Holds the last number of each key, and refuses any but the next one."""

    @abstractmethod
    def last(self, store: S, key: str) -> int:
        """Return the last number of a key; zero if there's none."""

    @abstractmethod
    def put(self, store: S, key: str, number: int) -> None:
        """Set the last number of a key."""

    def adapter(self, spec: JournalSpec) -> Adapter[Number]:
        return json_adapter(Number)

    def output_adapter(self, shard: Shard) -> Adapter[Number]:
        return json_adapter(Number)

    async def consume_message(
        self, shard: Shard, store: S, envelope: Envelope[Number], publisher: Publisher[Number]
    ) -> None:
        if envelope.flags == ACK_TXN:
            return
        message = envelope.message
        last = self.last(store, message.key)
        if message.number != last + 1:
            raise ValueError(f"BROKEN: {message.number} of {message.key} follows {last}")
        self.put(store, message.key, message.number)
        await publisher.publish_uncommitted(lambda _: (OUT, LINES), message)


class JSONCounting(Counting[JSONFileStore[Counts]]):
    """Counts in a JSON file."""

    def new_store(self, shard: Shard, recorder: Any) -> JSONFileStore[Counts]:
        return JSONFileStore(recorder, Counts(), loads=msgspec.json.Decoder(Counts).decode)

    def last(self, store: JSONFileStore[Counts], key: str) -> int:
        return store.state.get(key, 0)

    def put(self, store: JSONFileStore[Counts], key: str, number: int) -> None:
        store.state[key] = number


class SQLiteCounting(Counting[SQLiteStore]):
    """Counts in an SQLite database."""

    def new_store(self, shard: Shard, recorder: Any) -> SQLiteStore:
        schema = "CREATE TABLE IF NOT EXISTS numbers (key TEXT PRIMARY KEY, number INTEGER)"
        return SQLiteStore(recorder, schema=schema)

    async def consume_message(
        self,
        shard: Shard,
        store: SQLiteStore,
        envelope: Envelope[Any],
        publisher: Publisher[Any],
    ) -> None:
        await store.transaction()
        await super().consume_message(shard, store, envelope, publisher)

    def last(self, store: SQLiteStore, key: str) -> int:
        row = store.db.execute("SELECT number FROM numbers WHERE key = ?", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    def put(self, store: SQLiteStore, key: str, number: int) -> None:
        store.db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (key, number))


class RocksDBCounting(Counting[RocksDBStore]):
    """Counts in a RocksDB."""

    def new_store(self, shard: Shard, recorder: Any) -> RocksDBStore:
        return RocksDBStore(recorder)

    def last(self, store: RocksDBStore, key: str) -> int:
        return int(store.get(key.encode()) or 0)

    def put(self, store: RocksDBStore, key: str, number: int) -> None:
        store.put(key.encode(), b"%d" % number)


APPLICATIONS: dict[str, type[Counting[Any]]] = {
    "json": JSONCounting,
    "sqlite": SQLiteCounting,
    "rocksdb": RocksDBCounting,
}


if __name__ == "__main__":
    main(APPLICATIONS[os.environ["SOAK_STORE"]]())
