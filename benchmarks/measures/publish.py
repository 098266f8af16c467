"""Publishing messages one by one."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from benchmarks.harness import Measure, Subject, register
from benchmarks.measures.events import JOURNAL, WORKLOADS, Workload, mapping, served_journals
from gazette_aio import Publisher, json_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def setup(workload: Workload) -> AsyncIterator[Subject]:
    messages = workload.messages()
    async with served_journals(JOURNAL) as client:
        publisher = Publisher(client.appends, json_adapter(workload.kind))

        async def figure() -> float:
            begun = time.perf_counter()
            for message in messages:
                appended = await publisher.publish_uncommitted(mapping, message)
            await appended
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


for each in WORKLOADS:
    register(
        Measure(
            name=f"publish_uncommitted{each.suffix}",
            goal=0.12,
            unit="msg/s",
            setup=partial(setup, each),
            about=f"publish_uncommitted of {each.about}, up to the commit of the last by a broker "
            "process, against a bare loop of msgspec.json encode and bytearray.extend",
        )
    )
