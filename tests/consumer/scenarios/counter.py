"""The application `counter`, whose texts and files the scenarios record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer import (
    Application,
    DeferToNextTransaction,
    JSONFileStore,
    MemoryStore,
    main,
)
from gazette_aio.message import ACK_TXN, json_adapter
from gazette_aio.protocol.labels import value_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer import Shard
    from gazette_aio.message import Adapter, Envelope, Publisher
    from gazette_aio.protocol import JournalSpec
    from gazette_aio.protocol.consumer import Checkpoint


class Counts(msgspec.Struct):
    """State of a shard, in the order of its file."""

    totals: dict[str, int] = {}
    messages: int = 0
    acks: int = 0
    txns: int = 0


class CounterStore:
    """Store in the recovery log, or else in memory; it fails as the shard's labels say."""

    def __init__(self, recorder: Any) -> None:
        self.inner: JSONFileStore[Counts] | MemoryStore[Counts]
        self.inner = (
            MemoryStore(Counts()) if recorder is None else JSONFileStore(recorder, Counts())
        )
        self.consumed = 0
        """Messages of this transaction."""

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> OpFuture[None]:
        """Commit, or return what has failed."""
        if _told_to_fail(shard, "commit"):
            return finished_operation(RuntimeError("told to fail StartCommit"))
        return self.inner.start_commit(shard, checkpoint, wait_for)

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        """Restore."""
        _fail(shard, "restore", "RestoreCheckpoint")
        return await self.inner.restore_checkpoint(shard)

    async def destroy(self) -> None:
        """Release what the store holds."""
        await self.inner.destroy()


class Counter(Application[dict[str, Any], CounterStore]):
    """Sums values by key, and publishes the sums to the journals that labels name."""

    def adapter(self, spec: JournalSpec, /) -> Adapter[dict[str, Any]]:
        """Messages are JSON."""
        if value_of(spec.labels, "fail") == "new-message":
            raise RuntimeError("told to fail NewMessage")
        return json_adapter(uuid_path="uuid")

    def output_adapter(self, shard: Shard, /) -> Adapter[dict[str, Any]]:
        """Published messages have the same form."""
        return json_adapter(uuid_path="uuid")

    def new_store(self, shard: Shard, recorder: Any, /) -> CounterStore:
        """Return the store of the shard."""
        if recorder is not None:
            _fail(shard, "new-store", "NewStore")
        return CounterStore(recorder)

    def begin_txn(self, shard: Shard, store: CounterStore, /) -> None:
        """Begin to count the messages of a transaction."""
        _fail(shard, "begin", "BeginTxn")
        store.consumed = 0

    def finished_txn(self, shard: Shard, store: CounterStore, commit: OpFuture[None], /) -> None:
        """Nothing is to be done."""

    async def consume_message(
        self,
        shard: Shard,
        store: CounterStore,
        envelope: Envelope[dict[str, Any]],
        publisher: Publisher[Any],
        /,
    ) -> None:
        """Count a message, and publish its key's sum."""
        message = envelope.message
        key, value = message.get("key", ""), message.get("value", 0)
        if key == "!defer-always" or (key == "!defer" and store.consumed):
            raise DeferToNextTransaction
        store.consumed += 1
        state = store.inner.state
        if envelope.flags & ACK_TXN:
            state.acks += 1
            return
        if key == "!fail":
            raise RuntimeError("told to fail ConsumeMessage")
        if key == "!fail-long":
            raise RuntimeError("e" * value)
        state.messages += 1
        state.totals[key] = total = state.totals.get(key, 0) + value
        output = {name: content for name, content in (("key", key), ("value", total)) if content}
        is_committed = value_of(shard.spec.labels, "publish") == "committed"
        publish = (
            publisher.start_publish_committed if is_committed else publisher.publish_uncommitted
        )
        for journal in values_of(shard.spec.labels, "output") or ():
            await publish(_to(journal), output)

    def finalize_txn(self, shard: Shard, store: CounterStore, publisher: Publisher[Any], /) -> None:
        """Count the transaction."""
        _fail(shard, "finalize", "FinalizeTxn")
        store.inner.state.txns += 1


def _to(journal: str) -> Callable[[Any], tuple[str, str]]:
    return lambda _: (journal, "application/x-ndjson")


def _told_to_fail(shard: Shard, step: str) -> bool:
    return value_of(shard.spec.labels, "fail") == step


def _fail(shard: Shard, step: str, name: str) -> None:
    if _told_to_fail(shard, step):
        raise RuntimeError(f"told to fail {name}")


if __name__ == "__main__":
    main(Counter())
