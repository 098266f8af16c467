"""Rows of messages and of bad records, in the order of the content."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.protocol.errors import FramingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyarrow import RecordBatch

    from gazette_aio.message.envelopes.content import Refusal
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.pieces import Pieces
    from gazette_aio.spark.rows.records import MessageTable, RowDecoder

MAX_FRAME_BYTES: Final = 128 << 20
"""Largest message of a source."""

_MAX_CORRUPT_BYTES: Final = 1 << 20
"""Greatest number of bytes of one corrupt record which isn't a frame."""

_GARBAGE_KINDS: Final = ("desync", "too_large")


class _Garbage(NamedTuple):
    """Bytes which aren't a frame."""

    error: FramingError
    begin: int
    end: int
    content: bytes


class RowOutputs:
    """Makes rows of messages and of garbage, in the order of the content.

    Garbage up to the next frame is one record, independent of the pieces of content, unless it's
    longer than 1 MiB.

    Args:
        decoder: Makes the rows.
        options: Options of the source.
        torn_at: Offset at which an incomplete record is bad. Elsewhere it isn't a record yet, or
            its rest is lost.
    """

    def __init__(self, decoder: RowDecoder, options: SourceOptions, *, torn_at: int = -1) -> None:
        self._decoder = decoder
        self._batch_rows = options.batch_rows
        self._batch_bytes = options.batch_bytes
        self._torn_at = torn_at
        self._garbage: _Garbage | None = None
        self._window: deque[tuple[int, bytes]] = deque()

    def see(self, pieces: Pieces, offset: int) -> None:
        """Keep content from `offset` on, for the texts of bad records."""
        window = self._window
        while window and window[0][0] + len(window[0][1]) <= offset:
            window.popleft()
        window.extend(pieces)

    def rows(self, messages: MessageTable) -> list[RecordBatch]:
        """Return the rows of garbage before the messages, and of the messages."""
        return self.flush() + self._decoder.rows(messages)

    def refuse(self, refusal: Refusal) -> list[RecordBatch]:
        """Return the rows of a bad record, or none if it may continue."""
        cause, begin, end, kind, content, _ = refusal
        if kind == "unexpected_eof":
            end = self._window[-1][0] + len(self._window[-1][1]) if self._window else begin
            if end != self._torn_at:
                return []
        if content is None:
            content = self._content(begin, min(end, begin + _MAX_CORRUPT_BYTES))
            if kind == "decode":
                content = content.removesuffix(b"\n").removesuffix(b"\r")  # End of a CSV record.
        garbage = self._garbage
        if (
            kind in ("desync", "unexpected_eof")
            and garbage is not None
            and garbage.end == begin
            and len(garbage.content) + len(content) <= _MAX_CORRUPT_BYTES
        ):
            self._garbage = garbage._replace(end=end, content=garbage.content + content)
            return []
        batches = self.flush()
        failed = FramingError(str(cause), begin=begin, end=end, kind=kind)
        if kind in _GARBAGE_KINDS:
            self._garbage = _Garbage(failed, begin, end, content)
            return batches
        return batches + self._decoder.bad(failed, content, begin, end)

    def flush(self) -> list[RecordBatch]:
        """Return the row of garbage, if the last record was garbage."""
        garbage, self._garbage = self._garbage, None
        if garbage is None:
            return []
        error, begin, end, content = garbage
        return self._decoder.bad(error, content, begin, end)

    def merging(self) -> MergedBatches:
        """Return a merger of batches up to the sizes of the options."""
        return MergedBatches(self._batch_rows, self._batch_bytes)

    def _content(self, begin: int, end: int) -> bytes:
        """Return the kept content of `[begin, end)`."""
        return b"".join(
            chunk[max(begin - offset, 0) : end - offset]
            for offset, chunk in self._window
            if offset < end and offset + len(chunk) > begin
        )


class MergedBatches:
    """Merges small batches, because each batch has a cost.

    Args:
        max_rows: Limit of the rows of a merged batch.
        max_bytes: Limit of the bytes of a merged batch.
    """

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._done: list[RecordBatch] = []
        self._group: list[RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    @property
    def is_enough(self) -> bool:
        """Whether a batch is complete or about half full."""
        is_half = 2 * self._rows > self._max_rows or 2 * self._bytes > self._max_bytes
        return is_half or bool(self._done)

    def add(self, batches: Iterable[RecordBatch]) -> None:
        """Add batches."""
        for batch in batches:
            rows, size = batch.num_rows, batch.nbytes
            if self._rows + rows > self._max_rows or self._bytes + size > self._max_bytes:
                self._close()
            self._group.append(batch)
            self._rows += rows
            self._bytes += size

    def batches(self) -> list[RecordBatch]:
        """Return the merged batches."""
        self._close()
        return self._done

    def _close(self) -> None:
        group, self._group = self._group, []
        self._rows = self._bytes = 0
        if len(group) > 1:
            group = pa.Table.from_batches(group).combine_chunks().to_batches()
        self._done += group
