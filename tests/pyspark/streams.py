"""Streaming queries of tests, and what they tell."""

from __future__ import annotations

import json
import pickle
import time

from tests.pyspark.limits import DEADLINE_SECONDS
from tests.waiting import wait_until


class Run:
    """A query, its checkpoint, and the rows of its batches by their numbers."""

    def __init__(self, spark, options, path, source):
        self.spark = spark
        self.options = options
        self.path = path
        self.source = source
        self.batches = {}
        self.query = None

    def take(self, frame, number):
        self.batches[number] = sorted(row["id"] for row in frame.collect())

    def start(self, **trigger):
        frame = self.spark.readStream.format(self.source).options(**self.options)
        writer = frame.schema("id BIGINT").load().writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", str(self.path))
        self.query = writer.trigger(**trigger or {"availableNow": True}).start()
        return self.query

    def finish(self):
        """Run to its end, and return the rows so far."""
        query = self.start()
        assert query.awaitTermination(DEADLINE_SECONDS)
        return self.ids

    @property
    def ids(self):
        return sorted(one for batch in self.batches.values() for one in batch)

    @property
    def sizes(self):
        return [len(batch) for _, batch in sorted(self.batches.items())]

    def uncommit(self, number):
        """Have Spark know no longer that a batch was run."""
        for name in (str(number), f".{number}.crc"):
            (self.path / "commits" / name).unlink(missing_ok=True)


def runs(spark, journals, tmp_path):
    """Yield what makes queries, which are stopped behind it: the fixture of a module."""
    made = []

    def make(*, source="gazette", **options):
        given = journals.options(**options)
        made.append(Run(spark, given, tmp_path / f"checkpoint-{len(made)}", source))
        return made[-1]

    yield make
    for one in made:
        if one.query is not None:
            one.query.stop()


def until(condition):
    """Wait for what another process does."""
    deadline = time.monotonic() + DEADLINE_SECONDS

    def holds():
        assert time.monotonic() < deadline, "it takes too long"
        return condition()

    wait_until(holds)


def documents(ids):
    return [{"id": one} for one in ids]


def offsets_of(value):
    """Return the positions of journals from what a progress tells."""
    value = json.loads(value) if isinstance(value, str) else value
    return {} if value is None else value["j"]


def rows_of(reader, start, end):
    copy = pickle.loads(pickle.dumps(reader))
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]
