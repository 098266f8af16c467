"""Newline-delimited JSON: each message is a line."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from gazette_aio.message.framing.base import (
    DEFAULT_MAX_FRAME_BYTES,
    Frames,
    Framing,
    QueueingDecoder,
)
from gazette_aio.protocol.errors import FrameTooLargeError, UnexpectedEOFError, ValidationError
from gazette_aio.protocol.well_known import CONTENT_TYPE_JSON_LINES

if TYPE_CHECKING:
    from gazette_aio.message.framing.regions import RegionSplitter


class NDJSONFraming(Framing):
    """Framing of `application/x-ndjson`."""

    content_type = CONTENT_TYPE_JSON_LINES
    suffix = b"\n"
    is_lines = True
    splits: Literal["lines", "fixed", "frames"] = "lines"

    def encode(self, message: bytes) -> bytes:
        """Return `message` as a line.

        Raises:
            ValidationError: It's more than one line.
        """
        if b"\n" in message:
            raise ValidationError("message must be one line")
        return message + b"\n"

    def decoder(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> LineDecoder:
        """Return a decoder of lines."""
        return LineDecoder(offset, max_frame_bytes=max_frame_bytes)

    def splitter(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> RegionSplitter:
        """Return a splitter of content into columns of lines."""
        from gazette_aio.message.framing.regions.line_splitter import LineSplitter  # noqa: PLC0415

        return LineSplitter(offset, max_frame_bytes)


class LineDecoder(QueueingDecoder):
    """Splits content into lines. A last line without its newline is never returned.

    A line that is too large is refused once it ends, as a whole. Its bytes aren't kept.
    """

    def __init__(self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(offset, max_frame_bytes)
        # Pieces of the unfinished line, joined once it ends: a slow trickle stays linear.
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._skipping = False  # Within a line that is too large.

    @property
    def buffered(self) -> int:
        """Number of bytes of the unfinished line."""
        return self._partial_bytes

    @property
    def is_skipping(self) -> bool:
        """Whether the unfinished line is too large."""
        return self._skipping

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        if self._skipping:
            newline = chunk.find(b"\n")
            skipped = len(chunk) if newline == -1 else newline + 1
            self._partial_bytes += skipped
            if newline == -1:
                return
            self._refuse(self._partial_bytes)
            self._partial_bytes = 0
            self._skipping = False
            chunk = chunk[skipped:]
        lines = chunk.split(b"\n")
        tail = lines.pop()
        if lines:
            if self._partial:
                self._partial.append(lines[0])
                lines[0] = b"".join(self._partial)
                self._partial.clear()
                self._partial_bytes = 0
            self._queue(lines, len(chunk))
        if tail:
            self._partial.append(tail)
            self._partial_bytes += len(tail)
            if self._partial_bytes > self.max_frame_bytes:
                self._partial.clear()
                self._skipping = True

    def _queue(self, lines: list[bytes], chunk_bytes: int) -> None:
        limit = self.max_frame_bytes
        if len(lines[0]) >= limit or chunk_bytes > limit:
            # Some line may be too large: rare, so that it may be slow.
            run: list[bytes] = []
            for line in lines:
                if len(line) < limit:
                    run.append(line)
                    continue
                if run:
                    self._queue_run(run)
                    run = []
                self._refuse(len(line) + 1)
            lines = run
        if lines:
            self._queue_run(lines)

    def _queue_run(self, lines: list[bytes]) -> None:
        begin = self._tail_offset
        ends = list(accumulate([len(line) + 1 for line in lines], initial=begin))[1:]
        self._ready.append(Frames(begin, lines, ends))
        self._tail_offset = ends[-1]

    def _refuse(self, size: int) -> None:
        begin, end = self._tail_offset, self._tail_offset + size
        self._ready.append(line_too_large(begin, end, self.max_frame_bytes))
        self._tail_offset = end

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        discarded = self._partial_bytes
        self._partial.clear()
        self._partial_bytes = 0
        self._skipping = False
        self._tail_offset = offset
        return discarded

    def take_partial(self) -> bytes:
        """Remove the bytes of the unfinished line, and return them, or none if it's too large."""
        partial = b"".join(self._partial)
        self._partial.clear()
        self._tail_offset += self._partial_bytes
        self._partial_bytes = 0
        self._skipping = False
        return partial

    def _check_end(self) -> None:
        if self._partial_bytes:
            raise UnexpectedEOFError("unexpected EOF", offset=self._tail_offset)


def line_too_large(begin: int, end: int, limit: int) -> FrameTooLargeError:
    """Return the error of a line beyond the limit, which is skipped from `begin` to `end`."""
    return FrameTooLargeError(long_line(limit), begin=begin, end=end, kind="too_large")


def long_line(limit: int) -> str:
    """Return the text of the error of a line beyond the limit."""
    return f"line is longer than {limit} bytes"


def unpack_line(buffer: bytes | bytearray, offset: int = 0) -> bytes | None:
    """Return the line of `buffer` at `offset`, with its newline, or None if it's incomplete."""
    newline = buffer.find(b"\n", offset)
    return None if newline == -1 else bytes(buffer[offset : newline + 1])
