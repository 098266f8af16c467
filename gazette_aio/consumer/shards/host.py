"""What the shards of a member share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gazette_aio.consumer.shards.recovery import NoRecoveryLog
from gazette_aio.consumer.shards.restarts import Restarts
from gazette_aio.consumer.transactions.driver import PrimaryLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.allocator.observed import GroupEntry, ObservedGroup
    from gazette_aio.consumer.application import Application, Shard, Store
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.keys import GroupKeys
    from gazette_aio.consumer.keyspace.store import KeyValueStore
    from gazette_aio.consumer.shards.recovery import Recovery
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import Checkpoint


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
    ) -> TransactionLoop:
        """Return transactions that haven't begun."""
        ...


def _no_log(shard: Shard) -> Recovery:  # noqa: ARG001
    return NoRecoveryLog()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHost:
    """What the shards of a member share."""

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
    recovery: Callable[[Shard], Recovery] = _no_log
    """Makes the recovery of a replica. By default, recovery logs are ignored."""
    restarts: Restarts = field(default_factory=lambda: Restarts(None))
    """Whether failed replicas are restarted; by default they aren't."""
    hints_seconds: float = 300.0
    """Seconds between two writes of the recorder's hints."""
    first_hints_seconds: float = 30.0
    """Seconds from a promotion to the first write of the recorder's hints."""
