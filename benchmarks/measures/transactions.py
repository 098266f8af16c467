"""Transactions of concurrent callers, with an IntentLog."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import JOURNAL, mapping, served_journals
from gazette_aio import IntentLog, Publisher, json_adapter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

TRANSACTIONS = 200
MESSAGE = {"user": "user-00042", "kind": "purchase", "amount": 12.5}


async def setup(callers: int) -> AsyncGenerator[Subject]:
    with tempfile.TemporaryDirectory() as directory:
        async with (
            served_journals(JOURNAL) as client,
            IntentLog(Path(directory) / "intents") as log,
        ):
            publisher: Publisher[Any] = Publisher(client.appends, json_adapter())

            async def run(turn: Any) -> float:
                async def call() -> None:
                    for _ in range(TRANSACTIONS // callers):
                        async with turn, publisher.transaction(intents=log):
                            await publisher.publish_uncommitted(mapping, MESSAGE)

                begun = time.perf_counter()
                await asyncio.gather(*(call() for _ in range(callers)))
                return TRANSACTIONS / (time.perf_counter() - begun)

            yield Subject(lambda: run(contextlib.nullcontext()), lambda: run(asyncio.Lock()))


for each, goal in ((1, 0.9), (10, 3.0), (100, 10.0)):
    measure(
        f"transactions.{each}",
        goal=goal,
        unit="txn/s",
        about=f"transactions of one message with an IntentLog, by {each} concurrent callers, "
        "against the same callers with an asyncio.Lock around each transaction",
    )(partial(setup, each))
