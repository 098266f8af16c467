"""`gazette-aio bench`: measures appends to a journal, and reads of them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Final

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.connection import ClientSettings, connection_options
from gazette_aio.cli.shell.input import checked_journal
from gazette_aio.cli.shell.output import json_option, print_json, print_table, progress
from gazette_aio.client import StrictAppendService

if TYPE_CHECKING:
    from gazette_aio.cli.shell.output import Progress
    from gazette_aio.client import AsyncAppend, JournalClient

_MIB: Final = 1 << 20
_KEPT: Final = 1 << 16
"""Most latencies in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One measurement."""

    what: str
    operations: int
    bytes: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    def row(self) -> tuple[str, ...]:
        """Return the row of a table."""
        return (
            self.what,
            f"{self.operations / self.seconds:,.0f}",
            f"{self.bytes / self.seconds / _MIB:,.1f}",
            "-" if self.p50_ms is None else f"{self.p50_ms:.2f}",
            "-" if self.p99_ms is None else f"{self.p99_ms:.2f}",
        )


@click.command()
@click.argument("journal")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Time of each measurement of appends.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 4 << 20),
    default=512,
    show_default=True,
    help="Bytes of an append.",
)
@json_option("Print the measurements as JSON.")
@connection_options
def bench(
    connection: ClientSettings, journal: str, seconds: float, size: int, *, as_json: bool
) -> None:
    """Measure appends to JOURNAL, one after the other and batched, and reads of them.

    CAUTION: the appended lines of `x` remain in the journal. Use a separate journal.
    """
    measured = asyncio.run(_bench(connection, checked_journal(journal), seconds, size))
    if as_json:
        print_json([dataclasses.asdict(each) for each in measured])
        return
    print_table(("WHAT", "PER SECOND", "MIB/S", "P50 MS", "P99 MS"), [m.row() for m in measured])


async def _bench(
    connection: ClientSettings, journal: str, seconds: float, size: int
) -> list[Measured]:
    content = b"x" * (size - 1) + b"\n"
    async with connection.open() as client:
        begin = (await client.append(journal)).commit.end
        with progress("appending", in_bytes=True) as bar:
            single = await _one_by_one(client, journal, content, seconds, bar)
            batched, end = await _batched(client, journal, content, seconds, bar)
        with progress("reading", end - begin, in_bytes=True) as bar:
            read = await _read(client, journal, (begin, end), bar)
    return [single, batched, read]


async def _one_by_one(
    client: JournalClient, journal: str, content: bytes, seconds: float, bar: Progress
) -> Measured:
    latencies: list[float] = []
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        await client.append(journal, content)
        if len(latencies) < _KEPT:
            latencies.append(time.perf_counter() - now)
        count += 1
        bar.advance(len(content))
    elapsed = time.perf_counter() - began
    latencies.sort()
    middle, high = (latencies[int(len(latencies) * part)] * 1e3 for part in (0.5, 0.99))
    return Measured("appends", count, count * len(content), elapsed, middle, high)


async def _batched(
    client: JournalClient, journal: str, content: bytes, seconds: float, bar: Progress
) -> tuple[Measured, int]:
    count, began = 0, time.perf_counter()
    latest: AsyncAppend | None = None
    async with StrictAppendService(client) as appends:  # None succeeds after a failed one.
        while latest is None or time.perf_counter() - began < seconds:
            latest = await appends.start_append(pb.AppendRequest(journal=journal))
            latest.write(content)
            latest.release()
            count += 1
            bar.advance(len(content))
        end = (await latest).commit.end
    elapsed = time.perf_counter() - began
    return Measured("batched appends", count, count * len(content), elapsed), end


async def _read(
    client: JournalClient, journal: str, span: tuple[int, int], bar: Progress
) -> Measured:
    total, chunks, began = 0, 0, time.perf_counter()
    async with client.read(journal, offset=span[0], end_offset=span[1]) as reader:
        async for chunk in reader:
            total += len(chunk)
            chunks += 1
            bar.advance(len(chunk))
    return Measured("reads", chunks, total, time.perf_counter() - began)
