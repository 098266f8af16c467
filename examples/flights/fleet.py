"""Run the producer processes, of which one is killed in mid-transaction and replaced."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from examples.flights.progress import Progress


class Event(msgspec.Struct, omit_defaults=True):
    """One line of a producer's stdout."""

    event: Literal["ready", "committed", "halted"]
    rows: int = 0
    """Rows of the transaction which was committed, or was begun when the producer halted."""
    next_row: int = 0
    """The row which the next transaction begins with."""


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows which one producer publishes, and where it keeps what it has done."""

    name: str
    begin: int
    end: int
    intents: Path


def shares(total: int, producers: int, directory: Path) -> list[Share]:
    """Split `total` rows among so many producers."""
    bounds = [total * index // producers for index in range(producers + 1)]
    return [
        Share(f"producer {index + 1}", begin, end, directory / f"producer-{index + 1}.intents")
        for index, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]


class ProducerFailedError(Exception):
    """A producer process ended with an error."""


class Fleet:
    """Several producer processes which publish at the same time.

    Args:
        endpoint: Address of the broker.
        transaction_rows: Rows of each transaction.
        progress: Where to tell what happens.
        half_way: Called once a producer was killed, half-way.
    """

    def __init__(
        self,
        endpoint: str,
        transaction_rows: int,
        progress: Progress,
        half_way: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._transaction_rows = transaction_rows
        self._progress = progress
        self._half_way = half_way
        self._began_at = 0.0
        self.killed_in: tuple[int, int] | None = None
        """First row of the transaction in which a producer was killed, and how many it had sent."""

    async def publish(self, work: list[Share], *, victim: int) -> float:
        """Publish all of `work`, and return the seconds from its first row to its last.

        Args:
            work: What each producer has to do.
            victim: Index of the producer which is killed half-way.
        """
        async with asyncio.TaskGroup() as group:
            for index, share in enumerate(work):
                if index == victim:
                    group.create_task(self._publish_with_a_crash(share))
                else:
                    group.create_task(self._publish(share))
        return time.monotonic() - self._began_at

    async def _publish_with_a_crash(self, share: Share) -> None:
        transactions = -(-(share.end - share.begin) // self._transaction_rows)
        async with self._process(share, halt_in=transactions // 2) as process:
            async for event in self._events(process):
                if event.event == "halted":
                    process.kill()
                    self.killed_in = event.next_row, event.rows
            if await process.wait() >= 0 or self.killed_in is None:
                raise ProducerFailedError(f"{share.name} ended before it could be killed")
        self._progress.note(
            f"{share.name} was killed: it had sent {event.rows:,} rows from row {event.next_row:,} "
            f"on, and not committed them"
        )
        if self._half_way is not None:
            await self._half_way()
        await self._publish(share)

    async def _publish(self, share: Share) -> None:
        async with self._process(share) as process:
            async for event in self._events(process):
                if event.event == "ready" and event.next_row != share.begin:
                    self._progress.note(f"{share.name} goes on at row {event.next_row:,}")
            if code := await process.wait():
                raise ProducerFailedError(f"{share.name} ended with exit code {code}")

    @asynccontextmanager
    async def _process(
        self, share: Share, *, halt_in: int | None = None
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        command = [
            sys.executable,
            "-m",
            "examples.flights.producer",
            f"--broker={self._endpoint}",
            f"--begin={share.begin}",
            f"--end={share.end}",
            f"--intents={share.intents}",
            f"--transaction-rows={self._transaction_rows}",
        ]
        if halt_in is not None:
            command.append(f"--halt-in-transaction={halt_in}")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _events(self, process: asyncio.subprocess.Process) -> AsyncIterator[Event]:
        assert process.stdout is not None
        async for line in process.stdout:
            event = msgspec.json.decode(line, type=Event)
            if event.event == "ready" and not self._began_at:
                self._began_at = time.monotonic()
            if event.event == "committed":
                self._progress.advance(event.rows)
            yield event
