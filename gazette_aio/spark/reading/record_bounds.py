"""Clipping of content to the records which begin in a range."""

from __future__ import annotations


class RecordBounds:
    r"""Clips content to the whole records whose first byte is in `[begin, end)`.

    If records are lines, content is read from the byte before the range; everything through the
    first newline belongs to an earlier record. The last line may extend beyond the range, up to the
    head; a line which doesn't end there is partial. Other records begin and end with the range.

    After a gap, content begins with a record, as fragments do.

    Args:
        begin: Begin of the range.
        end: End of the range.
        head: Offset beyond which no record extends.
        lines: Whether records are lines.
        is_aligned: Whether a record is known to begin at `begin`.
    """

    def __init__(self, begin: int, end: int, head: int, *, lines: bool, is_aligned: bool) -> None:
        self._skips = lines and not is_aligned and begin > 0
        self._lines = lines
        self.begin: int = begin - 1 if self._skips else begin
        """Offset to read from."""
        self.start = begin
        """Begin of the range."""
        self.end = end
        """End of the range."""
        self.limit: int = max(head, end) if lines else end
        """Offset up to which the last record may extend."""
        self.is_done: bool = begin >= end
        """Whether no further content belongs to the range."""
        self._expected = self.begin

    def clip(self, offset: int, chunk: bytes) -> tuple[int, bytes]:
        """Return the offset and the part of the next content which belongs to the range."""
        is_record = offset != self._expected
        self._expected = offset + len(chunk)
        if is_record:
            self._skips = False
        elif self._skips:
            newline = chunk.find(b"\n")
            if newline == -1:
                self.is_done = self._expected >= self.end
                return self._expected, b""
            offset, chunk = offset + newline + 1, chunk[newline + 1 :]
            self._skips, is_record = False, True
        if is_record and offset >= self.end:
            self.is_done = True
            return offset, b""
        # The last record ends with the range, or with the first newline after the range.
        last = max(self.end - 1 - offset, 0)
        if last < len(chunk):
            if not self._lines:
                self.is_done = self._expected >= self.end
            elif (newline := chunk.find(b"\n", last)) != -1:
                self.is_done = True
                chunk = chunk[: newline + 1]
        return offset, chunk
