"""Metrics of a member for Prometheus, by the names of Gazette's consumers.

Needs the extra `metrics`: `pip install "gazette-aio[metrics]"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise ImportError(
        "metrics of consumers need prometheus-client: pip install 'gazette-aio[metrics]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.consumer.allocator.allocate import Round
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.transactions.machine import Transaction

_PHASES = (
    ("not_running", "10-not-running", "sync"),
    ("consuming", "20-consuming", "sync"),
    ("stalled", "30-stalled", "sync"),
    ("preparing", "40-preparing", "sync"),
    ("committing", "50-committing", "async"),
    ("acknowledging", "60-acknowledging", "async"),
)
_ACTIONS = ("fail", "retry", "skip", "dead_letter")


class ConsumerMetrics(Collector):
    """Metrics of the members of a process.

        gazette_shard_transactions_total{shard}
        gazette_shard_read_messages_total{shard}
        gazette_shard_read_bytes_total{shard}
        gazette_shard_read_head{shard,journal}
        gazette_shard_phase_seconds_total{shard,phase,type}
        gazette_shard_message_errors_total{shard,action}
        gazette_shard_up{shard,status}
        gazette_shard_overdue_stores_total{outcome}
        gazette_recoverylog_recovered_bytes_total
        gazette_allocator_converge_total
        gazette_allocator_assignment_added_total
        gazette_allocator_assignment_removed_total
        gazette_allocator_assignment_packed_total
        gazette_allocator_max_flow_runtime_seconds
        gazette_allocator_items
        gazette_allocator_members
        gazette_allocator_desired_replication_slots

    `shard` is the shard's key in Etcd, but for `gazette_shard_up`, where it's its ID. Transactions
    count once they're fully acknowledged. `action` is what was decided about a message that can't
    be consumed: `fail`, `retry`, `skip` or `dead_letter`. `outcome` is `in_use` for stores that
    were destroyed though resolutions of their shard weren't released, and `left` for those whose
    destruction took too long.

    Args:
        registry: Registry of the metrics; None for that of the process.

    Raises:
        ValueError: The registry has metrics of these names.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry: CollectorRegistry = registry or REGISTRY
        """Registry of the metrics."""
        self._members: list[Service] = []
        self._journals: dict[str, set[str]] = {}  # By key of the shard.
        of_shard = ("shard",)
        self._transactions = Counter(
            "gazette_shard_transactions", "Transactions.", of_shard, registry=None
        )
        self._messages = Counter(
            "gazette_shard_read_messages", "Consumed messages.", of_shard, registry=None
        )
        self._bytes = Counter(
            "gazette_shard_read_bytes", "Consumed bytes.", of_shard, registry=None
        )
        self._heads = Gauge(
            "gazette_shard_read_head",
            "Offset that a source was read through.",
            ("shard", "journal"),
            registry=None,
        )
        self._phases = Counter(
            "gazette_shard_phase_seconds",
            "Time of transactions in their phases.",
            ("shard", "phase", "type"),
            registry=None,
        )
        self._failed = Counter(
            "gazette_shard_message_errors",
            "Messages that can't be consumed.",
            ("shard", "action"),
            registry=None,
        )
        self._recovered = Counter(
            "gazette_recoverylog_recovered_bytes",
            "Bytes recovered to files from recovery logs.",
            registry=None,
        )
        self._overdue = Counter(
            "gazette_shard_overdue_stores",
            "Stores that were destroyed in use, or left.",
            ("outcome",),
            registry=None,
        )
        for outcome in ("in_use", "left"):
            self._overdue.labels(outcome)
        self._rounds = Counter("gazette_allocator_converge", "Rounds of allocation.", registry=None)
        self._changes = {
            change: Counter(
                f"gazette_allocator_assignment_{change}", f"Assignments {change}.", registry=None
            )
            for change in ("added", "removed", "packed")
        }
        self._solutions = Histogram(
            "gazette_allocator_max_flow_runtime_seconds",
            "Durations of solutions for the most assignments.",
            registry=None,
        )
        self._register()

    def __repr__(self) -> str:
        return f"<ConsumerMetrics of {len(self._journals)} shards>"

    def _register(self) -> None:
        """Register all metrics, or none of them."""
        # First, so that shards that have left are forgotten before their counters are collected.
        collectors: list[Collector] = [self]
        collectors += (self._transactions, self._messages, self._bytes, self._heads, self._phases)
        collectors += (
            self._failed,
            self._overdue,
            self._recovered,
            self._rounds,
            *self._changes.values(),
            self._solutions,
        )
        registered: list[Collector] = []
        try:
            for collector in collectors:
                self.registry.register(collector)
                registered.append(collector)
        except ValueError:
            for collector in registered:
                self.registry.unregister(collector)
            raise

    def recovered(self, size_bytes: int) -> None:
        """Count bytes that were written to files while a recovery log was played."""
        self._recovered.inc(size_bytes)

    def overdue(self, outcome: str) -> None:
        """Count a store that was destroyed in use, or left."""
        self._overdue.labels(outcome).inc()

    def converged(self, round_: Round) -> None:
        """Count a round of allocation that this process led."""
        self._rounds.inc()
        for change, counter in self._changes.items():
            counter.inc(getattr(round_, change))

    def solved(self, seconds: float) -> None:
        """Count a solution of the allocation."""
        self._solutions.observe(seconds)

    def acknowledged(self, shard: str, transaction: Transaction) -> None:
        """Count a transaction.

        Args:
            shard: Key of the shard.
            transaction: The transaction.
        """
        self._transactions.labels(shard).inc()
        self._messages.labels(shard).inc(transaction.messages)
        self._bytes.labels(shard).inc(transaction.size_bytes)
        journals = self._journals.setdefault(shard, set())
        for journal, offset in transaction.read_through.items():
            journals.add(journal)
            self._heads.labels(shard, journal).set(offset)
        seconds = transaction.phase_seconds()
        for name, phase, kind in _PHASES:
            self._phases.labels(shard, phase, kind).inc(seconds[name])

    def message_failed(self, shard: str, action: str) -> None:
        """Count a decision about a message that can't be consumed.

        Args:
            shard: Key of the shard.
            action: The decision.
        """
        self._journals.setdefault(shard, set())
        self._failed.labels(shard, action).inc()

    def text(self) -> tuple[bytes, str]:
        """Return all metrics of the registry as text, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def add(self, member: Service) -> None:
        """Collect gauges of a member, until `remove()`."""
        self._members.append(member)

    def remove(self, member: Service) -> None:
        """Collect no more gauges of a member. Idempotent."""
        if member in self._members:
            self._members.remove(member)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges of the present moment, as a collector of Prometheus.

        Shards that have left all members are forgotten.

        A thread may call this, such as that of prometheus-client's own server: mappings are copied
        in one step, before anything is done with what they hold.
        """
        held = {
            replica.fqn
            for member in tuple(self._members)
            for replica in tuple(member.local_shards.replicas.values())
        }
        for shard in self._journals.keys() - held:
            self._forget(shard)
        up = GaugeMetricFamily("gazette_shard_up", "Local shards.", labels=("shard", "status"))
        items = members = slots = 0
        for member in tuple(self._members):
            for shard, status in member.local_shards.status_codes().items():
                up.add_metric((shard, status), 1.0)
            items += len(member.group.items)
            members += len(member.group.members)
            slots += sum(item.replication for item in tuple(member.group.items.values()))
        yield up
        yield GaugeMetricFamily("gazette_allocator_items", "Shards of the group.", items)
        yield GaugeMetricFamily("gazette_allocator_members", "Members of the group.", members)
        yield GaugeMetricFamily(
            "gazette_allocator_desired_replication_slots",
            "Replicas that shards should have.",
            slots,
        )

    def _forget(self, shard: str) -> None:
        journals = self._journals.pop(shard, ())  # Another thread may, too.
        for counter in (self._transactions, self._messages, self._bytes):
            counter.remove(shard)
        for journal in tuple(journals):
            self._heads.remove(shard, journal)
        for action in _ACTIONS:
            self._failed.remove(shard, action)
        for _, phase, kind in _PHASES:
            self._phases.remove(shard, phase, kind)
