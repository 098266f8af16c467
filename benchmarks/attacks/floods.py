"""Floods of calls, responses that nobody reads, and appends that never come to their end.

Invariants: another client is served all the time, and what was acknowledged to it is there; and the
broker's memory stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from contextlib import AsyncExitStack
from typing import Final

import gazette_aio.protocol as pb
from benchmarks.attacks.bystander import MIB, Bystander, resident_bytes
from benchmarks.attacks.clients import fork
from benchmarks.attacks.raw_http2 import RawConnection, connected
from benchmarks.soaks.invariant import require
from gazette_aio import connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

_JOURNAL, _LARGE, _OTHER = "attack/bystander", "attack/large", "attack/other"
_LARGE_BYTES = 16 * MIB
_CONNECTIONS = 12
_READS = 4
_MOST_BYTES: Final = _CONNECTIONS * _READS * 3 * MIB + 256 * MIB
"""Memory by which the broker may grow: three batches of each read, and that of the allocator."""


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    rounds = 0
    with tempfile.TemporaryDirectory() as directory:
        process = BrokerProcess(directory, options=["--fsync=off"])
        async with process as broker, connect(broker.endpoint) as client:
            names = (_JOURNAL, _LARGE, _OTHER)
            await create_journals(client, *map(journal_spec, names))
            await client.append(_LARGE, rng.randbytes(MIB) * (_LARGE_BYTES // MIB))
            bystander = Bystander(client, _JOURNAL)
            before = resident_bytes(broker.pid)
            end = time.monotonic() + duration
            while not rounds or time.monotonic() < end:
                grown = await _round(broker, bystander, fork(rng)) - before
                require(grown < _MOST_BYTES, f"the broker has grown by {grown // MIB} MiB")
                rounds += 1
            await bystander.check()
    print(f"floods: {rounds}, {bystander.appends} appends beside them, intact", flush=True)


async def _round(broker: BrokerProcess, bystander: Bystander, rng: random.Random) -> int:
    """Flood the broker once, and return what memory it held."""
    async with AsyncExitStack() as stack:
        for _ in range(_CONNECTIONS):
            raw = await stack.enter_async_context(connected(broker.endpoint))
            await raw.begin()
            with contextlib.suppress(ConnectionError):
                await rng.choice((_unread, _halves, _blocked, _watches))(raw, rng)
        for _ in range(rng.randrange(1, 10)):
            await bystander.append()
        await asyncio.sleep(rng.choice((0, 0.05, 0.3)))
        return resident_bytes(broker.pid)


async def _unread(raw: RawConnection, _: random.Random) -> None:
    """Read all content, but take none of it from the connection."""
    for _number in range(_READS):
        await raw.open("Read", pb.ReadRequest(journal=_LARGE, block=True))


async def _halves(raw: RawConnection, rng: random.Random) -> None:
    """Begin appends that never come to their end."""
    for _ in range(rng.randrange(1, 100)):
        part = pb.AppendRequest(content=rng.randbytes(rng.randrange(1, 10_000)))
        await raw.open("Append", pb.AppendRequest(journal=_OTHER), part, end=False)


async def _blocked(raw: RawConnection, rng: random.Random) -> None:
    """Wait for content that doesn't come."""
    for _ in range(rng.randrange(1, 300)):
        await raw.open("Read", pb.ReadRequest(journal=_OTHER, offset=1 << 40, block=True))


async def _watches(raw: RawConnection, rng: random.Random) -> None:
    """Watch journals, and don't look."""
    for _ in range(rng.randrange(1, 100)):
        await raw.open("List", pb.ListRequest(watch=True))
