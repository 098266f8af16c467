"""A driver of Spark, which copies the rows of journals into others, and ends when that's done.

Its argument is an object of JSON: `source` and `sink` are options, `checkpoint` a directory,
`tasks` the number of tasks of a batch, and `directory` what's left to Spark.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from benchmarks.soaks.spark_faults import GROUP, FaultySource


def main() -> None:
    """Run the query."""
    given = json.loads(sys.argv[1])
    os.environ[GROUP] = str(os.getpgid(0))
    settings = {
        "spark.master": "local[2,4]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.local.dir": given["directory"],
        "spark.sql.warehouse.dir": f"{given['directory']}/warehouse",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    stream = spark.readStream.format("gazette").schema("id LONG").options(**given["source"])
    frame = stream.load().repartition(given["tasks"])
    writer = frame.writeStream.format("faulty_gazette").options(**given["sink"])
    writer = writer.option("checkpointLocation", given["checkpoint"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
