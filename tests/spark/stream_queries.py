"""Streaming queries as Spark runs them, without Spark, and their journals."""

from __future__ import annotations

import json

import pyarrow as pa

import gazette_aio.protocol as pb
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading.partitions import read_task
from gazette_aio.spark.streaming.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.streaming.planner import StreamPlanner
from gazette_aio.testing import create_journals, journal_spec
from tests.pyspark.journals import Producer

NDJSON = "application/x-ndjson"
SCHEMA = pa.schema([("id", pa.int64()), ("_journal", pa.string()), ("_begin", pa.int64())])


class World:
    """Journals below `test/`, and queries of them."""

    def __init__(self, broker, client, root):
        self.broker = broker
        self.client = client
        self.root = root
        self.queries = []

    async def create(self, *names, content_type=NDJSON, length=1 << 24):
        labels = {"content-type": content_type}
        specs = [
            journal_spec(f"test/{n}", labels=labels, stores=["file:///"], length=length)
            for n in names
        ]
        await create_journals(self.client, *specs)

    async def delete(self, *names):
        changes = [
            pb.ApplyRequest.Change(delete=f"test/{n}", expect_mod_revision=-1) for n in names
        ]
        await self.client.apply(changes)

    async def append(self, name, content):
        return (await self.client.append(f"test/{name}", content)).commit

    async def publish(self, name, ids, producer=None):
        producer = producer or Producer()
        return await self.append(name, b"".join(producer.outside({"id": one}) for one in ids))

    async def persist(self, name):
        await self.broker.flush(f"test/{name}")
        await self.broker.refresh(f"test/{name}")

    async def lose_fragments(self, name, count):
        for file in sorted((self.root / "test" / name).rglob("*-*-*"))[:count]:
            file.unlink()
        await self.broker.refresh(f"test/{name}")

    async def head(self, name):
        return (await self.append(name, b"")).end

    async def aclose(self):
        for query in self.queries:
            for planner in query.planners:
                await planner.aclose()
        await bridge.close_clients()

    def query(self, *, planner=StreamPlanner, schema=SCHEMA, **options):
        given = {"brokers": self.broker.endpoint, "fetchTimeout": "2s", **options}
        if not given.keys() & {"journals", "selector", "prefix"}:
            given["prefix"] = "test/"
        self.queries.append(Query(given, planner, schema))
        return self.queries[-1]


class Query:
    """What Spark does for a query: a log of the ends of batches, and the rows which came."""

    def __init__(self, options, planner_type, schema):
        self.options = SourceOptions.parse(options, streaming=True)
        self.planner_type = planner_type
        self.schema = schema
        self.planners = []
        self.log = []
        self.rows = []
        self.batches = []
        self.tasks = []
        self.restart()

    def restart(self, **changes):
        """Go on in a new process."""
        if changes:
            self.options = SourceOptions.parse(changes, streaming=True)
        self.planner = self.planner_type(self.options, self.schema)
        self.planners.append(self.planner)

    async def begin(self, *, anew=False):
        """Return where the next batch begins; or the first one, which isn't in the log."""
        if self.log and not anew:
            return self.log[-1]
        first, again = [json.dumps((await self.planner.initial()).to_json()) for _ in range(2)]
        assert first == again
        return first

    async def plan(self, **limits):
        """Plan a batch; return its begin and its end, if it's not empty."""
        if self.planner_type is LegacyStreamPlanner:
            end = json.dumps(await self.planner.next_end(**limits))
            begin = await self.begin()
        else:
            begin = await self.begin()
            end = json.dumps(await self.planner.end(json.loads(begin), **limits))
        if end == begin:
            return None
        self.log.append(end)
        return begin, end

    async def run(self, begin, end):
        """Run the tasks of a batch."""
        partitions = await self.planner.partitions(json.loads(begin), json.loads(end))
        self.tasks = [task for partition in partitions for task in partition]
        rows = []
        for task in self.tasks:
            async for batch in read_task(task, self.options, self.schema):
                assert batch.schema == self.schema
                rows += batch.to_pylist()
        self.batches.append(rows)
        self.rows += rows

    async def trigger(self, **limits):
        """Plan and run a batch; return whether there was one."""
        planned = await self.plan(**limits)
        if planned is not None:
            await self.run(*planned)
        return planned is not None

    async def drain(self, most=1000, **limits):
        for number in range(most):
            if not await self.trigger(**limits):
                return number
        raise AssertionError("batches don't end")

    @property
    def ids(self):
        return sorted(row["id"] for row in self.rows)

    @property
    def end(self):
        return json.loads(self.log[-1])
