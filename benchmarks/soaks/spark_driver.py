"""A driver of Spark, which copies the rows of journals into others, and ends when that's done.

Its argument is an object of JSON: `directory` is left to Spark, `master` is the URL of a cluster or
null, and `queries` are objects of which `source` and `sink` are options, `checkpoint` a directory,
and `tasks` the number of tasks of a batch.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from benchmarks.soaks.spark_faults import GROUP, FaultySource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

_START_SECONDS: Final = 120.0
_NOT_CONNECTED: Final = re.compile("Python worker (failed )?to connect back")


def start_patiently(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and return it when its sources have connected.

    Spark gives the process of a source 10 s to connect, which a busy machine may exceed, and has no
    setting for it. Such a query has read nothing, and is started again.

    Args:
        start: Starts the query.
    """
    deadline = time.monotonic() + _START_SECONDS
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith(("Initializing", "Terminated")):
            time.sleep(0.02)
        error = None if query.isActive else query.exception()
        is_late = error is not None and _NOT_CONNECTED.search(str(error)) is not None
        if not is_late or time.monotonic() >= deadline:
            return query


def main() -> None:
    """Run the query."""
    given = json.loads(sys.argv[1])
    os.environ[GROUP] = str(os.getpgid(0))
    settings = {
        "spark.master": f"local[{len(given['queries']) + 1},4]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.local.dir": given["directory"],
        "spark.sql.warehouse.dir": f"{given['directory']}/warehouse",
        "spark.sql.shuffle.partitions": "2",
    }
    if (master := given["master"]) is not None:
        inherited = [name for name in os.environ if name.startswith("GAZETTE_SOAK_")]
        settings |= {f"spark.executorEnv.{name}": os.environ[name] for name in inherited}
        settings |= {
            "spark.master": master,
            # Two drivers have room beside each other, each with an executor of each worker.
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    queries: list[StreamingQuery] = []
    for each in given["queries"]:
        stream = spark.readStream.format("gazette").schema("id LONG").options(**each["source"])
        frame = stream.load().repartition(each["tasks"])
        writer = frame.writeStream.format("faulty_gazette").options(**each["sink"])
        writer = writer.option("checkpointLocation", each["checkpoint"])
        queries.append(start_patiently(writer.trigger(availableNow=True).start))
    # A query that fails ends the driver, also while others are held.
    while not all(query.awaitTermination(1) for query in queries):
        for query in queries:
            query.awaitTermination(1)


if __name__ == "__main__":
    main()
