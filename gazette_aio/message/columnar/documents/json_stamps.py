"""Removal of UUIDs at the front of JSON documents, which were parsed before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columnar.payloads import Lines, take_spans
from gazette_aio.message.uuid import TEXT_LENGTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DASH, _LAST_DIGIT, _BACKSLASH, _OPEN = b"-"[0], b"f"[0], b"\\"[0], b"{"[0]


class StampStripper:
    """Removes UUIDs at the front of documents.

    Args:
        prefix: Bytes before the UUID, such as `{"_meta":{"uuid":"`.
        suffix: Bytes after it, through the comma before another member, such as `"},`.
    """

    def __init__(self, prefix: bytes, suffix: bytes) -> None:
        self._prefix = np.frombuffer(prefix, np.uint8)
        # A member has to follow: a comma without one isn't a document, and mustn't become one.
        self._suffix = np.frombuffer(suffix + b'"', np.uint8)
        self._cut = len(prefix) + TEXT_LENGTH + len(suffix) - 1
        self._size = len(prefix) + TEXT_LENGTH + len(self._suffix)

    def strip(self, lines: Lines) -> Lines:
        """Return lines without the members at their front that only hold a UUID."""
        stamped = self._find(lines)
        if stamped is None:
            return lines
        begins, ends = lines.offsets[:-1], lines.offsets[1:]
        kept = take_spans(lines.data, begins + stamped * np.int32(self._cut), ends)
        _, kept_bounds, data = kept.buffers()
        offsets = np.frombuffer(kept_bounds, np.int32)[: lines.rows + 1]
        # Each begins with the comma before its next member, and is to begin as a document.
        np.frombuffer(data, np.uint8)[offsets[:-1][stamped]] = _OPEN
        return Lines(data.slice(0, int(offsets[-1])), offsets)

    def _find(self, lines: Lines) -> NDArray[np.bool_] | None:
        """Return which lines begin with a UUID and have more members, or None if none does."""
        data: Any = lines.data
        starts, size = lines.offsets[:-1], self._size
        last: int = data.size - size
        # Only lines near the end of the buffer don't fit, and are too short.
        fit = int(np.searchsorted(starts, last, "left"))
        if fit == 0:
            return None
        overlapping = np.ndarray((last + 1,), f"V{size}", data, strides=(1,))
        windows = overlapping[starts[:fit]].view(np.uint8).reshape(fit, size)
        end = len(self._prefix) + TEXT_LENGTH
        text = windows[:, len(self._prefix) : end]
        found = [
            windows[:, : len(self._prefix)] == self._prefix,
            windows[:, end:] == self._suffix,
            # No quote, escape or control character: digits and dashes, or what's as harmless.
            text >= _DASH,
            text <= _LAST_DIGIT,
            text != _BACKSLASH,
        ]
        stamped = np.zeros(lines.rows, np.bool_)
        stamped[:fit] = lines.offsets[1 : fit + 1] - starts[:fit] > size
        for each in found:
            if not each.all():
                stamped[:fit] &= each.all(axis=1)
        return stamped if stamped.any() else None
