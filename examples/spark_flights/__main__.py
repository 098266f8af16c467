"""Aggregate all flights of 2013 in Spark, exactly once from journals to a journal, and prove it.

A broker process serves a directory; 336,776 flights are published in the order in which they left,
to a journal for each airport; a streaming query joins them with the hourly weather, and publishes
the delays of each day to another journal. It fails half-way, behind the publication of a batch
which Spark hasn't noted yet, and is started again. Then the journal is read without Spark, and
compared with the CSV files.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from examples.flights.data import DataSetMissingError
from examples.flights.progress import Progress, progress_for_stderr
from examples.spark_flights import data, report
from examples.spark_session import missing, start_session
from gazette_aio import GazetteError, JournalClient, ReadCommittedIter, connect, json_adapter
from gazette_aio.testing import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCHES = 4
"""About so many to read all flights in."""
FAILING_BATCH = 1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the demo did."""

    rows: int
    publish_seconds: float
    query_seconds: float
    failed_in_batch: int
    tally: report.Tally


class QueryFailedError(Exception):
    """The query did what it shouldn't."""


async def run(
    options: argparse.Namespace,
    directory: Path,
    start_spark: Callable[[], SparkSession],
    progress: Progress,
) -> Outcome:
    """Publish, aggregate and read back, with everything kept in `directory`."""
    # Java takes some seconds to start.
    spark, flights = await asyncio.gather(
        asyncio.to_thread(start_spark), asyncio.to_thread(data.departures, options.rows)
    )
    progress.note(f"Spark {spark.version} runs")
    async with BrokerProcess(directory / "broker") as broker:
        progress.note(f"broker at {broker.endpoint}, on {broker.data_dir}")
        async with connect(broker.endpoint) as client:
            await data.create_journals(client)
            progress.begin("published", len(flights))
            begun = time.monotonic()
            await data.publish(client, flights, progress)
            publish_seconds = time.monotonic() - begun
            size = await content_bytes(client)

            progress.begin("aggregated", len(flights))
            query = Query(spark, broker.endpoint, directory / "checkpoint", size, progress)
            begun = time.monotonic()
            await asyncio.to_thread(query.run)
            query_seconds = time.monotonic() - begun
            tally = await read_delays(client)
    return Outcome(len(flights), publish_seconds, query_seconds, FAILING_BATCH, tally)


async def content_bytes(client: JournalClient) -> int:
    """Return how much there is to read."""
    listing = await client.list(data.DEPARTURES)
    appends = [await client.append(journal.spec.name, b"") for journal in listing.journals]
    return sum(append.commit.end for append in appends)


async def read_delays(client: JournalClient) -> report.Tally:
    """Read the journal of delays up to its write head, committed messages only."""
    tally = report.Tally()
    envelopes = ReadCommittedIter(
        [data.DELAYS], json_adapter(data.Delay), client=client, skip_acks=True
    )
    async for envelope in envelopes:
        tally.add(envelope.message)
    return tally


class Query:
    """The query, which fails once.

    Args:
        spark: Spark.
        brokers: Address of the broker.
        checkpoint: Directory where Spark notes how far the query is.
        size: Bytes to read.
        progress: Where to tell how far it is.
    """

    def __init__(
        self, spark: SparkSession, brokers: str, checkpoint: Path, size: int, progress: Progress
    ) -> None:
        self._spark = spark
        self._brokers = brokers
        self._checkpoint = checkpoint
        self._batch_bytes = size // BATCHES + 1
        self._progress = progress
        self._failures: list[int] = []

    def run(self) -> None:
        """Run the query until it fails, and again until it has read all."""
        # PySpark may be missing.
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415

        try:
            self._follow(self._start())
        except StreamingQueryException as error:
            if not self._failures:
                raise QueryFailedError(str(error).partition("\n")[0]) from error
        if not self._failures:
            raise QueryFailedError(f"there was no batch {FAILING_BATCH} to fail in")
        self._progress.note(
            f"batch {FAILING_BATCH} was published, and failed before Spark noted that:"
            " started again"
        )
        try:
            self._follow(self._start())
        except StreamingQueryException as error:
            raise QueryFailedError(str(error).partition("\n")[0]) from error

    def _start(self) -> StreamingQuery:
        from examples.spark_flights import pipeline  # noqa: PLC0415

        flights = pipeline.departures(self._spark, self._brokers, self._batch_bytes)
        hours = pipeline.weather(self._spark, data.weather_path())
        figures = pipeline.delays(flights, hours)
        return pipeline.start(figures, self._brokers, self._checkpoint, self._after_batch)

    def _after_batch(self, batch: int) -> None:
        if batch == FAILING_BATCH and not self._failures:
            self._failures.append(batch)
            raise RuntimeError("this is the failure of the demo")

    def _follow(self, query: StreamingQuery) -> None:
        told = -1
        is_over = False
        try:
            while not is_over:
                is_over = bool(query.awaitTermination(1))
                for done in query.recentProgress:
                    if done["batchId"] > told and done["numInputRows"]:
                        told = done["batchId"]
                        self._progress.advance(done["numInputRows"])
        finally:
            query.stop()


def show(
    options: argparse.Namespace, outcome: Outcome, expected: dict[report.Window, report.Figures]
) -> list[str]:
    """Print the outcome, and return what is wrong with it."""
    tally = outcome.tally
    wrong = report.differences(expected, tally)
    report.draw_chart(tally, options.chart)
    if options.json:
        result: dict[str, Any] = {
            "rows": outcome.rows,
            "rows_per_second": {
                "published": round(outcome.rows / outcome.publish_seconds),
                "aggregated": round(outcome.rows / outcome.query_seconds),
            },
            "failed_in_batch": outcome.failed_in_batch,
            "messages": tally.messages,
            "windows": len(tally.windows),
            "weather": {
                kind: dataclasses.asdict(figures) for kind, figures in tally.by_weather().items()
            },
            "chart": str(options.chart),
            "differences": wrong,
        }
        print(json.dumps(result))
        return wrong
    console = Console(highlight=False)
    console.print(report.table(tally))
    console.print(f"chart: {options.chart}", soft_wrap=True)
    console.print(
        f"published in {outcome.publish_seconds:.1f} s, aggregated in {outcome.query_seconds:.1f} s"
    )
    if not wrong:
        console.print(
            f"all {len(tally.windows):,} windows are the same as in the CSV files, and none of"
            f" {tally.messages:,} messages is there twice",
            soft_wrap=True,
        )
    return wrong


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.spark_flights", description=__doc__)
    parser.add_argument("--rows", type=int, help="publish only so many flights (default: all)")
    parser.add_argument("--dir", type=Path, help="keep journals here (default: a temporary one)")
    parser.add_argument(
        "--chart", type=Path, default=Path(".demo/weather-delays.png"), help="PNG file"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if options.rows is not None and options.rows < 100:
        parser.error("100 flights are needed for some batches")
    return options


def demonstrate(options: argparse.Namespace, start_spark: Callable[[], SparkSession]) -> int:
    """Run the demo with `options`, and return its exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gazette-spark-flights-") as temporary:
        directory = options.dir or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            print(f"{directory} isn't empty", file=sys.stderr)
            return 2
        with progress_for_stderr() as progress:
            outcome = asyncio.run(run(options, directory, start_spark, progress))
    wrong = show(options, outcome, report.figures_of_csv(options.rows))
    print(f"took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    for text in wrong:
        print(f"WRONG: {text}", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    """Run the demo, and return its exit code: 1 if anything failed or is wrong."""
    options = parse_arguments()
    if (reason := missing(batches=True)) is not None:
        print(f"Spark's part of the demo is left out: {reason}", file=sys.stderr)
        return 0
    failed: list[BaseException] = []
    try:
        return demonstrate(options, lambda: start_session("delays by weather"))
    except* (GazetteError, DataSetMissingError, QueryFailedError) as group:
        failed.extend(group.exceptions)
    for error in failed:
        print(f"FAILED: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
