"""Consumer framework: applications that transform messages with exactly-once state.

An application implements `Application`, and `run_consumer()` or `main()` makes its process a member
of a group. Imports `message`, `client`, `serving`, `aio` and `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio._lazy import first_use

if TYPE_CHECKING:
    from gazette_aio.consumer.application import (
        Application,
        BatchConsumer,
        BeginFinisher,
        DeferToNextTransaction,
        MessageProducer,
        MessageSink,
        Progress,
        Shard,
        Store,
    )
    from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
    from gazette_aio.consumer.service.options import ConsumerOptions
    from gazette_aio.consumer.service.process import main, run_consumer
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.shards.resolver import Resolution, Resolver
    from gazette_aio.consumer.stores import (
        CompareAndSetStore,
        JSONFileStore,
        MemoryDatabase,
        MemoryStore,
        RocksDBStore,
        SQLiteStore,
        SQLiteVFSStore,
        SQLStore,
        StoredRecord,
    )

__all__ = [
    "Application",
    "BatchConsumer",
    "BeginFinisher",
    "CompareAndSetStore",
    "ConsumerOptions",
    "DeferToNextTransaction",
    "EmbeddedStore",
    "EtcdOptions",
    "EtcdStore",
    "JSONFileStore",
    "MemoryDatabase",
    "MemoryStore",
    "MessageProducer",
    "MessageSink",
    "Progress",
    "Resolution",
    "Resolver",
    "RocksDBStore",
    "SQLStore",
    "SQLiteStore",
    "SQLiteVFSStore",
    "Service",
    "Shard",
    "Store",
    "StoredRecord",
    "main",
    "run_consumer",
]

_APPLICATION = "gazette_aio.consumer.application"
_SERVICE = "gazette_aio.consumer.service"
_STORES = "gazette_aio.consumer.stores"

# Imported at first use: clients of shards need no servers.
_MODULES = {
    "Application": _APPLICATION,
    "BatchConsumer": _APPLICATION,
    "BeginFinisher": _APPLICATION,
    "CompareAndSetStore": _STORES,
    "ConsumerOptions": f"{_SERVICE}.options",
    "DeferToNextTransaction": _APPLICATION,
    "EmbeddedStore": "gazette_aio.consumer.keyspace.embedded",
    "EtcdOptions": "gazette_aio.consumer.keyspace.etcd.options",
    "EtcdStore": "gazette_aio.consumer.keyspace.etcd.store",
    "JSONFileStore": _STORES,
    "MemoryDatabase": _STORES,
    "MemoryStore": _STORES,
    "MessageProducer": _APPLICATION,
    "MessageSink": _APPLICATION,
    "Progress": _APPLICATION,
    "Resolution": "gazette_aio.consumer.shards.resolver",
    "Resolver": "gazette_aio.consumer.shards.resolver",
    "RocksDBStore": _STORES,
    "SQLStore": _STORES,
    "SQLiteStore": _STORES,
    "SQLiteVFSStore": _STORES,
    "Service": f"{_SERVICE}.service",
    "Shard": _APPLICATION,
    "Store": _APPLICATION,
    "StoredRecord": _STORES,
    "main": f"{_SERVICE}.process",
    "run_consumer": f"{_SERVICE}.process",
}


if not TYPE_CHECKING:  # With this function, type checkers would accept any name.

    def __getattr__(name: str) -> Any:
        return first_use(globals(), _MODULES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
