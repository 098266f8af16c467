"""Fixtures of the tests which need PySpark and Java: a session, a broker, and its journals.

Where one of both is missing, these tests are skipped; or fail, if GAZETTE_REQUIRE_SPARK is set.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pyspark.journals import Broker, Journals
from tests.pyspark.limits import NOT_CONNECTED, TEST_SECONDS

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]
_RERUNS = 3
_SHOWN_CHARACTERS = 8000
_LEFT_OPEN = r"ignore:unclosed <socket\.socket .*raddr=\('127\.0\.0\.1':ResourceWarning"
"""PySpark and Py4J leave connections to the JVM, by which rows come, to the garbage collector."""


def _missing() -> str | None:
    # The package pyspark-client has the same modules, and no Spark.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "jars").is_dir():
        return "PySpark isn't installed: see `make test-spark`"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        return "Java isn't found: Spark needs Java 17 or newer"
    return None


class _Skipped(pytest.Module):
    """A module of tests which can't run here."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        reason = _missing()
        assert reason is not None
        if os.environ.get("GAZETTE_REQUIRE_SPARK"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Keep modules from being imported where PySpark is missing."""
    if _missing() is None:
        return None
    module: pytest.Module = _Skipped.from_parent(parent, path=module_path)
    return module


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests the time which Spark takes, and pass over what it leaves open."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        item.add_marker(pytest.mark.filterwarnings(_LEFT_OPEN))
        item.add_marker(pytest.mark.flaky(reruns=_RERUNS, only_rerun=[NOT_CONNECTED]))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


_LOG = pytest.StashKey[Path]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a test which fails show the end of what Spark's processes told."""
    report = yield
    log = item.config.stash.get(_LOG, None)
    if report.failed and log is not None and log.exists():
        text = log.read_text(errors="replace")
        report.sections.append(("What Spark told last", text[-_SHOWN_CHARACTERS:]))
    return report


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of processes of Spark, which is also set in this one.

    Workers run this interpreter, and import `gazette_aio` and `tests` from this tree. Pass it to
    programs which a test starts: `subprocess.run(..., env=spark_environment)`.
    """
    # Spark names its zipped modules first, which each worker would compile: a start takes thrice
    # as long, and Spark waits for it for 10 s only.
    python = tmp_path_factory.mktemp("python") / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{_ROOT}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        # Set, even to nothing, it leads the launcher to another installation.
        patch.delenv("SPARK_HOME", raising=False)
        patch.setenv("PYSPARK_PYTHON", str(python))
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(_ROOT))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield dict(os.environ)


@pytest.fixture(scope="session")
def spark_settings(
    tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]
) -> dict[str, str]:
    """Settings of the session, for tests which start one of their own in another process."""
    root = tmp_path_factory.mktemp("spark")
    return {
        "spark.master": "local[2,2]",
        "spark.app.name": "gazette_aio",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={root} -XX:TieredStopAtLevel=1",
        "spark.local.dir": str(root / "local"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.python.worker.faulthandler.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
    }


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """File of what Spark's processes tell: the JVM of `spark`, and all of its workers."""
    pytestconfig.stash[_LOG] = path = tmp_path_factory.mktemp("log") / "spark.log"
    return path


@pytest.fixture(scope="session")
def spark(spark_settings: dict[str, str], spark_log: Path) -> Iterator[SparkSession]:
    """The Spark session of this run: it starts when it's first used.

    It has two cores, and runs each task which fails once more.

    A query whose sources are too slow to connect is started again.

    Streams which a test left running are stopped behind the last one only: stop them yourself.
    What a test sets by `spark.conf.set` it must unset.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.soaks.spark_driver import start_patiently

    conf = SparkConf().setAll(list(spark_settings.items()))
    gateway = _launched(conf, spark_log)
    SparkContext(conf=conf, gateway=gateway).setLogLevel("ERROR")
    session = SparkSession.builder.getOrCreate()
    with pytest.MonkeyPatch.context() as patch:
        start = DataStreamWriter.start
        patch.setattr(
            DataStreamWriter, "start", lambda writer: start_patiently(partial(start, writer))
        )
        yield session
    for query in session.streams.active:
        query.stop()
    session.stop()
    # Spark leaves its JVM to the end of the interpreter, and its pipe to the garbage collector.
    process: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=120)
    gc.collect()  # What's left open is told here, where it's passed over.


def _launched(conf: SparkConf, log_path: Path) -> JavaGateway:
    """Start Spark's JVM."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    # What a failed attempt leaves open is PySpark's.
    with log_path.open("ab") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        # Race: PySpark forks, and the child may end at once if threads of gRPC are at work then.
        for _ in range(2):
            try:
                return launch_gateway(conf, {"stderr": log})
            except PySparkRuntimeError:
                pass
            gc.collect()
        return launch_gateway(conf, {"stderr": log})


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of this run, in a thread: `broker.endpoint`, `broker.run(coroutine)`, `broker.client`.

    It's shared by all tests, and outlives drivers which a test kills. Use `journals` for content.
    """
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


_NUMBERS = itertools.count(1)


@pytest.fixture
def journals(broker: Broker) -> Journals:
    """Journals of this test, below a prefix of its own; none is there before `journals.create()`.

    Example:
        journals.create("a", "b", labels={"region": "eu"})
        journals.publish("a", [{"id": 1}])
        spark.read.format("gazette").options(**journals.options()).load()
        assert journals.committed("a", "b") == ...
    """
    return Journals(broker, f"test-{next(_NUMBERS)}/")


@pytest.fixture
def told(spark: SparkSession, spark_log: Path) -> Iterator[Callable[[], str]]:
    """Has processes of the format "talkative" log all they can: returns what they told since."""
    from tests.pyspark.probes import TalkativeSource

    spark.dataSource.register(TalkativeSource)
    begin = spark_log.stat().st_size
    spark.sparkContext.setLogLevel("DEBUG")

    def read() -> str:
        with spark_log.open("rb") as file:
            file.seek(begin)
            return file.read().decode(errors="replace")

    yield read
    spark.sparkContext.setLogLevel("ERROR")
