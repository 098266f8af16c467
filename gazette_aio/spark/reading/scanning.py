"""Scans of the UUIDs of a range's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.columns.outputs import columns_of
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.content import JournalContent, Refusal
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.outputs import MAX_FRAME_BYTES
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.rows.formats import format_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.pieces import Pieces


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
    found = form.of_journal(journal)
    bounds = RecordBounds(begin, end, head, lines=found.framing.is_lines, is_aligned=is_aligned)
    reader = JournalContent(
        found,
        bounds.begin,
        max_frame_bytes=MAX_FRAME_BYTES,
        lenient=form.is_lenient,
        skip_errors=True,
    )
    scanner = _Scanner(reader)
    async with RangeContent(client, journal, bounds, options, step_bytes=step_bytes) as content:
        while pieces := await content.take():
            columns = await in_thread(scanner.scan, pieces)
            if columns.rows:
                yield columns


class _Scanner:
    """Reads the UUIDs of content."""

    def __init__(self, content: JournalContent) -> None:
        self._content = content

    def scan(self, pieces: Pieces) -> UuidColumns:
        """Return the UUIDs of the messages which end in the next content."""
        for offset, chunk in pieces:
            self._content.feed(chunk, offset)
        found = [UuidColumns.of([])]
        while (messages := self._content.read(STEP_BYTES)) is not None:
            if not isinstance(messages, (Refusal, str)):
                found.append(columns_of(messages))
        # Bad records cut the content into small parts, and processing a part has a cost.
        return found[0].concat(*found[1:])
