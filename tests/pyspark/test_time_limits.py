"""Batches of a time: how much of the journals is fetched."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import Clock
from tests.pyspark.journals import Producer

BEGIN = 1_700_000_000
HOUR = 3600
FRAGMENTS = 16
ROWS = 120
PAD = "x" * 3000
SCHEMA = "id BIGINT, _timestamp TIMESTAMP"


@pytest.mark.parametrize("codec", ["NONE", "ZSTANDARD"])
def test_only_fragments_of_the_time_are_fetched(spark: Any, journals: Any, codec: str) -> None:
    journals.create("a", codec=pb.CompressionCodec.Value(codec), length=1 << 30)
    producer, cuts = Producer(), [0]
    for hour in range(FRAGMENTS):
        content = b""
        for row in range(ROWS):
            seconds = BEGIN + hour * HOUR + row * HOUR // ROWS
            clock = Clock.from_time(seconds * 10**9).value
            content += producer.pending({"id": hour * ROWS + row, "pad": PAD}, clock)
        content += producer.ack(clock + (1 << 4))
        cuts.append(journals.append("a", content)[1])
        journals.persist("a")
    control = journals.broker.embedded.control

    def fetched(**options: Any) -> tuple[int, int, list[int]]:
        """Return the bytes which were read through the broker, their requests, and the rows."""
        reads = control.observe("read", journal=journals.name("a"))
        given = journals.options(fileRoot=None, io="broker", **options)
        frame = spark.read.format("gazette").schema(SCHEMA).options(**given).load()
        found = sorted(row["id"] for row in frame.collect())
        requests = [one for one in reads.requests if not one.metadata_only]
        reads.remove()
        return sum(one.end_offset - one.offset for one in requests), len(requests), found

    begin, end = BEGIN + 6 * HOUR + 900, BEGIN + 8 * HOUR + 1800
    times = [datetime.fromtimestamp(at, UTC) for at in (begin, end)]
    given = {"startingTimestamp": times[0].isoformat(), "endingTimestamp": times[1].isoformat()}
    size, requests, found = fetched(**given)
    assert found == list(range(6 * ROWS + ROWS // 4, 8 * ROWS + ROWS // 2))
    assert size <= 1.2 * (cuts[9] - cuts[6])
    assert requests <= 1 + 8
    size, requests, found = fetched(endingTimestamp=1)
    assert found == []
    assert requests <= 5
    assert size <= requests * 8192
