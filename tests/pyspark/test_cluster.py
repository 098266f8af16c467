"""A standalone cluster: programs submitted to it, and executors which are killed."""

from __future__ import annotations

import asyncio
import shlex
import subprocess

import pytest

pytest.importorskip("httpx", reason="what the pages of the guides need isn't there")
from benchmarks.soaks.spark import EXECUTOR_KILL, Query, kill, start_driver
from benchmarks.soaks.spark_cluster import SparkCluster, spark_home
from benchmarks.soaks.spark_faults import EXECUTOR
from gazette_aio.client import connect
from tests.docs.test_blocks import SPARK_PAGE, blocks_of
from tests.pyspark.limits import DEADLINE_SECONDS, was_too_slow
from tests.pyspark.versions import BATCHES

pytestmark = pytest.mark.slow  # A cluster takes minutes.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, spark_environment):
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_the_program_of_the_guide(cluster, journals, spark_environment, tmp_path):
    """It's submitted as the guide says, but for the addresses."""
    blocks = blocks_of(SPARK_PAGE)
    (program,) = (one.text for one in blocks if one.text.startswith("# rides_by_region.py"))
    (command,) = (
        line.removeprefix("$ ")
        for one in blocks
        for line in one.text.splitlines()
        if line.startswith("$ spark-submit")
    )
    for region, count in (("north", 30), ("south", 20)):
        labels = {"app.gazette.dev/message-type": "Ride", "region": region}
        journals.create(region, labels=labels)
        journals.publish(region, [{"id": one, "distance": 1} for one in range(count)])
    (tmp_path / "rides_by_region.py").write_text(program)
    name, *words = shlex.split(command)
    words[words.index("--master") + 1] = cluster.master
    settings = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.memory=512m")
    conf = [word for setting in settings for word in ("--conf", setting)]
    done = subprocess.run(
        [spark_home() / "bin" / name, *conf, *words],
        env={**spark_environment, "BROKER_ADDRESS": journals.broker.endpoint},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "| north|   30|\n| south|   20|\n" in done.stdout


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
