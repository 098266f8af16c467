"""Protocol of a key-value store with revisions, leases and watches, such as Etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.consumer.keyspace.operations import Compare, KeyValue, Operation


@dataclass(frozen=True, slots=True)
class StoreHeader:
    """Origin of a response: the revision of the store, and identities, none of which is 0."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Keys in order, and whether there are more than was asked for."""

    header: StoreHeader
    entries: tuple[KeyValue, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Outcome of a transaction. `entries` has the key of each `Get`, or None if it's absent."""

    header: StoreHeader
    succeeded: bool
    entries: tuple[KeyValue | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Deleted:
    """Event of a key that was deleted, or whose lease ended."""

    key: str
    mod_revision: int


Event: TypeAlias = "KeyValue | Deleted"


@dataclass(frozen=True, slots=True)
class WatchResponse:
    """Events of a watch, in the order of their revisions; without events, it tells progress."""

    header: StoreHeader
    events: tuple[Event, ...] = ()


class Lease(Protocol):
    """A lease that is kept alive until its block ends, which revokes it."""

    @property
    def id(self) -> int:
        """Identity of the lease, never 0."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set as soon as the lease may have expired: judged by this process's clock alone."""
        ...


class KeyValueStore(Protocol):
    """Key-value store with the operations of Etcd that consumers use.

    Errors are `KeyValueStoreError`.
    """

    async def range(
        self, prefix: str, *, revision: int = 0, after: str = "", limit: int = 0
    ) -> RangeResult:
        """Read the keys that begin with `prefix`, in order.

        Args:
            prefix: Begin of the keys.
            revision: Revision to read at; 0 is the newest.
            after: Leave out keys up to this one.
            limit: Keys to return at most; 0 is all.

        Raises:
            CompactedError: The revision is no longer there.

        Cancellation: safe.
        """
        ...

    async def transact(
        self,
        compares: Sequence[Compare],
        operations: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TransactionResult:
        """Run `operations` if all of `compares` hold, else `otherwise`, atomically.

        Raises:
            KeyValueStoreError: The store refused the transaction, or doesn't answer. In the
                latter case, whether it took effect is unknown.

        Cancellation: aborts — whether the transaction took effect is unknown then.
        """
        ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchResponse, None]:
        """Iterate the changes of keys that begin with `prefix`, from `start_revision` on.

        It ends only by an error.

        Raises:
            CompactedError: The revision is no longer there.

        Cancellation: safe.
        """
        ...

    def lease(self, ttl_seconds: int) -> AbstractAsyncContextManager[Lease]:
        """Grant a lease, and keep it alive for the time of the block."""
        ...
