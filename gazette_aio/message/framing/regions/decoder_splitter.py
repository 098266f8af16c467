"""Splitter of any framing, by its decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.framing.regions.region import MAX_ROWS, Region
from gazette_aio.protocol.errors import FramingError, UnexpectedEOFError

if TYPE_CHECKING:
    from gazette_aio.message.framing import Decoder, Frames


class DecoderSplitter:
    """Copies the frames of a decoder into regions."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ahead: Frames | None = None  # Frames after a jump.
        self._expected = decoder.offset  # Of the next content.
        self._rest: Region | None = None  # Frames that were beyond a limit.
        self._failed: Exception | None = None  # Raised by the next call.

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        if self._rest is not None:
            return self._rest.begin
        if isinstance(self._failed, FramingError):
            return self._failed.begin
        return self._decoder.offset if self._ahead is None else self._ahead.begin

    @property
    def buffered(self) -> int:
        """Number of bytes from `offset` to the end of the content fed."""
        return self._expected - self.offset

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._expected += len(chunk)
        self._decoder.feed(chunk)

    def next_region(self, limit_bytes: int) -> Region | None:
        """Return complete frames, up to the next error, or None if there are none."""
        region, self._rest = self._rest or self._take(limit_bytes), None
        if region is None:
            return None
        fit = int(np.searchsorted(region.ends, region.begin + limit_bytes, "right"))
        fit = min(max(fit, 1), MAX_ROWS)
        if fit < region.rows:
            self._rest = region.slice(fit)
            region = region.slice(0, fit)
        return region

    def end(self) -> None:
        """Declare the end of content."""
        self._decoder.end()

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        self._expected = offset
        return self._decoder.jump(offset)

    def _take(self, limit_bytes: int) -> Region | None:
        """Return consecutive frames of the decoder, until there are enough of them."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        payloads: list[bytes] = []
        ends: list[int] = []
        begin = -1
        while not ends or ends[-1] - begin < limit_bytes:
            try:
                frames, self._ahead = self._ahead or self._decoder.frames(), None
            except UnexpectedEOFError:
                if not ends:
                    raise
                break
            except Exception as error:
                if not ends:
                    raise
                self._failed = error
                break
            if frames is None:
                break
            if not ends:
                begin = frames.begin
            elif frames.begin != ends[-1]:
                self._ahead = frames
                break
            payloads += frames.payloads
            ends += frames.ends
        return _region_of(begin, payloads, ends) if ends else None


def _region_of(begin: int, payloads: list[bytes], ends: list[int]) -> Region:
    data = b"".join([part for payload in payloads for part in (payload, b"\n")])
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    stops = np.cumsum(sizes + 1) - 1
    lines = data.count(b"\n") == len(payloads)
    return Region(data, begin, stops - sizes, stops, np.array(ends, np.int64), line_feeds=lines)
