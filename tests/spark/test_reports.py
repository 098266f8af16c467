"""Reports on queries: positions, rows and seconds behind, from the progress of Spark."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.uuid import clock_from_ns
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.spark.options import Selection
from gazette_aio.spark.streaming.lag import lag
from gazette_aio.spark.streaming.offsets import Offsets
from gazette_aio.spark.streaming.planner import StreamPlanner
from gazette_aio.spark.streaming.reports import JournalProgress, QueryProgress, WriteHeads
from tests.pyspark.journals import Producer

NUMBERS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1 << 62))
NOW_MS = 1_700_000_000_000


def progress_of(end, latest, **more):
    source = {"endOffset": end, "latestOffset": latest, "numInputRows": 3}
    return {"id": "1234", "name": None, "batchId": 7, "sources": [source], **more}


@given(NUMBERS, NUMBERS, NUMBERS, st.text(), st.integers(0, 1 << 62))
def test_heads_are_what_they_were(journals, rows, oldest, source, at):
    heads = WriteHeads(Offsets(journals), source, at, rows, oldest)
    assert WriteHeads.parse(json.loads(json.dumps(heads.to_json()))) == heads


@pytest.mark.parametrize(
    "change", [{"source": 1}, {"at": -1}, {"rows": []}, {"rows": {"a": "1"}}, {"oldest": {"a": -1}}]
)
def test_malformed_heads(change):
    with pytest.raises(ValidationError, match=r"^not offsets of a query"):
        WriteHeads.parse(WriteHeads(Offsets({"a": 1})).to_json() | change)


def test_rows_and_seconds_where_they_are_known():
    heads = WriteHeads(
        Offsets(dict.fromkeys("abcd", 100)),
        "gazette prefix=x/",
        NOW_MS,
        rows={"a": 4, "b": 9},
        oldest_ms={"a": NOW_MS - 2500, "c": NOW_MS + 10},
    )
    end = Offsets({"a": 40, "b": 100, "c": 50})
    progress = progress_of(end.to_json(), heads.to_json())
    assert lag(progress) == {"a": 60, "b": 0, "c": 50, "d": 100}
    assert lag(progress, "rows") == {"a": 4, "b": 0}
    assert lag(progress, "seconds") == {"a": 2.5, "b": 0.0, "c": 0.0}
    found = QueryProgress.of(json.dumps(progress))
    assert found.batch == 7
    (source,) = found.sources
    assert source.journals["a"] == JournalProgress(40, 100, 60, 4, 2.5)
    assert (source.bytes, source.rows, source.seconds) == (210, None, 2.5)
    assert str(found) == "query 1234, batch 7: gazette prefix=x/: 3 rows, 210 bytes, 2.5 s behind"


def test_what_a_query_is_called():
    heads = WriteHeads(Offsets({"a": 5})).to_json()
    named = progress_of(Offsets({"a": 5}).to_text(), json.dumps(heads), name="totals")
    text = "query totals, batch 7: gazette: 3 rows, 0 bytes, 0 rows, 0.0 s behind"
    assert str(QueryProgress.of(named)) == text
    other = {"name": "kafka", "sources": [{"endOffset": "5", "latestOffset": "7"}]}
    assert QueryProgress.of(other).sources == ()
    assert str(QueryProgress.of(other)) == "query kafka, batch 0: no source of Gazette"


def test_what_a_source_is_called():
    assert str(Selection(prefix="a/")) == "prefix=a/"
    assert str(Selection(selector="app=x, !old")) == "selector=app=x, !old"
    assert str(Selection(selector="")) == "selector=*"
    assert str(Selection(journals=("a/b", "c"))) == "journals=a/b,c"


# --- What a planner reports.


async def behind(query):
    end, latest = query.log[-1], await query.planner.latest()
    return [lag(progress_of(end, latest), unit) for unit in ("bytes", "rows", "seconds")]


async def test_a_limited_query_knows_what_it_read_ahead(world):
    now = time.time()
    await world.create("a", "b")
    producer = Producer()
    for number in range(10):
        age_ns = (100 - 10 * number) * 10**9
        clock = clock_from_ns(int(now * 1e9) - age_ns)
        await world.append("a", producer.pending({"id": number}, clock))
    await world.append("a", producer.ack(clock_from_ns(int(now * 1e9))))
    head = await world.head("a")
    planner = partial(StreamPlanner, clock=lambda: now)
    query = world.query(startingOffsets="earliest", planner=planner)
    await query.plan(max_rows=3)
    offset = query.end["j"]["test/a"]
    size, rows, seconds = await behind(query)
    assert size == {"test/a": head - offset, "test/b": 0}
    assert rows == {"test/a": 7, "test/b": 0}
    assert seconds == {"test/a": pytest.approx(70, abs=0.01), "test/b": 0}
    await query.drain()
    assert await behind(query) == [dict.fromkeys(["test/a", "test/b"], 0)] * 3


async def test_a_query_which_waits_reports_what_it_waits_with(world):
    await world.create("a")
    query = world.query(startingOffsets="earliest", minRowsPerTrigger="9")
    await query.plan()
    await world.publish("a", range(4))
    assert await query.plan() is None
    size, rows, seconds = await behind(query)
    assert size == {"test/a": await world.head("a")}
    assert rows == {"test/a": 4}
    assert seconds.keys() == {"test/a"}


async def test_uncommitted_rows_are_not_counted(world):
    await world.create("a")
    await world.publish("a", range(10))
    query = world.query(startingOffsets="earliest", isolation="read-uncommitted")
    await query.plan(max_bytes=1)
    size, rows, seconds = await behind(query)
    assert size["test/a"] > 0
    assert (rows, seconds) == ({}, {})
