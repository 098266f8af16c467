"""Publishing and reading beside aiokafka and confluent-kafka.

Both brokers keep their defaults: Kafka doesn't sync commits to the disk, and ours syncs each append
before it's acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import aiokafka
import confluent_kafka
import msgspec

from benchmarks.harness import Run, Subject, measure
from benchmarks.measures.events import JOURNAL, publish_transactions, served_journals
from benchmarks.peers.kafka import bootstrap, create_topic
from benchmarks.peers.ours import (
    ABOUT,
    TRANSACTION,
    WORKLOAD,
    Form,
    publishing,
    reading,
    transactions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Peer = Callable[[str, list[Any]], Run]
"""Returns the side of a client of Kafka, for a topic and the messages."""

POLL_SECONDS = 1.0


def confluent_publishes(topic: str, messages: list[Any]) -> Run:
    """Produce the messages by confluent-kafka."""

    def publish() -> float:
        encode = msgspec.json.Encoder().encode
        producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap(),
                "transactional.id": topic,
                "linger.ms": 5,
                "log_level": 3,
            }
        )
        producer.init_transactions()
        begun = time.perf_counter()
        for part in transactions(messages):
            producer.begin_transaction()
            for message in part:
                producer.produce(topic, encode(message))
            producer.commit_transaction()
        return len(messages) / (time.perf_counter() - begun)

    async def run() -> float:
        return await asyncio.to_thread(publish)

    return run


def aiokafka_publishes(topic: str, messages: list[Any]) -> Run:
    """Produce the messages by aiokafka."""

    async def run() -> float:
        encode = msgspec.json.Encoder().encode
        producer: Any = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap(), transactional_id=topic, linger_ms=5
        )
        async with producer:
            begun = time.perf_counter()
            for part in transactions(messages):
                async with producer.transaction():
                    for message in part:
                        await producer.send(topic, encode(message))
            return len(messages) / (time.perf_counter() - begun)

    return run


def confluent_reads(topic: str, messages: list[Any], *, batches: bool = True) -> Run:
    """Consume the messages by confluent-kafka, one by one or in lists, and decode them."""

    def read() -> float:
        decode = msgspec.json.Decoder(WORKLOAD.kind).decode
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap(),
                "group.id": topic,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        seen = 0
        begun = time.perf_counter()
        while seen < len(messages):
            if batches:
                for record in consumer.consume(TRANSACTION, POLL_SECONDS):
                    decode(record.value())
                    seen += 1
            elif (record := consumer.poll(POLL_SECONDS)) is not None:
                decode(record.value())
                seen += 1
        elapsed = time.perf_counter() - begun
        consumer.close()
        return seen / elapsed

    async def run() -> float:
        return await asyncio.to_thread(read)

    return run


def aiokafka_reads(topic: str, messages: list[Any], *, batches: bool) -> Run:
    """Consume the messages by aiokafka, one by one or in lists, and decode them."""

    async def run() -> float:
        decode = msgspec.json.Decoder(WORKLOAD.kind).decode
        partition = aiokafka.TopicPartition(topic, 0)
        consumer: Any = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap(), isolation_level="read_committed"
        )
        async with consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            seen = 0
            begun = time.perf_counter()
            while seen < len(messages):
                if batches:
                    found = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                    for records in found.values():
                        for record in records:
                            decode(record.value)
                        seen += len(records)
                else:
                    decode((await consumer.getone()).value)
                    seen += 1
            return seen / (time.perf_counter() - begun)

    return run


async def published(name: str, batches: bool, peer: Peer) -> AsyncGenerator[Subject]:
    """Publish the same messages by both."""
    messages = WORKLOAD.messages()
    topic = name.replace("/", "-")
    await asyncio.to_thread(create_topic, topic)
    async with served_journals(JOURNAL) as client:
        yield Subject(publishing(client, messages, batches=batches), peer(topic, messages))


async def read(name: str, form: Form, peer: Peer) -> AsyncGenerator[Subject]:
    """Read the same messages by both."""
    messages = WORKLOAD.messages()
    topic = name.replace("/", "-")
    await asyncio.to_thread(create_topic, topic)
    await confluent_publishes(topic, messages)()
    async with served_journals(JOURNAL) as client:
        await publish_transactions(client, WORKLOAD.kind, messages, TRANSACTION)
        side = peer(topic, messages)
        yield Subject(reading(client, len(messages), form), side)


for line, goal, own, in_batches, theirs, form in (
    ("publish.aiokafka", 2.0, "publish_uncommitted", False, aiokafka_publishes, "send"),
    ("publish.confluent", 0.7, "publish_uncommitted", False, confluent_publishes, "produce"),
    (
        "publish_batch.confluent",
        1.0,
        "publish_uncommitted_batch",
        True,
        confluent_publishes,
        "produce",
    ),
):
    measure(
        f"peers.{line}",
        goal=goal,
        unit="msg/s",
        about=f"{own} {ABOUT}, against {form} of {line.rpartition('.')[2]}, to the last commit",
    )(partial(published, line, in_batches, theirs))

OURS: dict[Form, str] = {
    "items": "ReadCommittedIter",
    "batches": "batches()",
    "columns": "typed columns of arrow()",
}
CONSUME = f"consume({TRANSACTION})"
polled = partial(confluent_reads, batches=False)
one_by_one, in_lists = (partial(aiokafka_reads, batches=batches) for batches in (False, True))
chosen: Form
for line, goal, chosen, theirs, method in (
    ("read.aiokafka", 2.0, "items", one_by_one, "getone"),
    ("read.confluent", 1.0, "items", polled, "poll"),
    ("read_batches.aiokafka", 1.0, "batches", in_lists, "getmany"),
    ("read_batches.confluent", 1.0, "batches", confluent_reads, CONSUME),
    ("columns.confluent", 1.4, "columns", confluent_reads, CONSUME),
):
    measure(
        f"peers.{line}",
        goal=goal,
        unit="msg/s",
        about=f"{OURS[chosen]} {ABOUT}, against {method} of {line.rpartition('.')[2]} and msgspec",
    )(partial(read, line, chosen, theirs))
