"""A standalone cluster: programs submitted to it, and executors which are killed."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from benchmarks.soaks.spark import EXECUTOR_KILL, Query, kill, start_driver
from benchmarks.soaks.spark_cluster import SparkCluster, spark_home
from benchmarks.soaks.spark_faults import EXECUTOR
from gazette_aio.client import connect
from tests.pyspark.streams import DEADLINE_SECONDS, was_too_slow
from tests.pyspark.test_sink import BATCHES

PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = dict(each.split("=", 1) for each in sys.argv[2:])
rows = spark.read.format("gazette").options(**options).schema("id BIGINT").load()
with open(sys.argv[1], "w") as file:
    print(rows.count(), rows.agg({"id": "sum"}).first()[0], spark.sparkContext.master, file=file)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, spark_environment):
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_a_batch_by_spark_submit(cluster, journals, spark_environment, tmp_path):
    journals.create("a", "b")
    for number, name in enumerate("ab"):
        journals.publish(name, [{"id": one} for one in range(50 * number, 50 * number + 50)])
    (program := tmp_path / "program.py").write_text(PROGRAM)
    options = [f"{name}={value}" for name, value in journals.options().items()]
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    conf = [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    submit = [spark_home() / "bin" / "spark-submit", "--master", cluster.master, *conf]
    done = subprocess.run(
        [*submit, program, tmp_path / "result", *options],
        env=spark_environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    expected = f"100 {sum(range(100))} {cluster.master}\n"
    assert (tmp_path / "result").read_text("utf-8") == expected


@BATCHES
async def test_an_executor_is_killed(cluster, broker, tmp_path):
    killed = tmp_path / "killed"
    async with connect(broker.endpoint) as client:
        query = Query(client, EXECUTOR_KILL.replace(" ", "-"), tmp_path, rows=40, batches=2)
        await query.create()
        while True:
            given, environment = [query.given(2)], {EXECUTOR: str(killed)}
            driver = await start_driver(tmp_path, given, environment, cluster.master)
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    _, told = await driver.communicate()
            finally:
                kill(driver)
                await driver.wait()
            if driver.returncode == 0:
                break
            assert was_too_slow(text := told.decode()), text[-4000:]
        assert killed.exists(), "an executor was killed behind its append"
        await query.check(is_done=True)
        assert await query.messages() > 40, "its task was run again"
