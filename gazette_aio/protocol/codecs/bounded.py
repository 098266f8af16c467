"""Decompression in steps of bounded output."""

from __future__ import annotations

import abc
from typing import Final

from gazette_aio.protocol.errors import FragmentError

DEFAULT_MAX_BYTES: Final = 1 << 20
"""Default limit of one call's output, in bytes."""

_NOTHING: Final = memoryview(b"")


class Pending:
    """Buffer of bytes, consumed from the front in linear time."""

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

    def peek(self, count: int, skip: int = 0) -> bytes:
        """Return up to `count` bytes after the first `skip` bytes, and keep them."""
        begin = self._at + skip
        return bytes(memoryview(self._data)[begin : begin + count])

    def skip(self, count: int) -> int:
        """Remove up to `count` bytes, and return their number."""
        skipped = min(count, len(self))
        self._at += skipped
        return skipped


class Decompressor(abc.ABC):
    """Decompresses a stream, and bounds its output. After an error, each call raises it again."""

    def __init__(self) -> None:
        self._input = Pending()
        self._to_skip = 0
        """Number of bytes of the input which the decoder ignores."""
        self._rest = _NOTHING
        self._failure: str | None = None

    @property
    def needs_input(self) -> bool:
        """Whether a call without data would return nothing and not raise."""
        return not self._rest and self._failure is None and not self._can_step()

    def decompress(
        self, data: bytes | bytearray | memoryview = b"", *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> bytes:
        """Decompress bytes, and return content.

        Args:
            data: Compressed bytes, all of which are consumed.
            max_bytes: Greatest number of bytes to return. Call again without data for the rest,
                until the result is empty.

        Raises:
            FragmentError: The stream is damaged, and all content before the damage was returned.
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
            # Hot: a large piece is returned as it is; adding to it would copy it.
            while size <= max_bytes // 2 and self._failure is None and self._can_step():
                if self._to_skip:
                    self._to_skip -= self._input.skip(self._to_skip)
                elif piece := self._step(max_bytes - size):
                    pieces.append(piece)
                    size += len(piece)
        except FragmentError as error:
            self._failure = error.text
        # Content before the damage is returned first.
        if self._failure is not None and not pieces:
            raise FragmentError(self._failure)
        content = b"".join(pieces)
        self._rest = memoryview(content)[max_bytes:] if size > max_bytes else _NOTHING
        return content[:max_bytes]

    def finish(self) -> None:
        """End the stream, after all content was read.

        Raises:
            FragmentError: The stream is damaged or cut short.
            ValueError: Not all content was read.
        """
        if self._failure is None and not self.needs_input:
            raise ValueError("finish() before all content was read")
        if self._failure is None and (self._to_skip or self._input or not self._at_end()):
            self._failure = "unexpected end of compressed content"
        if self._failure is not None:
            raise FragmentError(self._failure)

    def _can_step(self) -> bool:
        return len(self._input) > 0 if self._to_skip else self._has_step()

    @abc.abstractmethod
    def _has_step(self) -> bool:
        """Tell whether there is enough input for a step."""

    @abc.abstractmethod
    def _step(self, max_bytes: int) -> bytes:
        """Consume input, and return content, possibly none."""

    @abc.abstractmethod
    def _at_end(self) -> bool:
        """Tell whether the stream can end after all of its input."""
