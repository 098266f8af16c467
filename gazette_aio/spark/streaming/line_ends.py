"""Ends of the last records of journals.

Publishers append whole messages. But a file which is piped to a journal may be appended in parts of
lines. A batch which ended inside a line would lose the line.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.threads import in_thread
from gazette_aio.client import iter_fragments
from gazette_aio.protocol.errors import FramingError
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, find_cuts
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.outputs import MAX_FRAME_BYTES
from gazette_aio.spark.rows.formats import framing_for

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient
    from gazette_aio.message.framing import Decoder, Framing
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

WINDOW_BYTES: Final = 1 << 20
"""Bytes which are searched at once for the end of the last line, from the head backwards."""


async def is_complete(client: JournalClient, journal: JournalInfo, options: SourceOptions) -> bool:
    """Return whether a record ends at the head.

    Framings with neither lines nor a suffix are assumed to be appended in whole frames, without an
    RPC. If the last bytes are lost, the last record ends there.

    Raises:
        GazetteError: The journal can't be read.

    Cancellation: safe.
    """
    framing = framing_for(options, journal.content_type)
    if framing is None:
        return True
    end = b"\n" if framing.is_lines else framing.suffix
    begin = max(journal.head - len(end), 0)
    return not end or end.endswith(await _fetch(client, journal.name, begin, journal.head, options))


async def last_end(client: JournalClient, planned: JournalRange, options: SourceOptions) -> int:
    """Return the end of the last record which begins in a range, or the range's begin.

    A line which begins before the end of the range may extend beyond the head.

    Args:
        client: Client to use.
        planned: The range.
        options: Options of the source.

    Raises:
        GazetteError: The journal can't be read.

    Cancellation: safe.
    """
    journal, begin, end = planned
    if await is_complete(client, journal, options):
        return end
    framing = framing_for(options, journal.content_type)
    if framing is not None and not framing.is_lines:
        return await _last_record_end(client, planned, framing, options)
    high = journal.head
    while high > begin:
        low = max(begin, high - WINDOW_BYTES)
        content = await _fetch(client, journal.name, low, high, options)
        if found := content.rfind(b"\n") + 1:
            return min(end, high - len(content) + found)
        high = low
    return begin


async def _last_record_end(
    client: JournalClient, planned: JournalRange, framing: Framing, options: SourceOptions
) -> int:
    """Return the end of the last complete record of a range, or the range's begin."""
    journal, begin, end = planned
    # The suffix may be part of a value, so the search starts at the begin of a record.
    if journal.fragments is None:
        async with aclosing(iter_fragments(client, journal.name)) as listed:
            found = tuple([FragmentInfo(each.spec.begin, each.spec.end) async for each in listed])
        planned = planned._replace(journal=replace(journal, fragments=found))
    begin = max(find_cuts(planned), default=begin)
    decoder = framing.decoder(begin, max_frame_bytes=MAX_FRAME_BYTES)
    reader = _reader_of(client, journal.name, begin, end, options)
    async with aclosing(reader):
        async for offset, chunk in reader:
            await in_thread(_pass, decoder, offset, chunk)
    return decoder.offset


def _pass(decoder: Decoder, offset: int, chunk: bytes) -> None:
    """Skip the records which end in content."""
    if offset != decoder.offset + decoder.buffered:
        decoder.jump(offset)
    decoder.feed(chunk)
    while True:
        try:
            if decoder.frames() is None:
                return
        except FramingError:
            pass  # The reader of the range reports bad records.


async def _fetch(
    client: JournalClient, journal: str, begin: int, end: int, options: SourceOptions
) -> bytes:
    """Return the content of a range after its last gap."""
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
