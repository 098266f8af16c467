"""Parallelism of sessions, by the command lines of their launchers."""

from __future__ import annotations

import pytest

from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo, JournalRange
from gazette_aio.spark.planning.parallelism import parallelism_of, session_parallelism, settings_of
from gazette_aio.spark.planning.tasks import MIDDLE_BYTES, size_partitions

LAUNCHER = ["java", "-cp", "/jars/*", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["--master", "local"], 1),
        (["--master", "local[3]"], 3),
        (["--master", "local[3, 2]"], 3),
        (["--master", "local[*]"], 64),
        (["--master", "local-cluster[2,3,1024]"], 6),
        (["--conf", "spark.master=local[4]", "pyspark-shell"], 4),
        (["--master", "local[4]", "--conf", "spark.default.parallelism=17"], 17),
        (["--master", "spark://host:7077"], None),
        (["--master", "spark://host:7077", "--total-executor-cores", "24"], 24),
        (["--master", "spark://host:7077", "--conf", "spark.cores.max=12"], 12),
        (["--master", "yarn", "--num-executors", "5", "--executor-cores", "4"], 20),
        (["--master", "yarn", "--conf", "spark.executor.instances=5"], 5),
        (["--conf", "spark.default.parallelism=many"], None),
    ],
)
def test_settings_of_the_driver(arguments, expected):
    assert parallelism_of(settings_of([*LAUNCHER, *arguments]), cores=64) == expected


def test_it_is_unknown_without_a_driver():
    assert session_parallelism() is None


def test_partitions_by_size():
    size = 10 * MIDDLE_BYTES
    journal = JournalInfo("j", size, "application/x-ndjson", fragments=(FragmentInfo(0, size, 1),))
    ranges = [JournalRange(journal, 0, size)]
    assert size_partitions(ranges, cores=None).least == 10
    assert size_partitions(ranges, cores=7).least == 7
    assert size_partitions([JournalRange(journal, 0, 5)], cores=None).least == 0
