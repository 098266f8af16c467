"""State and connections that all shards of a member share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gazette_aio.consumer.shards.log_recovery import recovery_of
from gazette_aio.consumer.shards.restarts import Restarts
from gazette_aio.consumer.transactions.primary import PrimaryLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.allocator.observed import ObservedGroup
    from gazette_aio.consumer.application import Application, Shard, Store
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.shards.recovery import Recovery
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import Checkpoint, GetHintsResponse


Overdue = Literal["in_use", "left"]
"""What became of a store that couldn't be destroyed in time."""


class TransactionLoop(Protocol):
    """Transactions of a primary."""

    @property
    def sources(self) -> frozenset[str]:
        """Journals that are being read; empty if the application reads by itself."""
        ...

    async def run(self, checkpoint: Checkpoint) -> None:
        """Read the sources from `checkpoint`, and run transactions until cancelled.

        Raises:
            Exception: The first error, which fails the shard.

        Cancellation: aborts — the transaction under way doesn't commit, or may have.
        """
        ...


class MakeLoop(Protocol):
    """Makes the transactions of a primary, such as the class PrimaryLoop."""

    def __call__(
        self,
        shard: Shard,
        hooks: Hooks,
        store: Store,
        /,
        *,
        progress: ProgressCell,
        recovery_log: str,
        renew_publisher: Callable[[], Awaitable[object]],
    ) -> TransactionLoop:
        """Return transactions that haven't begun."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHost:
    """State and connections that all shards of a member share."""

    store: KeyValueStore
    """Store of the group."""
    key_space: KeySpace[GroupEntry]
    """Mirror of the group, which another task keeps up to date."""
    group: ObservedGroup
    """View of the mirror."""
    keys: GroupKeys
    """Keys of the group."""
    client: JournalClient
    """Client of brokers."""
    application: Application[Any, Any]
    """Application that the shards run."""
    primary_loop: MakeLoop = PrimaryLoop
    """Makes the transactions of primaries."""
    recovery: Callable[[Shard, ShardHost], Recovery] = recovery_of
    """Makes the recovery of a replica."""
    recovery_directory: Path | None = None
    """Directory of the files of stores; None for that of temporary files."""
    get_hints: Callable[[str], Awaitable[GetHintsResponse]] | None = None
    """Returns the hints that a shard recovers from, such as by a delegate of the Shard service;
    None for those in the store."""
    on_recovered: Callable[[int], object] | None = None
    """Called with the number of bytes that were written to files while a log was played; None for
    nobody."""
    on_overdue: Callable[[Overdue], object] | None = None
    """Called when a store is destroyed in use, since resolutions of its shard weren't released in
    time, and when one is left, since its destruction took too long; None for nobody."""
    restarts: Restarts = field(default_factory=lambda: Restarts(None))
    """Whether failed replicas are restarted; by default they aren't."""
    release_seconds: float = 60.0
    """Seconds within which resolutions of a shard that ended must be released, and then its store
    be destroyed; infinity for no bound."""
    hints_seconds: float = 300.0
    """Seconds between two writes of the recorder's hints."""
    hints_bytes: int = 64 << 20
    """Committed bytes of a recovery log after which the recorder's hints are written earlier, so
    that a recovery doesn't have to play much more."""
    first_hints_seconds: float = 30.0
    """Seconds from a promotion to the first write of the recorder's hints."""
