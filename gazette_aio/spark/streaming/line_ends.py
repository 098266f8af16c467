"""Where the last line of a journal ends.

Publishers append whole messages. But whoever pipes a file to a journal may append the begin of a
line, and its rest a little later. A batch which ended in between would read neither.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.threads import in_thread
from gazette_aio.client import iter_fragments
from gazette_aio.message.columnar.regions import region_splitter
from gazette_aio.protocol.well_known import CONTENT_TYPE_CSV, CONTENT_TYPE_JSON_LINES
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, find_cuts
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.outputs import MAX_FRAME_BYTES
from gazette_aio.spark.reading.scanning import split_regions
from gazette_aio.spark.rows.formats import format_of, kind_of

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient
    from gazette_aio.message.columnar.regions import RegionSplitter
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

_WINDOW_BYTES: Final = 1 << 20
"""Bytes within which the end of the last line is looked for at once, from the head backwards."""

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
    return await _fetch(client, journal.name, begin, journal.head, options) in {b"\n", b""}


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
    if _kind(journal, options) == "csv":
        return await _last_record_end(client, planned, options)
    high = journal.head
    while high > begin:
        low = max(begin, high - _WINDOW_BYTES)
        content = await _fetch(client, journal.name, low, high, options)
        if found := content.rfind(b"\n") + 1:
            return min(end, high - len(content) + found)
        high = low
    return begin


async def _last_record_end(
    client: JournalClient, planned: JournalRange, options: SourceOptions
) -> int:
    """Return where the last complete record ends of a range up to a head, or its begin."""
    journal, begin, end = planned
    framing = format_of(options, journal.content_type).framing
    assert framing is not None
    # A newline may be one of a value, so records are found from a begin of one.
    if journal.fragments is None:
        async with aclosing(iter_fragments(client, journal.name)) as listed:
            found = tuple([FragmentInfo(each.spec.begin, each.spec.end) async for each in listed])
        planned = planned._replace(journal=replace(journal, fragments=found))
    begin = max(find_cuts(planned), default=begin)
    splitter = region_splitter(framing, begin, max_frame_bytes=MAX_FRAME_BYTES)
    reader = _reader_of(client, journal.name, begin, end, options)
    async with aclosing(reader):
        async for offset, chunk in reader:
            await in_thread(_pass, splitter, offset, chunk)
    return splitter.offset


def _pass(splitter: RegionSplitter, offset: int, chunk: bytes) -> None:
    """Pass over the records which end in content. Who reads it tells which are bad."""
    for _ in split_regions(splitter, [(offset, chunk)]):
        pass


def _kind(journal: JournalInfo, options: SourceOptions) -> str | None:
    kind = kind_of(options, journal.content_type)
    return _KINDS.get(journal.content_type) if kind == "raw" else kind


async def _fetch(
    client: JournalClient, journal: str, begin: int, end: int, options: SourceOptions
) -> bytes:
    """Return the content of a range, or what's behind the last gap of it."""
    reader = _reader_of(client, journal, begin, end, options)
    content, at = bytearray(), begin
    async with aclosing(reader):
        async for offset, chunk in reader:
            if offset != at:
                content.clear()
            content += chunk
            at = offset + len(chunk)
    return bytes(content)


def _reader_of(
    client: JournalClient, journal: str, begin: int, end: int, options: SourceOptions
) -> BoundedReader:
    return BoundedReader(
        client,
        journal,
        begin,
        end,
        direct=False,
        fetch_timeout=options.fetch_timeout,
        fail_on_data_loss=False,
    )
