"""RocksDB stores that go on after a member whose store is Gazette's own."""

from __future__ import annotations

from pathlib import Path

from rocksdict import Rdict

from gazette_aio.consumer.stores import RocksDBStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover

SHARD = StubShard("a-shard")


async def test_a_database_whose_making_was_broken_off(tmp_path: Path) -> None:
    """That store appends each operation by itself, and its log may end after any of them."""
    recorder = MemoryRecorder(tmp_path / "one")
    path = str(tmp_path / "one" / "000000.dbtmp")  # To be renamed to IDENTITY.
    recorder.record_write_at(recorder.record_create(path), b"an identity", 0)
    fsm, _ = recover(tmp_path / "two", recorder.content)
    again = MemoryRecorder(tmp_path / "two", fsm, recorder.content, author=2)
    store = RocksDBStore(again)
    try:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        store.put(b"key", b"value")
        await store.start_commit(SHARD, checkpoint_at(1), ())
    finally:
        await store.destroy()
    assert "/000000.dbtmp" not in again.links()
    recover(tmp_path / "three", again.content)
    with Rdict(str(tmp_path / "three"), RocksDBStore.default_options()) as db:
        assert db.get(b"key") == b"value"
