from __future__ import annotations

import re
import subprocess
import sys

import aiohttp
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.metrics import Metrics
from gazette_aio.contrib.prometheus import BrokerCollector, PrometheusMetrics
from gazette_aio.testing import create_journals, journal_spec
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import MemoryJournals, script_read

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(registry: CollectorRegistry) -> Samples:
    """Return what Prometheus would see: values by name and labels."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_names_and_labels() -> None:
    registry = CollectorRegistry()
    metrics: Metrics = PrometheusMetrics(registry)
    metrics.append_bytes("a/journal", 1)
    metrics.append_bytes("a/journal", 2)
    metrics.read_bytes("b/journal", 4)
    metrics.fragment_open("a/journal", "GZIP", 8, 16)
    metrics.fragment_open("a/journal", "GZIP", 8, None)
    metrics.read_fragment_bytes("a/journal", "GZIP", 32)
    metrics.discard_fragment_bytes("a/journal", "NONE", 64)

    a, b = ("journal", "a/journal"), ("journal", "b/journal")
    gzip, none = ("codec", "GZIP"), ("codec", "NONE")
    seen = {key: value for key, value in samples(registry).items() if value}
    assert seen == {
        ("gazette_append_bytes_total", (a,)): 3,
        ("gazette_read_bytes_total", (b,)): 4,
        ("gazette_fragment_open_total", (gzip, a)): 2,
        ("gazette_fragment_open_bytes_total", (gzip, a)): 16,
        ("gazette_fragment_open_content_length_total", (gzip, a)): 16,
        ("gazette_read_fragment_bytes_total", (gzip, a)): 32,
        ("gazette_discard_fragment_bytes_total", (none, a)): 64,
    }
    types = [line for line in generate_latest(registry).decode().splitlines() if "# TYPE" in line]
    assert all(line.endswith((" counter", " gauge")) for line in types)
    assert repr(metrics) == "<PrometheusMetrics of 2 journals>"


def test_journals_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry, max_journals=2)
    metrics.fragment_open("a/journal", "GZIP", 8, 16)
    metrics.read_bytes("b/journal", 1)
    metrics.read_bytes("a/journal", 1)
    metrics.append_bytes("c/journal", 1)  # In place of the one which wasn't used for longest.
    assert {dict(labels)["journal"] for _, labels in samples(registry)} == {
        "a/journal",
        "c/journal",
    }
    metrics.append_bytes("d/journal", 1)
    assert {dict(labels)["journal"] for _, labels in samples(registry)} == {
        "c/journal",
        "d/journal",
    }
    metrics.append_bytes("a/journal", 5)
    assert samples(registry)["gazette_append_bytes_total", (("journal", "a/journal"),)] == 5
    with pytest.raises(pb.ConfigurationError, match="max_journals"):
        PrometheusMetrics(CollectorRegistry(), max_journals=0)


def test_prefix_and_the_registry_of_the_process() -> None:
    metrics = PrometheusMetrics(prefix="app")
    metrics.append_bytes("a/journal", 7)
    assert REGISTRY.get_sample_value("app_append_bytes_total", {"journal": "a/journal"}) == 7
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(prefix="app")


async def test_of_a_client() -> None:
    registry = CollectorRegistry()
    async with StubBroker() as broker:
        MemoryJournals(broker)
        script_read(broker, 0, b"content")
        async with connect(broker.endpoint, metrics=PrometheusMetrics(registry)) as client:
            await client.append("a/journal", b"content")
            async with client.read("a/journal", end_offset=5) as reader:
                assert b"".join([chunk async for chunk in reader]) == b"conte"
        await broker.read_requests.get()
    labels = (("journal", "a/journal"),)
    assert samples(registry) == {
        ("gazette_append_bytes_total", labels): 7,
        ("gazette_read_bytes_total", labels): 5,
    }


async def test_of_a_broker() -> None:
    registry = CollectorRegistry()
    broker = EmbeddedBroker(fsync="off", http_port=0)
    collector = BrokerCollector(broker, registry)
    assert samples(registry) == {}
    with pytest.raises(ValueError, match="gazette_write_head"):
        BrokerCollector(broker, registry)
    async with broker, connect(broker.endpoint) as client:
        await create_journals(client, journal_spec("a/journal"))
        await client.append("a/journal", b"content")
        seen = samples(registry)
        async with aiohttp.request("GET", f"{broker.http_endpoint}/debug/metrics") as answer:
            text = await answer.text()
    assert samples(registry) == {}

    assert seen["gazette_journal_server_started_totals", (("operation", "Append"),)] == 1
    assert seen["gazette_spool_commit_bytes_total", ()] == 7
    assert seen["gazette_write_head", (("journal", "a/journal"),)] == 7
    # The same as the broker's own, which only some other calls have changed.
    assert {name for name, _ in seen} == set(re.findall(r"^(gazette_\w+)", text, re.MULTILINE))
    assert repr(collector).startswith("<BrokerCollector of <EmbeddedBroker")


def test_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None; import gazette_aio.contrib.prometheus"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "ImportError: gazette_aio.contrib.prometheus needs prometheus-client: pip install 'gazette-aio[metrics]'"
        in done.stderr
    )
