"""What framings are: the delimiting of messages within the bytes of a journal.

Splitting is apart from decoding, exact to the byte, and independent of how content is chunked. A
decoder is a pure buffer: it's fed chunks, hands out frames, and keeps a partial frame for as long
as it takes. After an error it's positioned behind the bytes concerned, and can go on.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol, runtime_checkable

from gazette_aio.protocol.errors import GazetteError, UnexpectedEOFError

DEFAULT_MAX_FRAME_BYTES = 1 << 30
"""Default limit of the length of one frame."""


class Frame(NamedTuple):
    """One delimited message: `[begin, end)` of the journal, and its bytes without framing."""

    begin: int
    end: int
    payload: bytes


class Frames(NamedTuple):
    """Consecutive frames: each begins where the one before ends."""

    begin: int
    """Offset of the first frame."""
    payloads: list[bytes]
    """Bytes of each message, without framing."""
    ends: list[int]
    """Offset behind each frame."""


@runtime_checkable
class Framing(Protocol):
    """Delimits messages of a content type. Register yours by `register_framing()`.

    If a frame is no more than its message and a constant behind it, an attribute `suffix` of these
    bytes lets a Publisher do without calling `encode()`.
    """

    @property
    def content_type(self) -> str:
        """Content type of journals of this framing, as their `content-type` label names it."""
        ...

    def encode(self, message: bytes) -> bytes:
        """Return the frame of an encoded message."""
        ...

    def decoder(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> Decoder:
        """Return a decoder of content which begins at `offset`."""
        ...


class Decoder(Protocol):
    """Splits the content of one journal into frames."""

    @property
    def offset(self) -> int:
        """Offset of the next frame: of the first byte which wasn't handed out or discarded."""
        ...

    @property
    def buffered(self) -> int:
        """Number of bytes held which aren't handed out."""
        ...

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content. Never raises."""
        ...

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None if it needs more content, or at a clean end.

        Raises:
            DesyncDetectedError: Garbage was skipped.
            FrameTooLargeError: A frame beyond the limit was skipped.
            FramingError: A frame which can't be delimited was skipped.
            UnexpectedEOFError: Content ended within a frame; raised again by each call.
        """
        ...

    def frames(self) -> Frames | None:
        """Return all frames at hand, up to the next error, or None if there are none.

        Raises as `next_frame()` does, if an error is next.
        """
        ...

    def end(self) -> None:
        """Declare the end of content: a partial frame is now an error."""
        ...

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of buffered bytes which were discarded."""
        ...


class QueueingDecoder:
    """Base of decoders which queue runs of frames, and errors between them, as they're fed."""

    __slots__ = ("_ended", "_index", "_ready", "_tail_offset", "max_frame_bytes")

    def __init__(self, offset: int, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._ready: deque[Frames | GazetteError] = deque()
        self._index = 0  # Frames of the first run which are handed out.
        self._tail_offset = offset  # Offset behind all which is queued.
        self._ended = False

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        for queued in self._ready:
            if isinstance(queued, Frames):
                return queued.ends[self._index - 1] if self._index else queued.begin
            begin: int = getattr(queued, "begin", -1)
            return begin
        return self._tail_offset

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None if it needs more content, or at a clean end."""
        run = self._front()
        if run is None:
            return None
        index = self._index
        begin = run.ends[index - 1] if index else run.begin
        if index + 1 == len(run.ends):
            self._ready.popleft()
            self._index = 0
        else:
            self._index = index + 1
        return Frame(begin, run.ends[index], run.payloads[index])

    def frames(self) -> Frames | None:
        """Return all frames at hand, up to the next error, or None if there are none."""
        run = self._front()
        if run is None:
            return None
        self._ready.popleft()
        index, self._index = self._index, 0
        if index:
            run = Frames(run.ends[index - 1], run.payloads[index:], run.ends[index:])
        return run

    def end(self) -> None:
        """Declare the end of content."""
        self._ended = True

    def _front(self) -> Frames | None:
        if not self._ready:
            if self._ended:
                self._check_end()
            return None
        front = self._ready[0]
        if isinstance(front, GazetteError):
            self._ready.popleft()
            raise front
        return front

    def _check_end(self) -> None:
        """Raise UnexpectedEOFError if a partial frame is buffered."""
        raise UnexpectedEOFError("unexpected EOF", offset=self._tail_offset)
