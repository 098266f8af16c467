"""Fixed framing: a magic word, by which readers find frames again, a length, and the message."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

from gazette_aio.message.framing.base import (
    DEFAULT_MAX_FRAME_BYTES,
    Frames,
    Framing,
    QueueingDecoder,
)
from gazette_aio.protocol.errors import (
    DesyncDetectedError,
    FrameTooLargeError,
    UnexpectedEOFError,
)
from gazette_aio.protocol.well_known import CONTENT_TYPE_PROTO_FIXED

if TYPE_CHECKING:
    from gazette_aio.message.framing.regions import RegionSplitter

FIXED_FRAME_WORD = b"\x66\x33\x93\x36"
"""Magic word that begins each frame."""
FIXED_FRAME_HEADER_LENGTH = 8
"""Length of the magic word and the little-endian length after it."""

_LENGTH = struct.Struct("<I")


class FixedFraming(Framing):
    """Framing of `application/x-protobuf-fixed`."""

    content_type = CONTENT_TYPE_PROTO_FIXED
    encodes_any = True
    splits: Literal["lines", "fixed", "frames"] = "fixed"

    def encode(self, message: bytes) -> bytes:
        """Return `message` after a header."""
        return FIXED_FRAME_WORD + _LENGTH.pack(len(message)) + message

    def decoder(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> FixedDecoder:
        """Return a decoder of fixed frames."""
        return FixedDecoder(offset, max_frame_bytes=max_frame_bytes)

    def splitter(
        self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> RegionSplitter:
        """Return a splitter of content into columns of fixed frames."""
        from gazette_aio.message.framing.regions.fixed_splitter import FixedSplitter  # noqa: PLC0415

        return FixedSplitter(offset, max_frame_bytes)


class FixedDecoder(QueueingDecoder):
    """Splits content into fixed frames.

    Content that doesn't start with the magic word is skipped up to the next magic word in the
    buffer. Without one, all but the last three bytes, which may begin one, are skipped. Each skip
    raises a DesyncDetectedError, so that one region of garbage may raise several.
    """

    def __init__(self, offset: int = 0, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(offset, max_frame_bytes)
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._needed = FIXED_FRAME_HEADER_LENGTH  # Bytes without which no frame is complete.

    @property
    def buffered(self) -> int:
        """Number of bytes of the unfinished frame."""
        return self._pieces_bytes

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of content."""
        self._ended = False
        if not chunk:
            return
        self._pieces.append(chunk)
        self._pieces_bytes += len(chunk)
        if self._pieces_bytes < self._needed:
            return
        buffer = chunk if len(self._pieces) == 1 else b"".join(self._pieces)
        rest = buffer[self._split(buffer) :]
        self._pieces = [rest] if rest else []
        self._pieces_bytes = len(rest)

    def _split(self, buffer: bytes) -> int:
        """Queue the frames and errors of `buffer`, and return how many bytes of it they cover."""
        size, base = len(buffer), self._tail_offset
        position = run_begin = 0
        payloads: list[bytes] = []
        ends: list[int] = []
        self._needed = FIXED_FRAME_HEADER_LENGTH
        while size - position >= FIXED_FRAME_HEADER_LENGTH:
            body = position + FIXED_FRAME_HEADER_LENGTH
            if buffer.startswith(FIXED_FRAME_WORD, position):
                length = _LENGTH.unpack_from(buffer, position + 4)[0]
                if length + FIXED_FRAME_HEADER_LENGTH <= self.max_frame_bytes:
                    end = body + length
                    if end > size:
                        self._needed = end - position
                        break
                    payloads.append(buffer[body:end])
                    ends.append(base + end)
                    position = end
                    continue
            if payloads:
                self._ready.append(Frames(base + run_begin, payloads, ends))
                payloads, ends = [], []
            error, position = refuse_fixed(buffer, position, base, self.max_frame_bytes)
            run_begin = position
            self._ready.append(error)
        if payloads:
            self._ready.append(Frames(base + run_begin, payloads, ends))
        self._tail_offset = base + position
        return position

    def jump(self, offset: int) -> int:
        """Continue at `offset`."""
        discarded = self._pieces_bytes
        self._pieces = []
        self._pieces_bytes = 0
        self._needed = FIXED_FRAME_HEADER_LENGTH
        self._tail_offset = offset
        return discarded

    def _check_end(self) -> None:
        check_fixed_end(self._pieces, self._pieces_bytes, self._needed, self._tail_offset)


def refuse_fixed(
    data: bytes | bytearray, at: int, base: int, limit: int
) -> tuple[FrameTooLargeError | DesyncDetectedError, int]:
    """Return the error of bytes that begin no frame, and the index to continue at.

    Args:
        data: Content, with a complete header at `at`.
        at: Index of the bytes.
        base: Offset of the content.
        limit: Largest length of a frame.
    """
    if data.startswith(FIXED_FRAME_WORD, at):
        # The length may be garbage: the next frame is searched after the header.
        length = _LENGTH.unpack_from(data, at + 4)[0]
        text = f"frame of {length} bytes is longer than {limit} bytes"
        end = at + FIXED_FRAME_HEADER_LENGTH
        return FrameTooLargeError(text, begin=base + at, end=base + end, kind="too_large"), end
    found = data.find(FIXED_FRAME_WORD, at + 1)
    end = found if found != -1 else len(data) - (len(FIXED_FRAME_WORD) - 1)
    text = "detected de-synchronization"
    return DesyncDetectedError(text, begin=base + at, end=base + end, kind="desync"), end


def check_fixed_end(pieces: list[bytes], size: int, needed: int, offset: int) -> None:
    """Raise UnexpectedEOFError if content ends within a frame.

    Args:
        pieces: Content of the partial frame.
        size: Length of the content.
        needed: Length of the frame, if its header is complete.
        offset: Offset of the frame.
    """
    if size == 0 or (size == 1 and pieces[0] == b"\n"):
        return
    text = (
        "Peek(FixedFrameHeaderLength): unexpected EOF"
        if size < FIXED_FRAME_HEADER_LENGTH
        else f"reading frame (size {needed}): unexpected EOF"
    )
    raise UnexpectedEOFError(text, offset=offset)


def encode_fixed_frame(message: bytes, buffer: bytearray) -> bytearray:
    """Append the frame of `message` to `buffer`, and return it."""
    buffer += FIXED_FRAME_WORD
    buffer += _LENGTH.pack(len(message))
    buffer += message
    return buffer


def unpack_fixed_frame(buffer: bytes | bytearray, offset: int = 0) -> bytes | None:
    """Return the frame of `buffer` at `offset`, with its header, or None if it's incomplete.

    Raises:
        DesyncDetectedError: It doesn't start with the magic word. The `begin` and `end` of the
            error are the range of `buffer` to skip.
    """
    if len(buffer) - offset < FIXED_FRAME_HEADER_LENGTH:
        return None
    if not buffer.startswith(FIXED_FRAME_WORD, offset):
        raise refuse_fixed(buffer, offset, 0, 0)[0]
    end = offset + FIXED_FRAME_HEADER_LENGTH + _LENGTH.unpack_from(buffer, offset + 4)[0]
    return None if end > len(buffer) else bytes(buffer[offset:end])
