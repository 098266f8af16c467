"""How Spark finds the format, by each of its front ends, and what programs use besides."""

# pyright: basic
# Rows and fixtures of Spark have no types.
from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import AnalysisException

import gazette_aio.spark
import pyspark_gazette
from gazette_aio.message.uuid import ACK_TXN
from gazette_aio.spark import GazetteDataSource, lag, register
from tests import extent
from tests.message.sequencing.sequencing import well_formed, wild
from tests.pyspark.journals import Producer

ROOT = Path(__file__).parents[2]
SCHEMA = "id BIGINT, _journal STRING"
QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""What's compiled best isn't worth it for as short as these programs run."""
HIDING = """
import sys

class Hiding:
    hidden = {hidden!r}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hiding())
"""


def run(text, *arguments, env):
    """Run a program of Python, and return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return output(command, env)


def output(command, env):
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.fixture
def flights(journals):
    """Two journals of five documents, of which three are committed."""
    journals.create("a", "b")
    journals.publish("a", [{"id": 1}, {"id": 2}])
    journals.transaction("b", [{"id": 3}])
    journals.transaction("b", [{"id": 4}, {"id": 5}], commit=False)
    return journals


def ids(df):
    return sorted(row.id for row in df.collect())


# --- Import rules: another process has none of the modules which this one has imported.


@pytest.mark.parametrize(
    ("hidden", "missing"),
    [
        (["gazette_aio"], "gazette_aio"),
        (["grpc"], "grpc"),
        (["pyarrow"], "pyarrow"),
        (["numpy", "pandas", "pyarrow"], "numpy|pyarrow"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_shim_is_imported_whatever_is_missing(hidden, missing, spark_environment):
    printed = run(
        HIDING.format(hidden=hidden)
        + textwrap.dedent("""
        import pyspark_gazette
        assert "gazette_aio" not in sys.modules
        assert "grpc" not in sys.modules
        assert pyspark_gazette.DefaultSource.name() == "gazette"
        try:
            pyspark_gazette.DefaultSource({"brokers": "http://localhost:1", "prefix": "a/"})
        except ImportError as error:
            print(error)
        """),
        env=spark_environment,
    )
    assert printed.count("\n") == 1
    assert any(f"No module named '{name}" in printed for name in missing.split("|"))
    assert printed.endswith(f"pip install 'gazette-aio[spark]' for {sys.executable}\n")


def test_without_pyspark(spark_environment):
    printed = run(
        HIDING.format(hidden=["pyspark"])
        + textwrap.dedent("""
        import gazette_aio.spark
        import pyspark_gazette
        assert not hasattr(pyspark_gazette, "DefaultSource")
        for name in ("GazetteDataSource", "register"):
            try:
                getattr(gazette_aio.spark, name)
            except ImportError as error:
                print(error)
        """),
        env=spark_environment,
    )
    line = (
        "gazette_aio.spark needs another package: No module named 'pyspark':"
        f" pip install 'gazette-aio[spark]' for {sys.executable}\n"
    )
    assert printed == line * 2


def test_names_are_imported_when_used(spark_environment):
    printed = run(
        """
        import sys
        import gazette_aio.spark
        print(*(name for name in ("pyspark", "numpy", "grpc") if name in sys.modules))
        print(*gazette_aio.spark.__all__)
        """,
        env=spark_environment,
    )
    names = "GazetteDataSource GazetteProgressListener QueryProgress lag recover_sink register"
    assert printed == f"\n{names}\n"
    for name in names.split():
        assert getattr(gazette_aio.spark, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        getattr(gazette_aio.spark, "other")  # noqa: B009 - Types know that there's none.
    assert set(names.split()) <= set(dir(gazette_aio.spark))


# --- Registration.


def test_the_format_is_found(spark, flights):
    df = spark.read.format("gazette").options(**flights.options()).schema(SCHEMA).load()
    assert ids(df) == [1, 2, 3]


def test_the_shim_is_what_is_found():
    assert pyspark_gazette.DefaultSource.name() == GazetteDataSource.name() == "gazette"


def test_register(spark, flights):
    session = spark.newSession()  # What's registered goes before what's found.
    register(session)
    df = session.read.format("gazette").options(**flights.options()).schema(SCHEMA).load()
    assert ids(df) == [1, 2, 3]


# --- Front ends.


def test_sql(spark, flights):
    options = ", ".join(f"{name} '{value}'" for name, value in flights.options().items())
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flights (id BIGINT) USING gazette OPTIONS ({options})"
    )
    try:
        assert spark.sql("SELECT sum(id) AS total FROM flights").collect() == [(6,)]
    finally:
        spark.catalog.dropTempView("flights")


@pytest.mark.slow
def test_the_sql_shell(tmp_path, flights, spark_environment):
    options = ", ".join(f"{name} '{value}'" for name, value in flights.options().items())
    query = (
        f"CREATE TEMPORARY VIEW v ({SCHEMA}) USING gazette OPTIONS ({options});"
        "SELECT id, _journal FROM v ORDER BY id"
    )
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-sql"),
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false"),
        *("--conf", f"spark.sql.warehouse.dir={tmp_path}/warehouse"),
        *("--conf", "spark.sql.catalogImplementation=in-memory"),
        *("-e", query),
    ]
    printed = subprocess.run(
        command, env=spark_environment | QUICK, capture_output=True, text=True, timeout=400, cwd=tmp_path,
        check=False,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr[-6000:]
    rows = [tuple(line.split("\t")) for line in printed.stdout.splitlines() if "\t" in line]
    assert rows == [
        ("1", flights.name("a")),
        ("2", flights.name("a")),
        ("3", flights.name("b")),
    ]


@pytest.mark.slow
def test_spark_connect_with_another_module_which_cant_be_imported(
    tmp_path, flights, spark_environment
):
    # One session of its own for both, which takes seconds: Spark looks for formats only once.
    pytest.importorskip("pandas", reason="clients of Spark Connect need pandas")
    pytest.importorskip("grpc_status", reason="clients of Spark Connect need grpcio-status")
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('broken')\n")
    printed = run(
        """
        import json, sys
        from pyspark.sql import SparkSession
        from gazette_aio.protocol import ConfigurationError
        from gazette_aio.spark import register
        options = json.loads(sys.argv[1])
        try:
            register()
        except ConfigurationError as error:
            print(error)
        builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
        spark = builder.getOrCreate()
        read = spark.read.format("gazette").options(**options).schema("id BIGINT")
        try:
            read.load().collect()
        except Exception as error:
            print(type(spark).__module__, "DATA_SOURCE_NOT_FOUND" in str(error))
        register()
        print(sorted(row.id for row in read.load().collect()))
        spark.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
        try:
            spark.read.format("gazette").options(brokers="http://localhost:1", prefx="a/").load().collect()
        except Exception as error:
            print("did you mean 'prefix'?" in str(error).splitlines()[0])
        spark.stop()
        """,
        json.dumps(flights.options()),
        env=spark_environment
        | QUICK
        | {"SPARK_CONNECT_MODE": "1", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert printed.splitlines() == [
        "no Spark session is active: create one first, or pass it",
        "pyspark.sql.connect.session True",
        "[1, 2, 3]",
        "True",
    ]


# --- Options.


def test_options_in_any_case(spark, flights):
    spellings = {
        "BROKERS": flights.broker.endpoint,
        "Prefix": flights.prefix,
        "FILEROOT": str(flights.broker.file_root),
        "isolation": "read-uncommitted",
        "includeacks": "false",
    }
    df = spark.read.format("gazette").options(**spellings).schema(SCHEMA).load()
    assert ids(df) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prefx": "a/"}, "unknown option 'prefx': did you mean 'prefix'?"),
        ({"starting_offsets": "latest"}, "did you mean 'startingOffsets'?"),
        ({"isolation": "serializable"}, "option 'isolation': 'serializable' is invalid"),
        ({"brokers": None}, "option 'brokers' is missing"),
    ],
)
def test_mistakes_are_told(spark, flights, options, expected):
    given = {name: value for name, value in (flights.options() | options).items() if value}
    reader = spark.read.format("gazette").options(**given)
    with pytest.raises(AnalysisException) as raised:
        reader.load()
    assert str(raised.value.getCondition()).startswith("PYTHON_DATA_SOURCE_ERROR")
    assert expected in str(raised.value)
    # If Spark needn't ask for a schema, it makes the source when there's something to do.
    with pytest.raises(AnalysisException) as raised:
        reader.schema(SCHEMA).load().collect()
    assert expected in str(raised.value)


# --- How far a query is behind.


def test_lag_of_a_query(spark, journals, tmp_path):
    reason = "PySpark 4.2 is the first to tell of write heads"
    pytest.importorskip("pyspark.sql.streaming.datasource", reason=reason)
    journals.create("a", "b")
    for name in ("a", "b"):
        for number in range(4):
            journals.publish(name, [{"id": number}] * 50)
    total = journals.head("a") + journals.head("b")
    options = journals.options(startingOffsets="earliest", maxBytesPerTrigger=total // 3)
    query = (
        spark.readStream.format("gazette").options(**options).schema(SCHEMA).load()
        .writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
        behind = [lag(progress) for progress in query.recentProgress]
    finally:
        query.stop()
    names = {journals.name("a"), journals.name("b")}
    assert all(set(left) == names for left in behind)
    left = [sum(each.values()) for each in behind]
    assert left == sorted(left, reverse=True)
    assert 0 < left[0] < total
    assert left[-1] == 0
    assert lag(query.lastProgress) == behind[-1]


# --- Committed rows.


def test_committed_rows_of_random_histories(spark, journals, caplog):
    caplog.set_level(logging.CRITICAL, "gazette_aio")
    rng = random.Random(seed := extent.seed())
    names = ["a", "b", "c"]
    journals.create(*names)
    for name, kind in zip(names, (well_formed, wild, well_formed), strict=True):
        producers = {}
        lines = []
        for number, row in enumerate(kind(rng, 200)):
            if not row.clock:
                continue
            producer = producers.setdefault(row.producer, Producer(row.producer))
            document = {"id": f"{name}{number}"}
            if row.flags == ACK_TXN:
                lines.append(producer.ack(row.clock))
            else:
                lines.append(producer.encode(document, row.flags, row.clock))
        for begin in range(0, len(lines), 40):
            journals.append(name, b"".join(lines[begin : begin + 40]))
            journals.persist(name)
    want = sorted(document["id"] for document in journals.committed(*names))
    options = journals.options(maxSplitBytes=3000)
    rows = spark.read.format("gazette").options(**options).schema("id STRING").load()
    assert rows.rdd.getNumPartitions() > len(names)
    assert len(want) > 20
    assert ids(rows) == want, f"seed {seed}"
