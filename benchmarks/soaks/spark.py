"""Kill drivers of Spark over and over: each row is delivered exactly once by an exactly-once sink.

A query copies journals. Its driver is killed at points of the sink's protocol and at random, tasks
fail, and two drivers run at once on one checkpoint. On a cluster, executors are killed, too.
Invariants, checked after every run by a reader
which isn't Spark:
    - no row is delivered twice, and none which isn't of the source;
    - what was delivered remains so;
    - at the end of a query, each row is delivered.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.soaks.invariant import require
from benchmarks.soaks.spark_cluster import SparkCluster
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.message import ReadCommittedIter, json_adapter
from gazette_aio.message.uuid import OUTSIDE_TXN, Clock, build_uuid, new_producer_id
from gazette_aio.spark.sink.commit_records import CommitKind, CommitRecord, decode_line
from gazette_aio.testing import create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
POINTS = ("append", "record", "recorded", "acks", "done")
"""See `spark_faults`."""
TWO_DRIVERS, RANDOM_KILL, FAILING_TASKS = "two drivers", "random kill", "failing tasks"
EXECUTOR_KILL = "killed executor"
RUN_SECONDS = 180.0
CLUSTER_SECONDS = 900.0
"""Executors are started for each driver, and new ones where they were killed."""
ROWS = 2000
BATCHES = 20
FEW_ROWS = 24
SOURCES, TARGETS = 2, 3


def spark_python() -> str | None:
    """Return an interpreter which has PySpark, if there is one."""
    if (given := os.environ.get("GAZETTE_SPARK_PYTHON")) is not None:
        return given
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin and (Path(spec.origin).parent / "jars").is_dir():
        return sys.executable
    found = ROOT / ".venv-spark" / "bin" / "python"
    return str(found) if found.exists() else None


class Query:
    """A query, which is run by one driver after the other until it's done.

    Args:
        client: Client of the broker.
        name: Name of the query, which those of its journals begin with.
        directory: Where it keeps its checkpoint.
        rows: Number of rows.
        batches: Number of batches, about.
    """

    def __init__(
        self, client: JournalClient, name: str, directory: Path, *, rows: int, batches: int
    ) -> None:
        self._client = client
        self._name = name
        self.directory = directory / name
        self._rows = rows
        self._batches = batches
        self._bytes = 0
        self._delivered: set[int] = set()
        self.log = f"{name}/commits"
        self.targets = [f"{name}/out/{n}" for n in range(TARGETS)]

    async def create(self) -> None:
        """Create its journals, and publish its rows."""
        self.directory.mkdir()
        sources = [f"{self._name}/in/{n}" for n in range(SOURCES)]
        specs = [
            journal_spec(name, labels={"content-type": "application/x-ndjson"})
            for name in (self.log, *sources, *self.targets)
        ]
        await create_journals(self._client, *specs)
        adapter, producer, clock = json_adapter(dict), new_producer_id(), Clock.now()
        for number, source in enumerate(sources):
            lines = [
                adapter.encode({"id": row}, build_uuid(producer, clock.tick(), OUTSIDE_TXN))
                for row in range(number, self._rows, SOURCES)
            ]
            content = b"".join(line + b"\n" for line in lines)
            self._bytes += len(content)
            await self._client.append(source, content)

    def given(self, tasks: int) -> dict[str, Any]:
        """Return what a driver is told of it."""
        brokers = self._client.endpoint
        return {
            "source": {
                "brokers": brokers,
                "prefix": f"{self._name}/in/",
                "startingOffsets": "earliest",
                "maxBytesPerTrigger": str(self._bytes // self._batches),
            },
            "sink": {
                "brokers": brokers,
                "prefix": f"{self._name}/out/",
                "commitJournal": self.log,
            },
            "checkpoint": str(self.directory / "checkpoint"),
            "tasks": tasks,
        }

    async def records(self) -> list[CommitRecord]:
        """Return the records of its commit journal."""
        lines = (await self._content(self.log)).splitlines()
        return [each for line in lines if isinstance(each := decode_line(line), CommitRecord)]

    async def decided(self) -> int:
        """Return the latest batch which is decided, or -1."""
        commits = [each.batch for each in await self.records() if each.kind is CommitKind.COMMIT]
        return max(commits, default=-1)

    async def check(self, *, is_done: bool) -> None:
        """Require that rows are delivered once, and at the end all of them."""
        async with ReadCommittedIter(
            self.targets, json_adapter(dict), client=self._client, block=False, skip_acks=True
        ) as iterator:
            rows = [envelope.message["id"] async for envelope in iterator]
        found = set(rows)
        require(len(found) == len(rows), f"{self._name}: {len(rows) - len(found)} rows twice")
        require(found <= set(range(self._rows)), f"{self._name}: rows which aren't of the source")
        lost = self._delivered - found
        require(not lost, f"{self._name}: {len(lost)} rows were delivered, and aren't any more")
        missing = self._rows - len(found)
        require(not (is_done and missing), f"{self._name}: {missing} rows are missing")
        self._delivered = found

    async def messages(self) -> int:
        """Return how many messages were published, be they delivered or not."""
        contents = [await self._content(target) for target in self.targets]
        return sum(content.count(b'"id"') for content in contents)

    async def summary(self) -> str:
        """Return what lies in its journals."""
        messages = await self.messages()
        records = await self.records()
        producers = {producer for record in records for producer in record.producers}
        return (
            f"{self._name}: {len(self._delivered)} rows of {messages} messages,"
            f" {len(records)} records of {len(producers)} producers"
        )

    async def _content(self, journal: str) -> bytes:
        head = (await self._client.append(journal)).commit.end
        content = b""
        if head:
            async with self._client.read(journal, end_offset=head) as reader:
                while len(content) < head:
                    content += await reader.read()
        return content


async def start_driver(
    directory: Path,
    queries: Sequence[dict[str, Any]],
    environment: Mapping[str, str],
    master: str | None = None,
) -> asyncio.subprocess.Process:
    """Start a driver of queries, which also runs their tasks unless it's given a cluster."""
    python = spark_python()
    assert python is not None
    own = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    given = json.dumps({"directory": str(directory), "queries": queries, "master": master})
    return await asyncio.create_subprocess_exec(
        python,
        *("-m", "benchmarks.soaks.spark_driver", given),
        env={**inherited, **own, **environment},
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


def kill(driver: asyncio.subprocess.Process) -> None:
    """Kill a driver with its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


async def run(
    query: Query, fault: str | None, rng: random.Random, master: str | None = None
) -> bool:
    """Run a query with a fault, and return whether a driver has come to its end.

    Raises:
        BrokenInvariantError: A driver failed, though nothing had it fail.
    """
    environment: dict[str, str] = {}
    if fault in POINTS:
        batch = await query.decided() + 1 + rng.randrange(2)
        environment["GAZETTE_SOAK_KILL"] = json.dumps({query.log: f"{fault}:{batch}"})
    if fault == FAILING_TASKS:
        environment["GAZETTE_SOAK_FAIL"] = "0.4"
    if fault == EXECUTOR_KILL:
        environment["GAZETTE_SOAK_EXECUTOR"] = str(query.directory / f"{rng.getrandbits(64):x}")

    async def start() -> asyncio.subprocess.Process:
        given = [query.given(rng.randint(1, 4))]
        return await start_driver(query.directory, given, environment, master)

    drivers = [await start()]
    if fault == TWO_DRIVERS:
        await asyncio.sleep(rng.uniform(0, 2))
        drivers.append(await start())
    if fault == RANDOM_KILL:
        asyncio.get_running_loop().call_later(rng.uniform(5, 25), kill, drivers[0])
    try:
        async with asyncio.timeout(RUN_SECONDS if master is None else CLUSTER_SECONDS):
            ends = await asyncio.gather(*(driver.communicate() for driver in drivers))
    finally:
        for driver in drivers:
            kill(driver)
            await driver.wait()
    await query.check(is_done=False)
    codes = [driver.returncode for driver in drivers]
    if fault in (None, FAILING_TASKS, EXECUTOR_KILL):
        require(codes == [0], f"the driver failed:\n{ends[0][1].decode()[-4000:]}")
    return 0 in codes


async def run_query(
    query: Query, faults: list[str], rng: random.Random, master: str | None = None
) -> None:
    """Run a query with one fault after the other, then to its end, and check what it delivers.

    Those which it was done ahead of are left in the list.
    """
    await query.create()
    while faults:
        fault = faults.pop(0)
        is_done = await run(query, fault, rng, master)
        print(f"  {fault}: decided {await query.decided()}", flush=True)
        if is_done:
            break
    await run(query, None, rng, master)
    await query.check(is_done=True)
    print(await query.summary(), flush=True)


async def soak(duration: float, seed: int, *, cluster: bool = False) -> None:
    """Run queries with faults for so many seconds, or until there was each of the faults.

    With `cluster`, tasks are run by a standalone cluster, whose executors are killed as well.
    """
    require(spark_python() is not None, "no PySpark: make setup-spark, or GAZETTE_SPARK_PYTHON")
    rng = random.Random(seed)
    end = time.monotonic() + duration
    number = 0
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with AsyncExitStack() as stack:
            started: SparkCluster | None = None
            if cluster:
                started = stack.enter_context(SparkCluster(directory / "cluster"))
            master = None if started is None else started.master
            broker = await stack.enter_async_context(
                EmbeddedBroker(directory / "broker", fsync="off")
            )
            client = await stack.enter_async_context(connect(broker.endpoint))
            while number == 0 or faults or time.monotonic() < end:
                if not faults:
                    faults = [*POINTS, TWO_DRIVERS, RANDOM_KILL, FAILING_TASKS]
                    faults += [EXECUTOR_KILL] if cluster else []
                    rng.shuffle(faults)
                # Every other one has a batch for each row.
                rows, batches = (ROWS, BATCHES) if number % 2 == 0 else (FEW_ROWS, FEW_ROWS)
                query = Query(client, f"query{number}", directory, rows=rows, batches=batches)
                await run_query(query, faults, rng, master)
                number += 1
    print(f"intact: {number} queries", flush=True)
