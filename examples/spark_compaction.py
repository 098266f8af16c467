"""Compact journals into Parquet files, in directories by their labels: what's new, at each run.

Without an address of brokers, it publishes flights to a broker of its own, compacts them in two
runs, and compares each row with the CSV file. With one it compacts what's there, and ends:

    PYTHONPATH=. spark-submit --master 'local[*]' examples/spark_compaction.py \
        --brokers http://localhost:8080 --output /tmp/flights --checkpoint /tmp/compaction

Spark's own Parquet sink tells in the output's directory which files are there, and the checkpoint
tells what was read: together, each message is in a file once, however often a run fails. The files
are read by `spark.read.parquet()`; others should pass over those which the sink doesn't know.

On a cluster, `gazette-aio[spark]` has to be installed on all machines, and output and checkpoint
have to be on storage which they share. `--master 'local-cluster[2,1,1024]'` is a cluster in
miniature, of two executors in processes of their own; of this program nothing but what it tells
Spark runs there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from examples.flights.data import DataSetMissingError, Flight
from examples.flights.progress import LineProgress
from examples.spark_flights import data
from examples.spark_session import missing, start_session
from gazette_aio import GazetteError, connect
from gazette_aio.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "airport STRING, `row` INT, carrier STRING, flight INT, tailnum STRING, origin STRING,"
    " dest STRING, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,"
    " arr_time INT, sched_arr_time INT, arr_delay INT, air_time INT, distance INT, hour INT,"
    " minute INT, time_hour STRING, _journal STRING, _begin LONG"
)
"""The members of a message, and besides a label of its journal, and where it is there."""


def compact(spark: SparkSession, brokers: str, output: Path, checkpoint: Path) -> None:
    """Write to Parquet files what was committed since the last run."""
    flights = (
        spark.readStream.format("gazette")
        .schema(SCHEMA)
        .option("brokers", brokers)
        .option("selector", data.DEPARTURES)
        .option("partitionColumns", data.AIRPORT)
        .option("startingOffsets", "earliest")
        # It bounds the size of files, too.
        .option("maxBytesPerTrigger", 256 << 20)
        .load()
    )
    writer = (
        flights.writeStream.format("parquet")
        .partitionBy(data.AIRPORT)
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    writer.start().awaitTermination()


def differences(spark: SparkSession, output: Path, flights: list[Flight]) -> list[str]:
    """Return what is wrong with the files, one sentence each; nothing when all is well."""
    found = spark.read.parquet(str(output)).orderBy("row", "_journal", "_begin").toArrow()
    expected = sorted(flights, key=lambda flight: flight.row)
    if found.num_rows != len(expected):
        return [f"{found.num_rows:,} rows were written, but there are {len(expected):,}"]
    airports = found.column(data.AIRPORT).to_pylist()
    journals = found.column("_journal").to_pylist()
    rows = found.select(Flight.__struct_fields__).to_pylist()
    return [
        f"row {flight.row} of the file isn't that of journal {journal}: {row}"
        for flight, row, airport, journal in zip(expected, rows, airports, journals, strict=True)
        if not (
            msgspec.structs.asdict(flight) == row
            and airport == flight.origin
            and journal == f"nyc/departures/{airport}"
        )
    ]


async def run(flights: list[Flight], spark: SparkSession, directory: Path) -> Path:
    """Publish flights and compact them, half of them at a time; return the output's directory."""
    output, checkpoint = directory / "output", directory / "checkpoint"
    middle = len(flights) // 2
    progress = LineProgress()
    async with BrokerProcess(directory / "broker") as broker, connect(broker.endpoint) as client:
        await data.create_journals(client)
        progress.begin("published", len(flights))
        for half in (flights[:middle], flights[middle:]):
            await data.publish(client, half, progress)
            await asyncio.to_thread(compact, spark, broker.endpoint, output, checkpoint)
    return output


def demonstrate(spark: SparkSession, rows: int | None) -> int:
    """Run the example on so many flights, and return its exit code."""
    flights = data.departures(rows)
    with tempfile.TemporaryDirectory(prefix="gazette-spark-compaction-") as directory:
        output = asyncio.run(run(flights, spark, Path(directory)))
        wrong = differences(spark, output, flights)
        files = sorted(output.glob("*/*.parquet"))
        size = sum(file.stat().st_size for file in files)
    for text in wrong[:5]:
        print(f"WRONG: {text}", file=sys.stderr)
    if not wrong:
        print(f"all {len(flights):,} rows are in {len(files)} files of {size:,} bytes, once, and"
              " the same as in the CSV file")  # fmt: skip
    return 1 if wrong else 0


def main() -> int:
    """Run the example, and return its exit code: 1 if anything failed or is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", help="addresses of brokers (default: one of its own)")
    parser.add_argument("--output", type=Path, help="directory of the files")
    parser.add_argument("--checkpoint", type=Path, help="directory of Spark's checkpoint")
    parser.add_argument("--rows", type=int, help="without brokers: so many flights (default: all)")
    options = parser.parse_args()
    if options.brokers and not (options.output and options.checkpoint):
        parser.error("--output and --checkpoint are needed")
    if (reason := missing(batches=True)) is not None:
        print(reason, file=sys.stderr)
        return 1
    spark = start_session("compaction")
    failed: list[BaseException] = []
    try:
        if options.brokers:
            compact(spark, options.brokers, options.output, options.checkpoint)
            return 0
        return demonstrate(spark, options.rows)
    except* (GazetteError, DataSetMissingError) as group:
        failed.extend(group.exceptions)
    for error in failed:
        print(f"FAILED: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
