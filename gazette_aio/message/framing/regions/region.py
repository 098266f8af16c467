"""Regions, and the base of splitters into regions."""

from __future__ import annotations

import abc
from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pyarrow import allocate_buffer

from gazette_aio.message.framing.base import Splitter
from gazette_aio.protocol.errors import FramingError

Indices = NDArray[np.int64]

MAX_ROWS = 1 << 17
"""Approximate limit of the frames of a region, which bounds the memory of tiny frames."""


class Region(NamedTuple):
    """Consecutive frames of one journal, within one buffer."""

    data: bytes | memoryview
    """Buffer that holds the frames, and maybe more."""
    begin: int
    """Offset of the first frame in the journal. Each other begins at the end of the one before."""
    starts: Indices
    """Index in `data` of each payload: a message without its framing."""
    stops: Indices
    """Index in `data` after each payload."""
    ends: Indices
    """Offset in the journal after each frame."""
    line_feeds: bool
    """Whether each payload is a line of `data`, whose newline is at its stop."""

    @property
    def rows(self) -> int:
        """Number of frames."""
        return len(self.ends)

    def begins(self) -> Indices:
        """Return the offset in the journal of each frame."""
        begins = np.empty(len(self.ends), np.int64)
        begins[:1] = self.begin
        begins[1:] = self.ends[:-1]
        return begins

    def payloads(self) -> list[bytes]:
        """Return the payloads, copied."""
        data = self.data
        places = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [bytes(data[start:stop]) for start, stop in places]

    def slice(self, start: int, stop: int | None = None) -> Region:
        """Return the frames from `start` up to `stop`, as views. Neither may be negative."""
        at = slice(start, stop)
        begin = int(self.ends[min(start, len(self.ends)) - 1]) if start else self.begin
        return self._replace(
            begin=begin, starts=self.starts[at], stops=self.stops[at], ends=self.ends[at]
        )


class RegionSplitter(Splitter, Protocol):
    """Splits the content of one journal into regions.

    Complete frames that weren't returned yet count as buffered, too.
    """

    def next_region(self, limit_bytes: int) -> Region | None:
        """Return complete frames, up to the next error, or None if there are none.

        Args:
            limit_bytes: Largest size of the region in the journal, unless it's a single frame.

        Raises:
            DesyncDetectedError: Garbage was skipped.
            FrameTooLargeError: A frame beyond the limit was skipped.
            FramingError: A frame that can't be delimited was skipped.
            UnexpectedEOFError: Content ended within a frame; raised again by each call.
        """
        ...


class Run(abc.ABC):
    """Complete frames of `data`, which are cut into regions.

    Args:
        data: Content with the frames.
        origin: Offset of the content in the journal.
        start: Index of the first frame in the content.
    """

    def __init__(self, data: bytes | memoryview, origin: int, start: int = 0) -> None:
        self._data = data
        self._origin = origin
        self._start = start

    @property
    def begin(self) -> int:
        """Offset of the next frame."""
        return self._origin + self._start

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """Whether no frame is left."""

    @abc.abstractmethod
    def cut(self, limit_bytes: int) -> Region:
        """Return the next frames, or raise the error of one."""


class ChunkSplitter(abc.ABC):
    """Base of splitters that keep chunks until regions are asked for.

    Pieces are the chunks after the queue: complete frames, followed by a partial one. They're
    joined once, when frames are asked for or an error follows.
    """

    def __init__(self, offset: int, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._queue: deque[Run | FramingError] = deque()
        self._base: int = offset  # Offset of the first piece.
        self._pieces: list[bytes] = []
        self._size: int = 0  # Bytes of pieces.
        self._complete = 0  # Bytes of complete frames among them.
        self._ended = False

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        return self._queue[0].begin if self._queue else self._base

    @property
    def buffered(self) -> int:
        """Number of bytes from `offset` to the end of the content fed."""
        return self._base + self._size - self.offset

    def next_region(self, limit_bytes: int) -> Region | None:
        """Return complete frames, up to the next error, or None if there are none."""
        queue = self._queue
        if not queue:
            if not self._complete:
                if self._ended:
                    self._check_end()
                return None
            self._queue_complete()
        front = queue[0]
        if isinstance(front, FramingError):
            queue.popleft()
            raise front
        try:
            return front.cut(limit_bytes)
        finally:
            if front.done:
                queue.popleft()

    def end(self) -> None:
        """Declare the end of content."""
        self._ended = True

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        if self._complete:
            self._queue_complete()
        discarded = self._size
        self._restart(offset, b"")
        return discarded

    def _queue_complete(self) -> None:
        """Queue the complete frames among the pieces."""
        complete = self._complete
        data = _join(self._pieces)
        self._queue.append(self._make_run(data))
        self._restart(self._base + complete, bytes(data[complete:]))

    def _restart(self, offset: int, rest: bytes) -> None:
        """Hold only `rest`, of a partial frame at `offset`."""
        self._base = offset
        self._pieces = [rest] if rest else []
        self._size = len(rest)
        self._complete = 0

    @abc.abstractmethod
    def _make_run(self, data: bytes | memoryview) -> Run:
        """Return the run of the complete frames of `data`, the joined pieces."""

    @abc.abstractmethod
    def _check_end(self) -> None:
        """Raise UnexpectedEOFError if there's a partial frame."""


def _join(pieces: list[bytes]) -> bytes | memoryview:
    """Return `pieces` joined; a single piece isn't copied."""
    if len(pieces) == 1:
        return pieces[0]
    # Hot: Arrow's pool reuses memory at once. That of large bytes objects goes back to the system,
    # which clears each page that it gives anew.
    joined = memoryview(allocate_buffer(sum(map(len, pieces)))).cast("B")
    at = 0
    for piece in pieces:
        end = at + len(piece)
        joined[at:end] = piece
        at = end
    return joined
