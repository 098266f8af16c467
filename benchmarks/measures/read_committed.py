"""Reading committed messages one by one."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from benchmarks.harness import Measure, Subject, register
from benchmarks.measures.events import JOURNAL, WORKLOADS, Workload, mapping, served_journals
from gazette_aio import ACK_TXN, Publisher, ReadCommittedIter, json_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TRANSACTION = 5_000


@asynccontextmanager
async def setup(workload: Workload) -> AsyncIterator[Subject]:
    messages = workload.messages()
    adapter = json_adapter(workload.kind)
    async with served_journals(JOURNAL) as client:
        publisher = Publisher(client.appends, adapter)
        for begin in range(0, len(messages), TRANSACTION):
            async with publisher.transaction():
                for message in messages[begin : begin + TRANSACTION]:
                    await publisher.publish_uncommitted(mapping, message)
        head = (await client.append(JOURNAL)).commit.end
        async with client.read(JOURNAL, end_offset=head) as reader:
            content = b"".join([chunk async for chunk in reader])
        assert len(content) == head
        # The bare loop is spared the acknowledgements, which aren't messages of the type.
        lines = content.split(b"\n")
        messages_alone = b"\n".join(line for line in lines if b'"ack":true' not in line)
        del lines

        async def figure() -> float:
            count = 0
            begun = time.perf_counter()
            async for envelope in ReadCommittedIter(JOURNAL, adapter, client=client):
                count += envelope.flags != ACK_TXN
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


for each in WORKLOADS:
    register(
        Measure(
            name=f"read_committed.items{each.suffix}",
            goal=0.2,
            unit="msg/s",
            setup=partial(setup, each),
            about=f"ReadCommittedIter over {each.about} of a broker process, against a loop which "
            "splits the same bytes in memory and decodes each line into the same Struct",
        )
    )
