"""Newline-delimited JSON: each message is a line."""

from __future__ import annotations

from typing import Literal

from gazette_aio.message.framing.base import DEFAULT_MAX_FRAME_BYTES, Framing, SplittingDecoder
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.well_known import CONTENT_TYPE_JSON_LINES


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


class LineDecoder(SplittingDecoder):
    """Splits content into lines. A last line without its newline is never returned.

    A line that is too large is refused once it ends, as a whole. Its bytes aren't kept.
    """

    form: Literal["lines", "fixed"] = "lines"


def unpack_line(buffer: bytes | bytearray, offset: int = 0) -> bytes | None:
    """Return the line of `buffer` at `offset`, with its newline, or None if it's incomplete."""
    newline = buffer.find(b"\n", offset)
    return None if newline == -1 else bytes(buffer[offset : newline + 1])
