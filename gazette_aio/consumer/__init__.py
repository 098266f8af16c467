"""Consumer framework: applications that transform messages with exactly-once state.

An application implements `Application`, and `run_consumer()` or `main()` makes its process a member
of a group. Imports `message`, `client`, `serving`, `aio` and `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio._lazy import at_first_use

# Imported at first use: clients of shards need no servers.
if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.allocate import MemberLostError as MemberLostError
    from gazette_aio.consumer.allocator.model import (
        Assignment as Assignment,
        shard_is_consistent as shard_is_consistent,
    )
    from gazette_aio.consumer.allocator.shard_group import new_key_space as new_key_space
    from gazette_aio.consumer.application import (
        Application as Application,
        BatchConsumer as BatchConsumer,
        BeginFinisher as BeginFinisher,
        DeadLetter as DeadLetter,
        DeferToNextTransaction as DeferToNextTransaction,
        Fail as Fail,
        MessageErrorAction as MessageErrorAction,
        MessageProducer as MessageProducer,
        MessageSink as MessageSink,
        Progress as Progress,
        Retry as Retry,
        Shard as Shard,
        Skip as Skip,
        Store as Store,
    )
    from gazette_aio.consumer.handlers import ShardAPI as ShardAPI
    from gazette_aio.consumer.keyspace.embedded import EmbeddedStore as EmbeddedStore
    from gazette_aio.consumer.keyspace.errors import (
        KeyValueStoreError as KeyValueStoreError,
        LeaseLostError as LeaseLostError,
    )
    from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions as EtcdOptions
    from gazette_aio.consumer.keyspace.etcd.store import EtcdStore as EtcdStore
    from gazette_aio.consumer.keyspace.store import KeyValueStore as KeyValueStore
    from gazette_aio.consumer.service.options import ConsumerOptions as ConsumerOptions
    from gazette_aio.consumer.service.process import (
        main as main,
        run_consumer as run_consumer,
    )
    from gazette_aio.consumer.service.service import Service as Service
    from gazette_aio.consumer.shards.errors import (
        HintsError as HintsError,
        ResolverError as ResolverError,
        ResolverStoppedError as ResolverStoppedError,
        ShardFailedError as ShardFailedError,
    )
    from gazette_aio.consumer.shards.resolver import (
        Resolution as Resolution,
        Resolver as Resolver,
    )
    from gazette_aio.consumer.shards.restarts import RestartPolicy as RestartPolicy
    from gazette_aio.consumer.stores import (
        JSONFileStore as JSONFileStore,
        MemoryDatabase as MemoryDatabase,
        MemoryStore as MemoryStore,
        RocksDBStore as RocksDBStore,
        SQLiteStore as SQLiteStore,
        SQLStore as SQLStore,
    )

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    __getattr__, __dir__ = at_first_use(globals())
