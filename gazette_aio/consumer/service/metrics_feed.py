"""Counts, gauges and spans of a member."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.client.tracing import Tracing
    from gazette_aio.consumer.allocator.observed import ObservedGroup
    from gazette_aio.consumer.service.metrics import ConsumerMetrics
    from gazette_aio.consumer.shards.local_shards import LocalShards
    from gazette_aio.consumer.transactions.observer import TransactionReport


class TransactionCounter:
    """Observer of the transactions of one shard.

    Args:
        metrics: Where to count them.
        key: Key of the shard.
    """

    def __init__(self, metrics: ConsumerMetrics, key: str) -> None:
        self._metrics = metrics
        self._key = key

    def acknowledged(self, report: TransactionReport, /) -> None:
        """Count a transaction."""
        self._metrics.acknowledged(self._key, report)

    def message_failed(self, action: str, /) -> None:
        """Count a decision about a message that can't be consumed."""
        self._metrics.message_failed(self._key, action)


class TransactionSpans:
    """Observer that records the transactions of one shard as spans.

    Args:
        tracing: Where to record them.
        key: Key of the shard.
    """

    def __init__(self, tracing: Tracing, key: str) -> None:
        self._tracing = tracing
        self._key = key

    def acknowledged(self, report: TransactionReport, /) -> None:
        """Record a transaction, from its first message to its last acknowledgement."""
        phases = {
            name: max(getattr(report, name), 0.0)
            for name in ("consuming", "stalled", "preparing", "committing", "acknowledging")
        }
        counts = {"gazette.messages": report.messages, "gazette.bytes": report.size_bytes}
        times = {f"gazette.{name}_ms": int(1000 * seconds) for name, seconds in phases.items()}
        shard = {"gazette.shard": self._key}
        self._tracing.record("consume", sum(phases.values()), {**shard, **counts, **times})

    def message_failed(self, action: str, /) -> None:
        """Record nothing."""


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
