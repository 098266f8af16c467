"""Where the last line of a journal ends.

Publishers append whole messages. But whoever pipes a file to a journal may append the begin of a
line, and its rest a little later. A batch which ended in between would read neither.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol.well_known import CONTENT_TYPE_CSV, CONTENT_TYPE_JSON_LINES
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.rows.formats import kind_of

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

LINE_BYTES: Final = 1 << 20
"""Bytes before a head within which the end of the last line is looked for."""

_KINDS: Final = {CONTENT_TYPE_JSON_LINES: "ndjson", CONTENT_TYPE_CSV: "csv"}


async def is_complete(client: JournalClient, journal: JournalInfo, options: SourceOptions) -> bool:
    """Return whether a record ends at the head: a line, or what's appended as a whole.

    It's one RPC of journals of lines. Those whose last byte is lost end there, too.

    Cancellation: safe.

    Raises:
        GazetteError: The journal can't be read.
    """
    if _kind(journal, options) not in {"ndjson", "csv"}:
        return True
    begin = max(journal.head - 1, 0)
    return await _fetch(client, journal, begin, options) in {b"\n", b""}


async def last_end(client: JournalClient, planned: JournalRange, options: SourceOptions) -> int:
    """Return where the last record ends which begins in a range, or the begin if none does.

    A record of lines which begins before the end may go on behind the head.

    Args:
        client: Client to use.
        planned: The range.
        options: Options of the source.

    Cancellation: safe.

    Raises:
        GazetteError: The journal can't be read.
    """
    journal, begin, end = planned
    if await is_complete(client, journal, options):
        return end
    # A newline of a CSV file may be one of a value.
    if _kind(journal, options) == "ndjson":
        content = await _fetch(client, journal, max(begin, journal.head - LINE_BYTES), options)
        if found := content.rfind(b"\n") + 1:
            return min(end, journal.head - len(content) + found)
    return begin


def _kind(journal: JournalInfo, options: SourceOptions) -> str | None:
    kind = kind_of(options, journal.content_type)
    return _KINDS.get(journal.content_type) if kind == "raw" else kind


async def _fetch(
    client: JournalClient, journal: JournalInfo, begin: int, options: SourceOptions
) -> bytes:
    """Return the content from an offset up to the head, or what's behind the last gap of it."""
    reader = BoundedReader(
        client,
        journal.name,
        begin,
        journal.head,
        direct=False,
        fetch_timeout=options.fetch_timeout,
        fail_on_data_loss=False,
    )
    content, at = bytearray(), begin
    async with aclosing(reader):
        async for offset, chunk in reader:
            if offset != at:
                content.clear()
            content += chunk
            at = offset + len(chunk)
    return bytes(content)
