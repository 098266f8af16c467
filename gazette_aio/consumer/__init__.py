"""Consumer framework: applications that transform messages with exactly-once state.

An application implements `Application`, and `run_consumer()` or `main()` makes its process a member
of a group. Imports `message`, `client`, `serving`, `aio` and `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.allocate import MemberLostError
    from gazette_aio.consumer.allocator.model import Assignment, MemberID, shard_is_consistent
    from gazette_aio.consumer.allocator.session import MemberSession
    from gazette_aio.consumer.allocator.shard_group import new_key_space
    from gazette_aio.consumer.application import (
        Application,
        BatchConsumer,
        BeginFinisher,
        DeadLetter,
        DeferToNextTransaction,
        Fail,
        MessageErrorAction,
        MessageProducer,
        MessageSink,
        Progress,
        Retry,
        Shard,
        Skip,
        Store,
    )
    from gazette_aio.consumer.handlers import ShardAPI
    from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
    from gazette_aio.consumer.keyspace.errors import KeyValueStoreError, LeaseLostError
    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.service.options import ConsumerOptions
    from gazette_aio.consumer.service.process import main, run_consumer
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.shards.errors import (
        HintsError,
        ResolverError,
        ResolverStoppedError,
        ShardFailedError,
    )
    from gazette_aio.consumer.shards.resolver import Resolution, Resolver
    from gazette_aio.consumer.shards.restarts import RestartPolicy
    from gazette_aio.consumer.stores import (
        CompareAndSetStore,
        JSONFileStore,
        MemoryDatabase,
        MemoryStore,
        RocksDBStore,
        SQLiteStore,
        SQLStore,
        StoredRecord,
    )

__all__ = [
    "Application",
    "Assignment",
    "BatchConsumer",
    "BeginFinisher",
    "CompareAndSetStore",
    "ConsumerOptions",
    "DeadLetter",
    "DeferToNextTransaction",
    "EmbeddedStore",
    "EtcdOptions",
    "EtcdStore",
    "Fail",
    "GroupKeys",
    "HintsError",
    "JSONFileStore",
    "KeyValueStore",
    "KeyValueStoreError",
    "LeaseLostError",
    "MemberID",
    "MemberLostError",
    "MemberSession",
    "MemoryDatabase",
    "MemoryStore",
    "MessageErrorAction",
    "MessageProducer",
    "MessageSink",
    "Progress",
    "Resolution",
    "Resolver",
    "ResolverError",
    "ResolverStoppedError",
    "RestartPolicy",
    "Retry",
    "RocksDBStore",
    "SQLStore",
    "SQLiteStore",
    "Service",
    "Shard",
    "ShardAPI",
    "ShardFailedError",
    "Skip",
    "Store",
    "StoredRecord",
    "main",
    "new_key_space",
    "run_consumer",
    "shard_is_consistent",
]

_APPLICATION = "gazette_aio.consumer.application"
_SERVICE = "gazette_aio.consumer.service"
_STORES = "gazette_aio.consumer.stores"

# Imported at first use: clients of shards need no servers.
_MODULES = {
    "Application": _APPLICATION,
    "Assignment": "gazette_aio.consumer.allocator.model",
    "BatchConsumer": _APPLICATION,
    "BeginFinisher": _APPLICATION,
    "CompareAndSetStore": _STORES,
    "ConsumerOptions": f"{_SERVICE}.options",
    "DeadLetter": _APPLICATION,
    "DeferToNextTransaction": _APPLICATION,
    "EmbeddedStore": "gazette_aio.consumer.keyspace.embedded",
    "EtcdOptions": "gazette_aio.consumer.keyspace.etcd.options",
    "EtcdStore": "gazette_aio.consumer.keyspace.etcd.store",
    "Fail": _APPLICATION,
    "GroupKeys": "gazette_aio.consumer.keyspace.keys",
    "HintsError": "gazette_aio.consumer.shards.errors",
    "JSONFileStore": _STORES,
    "KeyValueStore": "gazette_aio.consumer.keyspace.store",
    "KeyValueStoreError": "gazette_aio.consumer.keyspace.errors",
    "LeaseLostError": "gazette_aio.consumer.keyspace.errors",
    "MemberID": "gazette_aio.consumer.allocator.model",
    "MemberLostError": "gazette_aio.consumer.allocator.allocate",
    "MemberSession": "gazette_aio.consumer.allocator.session",
    "MemoryDatabase": _STORES,
    "MemoryStore": _STORES,
    "MessageErrorAction": _APPLICATION,
    "MessageProducer": _APPLICATION,
    "MessageSink": _APPLICATION,
    "Progress": _APPLICATION,
    "Resolution": "gazette_aio.consumer.shards.resolver",
    "Resolver": "gazette_aio.consumer.shards.resolver",
    "ResolverError": "gazette_aio.consumer.shards.errors",
    "ResolverStoppedError": "gazette_aio.consumer.shards.errors",
    "RestartPolicy": "gazette_aio.consumer.shards.restarts",
    "Retry": _APPLICATION,
    "RocksDBStore": _STORES,
    "SQLStore": _STORES,
    "SQLiteStore": _STORES,
    "Service": f"{_SERVICE}.service",
    "Shard": _APPLICATION,
    "ShardAPI": "gazette_aio.consumer.handlers",
    "ShardFailedError": "gazette_aio.consumer.shards.errors",
    "Skip": _APPLICATION,
    "Store": _APPLICATION,
    "StoredRecord": _STORES,
    "main": f"{_SERVICE}.process",
    "new_key_space": "gazette_aio.consumer.allocator.shard_group",
    "run_consumer": f"{_SERVICE}.process",
    "shard_is_consistent": "gazette_aio.consumer.allocator.model",
}


if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals(), _MODULES)
