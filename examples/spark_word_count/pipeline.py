"""Count n-grams of words: a streaming query from lines of JSON to protobuf messages.

It's a program of its own, which ends where the journals do at the time, and goes on from there when
it's started again on the same checkpoint:

    PYTHONPATH=. spark-submit --master 'local[*]' --conf spark.sql.shuffle.partitions=4 \
        examples/spark_word_count/pipeline.py --brokers http://localhost:8080 \
        --checkpoint /tmp/word-count

On a cluster, `gazette-aio[spark]` has to be installed on all machines. Its workers import the class
of the messages besides, which Spark sends them:

    zip -r examples.zip examples
    spark-submit --master 'local-cluster[2,1,1024]' --py-files examples.zip …

That's a cluster in miniature, of two executors in processes of their own. `PYTHONPATH=$PWD` does,
too, where they're on this machine.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from examples.spark_session import start_session
from examples.spark_word_count import data

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGE_TYPE = "examples.spark_word_count.messages:NGramCount"


def verses(spark: SparkSession, brokers: str, batch_bytes: int) -> DataFrame:
    """Return the stream of the texts of verses, committed ones only."""
    return (
        spark.readStream.format("gazette")
        .schema("text STRING")
        .option("brokers", brokers)
        .option("selector", data.VERSES)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", batch_bytes)
        .load()
    )


def counts(texts: DataFrame, size: int) -> DataFrame:
    """Return how often there's each n-gram of a size in texts: the fields of `NGramCount`."""
    words = texts.select(fn.regexp_extract_all(fn.lower("text"), fn.lit(data.WORD), 0).alias("w"))

    def n_gram(at: Column) -> Column:
        return fn.array_join(fn.slice("w", at, size), " ")

    begins = fn.sequence(fn.lit(1), fn.size("w") - (size - 1))
    long_enough = words.where(fn.size("w") >= size)
    found = long_enough.select(fn.explode(fn.transform(begins, n_gram)).alias("n_gram"))
    return found.groupBy("n_gram").count()


def start(frame: DataFrame, brokers: str, checkpoint: Path) -> StreamingQuery:
    """Start to publish counts, up to where the journals end now.

    Each batch publishes the n-grams of which it has found more. Spark has no update mode for sinks
    in Python; within foreachBatch a batch is known by the numbers of the query and the batch, and
    published exactly once. All counts of an n-gram go to one journal. So its last message holds.
    """

    def publish(changed: DataFrame, _batch: int) -> None:
        (
            changed.withColumn("key", fn.col("n_gram"))
            .write.format("gazette")
            .mode("append")
            .option("brokers", brokers)
            .option("selector", data.COUNTS)
            .option("mapping", "modulo")
            .option("messageType", MESSAGE_TYPE)
            .option("commitJournal", data.COMMITS)
            .save()
        )

    writer = (
        frame.writeStream.foreachBatch(publish)
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
    parser.add_argument("--size", type=int, default=1, help="words of an n-gram")
    parser.add_argument("--batch-bytes", type=int, default=4 << 20, help="of journals, per batch")
    options = parser.parse_args()
    spark = start_session("word count")
    texts = verses(spark, options.brokers, options.batch_bytes)
    start(counts(texts, options.size), options.brokers, options.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
