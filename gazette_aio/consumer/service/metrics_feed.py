"""Counts, gauges and spans of a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.client.tracing import Tracing
    from gazette_aio.consumer.allocator.observed import ObservedGroup
    from gazette_aio.consumer.shards.local_shards import LocalShards
    from gazette_aio.consumer.transactions.machine import Transaction


def record_transaction(tracing: Tracing, shard: str, transaction: Transaction) -> None:
    """Record a transaction as a span, from its first message to its last acknowledgement.

    Args:
        tracing: Where to record it.
        shard: Key of the shard.
        transaction: The transaction.
    """
    phases = transaction.phase_seconds()
    del phases["not_running"]
    counts = {"gazette.messages": transaction.messages, "gazette.bytes": transaction.size_bytes}
    times = {f"gazette.{name}_ms": int(1000 * seconds) for name, seconds in phases.items()}
    tracing.record("consume", sum(phases.values()), {"gazette.shard": shard, **counts, **times})


class MemberView:
    """Values of a member's gauges.

    A thread may collect them, such as that of prometheus-client's own server: mappings are copied
    in one step, before anything is done with what they hold.

    Args:
        group: The group, as the member sees it.
        local_shards: Replicas of the member.
    """

    def __init__(self, group: ObservedGroup, local_shards: LocalShards) -> None:
        self._group = group
        self._local_shards = local_shards

    def status_codes(self) -> Mapping[str, str]:
        """Return the name of the status code of each local shard, by ID."""
        return self._local_shards.status_codes()

    def shard_keys(self) -> list[str]:
        """Return the keys of local shards."""
        return [replica.fqn for replica in tuple(self._local_shards.replicas.values())]

    def group_sizes(self) -> tuple[int, int, int]:
        """Return the numbers of shards, of members, and of replicas that shards should have."""
        slots = sum(item.replication for item in tuple(self._group.items.values()))
        return len(self._group.items), len(self._group.members), slots
