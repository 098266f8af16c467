"""Decompression whose output is bounded by the caller."""

from __future__ import annotations

import abc
from typing import Final

from gazette_aio.protocol.errors import FragmentError

DEFAULT_MAX_BYTES: Final = 1 << 20
"""Default limit of the output of one call, in bytes."""

_NOTHING: Final = memoryview(b"")


class Pending:
    """Bytes which wait to be taken from the front; taking is linear in their number."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0

    def __len__(self) -> int:
        return len(self._data) - self._at

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data` at the end."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def take(self, count: int) -> bytes:
        """Remove and return up to `count` bytes."""
        end = self._at + count
        taken = bytes(memoryview(self._data)[self._at : end])
        self._at = min(end, len(self._data))
        return taken

    def peek(self, count: int, behind: int = 0) -> bytes:
        """Return up to `count` bytes behind the first `behind` ones. They stay."""
        begin = self._at + behind
        return bytes(memoryview(self._data)[begin : begin + count])

    def skip(self, count: int) -> int:
        """Remove up to `count` bytes, and return their number."""
        skipped = min(count, len(self))
        self._at += skipped
        return skipped


class BoundedDecompressor(abc.ABC):
    """Limits the output of decoding steps, and keeps to an error once there was one."""

    def __init__(self) -> None:
        self._input = Pending()
        self._rest = _NOTHING
        self._failure: str | None = None

    @property
    def needs_input(self) -> bool:
        """Whether a call without data would return nothing."""
        return not self._rest and self._failure is None and not self._has_step()

    def decompress(
        self, data: bytes | bytearray | memoryview = b"", *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> bytes:
        """Take all of `data`, and return up to `max_bytes` of content.

        Raises:
            FragmentError: The stream is damaged, and what was decoded before was handed out.
        """
        if data:
            self._input.put(data)
        rest = self._rest
        if len(rest) >= max_bytes:
            self._rest = rest[max_bytes:]
            return bytes(rest[:max_bytes])
        pieces: list[bytes | memoryview] = [rest] if rest else []
        size = len(rest)
        try:
            # Hot: one large piece is handed out as it is, where to fill up would be to copy it.
            while size <= max_bytes // 2 and self._failure is None and self._has_step():
                if piece := self._step(max_bytes - size):
                    pieces.append(piece)
                    size += len(piece)
        except FragmentError as error:
            self._failure = error.text
        # What was decoded before the damage is handed out first.
        if self._failure is not None and not pieces:
            raise FragmentError(self._failure)
        content = b"".join(pieces)
        self._rest = memoryview(content)[max_bytes:] if size > max_bytes else _NOTHING
        return content[:max_bytes]

    def finish(self) -> None:
        """End the stream.

        Raises:
            FragmentError: It's damaged, or ends in the middle.
            ValueError: Not all content was handed out.
        """
        if self._failure is None and not self.needs_input:
            raise ValueError("finish() before all content was handed out")
        if self._failure is None and not self._at_end():
            self._failure = "unexpected end of compressed content"
        if self._failure is not None:
            raise FragmentError(self._failure)

    @abc.abstractmethod
    def _has_step(self) -> bool:
        """Tell whether enough input is at hand for a step."""

    @abc.abstractmethod
    def _step(self, max_bytes: int) -> bytes:
        """Consume some input, and return some content, which may be empty."""

    @abc.abstractmethod
    def _at_end(self) -> bool:
        """Tell whether the stream may end here."""
