"""Errors of bytes that are no frame, as the core refuses them."""

from __future__ import annotations

from gazette_aio.protocol.errors import (
    DesyncDetectedError,
    FrameTooLargeError,
    FramingError,
    UnexpectedEOFError,
)

_HEADER = 8  # Length of the header of a fixed frame.


def refused(  # noqa: PLR0917
    form: str, kind: str, begin: int, end: int, size: int, limit: int
) -> FramingError | UnexpectedEOFError:
    """Return the error of the bytes `[begin, end)`.

    Args:
        form: How the core splits content: into `lines`, or `fixed` frames.
        kind: Kind of the error: `too_large`, `desync` or `unexpected_eof`.
        begin: Offset of the bytes.
        end: Offset after the bytes.
        size: Size of the frame, if it's known.
        limit: Largest size of a frame.
    """
    if kind == "desync":
        text = "detected de-synchronization"
        return DesyncDetectedError(text, begin=begin, end=end, kind=kind)
    if kind == "too_large":
        frame = "line" if form == "lines" else f"frame of {size - _HEADER} bytes"
        text = f"{frame} is longer than {limit} bytes"
        return FrameTooLargeError(text, begin=begin, end=end, kind=kind)
    text = "unexpected EOF"
    if form == "fixed" and size < _HEADER:
        text = f"Peek(FixedFrameHeaderLength): {text}"
    elif form == "fixed":
        text = f"reading frame (size {size}): {text}"
    return UnexpectedEOFError(text, offset=begin)
