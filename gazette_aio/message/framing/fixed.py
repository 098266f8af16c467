"""Fixed framing: a magic word, by which readers find frames again, a length, and the message."""

from __future__ import annotations

import struct
from typing import Literal

from gazette_aio.message.framing.base import DEFAULT_MAX_FRAME_BYTES, Framing, SplittingDecoder
from gazette_aio.message.framing.refusals import refused
from gazette_aio.protocol.well_known import CONTENT_TYPE_PROTO_FIXED

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


class FixedDecoder(SplittingDecoder):
    """Splits content into fixed frames.

    Content that doesn't start with the magic word is skipped up to the next magic word at hand.
    Without one, all but the last three bytes, which may begin one, are skipped. Each skip raises a
    DesyncDetectedError, so that one region of garbage may raise several.
    """

    form: Literal["lines", "fixed"] = "fixed"


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
        found = buffer.find(FIXED_FRAME_WORD, offset + 1)
        end = found if found != -1 else len(buffer) - (len(FIXED_FRAME_WORD) - 1)
        raise refused("fixed", "desync", offset, end, 0, 0)
    end = offset + FIXED_FRAME_HEADER_LENGTH + _LENGTH.unpack_from(buffer, offset + 4)[0]
    return None if end > len(buffer) else bytes(buffer[offset:end])
