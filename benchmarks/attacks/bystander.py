"""A client that is served while others attack the broker, and the memory of that broker."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from benchmarks.soaks.invariant import require

if TYPE_CHECKING:
    from gazette_aio import JournalClient

MIB = 1 << 20
SERVED_SECONDS = 60.0
"""Seconds within which the bystander is served, also on a busy machine."""


class Bystander:
    """Appends to a journal, one record after another.

    Args:
        client: A client of the broker.
        journal: A journal that nobody else appends to.
    """

    def __init__(self, client: JournalClient, journal: str) -> None:
        self._client = client
        self._journal = journal
        self._acknowledged: list[tuple[int, bytes]] = []
        self.appends = 0

    async def append(self) -> None:
        """Append a record, again if its outcome is unknown."""
        content = b"%d\n" % self.appends
        self.appends += 1
        while True:
            try:
                commit = (
                    await self._client.append(self._journal, content, timeout=SERVED_SECONDS)
                ).commit
            except pb.OperationTimeoutError:
                raise
            except pb.TransportError:
                continue  # The attack has ended the call.
            self._acknowledged.append((commit.begin, content))
            return

    async def check(self) -> None:
        """Require that all that was acknowledged is at the offsets that were told."""
        async with self._client.read(self._journal) as reader:
            found = bytearray()
            with contextlib.suppress(pb.OffsetNotYetAvailableError):
                async for chunk in reader:
                    found += chunk
        for begin, content in self._acknowledged:
            at_offset = bytes(found[begin : begin + len(content)])
            require(at_offset == content, f"at {begin} is {at_offset!r}, not {content!r}")


def resident_bytes(pid: int) -> int:
    """Return how much memory a process holds; 0 where the system doesn't tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
