"""Kill a broker over and over under concurrent writers: nothing acknowledged is ever lost.

Invariants, checked after every restart and at the end:
    - what was acknowledged is at its offsets, byte for byte;
    - acknowledged ranges don't overlap;
    - an append which wasn't acknowledged is there whole, or not at all;
    - the write head doesn't go back behind what was acknowledged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import random
import socket
import tempfile
import time
from pathlib import Path

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import BrokenInvariantError, require
from gazette_aio import JournalClient, connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

JOURNALS = 3
WRITERS = 4
LONGEST_BYTES = 40_000
FSYNC = ("commit", "interval", "off")


@dataclasses.dataclass
class Ledger:
    """What writers know of one journal."""

    acknowledged: dict[int, tuple[int, bytes]] = dataclasses.field(default_factory=dict)
    """By begin: the end of an append, and the digest of its content."""
    attempted: set[bytes] = dataclasses.field(default_factory=set)
    """Digests of everything which was ever sent."""

    def head(self) -> int:
        """Return the end of the last acknowledged append."""
        return max((end for end, _ in self.acknowledged.values()), default=0)


def record(name: str, number: int, rng: random.Random) -> bytes:
    """Return the content of one append: a header with its length, and noise."""
    noise = rng.randbytes(rng.randrange(1, LONGEST_BYTES)).hex().encode()
    body = f"{name} {number} ".encode() + noise
    return b"%08x" % len(body) + body


async def write(client: JournalClient, journal: str, ledger: Ledger, name: str, seed: int) -> None:
    """Append records to `journal` until cancelled."""
    rng = random.Random(seed)
    for number in itertools.count():
        content = record(name, number, rng)
        digest = hashlib.sha256(content).digest()
        ledger.attempted.add(digest)
        response = await client.append(journal, content)
        begin, end = response.commit.begin, response.commit.end
        require(end - begin == len(content), f"{journal}: {len(content)} bytes at [{begin}, {end})")
        require(begin not in ledger.acknowledged, f"{journal}: two appends at {begin}")
        ledger.acknowledged[begin] = end, digest


async def check_heads(client: JournalClient, ledgers: dict[str, Ledger]) -> None:
    """Require that no write head went back."""
    for journal, ledger in ledgers.items():
        acknowledged = ledger.head()
        response = await client.append(journal)
        head = response.commit.end
        require(head >= acknowledged, f"{journal}: head {head}, acknowledged up to {acknowledged}")


async def check_content(client: JournalClient, journal: str, ledger: Ledger) -> int:
    """Read `journal` whole, require all invariants, and return its length."""
    head = (await client.append(journal)).commit.end
    if head == 0:
        return 0
    content = bytearray()
    async with client.read(journal, end_offset=head) as reader:
        async for chunk in reader:
            content += chunk
    require(len(content) == head, f"{journal}: read {len(content)} bytes of {head}")
    seen: dict[int, tuple[int, bytes]] = {}
    offset = 0
    while offset < head:
        end = offset + 8 + int(content[offset : offset + 8], 16)
        digest = hashlib.sha256(content[offset:end]).digest()
        require(digest in ledger.attempted, f"{journal}: torn or foreign bytes at {offset}")
        seen[offset] = end, digest
        offset = end
    for begin, expected in ledger.acknowledged.items():
        require(seen.get(begin) == expected, f"{journal}: acknowledged append at {begin} is lost")
    return head


def rolling_journal(name: str, rng: random.Random) -> pb.JournalSpec:
    """Return a journal whose fragments roll often."""
    codec = rng.choice([pb.CompressionCodec.NONE, pb.CompressionCodec.GZIP,
                        pb.CompressionCodec.ZSTANDARD, pb.CompressionCodec.SNAPPY])  # fmt: skip
    length = rng.choice([1 << 18, 1 << 20, 1 << 23])
    return journal_spec(name, length=length, codec=codec, stores=["file:///"])


async def soak(duration: float, seed: int) -> None:
    """Run the suite for `duration` seconds."""
    rng = random.Random(seed)
    deadline = time.monotonic() + duration
    ledgers = {f"soak/journal-{number}": Ledger() for number in range(JOURNALS)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="gazette-soak-") as directory:
        broker = BrokerProcess(Path(directory) / "broker", port=port)
        await broker.start()
        try:
            async with connect(broker.endpoint) as client:
                await create_journals(client, *(rolling_journal(name, rng) for name in ledgers))
                await _rounds(broker, client, ledgers, rng, deadline)
                for journal, ledger in ledgers.items():
                    length = await check_content(client, journal, ledger)
                    print(f"{journal}: {len(ledger.acknowledged)} appends, {length} bytes, intact")
        finally:
            await broker.kill()


async def _rounds(
    broker: BrokerProcess,
    client: JournalClient,
    ledgers: dict[str, Ledger],
    rng: random.Random,
    deadline: float,
) -> None:
    async with asyncio.TaskGroup() as group:
        writers = [
            group.create_task(
                write(client, journal, ledger, f"writer-{number}", rng.randrange(1 << 32))
            )
            for number, (journal, ledger) in itertools.product(range(WRITERS), ledgers.items())
        ]
        try:
            for number in itertools.count(1):
                await asyncio.sleep(rng.uniform(0.1, 1.5))
                await broker.kill()
                broker.options = (f"--fsync={rng.choice(FSYNC)}",)
                await broker.start()
                await check_heads(client, ledgers)
                total = sum(len(ledger.acknowledged) for ledger in ledgers.values())
                print(f"round {number}: killed, {total} appends acknowledged", flush=True)
                if time.monotonic() >= deadline:
                    break
        finally:
            for writer in writers:
                writer.cancel()


__all__ = ["BrokenInvariantError", "soak"]
