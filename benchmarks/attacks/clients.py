"""Clients that send garbage, cancel and disappear, while another one appends and reads.

Invariants: what the other client was acknowledged is there once, in order; and at the end the
broker serves nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import grpc.aio

from benchmarks.attacks.raw_http2 import PREFACE, SETTINGS, frame
from benchmarks.soaks.invariant import require
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.testing import create_journals, journal_spec

if TYPE_CHECKING:
    from gazette_aio import JournalClient

_JOURNAL = "attack/journal"
_OTHER = "attack/other"
_SETTINGS = frame(SETTINGS, 0, 0)
_IDLE_SECONDS = 30.0


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    end = time.monotonic() + duration
    counts = {"connections": 0, "cancelled": 0, "appends": 0}
    expected: list[bytes] = []
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        await create_journals(client, journal_spec(_JOURNAL), journal_spec(_OTHER))
        port = int(broker.endpoint.rpartition(":")[2])
        while not expected or time.monotonic() < end:
            content = b"%d\n" % len(expected)
            expected.append(content)
            async with asyncio.TaskGroup() as group:
                group.create_task(_append(client, content))
                group.create_task(_half_open(port, fork(rng), content, client))
                group.create_task(_long_metadata(broker.endpoint, fork(rng)))
                for _ in range(4):
                    group.create_task(_garbage(port, fork(rng)))
                    group.create_task(_cancelled(client, fork(rng)))
            counts["connections"] += 4
            counts["cancelled"] += 4
            counts["appends"] += 1
        whole = b"".join(expected)
        async with client.read(_JOURNAL, end_offset=len(whole)) as reader:
            found = b"".join([bytes(chunk) async for chunk in reader])
            require(found == whole, "content isn't what was acknowledged")
        metrics = broker.core.metrics
        async with asyncio.timeout(_IDLE_SECONDS):
            while metrics.started.total() != metrics.completed.total():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    print(f"clients: {counts}, intact", flush=True)


def fork(rng: random.Random) -> random.Random:
    """Return a source of chance for one task, whatever others do meanwhile."""
    return random.Random(rng.getrandbits(64))


async def _append(client: JournalClient, content: bytes) -> None:
    await client.append(_JOURNAL, content)


async def _garbage(port: int, rng: random.Random) -> None:
    data = rng.choice((b"", PREFACE, PREFACE + bytes(9))) + rng.randbytes(rng.randrange(200))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    writer.transport.abort()


async def _half_open(port: int, rng: random.Random, content: bytes, client: JournalClient) -> None:
    """Hold connections which begin and say no more, while others are served."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(rng.randrange(20)):
            writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
            writers[-1].write((PREFACE + _SETTINGS)[: rng.randrange(40)])
        await client.append(_OTHER, content)
    finally:
        for writer in writers:
            writer.transport.abort()


async def _long_metadata(endpoint: str, rng: random.Random) -> None:
    metadata = (("x-long", "y" * rng.randrange(200_000)),)
    async with grpc.aio.insecure_channel(endpoint.removeprefix("http://")) as channel:
        call = channel.unary_unary("/protocol.Journal/List")
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call(b"", metadata=metadata)


async def _cancelled(client: JournalClient, rng: random.Random) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rng.uniform(0.0, 0.01)):
            await client.append(_OTHER, rng.randbytes(rng.randrange(20_000)))
