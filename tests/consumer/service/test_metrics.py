"""Names and labels of a member's metrics, which dashboards of Gazette's consumers read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gazette_aio.consumer.allocator.allocate import Round
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.transactions.machine import Durations, Transaction

KEY = "/consumers/items/part-000"
TRANSACTION = Transaction(
    Durations(0, 1),
    since=0,
    messages=3,
    size_bytes=60,
    began=1,
    stalled=3,
    prepare_began=6,
    prepare_done=10,
    committed=15,
    acknowledged=21,
    read_through={"a/source": 99},
)


def member() -> Any:
    """Return a member with one shard."""
    return SimpleNamespace(
        local_shards=SimpleNamespace(
            status_codes=lambda: {"part-000": "PRIMARY"},
            replicas={"part-000": SimpleNamespace(fqn=KEY)},
        ),
        group=SimpleNamespace(
            items={"part-000": SimpleNamespace(replication=3)}, members={1: 1, 2: 2}
        ),
    )


@pytest.fixture
def metrics():
    return ConsumerMetrics(CollectorRegistry())


def samples(metrics):
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


def test_names_and_labels(metrics):
    metrics.add(member())
    metrics.acknowledged(KEY, TRANSACTION)
    metrics.acknowledged(KEY, TRANSACTION)
    metrics.converged(Round(added=1, removed=2, packed=3))
    metrics.solved(0.5)
    metrics.recovered(7)
    metrics.overdue("in_use")
    metrics.message_failed(KEY, "skip")
    phase = "gazette_shard_phase_seconds_total"
    assert samples(metrics) == {
        ("gazette_shard_transactions_total", KEY): 2,
        ("gazette_shard_read_messages_total", KEY): 6,
        ("gazette_shard_read_bytes_total", KEY): 120,
        ("gazette_shard_read_head", "a/source", KEY): 99,
        (phase, "10-not-running", KEY, "sync"): 2,
        (phase, "20-consuming", KEY, "sync"): 4,
        (phase, "30-stalled", KEY, "sync"): 6,
        (phase, "40-preparing", KEY, "sync"): 8,
        (phase, "50-committing", KEY, "async"): 10,
        (phase, "60-acknowledging", KEY, "async"): 12,
        ("gazette_shard_message_errors_total", "skip", KEY): 1,
        ("gazette_shard_up", "part-000", "PRIMARY"): 1,
        ("gazette_shard_overdue_stores_total", "in_use"): 1,
        ("gazette_shard_overdue_stores_total", "left"): 0,
        ("gazette_recoverylog_recovered_bytes_total",): 7,
        ("gazette_allocator_converge_total",): 1,
        ("gazette_allocator_assignment_added_total",): 1,
        ("gazette_allocator_assignment_removed_total",): 2,
        ("gazette_allocator_assignment_packed_total",): 3,
        ("gazette_allocator_max_flow_runtime_seconds_count",): 1,
        ("gazette_allocator_max_flow_runtime_seconds_sum",): 0.5,
        ("gazette_allocator_items",): 1,
        ("gazette_allocator_members",): 2,
        ("gazette_allocator_desired_replication_slots",): 3,
    }


def test_shards_that_have_left_all_members_of_the_process_are_forgotten(metrics):
    former, present = member(), member()
    metrics.add(former)
    metrics.add(present)
    metrics.acknowledged(KEY, TRANSACTION)
    metrics.message_failed(KEY, "dead_letter")
    former.local_shards.replicas.clear()
    assert samples(metrics)["gazette_shard_transactions_total", KEY] == 1
    metrics.remove(former)
    present.local_shards.replicas.clear()
    assert not [name for name, *labels in samples(metrics) if KEY in labels]
