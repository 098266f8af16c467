"""Streams in Spark before 4.2, which doesn't tell readers where batches begin.

Later versions run them as well, by a source which only these tests have.
"""

from __future__ import annotations

import inspect
from collections import Counter

import pyarrow as pa
import pytest

from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.streaming.source import LegacyGazetteStreamReader, stream_reader
from tests.pyspark.journals import Producer
from tests.pyspark.probes_streams import LegacySource
from tests.pyspark.streams import documents, rows_of, runs, until
from tests.pyspark.versions import HAS_BATCHES, STREAMS

pytestmark = STREAMS

SCHEMA = pa.schema([("id", pa.int64()), ("_journal", pa.string())])
IS_LEGACY = not HAS_BATCHES


@pytest.fixture
def run(spark, journals, tmp_path):
    yield from runs(spark, journals, tmp_path)


def test_a_query_with_an_old_reader(run, journals, spark):
    if not IS_LEGACY:
        spark.dataSource.register(LegacySource)
    journals.create("a")
    journals.publish("a", documents([0]))
    stream = run(source="gazette" if IS_LEGACY else "gazette-legacy")
    assert stream.finish() == []
    # As if it had been killed before the first commit.
    stream.uncommit(0)
    one, other = Producer(), Producer()
    journals.append("a", one.pending({"id": 1}) + other.outside({"id": 2}))
    query = stream.start(processingTime="0 seconds")
    until(lambda: 2 in stream.ids)
    assert stream.batches[0] == []
    journals.append("a", other.outside({"id": 3}))
    until(lambda: 3 in stream.ids)
    query.stop()
    journals.append("a", one.pending({"id": 4}) + one.ack())
    stream.start(processingTime="0 seconds")
    until(lambda: stream.ids == list(range(1, 5)))


def test_an_old_reader_has_no_arguments(journals):
    journals.create("a")
    parsed = SourceOptions.parse(journals.options(startingOffsets="earliest"), streaming=True)
    one = LegacyGazetteStreamReader(parsed, SCHEMA)
    assert not inspect.signature(one.latestOffset).parameters, "by which Spark tells"
    journals.publish("a", documents([1, 2]))
    end = one.latestOffset()
    rows = rows_of(one, one.initialOffset(), end)
    assert Counter(row["id"] for row in rows) == {1: 1, 2: 1}
    assert one.latestOffset() is end
    one.stop()
    assert isinstance(stream_reader(parsed, SCHEMA), LegacyGazetteStreamReader) == IS_LEGACY
