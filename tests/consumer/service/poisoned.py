"""Consumers of messages that fail, as applications and as a program that kills itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from gazette_aio import ACK_TXN, connect, json_adapter
from gazette_aio.consumer import (
    Application,
    ConsumerOptions,
    DeadLetter,
    EmbeddedStore,
    Fail,
    JSONFileStore,
    MemoryDatabase,
    MemoryStore,
    Retry,
    Service,
    Skip,
    SQLStore,
)
from gazette_aio.consumer.api import apply_shards, connect_shards, stat_shard
from gazette_aio.protocol.consumer import ApplyRequest, ShardSpec, StatRequest

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE, OUT, DEAD, LOG = "orders", "shipped", "dead-letters", "recovery/shard-one"
SHARD = "shard-one"
LINES = "application/x-ndjson"


def shard_spec(**fields: Any) -> ShardSpec:
    spec = ShardSpec(id=SHARD, max_txn_duration={"seconds": 1}, **fields)
    spec.sources.add(journal=SOURCE)
    return spec


class Poisoned(Application[Any, Any]):
    """Notes and ships the numbers of messages, and then fails at some of them."""

    def __init__(self, *poison: int, decide: Callable[[Exception], Any] = lambda _: Fail()) -> None:
        self.poison = set(poison)
        self.decide = decide
        self.calls: list[int] = []
        self.decided: list[tuple[int | None, str]] = []
        self.ends: list[Any] = []
        self.database = MemoryDatabase()
        self.failing: Callable[[int], object] = self.fail

    def adapter(self, spec: Any) -> Any:
        return json_adapter()

    def new_store(self, shard: Any, recorder: Any) -> Any:
        return MemoryStore({"numbers": []}, self.database)

    def fail(self, number: int) -> None:
        if number in self.poison:
            raise KeyError("qty")

    def effects(self, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.flags == ACK_TXN:
            return
        number = envelope.message["number"]
        self.calls.append(number)
        store.state["numbers"].append(number)
        publisher.publish_uncommitted_nowait(lambda _: (OUT, LINES), {"number": number})
        self.failing(number)

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> Any:
        self.effects(store, envelope, publisher)

    def on_message_error(self, shard: Any, envelope: Any, error: Exception) -> Any:
        known = isinstance(envelope.message, dict)
        self.decided.append((envelope.message["number"] if known else None, repr(error)))
        return self.decide(error)

    def begin_txn(self, shard: Any, store: Any) -> None:
        pass

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        self.ends.append(commit)


class PoisonedAsync(Poisoned):
    async def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        self.effects(store, envelope, publisher)

    async def on_message_error(self, shard: Any, envelope: Any, error: Exception) -> Any:
        return super().on_message_error(shard, envelope, error)


class PoisonedBatch(Poisoned):
    def consume_batch(self, shard: Any, store: Any, envelopes: Any, publisher: Any) -> int:
        for envelope in envelopes:
            self.effects(store, envelope, publisher)
        return len(envelopes)


class PoisonedThread(Poisoned):
    """Works in a thread, and publishes the results."""

    async def consume_batch(self, shard: Any, store: Any, envelopes: Any, publisher: Any) -> int:
        numbers = await asyncio.to_thread(self.work, envelopes)
        store.state["numbers"] += numbers
        results = [{"number": number} for number in numbers]
        await publisher.publish_uncommitted_batch(self.mapped, results)
        return len(envelopes)

    def work(self, envelopes: Any) -> list[int]:
        numbers = [each.message["number"] for each in envelopes if each.flags != ACK_TXN]
        for number in numbers:
            self.calls.append(number)
            self.failing(number)
        return numbers

    def mapped(self, message: Any) -> tuple[str, str]:
        return OUT, LINES


class PoisonedMapping(PoisonedThread):
    """Publishes results that can't be mapped, after it has changed the store."""

    def work(self, envelopes: Any) -> list[int]:
        return [each.message["number"] for each in envelopes if each.flags != ACK_TXN]

    def mapped(self, message: Any) -> tuple[str, str]:
        self.fail(message["number"])
        return super().mapped(message)


class Killing(Poisoned):
    """Kills its process at a step."""

    def __init__(self, kind: str, directory: Path, kill_at: int) -> None:
        super().__init__(decide=self._decide)
        self.kind = kind
        self.kill_at = kill_at
        self.steps = 0
        self.db = create_async_engine(f"sqlite+aiosqlite:///{directory}/state.db")

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    async def new_store(self, shard: Any, recorder: Any) -> Any:
        if self.kind == "log":
            return JSONFileStore(recorder, dict[str, list[int]](numbers=[]))
        await SQLStore.create_table(self.db)
        async with self.db.begin() as connection:
            create = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER)"
            await connection.execute(text(create))
        return SQLStore(self.db)

    async def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if envelope.flags == ACK_TXN:
            return
        self.step()
        number = envelope.message["number"]
        if self.kind == "log":
            store.state["numbers"].append(number)
        else:
            connection = await store.transaction()
            insert = text("INSERT INTO numbers VALUES (:number)")
            await connection.execute(insert, {"number": number})
        await publisher.publish_uncommitted(lambda _: (OUT, LINES), {"number": number})
        self.step()
        if number % 10 in (3, 4):
            raise KeyError(number)

    def _decide(self, error: Exception) -> Any:
        self.step()
        is_dead = error.args[0] % 10 == 3
        return Retry(times=1, first_seconds=0, then=DeadLetter(DEAD) if is_dead else Skip())

    def begin_txn(self, shard: Any, store: Any) -> None:
        self.step()

    def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        self.step()

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        self.step()
        commit.add_done_callback(lambda _: self.step())


async def main(kind: str, broker: str, directory: str, kill_at: str, end: str) -> None:
    """Consume the source up to an offset, and say the state."""
    application = Killing(kind, Path(directory), int(kill_at))
    log = {"recovery_log_prefix": "recovery", "hint_prefix": "/hints"} if kind == "log" else {}
    async with (
        connect(broker) as client,
        EmbeddedStore(Path(directory) / "keys") as store,
        Service(
            application,
            store,
            client,
            ConsumerOptions(prefix="/poisoned", host="127.0.0.1", bind="127.0.0.1"),
        ) as member,
        connect_shards(member.endpoint) as shards,
    ):
        if not member.session.group.items:
            await apply_shards(shards, [ApplyRequest.Change(upsert=shard_spec(**log))])
        while not member.session.group.assignments(SHARD):
            await member.session.key_space.next_change()
        await stat_shard(shards, StatRequest(shard=SHARD, read_through={SOURCE: int(end)}))
        async with member.resolve(SHARD) as resolution:
            if kind == "log":
                numbers = resolution.store.state["numbers"]
            else:
                async with application.db.connect() as connection:
                    rows = await connection.execute(text("SELECT number FROM numbers"))
                    numbers = [number for (number,) in rows]
    await application.db.dispose()
    sys.stdout.write(str(sorted(numbers)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
