"""Listing many journals."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, constant, measure
from gazette_aio.client import connect
from gazette_aio.testing import BrokerProcess, journal_spec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

JOURNALS = 10_000
ALLOWED_SECONDS = 2.0
BATCH = 100


def changes() -> list[pb.ApplyRequest.Change]:
    labels = {pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES, "tag": "listing"}
    return [
        pb.ApplyRequest.Change(upsert=journal_spec(f"bench/part-{number:05}", labels=labels))
        for number in range(JOURNALS)
    ]


@measure(
    "list.10k",
    goal=1.0,
    unit="s",
    better="less",
    about="listing 10,000 journals, against 2 s",
)
async def setup() -> AsyncGenerator[Subject]:
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        async with (
            BrokerProcess(Path(directory), options=["--fsync=off"]) as broker,
            connect(broker.endpoint) as client,
        ):
            await client.apply(changes(), batch_size=BATCH)

            async def figure() -> float:
                begun = time.perf_counter()
                listing = await client.list("tag=listing")
                elapsed = time.perf_counter() - begun
                assert len(listing.journals) == JOURNALS, len(listing.journals)
                return elapsed

            yield Subject(figure, constant(ALLOWED_SECONDS))
