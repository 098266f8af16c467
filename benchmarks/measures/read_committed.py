"""Reading committed messages, one by one and in lists."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import (
    JOURNAL,
    WORKLOADS,
    Workload,
    append_transactions,
    publish_transactions,
    served_journals,
)
from gazette_aio import ReadCommittedIter, json_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

LARGE, SMALL = 5_000, 3
"""Messages of a transaction."""


async def one_by_one(iterator: ReadCommittedIter[Any]) -> int:
    count = 0
    async for _ in iterator:
        count += 1
    return count


async def in_batches(iterator: ReadCommittedIter[Any]) -> int:
    count = 0
    async for envelopes in iterator.batches():
        count += len(envelopes)
    return count


async def setup(
    workload: Workload,
    transaction: int,
    read: Callable[[ReadCommittedIter[Any]], Awaitable[int]],
    write: Callable[[Any, type[Any], list[Any], int], Awaitable[int]] = publish_transactions,
) -> AsyncGenerator[Subject]:
    messages = workload.messages()
    adapter = json_adapter(workload.kind)
    async with served_journals(JOURNAL) as client:
        head = await write(client, workload.kind, messages, transaction)
        async with client.read(JOURNAL, end_offset=head) as reader:
            content = b"".join([chunk async for chunk in reader])
        assert len(content) == head
        # The bare loop is spared the acknowledgements, which aren't messages of the type.
        lines = content.split(b"\n")
        messages_alone = b"\n".join(line for line in lines if b'"ack":true' not in line)
        del lines

        async def figure() -> float:
            iterator = ReadCommittedIter(JOURNAL, adapter, client=client, skip_acks=True)
            begun = time.perf_counter()
            count = await read(iterator)
            elapsed = time.perf_counter() - begun
            assert count == len(messages), count
            return count / elapsed

        async def yardstick() -> float:
            decode = msgspec.json.Decoder(workload.kind).decode
            count = 0
            begun = time.perf_counter()
            for line in messages_alone.split(b"\n"):
                if line:
                    decode(line)
                    count += 1
            elapsed = time.perf_counter() - begun
            assert count == len(messages), count
            return count / elapsed

        yield Subject(figure, yardstick)


BARE = (
    "of a broker process, against a loop which splits the same bytes in memory and decodes each "
    "line into the same Struct"
)

# The second of each pair is for the plain core.
ITEMS = {"": (0.70, 0.30), ".small": (0.55, 0.18), ".large": (0.70, 0.30)}
BATCHES = {"": (0.75, 0.25), ".small": (0.65, 0.17), ".large": (0.75, 0.24)}
for each in WORKLOADS:
    measure(
        f"read_committed.items{each.suffix}",
        goal=ITEMS[each.suffix][0],
        plain=ITEMS[each.suffix][1],
        unit="msg/s",
        about=f"ReadCommittedIter over {each.about} {BARE}",
    )(partial(setup, each, LARGE, one_by_one))
    measure(
        f"read_committed.batches{each.suffix}",
        goal=BATCHES[each.suffix][0],
        plain=BATCHES[each.suffix][1],
        unit="msg/s",
        about=f"batches() of ReadCommittedIter over {each.about} {BARE}",
    )(partial(setup, each, LARGE, in_batches))
measure(
    "read_committed.items.three",
    goal=0.50,
    plain=0.15,
    unit="msg/s",
    about=f"ReadCommittedIter over transactions of three of {WORKLOADS[1].about}, written by large "
    f"appends, {BARE}",
)(partial(setup, WORKLOADS[1], SMALL, one_by_one, append_transactions))
measure(
    "read_committed.mixed",
    goal=0.55,
    plain=0.13,
    unit="msg/s",
    about=f"batches() of ReadCommittedIter over transactions of 50 of 100 producers, which take "
    f"turns, of {WORKLOADS[1].about} {BARE}",
)(partial(setup, WORKLOADS[1], 50, in_batches, partial(append_transactions, producers=100)))
measure(
    "read_committed.tail",
    goal=0.40,
    plain=0.055,
    unit="msg/s",
    about=f"batches() of ReadCommittedIter over {WORKLOADS[1].about} whose UUID is the last "
    f"member, {BARE}",
)(partial(setup, WORKLOADS[1], LARGE, in_batches, partial(append_transactions, is_uuid_last=True)))
