"""Which bytes of what is read around a range are the records which begin in it."""

from __future__ import annotations


class RecordBounds:
    r"""Clips content to the whole records whose first byte is in `[begin, end)`.

    Lines are looked for from the byte before the range on, and what follows it through the first
    newline is of a record before. The last line may go on behind the range, up to the head; one
    which doesn't end there is partial. Records of other framings are taken to begin and end where
    the range does.

    Behind a gap, content begins with a record, as fragments do.

    Args:
        begin: Begin of the range.
        end: End of the range.
        head: Offset behind which no record goes on.
        lines: Whether records are lines.
        is_aligned: Whether it's known that a record begins at `begin`.
    """

    def __init__(self, begin: int, end: int, head: int, *, lines: bool, is_aligned: bool) -> None:
        self._skips = lines and not is_aligned and begin > 0
        self._lines = lines
        self.begin = begin - 1 if self._skips else begin
        """Offset to read from."""
        self.start = begin
        """Begin of the range."""
        self.end = end
        """End of the range."""
        self.limit = max(head, end) if lines else end
        """Offset up to which there may be more of the last record."""
        self.is_done = begin >= end
        """Whether nothing that follows is of the range."""
        self._expected = self.begin

    def clip(self, offset: int, chunk: bytes) -> tuple[int, bytes]:
        """Return what's of the range of the next content, maybe nothing, and its offset."""
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
        # The last record ends with the range, or with the first newline behind that.
        last = max(self.end - 1 - offset, 0)
        if last < len(chunk):
            if not self._lines:
                self.is_done = self._expected >= self.end
            elif (newline := chunk.find(b"\n", last)) != -1:
                self.is_done = True
                chunk = chunk[: newline + 1]
        return offset, chunk
