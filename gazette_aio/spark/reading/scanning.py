"""The UUIDs of the messages of a range, without the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.columnar.uuids import UuidReader
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.protocol.errors import ConfigurationError, FramingError, UnexpectedEOFError
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.outputs import MAX_FRAME_BYTES
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.rows.formats import format_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from gazette_aio.client import JournalClient
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.framing.regions import Region, RegionSplitter
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.pieces import Pieces
    from gazette_aio.spark.rows.formats import Format


async def scan_uuids(  # noqa: PLR0917
    client: JournalClient,
    journal: str,
    content_type: str,
    begin: int,
    end: int,
    options: SourceOptions,
    *,
    is_aligned: bool,
    head: int,
    step_bytes: int = STEP_BYTES,
) -> AsyncGenerator[UuidColumns]:
    """Yield the UUIDs of the messages of a range, in order.

    Those are the messages whose first byte is in the range. What can't be read as a message is
    passed over, and so is a message which isn't complete at the head. Content is read ahead, and
    split in a thread. Close the generator if it's left early.

    Args:
        client: Client to use.
        journal: Name of the journal.
        content_type: Its content type.
        begin: Begin of the range.
        end: End of the range.
        options: Options of the source, which say what the format is, and how content is fetched.
        is_aligned: Whether it's known that a record begins at `begin`.
        head: Write head of the journal, behind which no message goes on.
        step_bytes: Content which is read and split at once, more or less.

    Cancellation: aborts.

    Raises:
        ConfigurationError: It's not known how content is made of messages.
        GazetteError: As `BoundedReader`.
    """
    form = format_of(options, content_type)
    if form.framing is None:
        text = f"content of type {content_type!r} isn't known to be made of messages"
        raise ConfigurationError(f"journal {journal}: {text}")
    bounds = RecordBounds(begin, end, head, lines=form.framing.is_lines, is_aligned=is_aligned)
    scanner = _Scanner(form, form.framing, bounds.begin)
    async with RangeContent(client, journal, bounds, options, step_bytes=step_bytes) as content:
        while pieces := await content.take():
            columns = await in_thread(scanner.scan, pieces)
            if columns.rows:
                yield columns


def split_regions(splitter: RegionSplitter, pieces: Pieces) -> Iterator[Region]:
    """Yield regions of the records which end in what follows, and pass over bad ones."""
    for offset, chunk in pieces:
        if offset != splitter.offset + splitter.buffered:
            splitter.jump(offset)
        splitter.feed(chunk)
    while True:
        try:
            region = splitter.next_region(STEP_BYTES)
        except FramingError:
            continue
        except UnexpectedEOFError:
            return
        if region is None:
            return
        yield region


class _Scanner:
    """Reads UUIDs of content."""

    def __init__(self, form: Format, framing: Framing, offset: int) -> None:
        self._splitter = framing.splitter(offset, max_frame_bytes=MAX_FRAME_BYTES)
        self._uuids = UuidReader(form.adapter)

    def scan(self, pieces: Pieces) -> UuidColumns:
        """Return UUIDs of the messages which end in what follows."""
        found = [UuidColumns.empty()]
        for region in split_regions(self._splitter, pieces):
            self._read(region, found)
        # Those between bad records are few, but what's done with each part takes its time.
        return UuidColumns._make(map(np.concatenate, zip(*found, strict=True)))

    def _read(self, region: Region, found: list[UuidColumns]) -> None:
        while region.rows:
            columns, bad = self._uuids.read(region)
            found.append(columns)
            region = region.slice(columns.rows + len(bad))
