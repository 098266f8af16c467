"""Publishing messages, one by one and in batches."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, measure
from benchmarks.measures.events import (
    JOURNAL,
    WORKLOADS,
    Workload,
    mapping,
    served_journals,
)
from gazette_aio import Publisher, json_adapter
from gazette_aio.protocol.errors import QueueFullError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

BATCH = 10_000
"""Messages of a batch."""
CALLED_AT_ONCE = 500
"""Messages which are published before the event loop has a turn."""
TARGET = (JOURNAL, pb.CONTENT_TYPE_JSON_LINES)


async def one_by_one(publisher: Publisher[Any], messages: list[Any]) -> None:
    appended: Any = None
    for message in messages:
        appended = await publisher.publish_uncommitted(mapping, message)
    await appended


async def without_waiting(publisher: Publisher[Any], messages: list[Any]) -> None:
    for begin in range(0, len(messages), CALLED_AT_ONCE):
        for message in messages[begin : begin + CALLED_AT_ONCE]:
            try:
                publisher.publish_uncommitted_nowait(mapping, message)
            except QueueFullError:
                await publisher.drain()
                publisher.publish_uncommitted_nowait(mapping, message)
        await asyncio.sleep(0)
    await publisher.flush()


async def in_batches(publisher: Publisher[Any], batches: list[list[Any]]) -> None:
    appends: Any = None
    for batch in batches:
        appends = await publisher.publish_uncommitted_batch(mapping, batch)
    await appends[JOURNAL]


async def as_tables(publisher: Publisher[Any], tables: list[Any]) -> None:
    appends: Any = None
    for table in tables:
        appends = await publisher.publish_uncommitted_batch(TARGET, table=table)
    await appends[JOURNAL]


def whole(messages: list[Any]) -> list[Any]:
    return messages


def batched(messages: list[Any]) -> list[Any]:
    return [messages[begin : begin + BATCH] for begin in range(0, len(messages), BATCH)]


def tabled(messages: list[Any]) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415 - an extra, which other measures do without.

    return [
        pa.Table.from_pylist([msgspec.structs.asdict(message) for message in batch])
        for batch in batched(messages)
    ]


async def setup(
    workload: Workload,
    prepare: Callable[[list[Any]], list[Any]],
    publish: Callable[[Publisher[Any], list[Any]], Awaitable[None]],
) -> AsyncGenerator[Subject]:
    messages = workload.messages()
    prepared = prepare(messages)
    async with served_journals(JOURNAL) as client:
        publisher = Publisher(client.appends, json_adapter(workload.kind))

        async def figure() -> float:
            begun = time.perf_counter()
            await publish(publisher, prepared)
            return len(messages) / (time.perf_counter() - begun)

        async def yardstick() -> float:
            encode = msgspec.json.Encoder().encode
            buffer = bytearray()
            begun = time.perf_counter()
            for message in messages:
                buffer.extend(encode(message))
                buffer.extend(b"\n")
            return len(messages) / (time.perf_counter() - begun)

        yield Subject(figure, yardstick)


BARE = (
    "up to the commit of the last by a broker process, against a bare loop of msgspec.json encode "
    "and bytearray.extend"
)

for each in WORKLOADS:
    measure(
        f"publish_uncommitted{each.suffix}",
        goal=0.2 if each.suffix == ".small" else 0.3,
        plain=0.055 if each.suffix == ".small" else 0.12,
        unit="msg/s",
        about=f"publish_uncommitted of {each.about}, {BARE}",
    )(partial(setup, each, whole, one_by_one))
    measure(
        f"publish_uncommitted_nowait{each.suffix}",
        goal=0.05,
        plain=0,
        unit="msg/s",
        about=f"publish_uncommitted_nowait of {each.about}, {CALLED_AT_ONCE} in a turn of the "
        f"event loop, {BARE}",
    )(partial(setup, each, whole, without_waiting))
    measure(
        f"publish_batch{each.suffix}",
        goal=0.5 if each.suffix == "" else 0.45,
        plain=0.15 if each.suffix == "" else 0.19,
        unit="msg/s",
        about=f"publish_uncommitted_batch of {BATCH} of {each.about}, {BARE}",
    )(partial(setup, each, batched, in_batches))
measure(
    "publish_batch.table",
    goal=0.55,
    plain=0,
    unit="msg/s",
    about=f"publish_uncommitted_batch of pyarrow tables of {WORKLOADS[1].about}, {BARE}",
)(partial(setup, WORKLOADS[1], tabled, as_tables))
