from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
import traceback

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry, generate_latest

import gazette_aio.protocol as pb
from gazette_aio import Publisher, connect, json_adapter
from gazette_aio.client import RetryPolicy
from gazette_aio.consumer.service.service import record_transaction
from gazette_aio.consumer.transactions.machine import Durations, Transaction
from gazette_aio.contrib.otel import OpenTelemetryTracing
from gazette_aio.contrib.prometheus import PrometheusMetrics
from gazette_aio.logs import LogFormatter
from gazette_aio.testing import StubBroker, create_journals, journal_spec
from tests.client.fragments.fragment_support import RawStore, head
from tests.client.support import fragment, metadata
from tests.contrib.spans import Spans

SYSTEM = {"messaging.system": "gazette"}
JOURNAL = {**SYSTEM, "messaging.destination.name": "a/journal"}
OK = (trace.StatusCode.UNSET, None)


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
async def client(gazette_broker, spans):
    async with connect(gazette_broker.endpoint, tracing=OpenTelemetryTracing(spans)) as client:
        await create_journals(client, journal_spec("a/journal"))
        yield client


async def test_appends(client, spans):
    await client.append("a/journal", b"hello")
    async with client.appends.append("a/journal") as first:
        first.write(b"one")
    second = client.appends.try_append("a/journal", b"two")
    assert second is not None
    await asyncio.wait([first, second])

    single, batch = spans.named("append")
    assert single.attributes == {**JOURNAL, "gazette.begin": 0, "gazette.end": 5}
    assert batch.attributes == {
        **JOURNAL,
        "gazette.appends": 2,
        "gazette.begin": 5,
        "gazette.end": 11,
    }
    assert [(span.ended, span.status) for span in spans.all] == [(1, OK)] * 2


async def test_failures(client, spans):
    with pytest.raises(pb.JournalNotFoundError):
        await client.append("no/journal", b"hello")
    async with client.appends.append("no/journal") as append:
        append.write(b"hello")
    with pytest.raises(pb.JournalNotFoundError):
        await append
    with pytest.raises(pb.JournalNotFoundError):
        async with client.read("no/journal") as reader:
            await reader.read()

    assert len(spans.named("append")) == 2
    assert spans.named("read")
    for span in spans.all:
        code, text = span.status
        assert (span.ended, code) == (1, trace.StatusCode.ERROR)
        assert text.startswith("JOURNAL_NOT_FOUND")
        assert span.attributes["error.type"] == "JournalNotFoundError"


async def test_reads(client, spans):
    await client.append("a/journal", b"hello")
    async with client.read("a/journal", offset=1) as reader:
        with pytest.raises(pb.OffsetNotYetAvailableError):
            async for _ in reader:
                pass
    async with client.read("a/journal", end_offset=2, block=True) as reader:
        assert await reader.read() == b"he"
    async with client.read("a/journal", offset=-1, block=True) as reader:
        reading = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])

    to_head, bounded, *cancelled = spans.named("read")
    assert to_head.attributes == {**JOURNAL, "gazette.begin": 1, "gazette.end": 5}
    assert bounded.attributes == {**JOURNAL, "gazette.begin": 0, "gazette.end": 2}
    assert {(span.ended, span.status) for span in (to_head, bounded, *cancelled)} == {(1, OK)}


async def test_transactions(client, spans):
    publisher = Publisher(client.appends, json_adapter(dict, "_meta.uuid"))

    def mapping(_message):
        return "a/journal", "application/x-ndjson"

    async with publisher.transaction():
        (current,) = spans.named("transaction")
        assert trace.get_current_span() is current
        await publisher.publish_uncommitted(mapping, {"a": 1})
    with pytest.raises(RuntimeError, match="on purpose"):
        async with publisher.transaction():
            raise RuntimeError("on purpose")

    assert trace.get_current_span() is trace.INVALID_SPAN
    committed, failed = spans.named("transaction")
    assert committed.attributes == {**SYSTEM, "gazette.journals": 1}
    assert (committed.ended, committed.status) == (1, OK)
    assert (failed.ended, failed.status) == (1, (trace.StatusCode.ERROR, "on purpose"))
    assert {span.parent for span in spans.named("append")} == {committed}


def test_transactions_of_consumers(spans):
    transaction = Transaction(
        Durations(0, 1),
        since=0,
        messages=3,
        size_bytes=30,
        began=100,
        stalled=101,
        prepare_began=101,
        prepare_done=101.5,
        committed=101.75,
        acknowledged=101.75 - 1e-9,
    )
    record_transaction(OpenTelemetryTracing(spans), "/key", transaction)

    (span,) = spans.named("consume")
    assert span.end_time - span.start == 1_750_000_000
    assert span.attributes == {
        **SYSTEM,
        "gazette.shard": "/key",
        "gazette.messages": 3,
        "gazette.bytes": 30,
        "gazette.consuming_ms": 1000,
        "gazette.stalled_ms": 0,
        "gazette.preparing_ms": 500,
        "gazette.committing_ms": 250,
        "gazette.acknowledging_ms": 0,
    }


async def read_all(reader):
    while await reader.read():
        pass


async def refuse(_reader, writer):
    writer.write(head("403 Forbidden", content_length=0))


async def hang_up(_reader, writer):
    writer.close()


async def break_off(_reader, writer):
    writer.write(head(content_length=20) + b"0123")
    writer.close()


async def garble(_reader, writer):
    writer.write(b"HTTP/1.1 nonsense\r\n\r\n")


async def redirect(_reader, writer):
    writer.write(head("302 Found", location="ftp://store/f?X-Signature=S3CR3T", content_length=0))


@pytest.mark.parametrize("answer", [refuse, hang_up, break_off, garble, redirect])
async def test_no_secret_is_shown(answer, spans):
    registry, shown = CollectorRegistry(), io.StringIO()
    handler, root = logging.StreamHandler(shown), logging.getLogger()
    handler.setFormatter(LogFormatter("json"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        async with RawStore(answer) as store, StubBroker() as broker:

            async def refer(request):
                response = metadata(0, first=False)
                response.fragment.CopyFrom(fragment(0, 20))
                response.fragment_url = store.url("/f?X-Signature=S3CR3T")
                yield response

            broker.read_handler = refer
            async with connect(
                broker.endpoint,
                auth=pb.BearerAuth("S3CR3T"),
                metrics=PrometheusMetrics(registry),
                tracing=OpenTelemetryTracing(spans),
                retry=RetryPolicy(max_attempts=3, backoff=lambda attempt: 0.0),
            ) as client:
                async with client.read("a/journal", direct=True) as reader:
                    with pytest.raises(pb.GazetteError) as caught:
                        await read_all(reader)
                    logging.getLogger("test").error("failed", exc_info=caught.value)
                    print(client, client.status(), reader, file=shown)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    print(*traceback.format_exception(caught.value), repr(caught.value), file=shown)
    print(generate_latest(registry).decode(), [vars(span) for span in spans.all], file=shown)

    assert store.heads, "the store was never asked"
    assert "failed" in shown.getvalue()
    assert "S3CR3T" not in shown.getvalue()
    assert {span.ended for span in spans.all} == {1}


def test_without_the_extra():
    code = (
        "import sys, gazette_aio.client, gazette_aio.message\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "sys.modules['opentelemetry'] = None\n"
        "import gazette_aio.contrib.otel"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "needs opentelemetry-api: pip install 'gazette-aio[otel]'" in done.stderr
