"""Splitter of fixed frames."""

from __future__ import annotations

import struct

import numpy as np

from gazette_aio.message.framing.fixed import (
    FIXED_FRAME_HEADER_LENGTH,
    FIXED_FRAME_WORD,
    check_fixed_end,
    refuse_fixed,
)
from gazette_aio.message.framing.regions.region import (
    MAX_ROWS,
    ChunkSplitter,
    Indices,
    Region,
    Run,
)

_WORD = int.from_bytes(FIXED_FRAME_WORD, "little")
_HEADER = struct.Struct("<II")
_GARBAGE = -1


class FixedSplitter(ChunkSplitter):
    """Splits content into fixed frames.

    `feed()` follows headers, since how much garbage is skipped depends on how much was fed. Chunks
    are joined only for garbage.
    """

    def __init__(self, offset: int, max_frame_bytes: int) -> None:
        super().__init__(offset, max_frame_bytes)
        self._ends: list[Indices] = []  # Of complete frames among the pieces.
        self._needed = FIXED_FRAME_HEADER_LENGTH  # Bytes up to the end of a frame or header.

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        if not chunk:
            return
        position, origin = self._complete, self._size
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size < self._needed:
            return
        if self._needed > position + FIXED_FRAME_HEADER_LENGTH:
            # The header of this frame was read before.
            position = self._needed
            self._ends.append(np.array([position], np.int64))
        if position < origin:
            chunk = self._take_last(self._size - position)
            origin = position
        ends, at, needed = self._follow(chunk, position - origin)
        self._ends.append(ends + origin)
        self._complete = origin + at
        self._needed = origin + needed
        if needed == _GARBAGE:
            self._resynchronize()

    def _follow(self, data: bytes, at: int) -> tuple[Indices, int, int]:
        """Follow the frames of `data` at index `at`.

        Returns:
            Ends of complete frames, the begin of the next one, and its end as far as known, or
            _GARBAGE if it has no valid header.
        """
        unpack, word = _HEADER.unpack_from, _WORD
        largest = self._max - FIXED_FRAME_HEADER_LENGTH
        ends: list[int] = [at]
        add = ends.append
        try:
            while True:
                found, length = unpack(data, at)
                if found != word or length > largest:
                    needed = _GARBAGE
                    break
                at += length + FIXED_FRAME_HEADER_LENGTH
                add(at)
        except struct.error:  # Behind the content at hand.
            needed = at
            if at > len(data):
                del ends[-1]
            else:
                needed += FIXED_FRAME_HEADER_LENGTH
        return np.array(ends[1:], np.int64), ends[-1], needed

    def _resynchronize(self) -> None:
        """Skip the garbage after the complete frames, and all further garbage."""
        data, base = b"".join(self._pieces), self._base
        start, at, ends = 0, self._complete, np.concatenate(self._ends)
        needed = _GARBAGE
        while needed == _GARBAGE:
            if len(ends):
                self._queue.append(_FixedRun(data, base, start, ends))
            error, at = refuse_fixed(data, at, self._base, self._max)
            self._queue.append(error)
            start = at
            ends, at, needed = self._follow(data, at)
        self._restart(base + start, data[start:])
        self._ends = [ends - start]
        self._complete = at - start
        self._needed = needed - start

    def _take_last(self, size: int) -> bytes:
        """Return the last bytes of the pieces."""
        taken: list[bytes] = []
        for piece in reversed(self._pieces):
            taken.append(piece[-size:])
            size -= len(piece)
            if size <= 0:
                break
        taken.reverse()
        return b"".join(taken)

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        discarded = super().jump(offset)
        self._needed = FIXED_FRAME_HEADER_LENGTH
        return discarded

    def _make_run(self, data: bytes | memoryview) -> _FixedRun:
        ends = np.concatenate(self._ends)
        self._ends = []
        self._needed -= self._complete
        return _FixedRun(data, self._base, 0, ends)

    def _check_end(self) -> None:
        check_fixed_end(self._pieces, self._size, self._needed, self._base)


class _FixedRun(Run):
    def __init__(self, data: bytes | memoryview, origin: int, start: int, ends: Indices) -> None:
        super().__init__(data, origin, start)
        self._ends = ends  # Of frames, as indices of `data`.
        self._index = 0

    @property
    def done(self) -> bool:
        return self._index == len(self._ends)

    def cut(self, limit_bytes: int) -> Region:
        """Return the next frames."""
        start, first = self._start, self._index
        fit = int(np.searchsorted(self._ends, start + limit_bytes, "right"))
        self._index = min(max(fit, first + 1), first + MAX_ROWS)
        stops = self._ends[first : self._index]
        starts = np.empty_like(stops)
        starts[0] = start
        starts[1:] = stops[:-1]
        starts += FIXED_FRAME_HEADER_LENGTH
        self._start = int(stops[-1])
        ends = stops + self._origin
        return Region(self._data, self._origin + start, starts, stops, ends, line_feeds=False)
