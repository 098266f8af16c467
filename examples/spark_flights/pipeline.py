"""Delays of flights by day, airport and weather: a streaming query from journals to a journal.

It's a program of its own, which ends where the journals do at the time, and goes on from there when
it's started again on the same checkpoint:

    PYTHONPATH=. spark-submit --master 'local[*]' --conf spark.sql.shuffle.partitions=4 \
        examples/spark_flights/pipeline.py --brokers http://localhost:8080 --checkpoint /tmp/delays

Without that setting Spark keeps the figures in 200 partitions, each of which costs its share of all
batches. The first run fixes their number.

On a cluster, `gazette-aio[spark]` has to be installed on all machines, all of them must reach the
brokers by the same addresses, and the checkpoint and the CSV file of the weather have to be on
storage which they share. `--master 'local-cluster[2,1,1024]'` is a cluster in miniature, of two
executors in processes of their own; of this program nothing but what it tells Spark runs there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from examples.spark_flights import data
from examples.spark_session import start_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHT = "row INT, airport STRING, time_hour TIMESTAMP, dep_delay INT"
"""What the query needs of a flight. The airport is a label of its journal, the rest is in the
message."""
WEATHER = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,"
    " wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE,"
    " visib DOUBLE, time_hour TIMESTAMP"
)
WATERMARK = "14 days"
"""How far journals may be apart while the history is read: airports are busy at different seasons,
and each batch takes from all of them the same share of what's left."""


def departures(spark: SparkSession, brokers: str, batch_bytes: int) -> DataFrame:
    """Return the stream of flights, committed ones only."""
    return (
        spark.readStream.format("gazette")
        .schema(FLIGHT)
        .option("brokers", brokers)
        .option("selector", data.DEPARTURES)
        .option("partitionColumns", data.AIRPORT)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", batch_bytes)
        .load()
    )


def weather(spark: SparkSession, path: Path) -> DataFrame:
    """Return the kind of weather at each airport and hour."""
    options = {"header": "true", "nullValue": "NA"}
    table = spark.read.format("csv").options(**options).schema(WEATHER).load(str(path))
    return table.select(
        fn.col("origin").alias("airport"), "time_hour", weather_kind().alias("weather")
    )


def weather_kind() -> Column:
    """Return what's worst about the weather of a row."""
    return (
        fn.when(fn.col("precip") > data.RAIN_INCHES, "rain")
        .when(fn.col("visib") < data.POOR_VISIBILITY_MILES, "fog")
        .when(fn.col("wind_speed") >= data.STRONG_WIND_MPH, "wind")
        .otherwise("fair")
    )


def delays(flights: DataFrame, hours: DataFrame) -> DataFrame:
    """Return the figures of each day, airport and kind of weather: the members of `data.Delay`."""
    known = flights.withWatermark("time_hour", WATERMARK).join(
        hours, ["airport", "time_hour"], "left"
    )
    kind = fn.coalesce("weather", fn.lit("unknown")).alias("weather")
    day = fn.window("time_hour", "1 day").alias("window")
    return (
        known.groupBy(day, "airport", kind)
        .agg(
            fn.count("*").alias("flights"),
            fn.count("dep_delay").alias("departed"),
            fn.coalesce(fn.sum("dep_delay"), fn.lit(0)).alias("delay_sum"),
        )
        .withColumn("day", fn.date_format("window.start", "yyyy-MM-dd"))
        .drop("window")
    )


def start(
    figures: DataFrame,
    brokers: str,
    checkpoint: Path,
    after_batch: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start to publish figures, up to where the journals end now.

    Each batch publishes the days which it changed. It's published exactly once, by the numbers of
    the query and the batch, even if Spark runs it again. So the last message of a day holds.
    """

    def publish(frame: DataFrame, batch: int) -> None:
        (
            frame.write.format("gazette")
            .mode("append")
            .option("brokers", brokers)
            .option("journal", data.DELAYS)
            .option("commitJournal", data.COMMITS)
            .save()
        )
        if after_batch is not None:
            after_batch(batch)

    writer = (
        figures.writeStream.foreachBatch(publish)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    return writer.start()


def main() -> None:
    """Run the query to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", required=True, help="addresses of brokers")
    parser.add_argument("--checkpoint", required=True, help="directory of Spark's checkpoint")
    parser.add_argument("--weather", default=data.weather_path(), help="CSV file")
    parser.add_argument("--batch-bytes", type=int, default=16 << 20, help="of journals, per batch")
    options = parser.parse_args()
    spark = start_session("delays")
    flights = departures(spark, options.brokers, options.batch_bytes)
    figures = delays(flights, weather(spark, options.weather))
    start(figures, options.brokers, options.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
