"""Offset of the first message of a time, by a search of few reads."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.client import iter_fragments

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from gazette_aio.client import JournalClient
    from gazette_aio.console.tail_forms import MessageForm

_NEAR_BYTES: Final = 16 << 10
_PROBE_BYTES: Final = 256 << 10


async def offset_at(
    client: JournalClient,
    journal: str,
    time: datetime,
    head: int,
    form: Callable[[], MessageForm] | None,
) -> int:
    """Return an offset at most 16 KiB before the first message that isn't older than a time.

    Times of messages may decrease by little from one message to the next.

    Args:
        client: Client to use.
        journal: Name of the journal.
        time: The time.
        head: Write head of the journal.
        form: Makes a form that tells the journal's messages apart; None if they have no times. Then
            it's the offset of the first fragment that isn't older.

    Returns:
        The offset. If all files are older than the time, it's 16 KiB before the write head.

    Raises:
        GazetteError: A request to the brokers failed.

    Cancellation: safe.
    """
    low, begins, turns = 0, list[int](), Turns()
    is_older = True
    async with aclosing(iter_fragments(client, journal)) as fragments:
        async for fragment in fragments:
            # A file is written after its messages, long after them if somebody copied it. One that
            # isn't written yet has no time.
            is_older = is_older and 0 < fragment.spec.mod_time < int(time.timestamp())
            if is_older:
                low = max(fragment.spec.end, low)
            else:
                begins.append(fragment.spec.begin)
            await turns.rest()
    if low >= head:
        return max(head - _NEAR_BYTES, 0)
    if form is None:
        return low
    wanted = time.isoformat(timespec="milliseconds")
    high = head
    while high - low > _NEAR_BYTES:
        # Brokers send the begin of a fragment at once. They decompress all that's before the rest.
        begins = [begin for begin in begins if low < begin < high]
        middle = begins[len(begins) // 2] if begins else (low + high) // 2
        found = await _time_from(client, journal, range(middle, high), form())
        if found and found < wanted:
            low = middle
        else:
            high = middle
    return low


async def _time_from(client: JournalClient, journal: str, offsets: range, form: MessageForm) -> str:
    """Return the time of the first message in a range, or empty if none has a time."""
    end = min(offsets.stop, offsets.start + _PROBE_BYTES)
    wanted = pb.ReadRequest(journal=journal, offset=offsets.start, end_offset=end)
    form.begin(offsets.start)
    async with client.read(wanted) as reader:
        while True:
            try:
                content = await reader.read(_NEAR_BYTES)
            except pb.OffsetJumpError:
                form.begin(reader.offset, is_whole=True)
                continue
            if not content:
                return ""
            form.feed(reader.offset - len(content), content)
            while (message := form.next_message([])) is not None:
                if message["time"]:
                    return str(message["time"])
