"""The dashboard and the alerts ask for metrics that the collectors have, by their labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gazette_aio.broker.host.metrics import FAMILIES
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.transactions.machine import Durations, Transaction
from gazette_aio.contrib.prometheus import PrometheusMetrics

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS = [
    rule
    for group in yaml.safe_load((DOCS / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [target for panel in PANELS for target in panel["targets"]]


MEMBER: Any = SimpleNamespace(
    local_shards=SimpleNamespace(
        status_codes=lambda: {"shard": "PRIMARY"}, replicas={"shard": SimpleNamespace(fqn="/key")}
    ),
    group=SimpleNamespace(items={}, members={}),
)


@pytest.fixture(scope="module")
def labels() -> dict[str, frozenset[str]]:
    """Labels of each metric, by the name that queries use."""
    registry = CollectorRegistry()
    clients, consumers = PrometheusMetrics(registry), ConsumerMetrics(registry)
    clients.append_bytes("a/journal", 1)
    clients.fragment_open("a/journal", "GZIP", 1, 1)
    consumers.add(MEMBER)
    times = {"since": 0.0, "began": 0.0, "stalled": 0.0, "prepare_began": 0.0, "prepare_done": 0.0}
    transaction = Transaction(
        Durations(0, 1), **times, committed=0.0, acknowledged=0.0, read_through={"a/journal": 1}
    )
    consumers.acknowledged("/key", transaction)
    consumers.message_failed("/key", "skip")
    consumers.solved(0.1)
    found = {family.name: frozenset(family.labels) for family in FAMILIES}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        found |= {sample.name: frozenset(sample.labels) for sample in family.samples}
    return found


def test_there_are_queries_of_each_part():
    asked = " ".join(target["expr"] for target in TARGETS)

    assert all(part in asked for part in ("journal_server", "append_bytes", "shard_transactions"))


QUERIES = [(each["expr"], each["legendFormat"]) for each in TARGETS]
# Prometheus itself knows whether a target is up, and by which labels.
QUERIES += [
    (rule["expr"], rule["annotations"]["summary"])
    for rule in ALERTS
    if not rule["expr"].startswith("up{")
]


@pytest.mark.parametrize(("expression", "text"), QUERIES, ids=[each[0][:60] for each in QUERIES])
def test_a_query(expression: str, text: str, labels: dict[str, frozenset[str]]):
    names = re.findall(r"\bgazette_\w+", expression)
    grouped = {
        label.strip()
        for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    } - {"instance", "job"}  # Of each target.
    matched = set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expression))
    shown = set(re.findall(r"{{(?: \$labels\.)?(\w+) ?}}", text)) - {"instance"}

    assert names
    assert [name for name in names if name not in labels] == []
    assert grouped | matched <= frozenset.union(*(labels[name] for name in names))
    assert shown <= grouped


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    places = [tuple(panel["gridPos"][each] for each in "xywh") for panel in PANELS]
    cells = [
        (x, y)
        for left, top, w, h in places
        for x in range(left, left + w)
        for y in range(top, top + h)
    ]

    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len(set(cells)) == len(cells)
