"""Base of framings, which delimit the messages within the bytes of a journal.

Splitting is apart from decoding, exact to the byte, and independent of how content is chunked. A
decoder is a pure buffer: it takes chunks, returns frames, and keeps a partial frame until the rest
of it arrives. After an error its offset is behind the bytes concerned, and it can continue.
"""

from __future__ import annotations

import abc
from collections import deque
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, cast

from gazette_aio.message.core.plain.splitting import SPLITTERS, Refusal
from gazette_aio.message.framing.refusals import refused
from gazette_aio.protocol.errors import FramingError, UnexpectedEOFError

DEFAULT_MAX_FRAME_BYTES = 1 << 30
"""Default limit of the length of one frame."""


class Frame(NamedTuple):
    """One delimited message: `[begin, end)` of the journal, and its bytes without framing."""

    begin: int
    end: int
    payload: bytes


class Frames(NamedTuple):
    """Consecutive frames: each begins at the end of the frame before."""

    begin: int
    """Offset of the first frame."""
    payloads: list[bytes]
    """Bytes of each message, without framing."""
    ends: list[int]
    """Offset after each frame."""

    def begin_of(self, index: int) -> int:
        """Return the offset of the frame at `index`."""
        return self.ends[index - 1] if index else self.begin

    def slice(self, start: int, stop: int | None = None) -> Frames:
        """Return the frames from `start` up to `stop`, copied."""
        return Frames(self.begin_of(start), self.payloads[start:stop], self.ends[start:stop])


class Framing(abc.ABC):
    """Base of framings, which delimit the messages of a content type.

    A framing needs `content_type`, `encode()` and `decoder()`. The other members declare what is
    special about its frames. Each is optional, and allows a shorter way to the same result. A
    subclass of a framing inherits declarations only while it inherits `encode()` and `decoder()`:
    one that overrides either has the defaults again, unless it declares them itself.

    Register a framing by `register_framing()`.
    """

    content_type: str
    """Content type of journals of this framing, as their `content-type` label names it."""
    suffix: bytes = b""
    """Constant bytes at the end of each frame, if a frame is its message and these bytes."""
    is_lines: bool = False
    r"""Whether each frame is a line, so that a frame begins behind each `\n`."""
    encodes_any: bool = False
    """Whether `encode()` takes any bytes, and never raises."""
    splits: Literal["lines", "fixed", "frames"] = "frames"
    """How the core splits content: into lines, fixed frames, or the frames of `decoder()`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Reset what base classes declare of frames that this class makes or splits otherwise."""
        super().__init_subclass__(**kwargs)
        changed = min(_depth(cls, "encode"), _depth(cls, "decoder"))
        for name in _DECLARATIONS:
            if _depth(cls, name) > changed:
                setattr(cls, name, vars(Framing)[name])

    @abc.abstractmethod
    def encode(self, message: bytes) -> bytes:
        """Return the frame of an encoded message."""

    @abc.abstractmethod
    def decoder(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> Decoder:
        """Return a decoder of content that begins at `offset`."""

    def for_ranges(self) -> Self:
        """Return a framing whose frames and errors don't depend on where reading began."""
        return self


_DECLARATIONS: Final = (
    "suffix",
    "is_lines",
    "encodes_any",
    "splits",
    "for_ranges",
)


def _depth(cls: type, name: str) -> int:
    """Return how far up the bases of a class a member is defined."""
    return next(depth for depth, base in enumerate(cls.__mro__) if name in vars(base))


class Decoder(Protocol):
    """Splits the content of one journal into frames."""

    @property
    def offset(self) -> int:
        """Offset of the next frame: of the first byte that wasn't returned or discarded."""
        ...

    @property
    def buffered(self) -> int:
        """Number of bytes of the partial frame."""
        ...

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content. Never raises."""
        ...

    def end(self) -> None:
        """Declare the end of content: a partial frame is now an error."""
        ...

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes of a partial frame discarded."""
        ...

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None at a clean end, or if more content is needed.

        Raises:
            DesyncDetectedError: Garbage was skipped.
            FrameTooLargeError: A frame beyond the limit was skipped.
            FramingError: A frame that can't be delimited was skipped.
            UnexpectedEOFError: Content ended within a frame; raised again by each call.
        """
        ...

    def frames(self) -> Frames | None:
        """Return all complete frames, up to the next error, or None if there are none.

        Raises as `next_frame()` does, if an error is next.
        """
        ...


ALL_BYTES: Final = 1 << 62
"""Limit of content that is all at hand."""


class QueueingDecoder:
    """Base of decoders that queue runs of frames, and errors between them, in `feed()`."""

    def __init__(self, offset: int, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._ready: deque[Frames | FramingError] = deque()
        self._index = 0  # Frames of the first run that were returned.
        self._tail_offset = offset  # Offset after all frames and errors in the queue.
        self._ended = False

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        if not self._ready:
            return self._tail_offset
        first = self._ready[0]
        return first.begin_of(self._index) if isinstance(first, Frames) else first.begin

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None at a clean end, or if more content is needed."""
        run = self._front()
        if run is None:
            return None
        index = self._index
        if index + 1 == len(run.ends):
            self._ready.popleft()
            self._index = 0
        else:
            self._index = index + 1
        return Frame(run.begin_of(index), run.ends[index], run.payloads[index])

    def frames(self) -> Frames | None:
        """Return all complete frames, up to the next error, or None if there are none."""
        run = self._front()
        if run is None:
            return None
        self._ready.popleft()
        index, self._index = self._index, 0
        return run.slice(index) if index else run

    def end(self) -> None:
        """Declare the end of content."""
        self._ended = True

    def _front(self) -> Frames | None:
        if not self._ready:
            if self._ended:
                self._check_end()
            return None
        front = self._ready[0]
        if isinstance(front, FramingError):
            self._ready.popleft()
            raise front
        return front

    def _check_end(self) -> None:
        """Raise UnexpectedEOFError if a partial frame is buffered."""
        raise UnexpectedEOFError("unexpected EOF", offset=self._tail_offset)


class SplittingDecoder(QueueingDecoder):
    """Base of decoders that split content as the core does, by its plain form."""

    form: Literal["lines", "fixed"]
    """How the core splits content."""

    def __init__(self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(offset, max_frame_bytes)
        self._splitter = SPLITTERS[self.form](offset, max_frame_bytes)

    @property
    def buffered(self) -> int:
        """Number of bytes of the partial frame."""
        return self._splitter.buffered

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        splitter = self._splitter
        splitter.feed(chunk)
        while (found := splitter.split(ALL_BYTES)) is not None:
            if isinstance(found, Refusal):
                error = refused(self.form, *found, self.max_frame_bytes)
                self._ready.append(cast("FramingError", error))
            else:
                self._ready.append(Frames(found.begins[0], found.payloads, found.ends))
        self._tail_offset = splitter.offset

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes of a partial frame discarded."""
        self._ended = False
        self._tail_offset = offset
        return self._splitter.jump(offset)

    def _check_end(self) -> None:
        self._splitter.end()
        if (refusal := self._splitter.refuse_end()) is not None:
            raise refused(self.form, *refusal, self.max_frame_bytes)
