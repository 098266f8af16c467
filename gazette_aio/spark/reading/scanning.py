"""Scans of the UUIDs of a range's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Yield the UUIDs of the messages whose first byte is in a range, in order.

    Bad records and an incomplete message at the head are skipped. Content is read ahead, and split
    in a thread. Close the generator if you leave it early.

    Args:
        client: Client to use.
        journal: Name of the journal.
        content_type: Content type of the journal.
        begin: Begin of the range.
        end: End of the range.
        options: Options of the source.
        is_aligned: Whether a record is known to begin at `begin`.
        head: Write head of the journal, beyond which no message extends.
        step_bytes: Approximate number of bytes which are read and split in one step.

    Raises:
        ConfigurationError: There is no framing for the content type.
        GazetteError: As `BoundedReader`.

    Cancellation: aborts.
    """
    form = format_of(options, content_type)
    if form.framing is None:
        text = f"there is no framing for content type {content_type!r}"
        raise ConfigurationError(f"journal {journal}: {text}")
    bounds = RecordBounds(begin, end, head, lines=form.framing.is_lines, is_aligned=is_aligned)
    scanner = _Scanner(form, form.framing, bounds.begin)
    async with RangeContent(client, journal, bounds, options, step_bytes=step_bytes) as content:
        while pieces := await content.take():
            columns = await in_thread(scanner.scan, pieces)
            if columns.rows:
                yield columns


def split_regions(splitter: RegionSplitter, pieces: Pieces) -> Iterator[Region]:
    """Yield regions of the records which end in the next content, without bad records."""
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
    """Reads the UUIDs of content."""

    def __init__(self, form: Format, framing: Framing, offset: int) -> None:
        self._splitter = framing.splitter(offset, max_frame_bytes=MAX_FRAME_BYTES)
        self._uuids = UuidReader(form.adapter)

    def scan(self, pieces: Pieces) -> UuidColumns:
        """Return the UUIDs of the messages which end in the next content."""
        found: list[UuidColumns] = []
        for region in split_regions(self._splitter, pieces):
            self._read(region, found)
        # Bad records cut the content into small parts, and processing a part has a cost.
        return UuidColumns.empty().concat(*found)

    def _read(self, region: Region, found: list[UuidColumns]) -> None:
        while region.rows:
            columns, bad = self._uuids.read(region)
            found.append(columns)
            region = region.slice(columns.rows + len(bad))
