"""Splitter of lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.framing.ndjson import line_too_large
from gazette_aio.message.framing.regions.region import (
    MAX_ROWS,
    ChunkSplitter,
    Indices,
    Region,
    Run,
)
from gazette_aio.protocol.errors import UnexpectedEOFError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LINES_PER_SCAN = 64
SCAN_BYTES = 1 << 19  # Scanned at a time, so that what's in between stays in the CPU's cache.
_NEWLINE = 10
# Place of the only set bit of a byte, counted from the highest one.
_PLACES = 8 - np.frexp(np.arange(256))[1].astype(np.int64)


class LineSplitter(ChunkSplitter):
    """Splits content into lines."""

    def __init__(self, offset: int, max_frame_bytes: int) -> None:
        super().__init__(offset, max_frame_bytes)
        self._skipping = False  # Within a line that is too large.

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        if self._skipping:
            newline = chunk.find(b"\n")
            self._size += len(chunk) if newline == -1 else newline + 1
            if newline == -1:
                return
            begin, end = self._base, self._base + self._size
            self._queue.append(line_too_large(begin, end, self._max))
            self._restart(end, b"")
            self._skipping = False
            chunk = chunk[newline + 1 :]
        if not chunk:
            return
        newline = chunk.rfind(b"\n")
        if newline != -1:
            self._complete = self._size + newline + 1
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size - self._complete > self._max:
            if self._complete:
                self._queue_complete()
            # Its bytes only count, until it ends.
            self._pieces = []
            self._skipping = True

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        self._skipping = False
        return super().jump(offset)

    def _make_run(self, data: bytes | memoryview) -> _LineRun:
        return _LineRun(data, self._base, self._complete, self._max)

    def _check_end(self) -> None:
        if self._size:
            raise UnexpectedEOFError("unexpected EOF", offset=self._base)


class _LineRun(Run):
    def __init__(
        self, data: bytes | memoryview, origin: int, stop: int, max_frame_bytes: int
    ) -> None:
        super().__init__(data, origin)
        self._stop = stop
        self._max = max_frame_bytes

    @property
    def done(self) -> bool:
        return self._start == self._stop

    def cut(self, limit_bytes: int) -> Region:
        """Return the next lines, or raise FrameTooLargeError."""
        data, start, origin = self._data, self._start, self._origin
        # The second limit bounds the bytes scanned again after each line that is too large.
        limit = max(1, min(limit_bytes, self._max * _LINES_PER_SCAN))
        stops = _find_newlines(data, start, min(start + limit, self._stop))
        if len(stops) == 0:
            stops = _find_newlines(data, start, self._stop, limit=1)
        starts = np.empty_like(stops)
        starts[0] = start
        np.add(stops[:-1], 1, out=starts[1:])
        ends = stops + 1
        if ends[-1] - start > self._max:
            large = np.flatnonzero(ends - starts > self._max)
            if len(large):
                count = int(large[0])
                if count == 0:
                    self._start = int(ends[0])
                    raise line_too_large(origin + start, origin + self._start, self._max)
                starts, stops, ends = starts[:count], stops[:count], ends[:count]
        self._start = int(ends[-1])
        ends += origin
        return Region(data, origin + start, starts, stops, ends, line_feeds=True)


def _find_newlines(
    data: bytes | memoryview, start: int, stop: int, *, limit: int = MAX_ROWS
) -> Indices:
    """Return the places of the next newlines in `data`, at most `limit`."""
    buffer = np.frombuffer(data, np.uint8)
    found: list[Indices] = []
    count = 0
    for begin in range(start, stop, SCAN_BYTES):
        at = _find_few(buffer[begin : min(begin + SCAN_BYTES, stop)] == _NEWLINE)
        found.append(at + begin)
        count += len(at)
        if count >= limit:
            break
    return (found[0] if len(found) == 1 else np.concatenate(found))[:limit]


def _find_few(flags: NDArray[np.bool_]) -> Indices:
    """Return the places of flags that are set, sooner than numpy does if they're few."""
    packed = np.packbits(flags)
    some = np.flatnonzero(packed != 0)
    values = packed[some]
    if (values & (values - 1)).any():
        return np.flatnonzero(flags)  # Some are within 8 bytes of each other.
    return some * 8 + _PLACES[values]
