"""Read the flights back, committed ones only, from all partitions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from examples.flights.data import Flight
from examples.flights.report import Tally
from gazette_aio import JournalClient, ReadCommittedIter, json_adapter

if TYPE_CHECKING:
    from examples.flights.progress import Progress

_PROGRESS_ROWS = 5_000


async def read_flights(
    client: JournalClient, journals: list[str], total: int, progress: Progress
) -> Tally:
    """Read `journals` up to their write heads, and count what's in them."""
    tally = Tally(total)
    count = 0
    envelopes = ReadCommittedIter(journals, json_adapter(Flight), client=client, skip_acks=True)
    async for envelope in envelopes:
        tally.add(envelope.message)
        count += 1
        if count % _PROGRESS_ROWS == 0:
            progress.advance(_PROGRESS_ROWS)
    progress.advance(count % _PROGRESS_ROWS)
    return tally
