"""Count the words of the King James Bible in Spark, in two runs of one query, and prove it.

Verses are published to a broker of its own; a streaming query counts their words, and publishes
the counts as protobuf messages; it's run for the first half of the verses, and again, from its
checkpoint, for the rest. Then the counts are read without Spark, and compared with those of
`collections.Counter`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from examples.spark_session import missing, start_session
from examples.spark_word_count import data
from examples.spark_word_count.messages import NGramCount
from gazette_aio import GazetteError, JournalClient, ReadCommittedIter, connect, protobuf_adapter
from gazette_aio.testing import BrokerProcess

if TYPE_CHECKING:
    from collections import Counter

    from pyspark.sql import SparkSession

BATCHES = 2
"""About so many for each half."""


@dataclasses.dataclass
class Counts:
    """What the journals of counts say: the last message of each n-gram holds."""

    last: dict[str, int] = dataclasses.field(default_factory=dict)
    messages: int = 0
    repeated: list[str] = dataclasses.field(default_factory=list)

    def add(self, n_gram: str, count: int) -> None:
        """Take in the next message."""
        # Only what has become more is published. So what hasn't is there twice.
        if count <= self.last.get(n_gram, 0):
            self.repeated.append(n_gram)
        self.last[n_gram] = count
        self.messages += 1

    def differences(self, expected: Counter[str]) -> list[str]:
        """Return what is wrong, one sentence each; nothing when all is well."""
        found = [f"{n_gram!r} is there twice" for n_gram in self.repeated]
        return found + [
            f"{n_gram!r}: read {self.last.get(n_gram)}, but there are {expected[n_gram]}"
            for n_gram in sorted(expected.keys() | self.last.keys())
            if self.last.get(n_gram) != expected[n_gram]
        ]


async def run(verses: list[data.Verse], size: int, directory: Path, spark: SparkSession) -> Counts:
    """Publish, count and read back, with everything kept in `directory`."""
    # PySpark may be missing.
    from examples.spark_word_count import pipeline  # noqa: PLC0415

    middle = len(verses) // 2
    async with BrokerProcess(directory / "broker") as broker, connect(broker.endpoint) as client:
        await data.create_journals(client)

        def count(batch_bytes: int) -> None:
            texts = pipeline.verses(spark, broker.endpoint, batch_bytes)
            counts = pipeline.counts(texts, size)
            pipeline.start(counts, broker.endpoint, directory / "checkpoint").awaitTermination()

        for half in (verses[:middle], verses[middle:]):
            before = await content_bytes(client)
            await data.publish(client, half)
            published = await content_bytes(client) - before
            await asyncio.to_thread(count, published // BATCHES + 1)
            print(f"counted {len(half):,} verses", file=sys.stderr)
        return await read_counts(client)


async def content_bytes(client: JournalClient) -> int:
    """Return how much there is of the verses."""
    listing = await client.list(data.VERSES)
    appends = [await client.append(journal.spec.name, b"") for journal in listing.journals]
    return sum(append.commit.end for append in appends)


async def read_counts(client: JournalClient) -> Counts:
    """Read the journals of counts up to their write heads, committed messages only."""
    counts = Counts()
    listing = await client.list(data.COUNTS)
    journals = [journal.spec.name for journal in listing.journals]
    envelopes = ReadCommittedIter(
        journals, protobuf_adapter(NGramCount), client=client, skip_acks=True
    )
    async for envelope in envelopes:
        counts.add(envelope.message.n_gram, envelope.message.count)
    return counts


def demonstrate(options: argparse.Namespace, spark: SparkSession) -> int:
    """Run the example with `options`, and return its exit code."""
    verses = data.verses(options.rows)
    with tempfile.TemporaryDirectory(prefix="gazette-spark-word-count-") as directory:
        counts = asyncio.run(run(verses, options.size, Path(directory), spark))
    expected = data.count(verses, options.size)
    wrong = counts.differences(expected)
    for n_gram, number in expected.most_common(options.top):
        print(f"{number:8,} {n_gram}")
    for text in wrong:
        print(f"WRONG: {text}", file=sys.stderr)
    if not wrong:
        print(f"all {len(expected):,} counts are right, none of {counts.messages:,} messages is"
              " there twice")  # fmt: skip
    return 1 if wrong else 0


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.spark_word_count", description=__doc__
    )
    parser.add_argument("--rows", type=int, help="take only so many verses (default: all)")
    parser.add_argument("--size", type=int, default=1, help="words of an n-gram")
    parser.add_argument("--top", type=int, default=10, help="print so many of the counts")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the example, and return its exit code: 1 if anything failed or is wrong."""
    options = parse_arguments()
    failed: list[BaseException] = []
    if (reason := missing(batches=True)) is not None:
        print(reason, file=sys.stderr)
        return 1
    try:
        return demonstrate(options, start_session("word count"))
    except* (GazetteError, data.TextMissingError) as group:
        failed.extend(group.exceptions)
    for error in failed:
        print(f"FAILED: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
