"""Shared parts of the measures: a session of Spark, a broker, and journals, until the exit."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import os
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import gazette_aio.protocol as pb
from benchmarks.peers.kafka import CONNECTOR
from benchmarks.spark import content
from gazette_aio.client import connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Coroutine

    from pyspark.sql import SparkSession

T = TypeVar("T")

CORES: Final = 2
ROOT: Final = Path(__file__).parents[2]

PARTS: Final = [f"rows/part-{number}" for number in range(6)]
"""Journals of the rows."""
ONE: Final = "one/journal"
"""A journal of all rows."""
ROUNDS: Final = 13
"""Of each part."""
ROWS: Final = len(PARTS) * ROUNDS * content.ROUND
TARGETS: Final = [f"target/part-{number}" for number in range(4)]
COMMITS: Final = "commits/journal"

FRAGMENT_BYTES: Final = 32 << 20


class World:
    """Starts what's shared, and ends it at the exit of the process."""

    def __init__(self) -> None:
        self._exits = ExitStack()
        atexit.register(self._exits.close)
        directory = tempfile.TemporaryDirectory(prefix="gazette-bench-")
        self.root = Path(self._exits.enter_context(directory))
        self.file_root = self.root / "fragments"
        self.file_root.mkdir()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="broker", daemon=True).start()
        self._exits.callback(self._loop.call_soon_threadsafe, self._loop.stop)
        options = (f"--file-root={self.file_root}", "--fsync=off")
        broker = BrokerProcess(self.root / "broker", options=options)
        self._exits.callback(lambda: self._run(broker.stop()))
        self._run(self._fill(broker))
        self.endpoint = broker.endpoint
        self.spark = self._session()

    def options(self, **options: str) -> dict[str, str]:
        """Return options of a source or a sink. By default, it's a source of the parts."""
        given = {"brokers": self.endpoint, "fileRoot": str(self.file_root)}
        if not {"journals", "prefix"} & options.keys():
            given["prefix"] = "rows/"
        return given | options

    def content(self) -> list[bytes]:
        """Return the content of each part."""
        fragments = [sorted((self.file_root / part).rglob("*-*-*")) for part in PARTS]
        return [b"".join(path.read_bytes() for path in paths) for paths in fragments]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _fill(self, broker: BrokerProcess) -> None:
        """Start the broker, with all rows in persisted fragments."""
        await broker.start()
        kept = [_spec(name, stores=("file:///",)) for name in (*PARTS, ONE)]
        others = [_spec(name, stores=()) for name in (*TARGETS, COMMITS)]
        async with connect(broker.endpoint) as client:
            await create_journals(client, *kept, *others)
            for part in PARTS:
                for data in content.appends(ROUNDS):
                    await client.append(part, data)
                    await client.append(ONE, data)
        await broker.stop()  # All content is persisted by that.
        await broker.start()

    def _session(self) -> SparkSession:
        # Set, even to nothing, it leads the launcher to another installation.
        os.environ.pop("SPARK_HOME", None)
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        os.environ |= python | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        from pyspark.sql import SparkSession  # noqa: PLC0415 - who lists measures may not have it.

        from benchmarks.spark import sources  # noqa: PLC0415

        settings = {
            "spark.master": f"local[{CORES}]",
            "spark.app.name": "benchmarks",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={self.root}",
            "spark.local.dir": str(self.root / "local"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.sql.warehouse.dir": str(self.root / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if jars := [str(path) for path in CONNECTOR.glob("*.jar")]:
            settings["spark.jars"] = ",".join(jars)
        builder: Any = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark: SparkSession = builder.getOrCreate()
        self._exits.callback(_end, spark)
        spark.sparkContext.setLogLevel("OFF")  # What fails is raised.
        for source in sources.SOURCES:
            spark.dataSource.register(source)
        return spark


def _spec(name: str, stores: tuple[str, ...]) -> pb.JournalSpec:
    return journal_spec(
        name,
        labels={pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES},
        length=FRAGMENT_BYTES if stores else 1 << 30,
        codec=pb.CompressionCodec.NONE,
        stores=stores,
    )


def _end(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    # Spark leaves its JVM to the end of the interpreter.
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=30)
    gc.collect()


@functools.cache
def world() -> World:
    """Return what's shared, which is started by the first call."""
    return World()
