"""Splitting of content into frames, whatever its chunks are."""

from __future__ import annotations

import abc
import struct
from collections import deque
from itertools import accumulate
from typing import Final, NamedTuple

_WORD, _HEADER = b"\x66\x33\x93\x36", 8
_length_of = struct.Struct("<I").unpack_from
_LARGEST_OFFSET: Final = (1 << 63) - 1


class Frame(NamedTuple):
    """One message, without its framing, and the offsets of its frame."""

    payload: bytes
    begin: int
    end: int


class Refusal(NamedTuple):
    """Bytes that are no frame, and were passed over."""

    kind: str
    begin: int
    end: int
    size: int
    """Size of the frame, if it's known."""


class Block(NamedTuple):
    """Frames as columns, at least one."""

    payloads: list[bytes]
    begins: list[int]
    ends: list[int]


def checked_offset(offset: int) -> int:
    """Return an offset.

    Raises:
        OverflowError: It has more than 63 bits.
    """
    if offset > _LARGEST_OFFSET:
        raise OverflowError("offset is too large")
    return offset


class Splitter(abc.ABC):
    """Splits the content of one journal.

    Args:
        offset: Offset of the content.
        largest: Largest size of a frame.
    """

    def __init__(self, offset: int, largest: int) -> None:
        self.offset: int = checked_offset(offset)
        """Offset of the next frame."""
        self._through = offset  # After the content so far.
        self._largest = largest
        self._chunks: deque[bytes] = deque()
        self._at = 0  # Within the first chunk.
        self._ended = False

    @property
    def buffered(self) -> int:
        """Bytes that weren't split."""
        return self._through - self.offset

    def feed(self, chunk: bytes) -> None:
        """Take content that follows."""
        self._through = checked_offset(self._through + len(chunk))
        self._ended = False
        if chunk:
            self._chunks.append(chunk)

    def end(self) -> None:
        """Declare the end of content."""
        self._ended = True

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return how many bytes of a partial frame are discarded."""
        discarded = self.buffered
        self.offset = self._through = checked_offset(offset)
        self._chunks.clear()
        self._at = 0
        self._ended = False
        return discarded

    @abc.abstractmethod
    def split(self, limit: int) -> Block | Refusal | None:
        """Return the next frames, up to the first that reaches `limit` bytes, or what isn't one."""

    def refuse_end(self) -> Refusal | None:
        """Refuse a partial frame at the end of content, once, after all that could be split."""
        ended, self._ended = self._ended, False
        is_partial, size = self._partial_frame()
        return self._refuse("unexpected_eof", 0, size) if ended and is_partial else None

    def _partial_frame(self) -> tuple[bool, int]:
        """Return whether there's a partial frame, and its size, if that's known."""
        return self.buffered > 0, 0

    def _skip(self, size: int) -> None:
        """Pass over bytes of the first chunk."""
        self._at += size
        if self._at == len(self._chunks[0]):
            self._chunks.popleft()
            self._at = 0

    def _pass(self, payloads: list[bytes], overhead: int) -> Block | None:
        """Return payloads as a block, if any; their framing takes so many bytes each."""
        if not payloads:
            return None
        sizes = [len(payload) + overhead for payload in payloads]
        ends = list(accumulate(sizes, initial=self.offset))
        begins = ends[:-1]
        del ends[0]
        self.offset = ends[-1]
        return Block(payloads, begins, ends)

    def _refuse(self, kind: str, skipped: int, size: int) -> Refusal:
        begin = self.offset
        self.offset += skipped
        return Refusal(kind, begin, self.offset, size)


class FrameSplitter(Splitter):
    """Splits nothing: content is split elsewhere."""

    def feed(self, chunk: bytes) -> None:  # noqa: ARG002
        """Refuse content."""
        raise ValueError("content is fed as frames")

    def split(self, limit: int) -> None:
        """Return None."""


class LineSplitter(Splitter):
    """Splits lines."""

    def __init__(self, offset: int, largest: int) -> None:
        super().__init__(offset, largest)
        self._partial: list[bytes] = []
        self._partial_bytes: int = 0  # Also those of a line that is too large, which aren't kept.

    def take_partial(self) -> bytes | None:
        """Remove the unfinished line, after all others, and return it; None if it's too large."""
        partial = None if self._partial_bytes > self._largest else b"".join(self._partial)
        self.jump(self._through)
        return partial

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return how many bytes of a partial line are discarded."""
        self._drop_partial()
        return super().jump(offset)

    def split(self, limit: int) -> Block | Refusal | None:
        """Return the next lines, up to the first that reaches `limit` bytes, or one too large."""
        lines: list[bytes] = []
        size = 0
        while self._chunks and size < limit:
            chunk, at = self._chunks[0], self._at
            stop = chunk.find(b"\n", at + max(limit - size - self._partial_bytes - 1, 0))
            if stop == -1:
                stop = chunk.rfind(b"\n", at)
            if stop == -1:
                self._keep_partial(chunk[at:])
                continue
            found = chunk[at:stop].split(b"\n")
            if stop + 1 - at + self._partial_bytes > self._largest:
                found = self._cut_large(found)
                if not found:
                    return self._pass(lines, 1) or self._refuse_line(chunk)
            length = sum(map(len, found)) + len(found)
            if self._partial:
                found[0] = b"".join([*self._partial, found[0]])
            size += length + self._partial_bytes
            self._drop_partial()
            self._skip(length)
            lines += found
        return self._pass(lines, 1)

    def _cut_large(self, lines: list[bytes]) -> list[bytes]:
        """Return lines up to the first that is too large."""
        largest = self._largest - 1
        if self._partial_bytes + len(lines[0]) > largest:
            return []
        small = next((at for at, line in enumerate(lines) if len(line) > largest), len(lines))
        return lines[:small]

    def _refuse_line(self, chunk: bytes) -> Refusal:
        """Pass over a line that is too large, and ends in a chunk."""
        length = chunk.find(b"\n", self._at) + 1 - self._at
        size = self._partial_bytes + length
        self._drop_partial()
        self._skip(length)
        return self._refuse("too_large", size, size)

    def _keep_partial(self, piece: bytes) -> None:
        self._skip(len(piece))
        self._partial.append(piece)
        self._partial_bytes += len(piece)
        if self._partial_bytes > self._largest:
            self._partial.clear()

    def _drop_partial(self) -> None:
        self._partial.clear()
        self._partial_bytes = 0


class FixedSplitter(Splitter):
    """Splits frames with a header of a magic word and their length."""

    def split(self, limit: int) -> Block | Refusal | None:
        """Return the next frames, up to the first that reaches `limit` bytes, or what isn't one."""
        payloads: list[bytes] = []
        size = 0
        while size < limit and (length := self._gather(size)):
            chunk, at = self._chunks[0], self._at
            if length > self._largest or not chunk.startswith(_WORD, at):
                return self._pass(payloads, _HEADER) or self._refuse_header(length)
            left = len(chunk) - at
            # Hot: the following frames of the chunk.
            while length <= left and length <= self._largest and size < limit:
                payloads.append(chunk[at + _HEADER : at + length])
                at += length
                left -= length
                size += length
                if left < _HEADER or not chunk.startswith(_WORD, at):
                    break
                length = _HEADER + _length_of(chunk, at + 4)[0]
            self._skip(at - self._at)
        return self._pass(payloads, _HEADER)

    def _gather(self, passed: int) -> int:
        """Have the next frame in the first chunk, and return its size; 0 if it isn't complete.

        Of a header that's wrong, nothing more is needed.

        Args:
            passed: Bytes after the offset that were split.
        """
        left = self.buffered - passed
        if left < _HEADER:
            return 0
        self._join(_HEADER)
        chunk, at = self._chunks[0], self._at
        size: int = _HEADER + _length_of(chunk, at + 4)[0]
        if size <= self._largest and chunk.startswith(_WORD, at):
            if left < size:
                return 0
            self._join(size)
        return size

    def _join(self, size: int) -> None:
        """Have `size` bytes in the first chunk."""
        have = len(self._chunks[0]) - self._at
        if have >= size:
            return
        pieces = [self._chunks.popleft()[self._at :]]
        while have < size:
            pieces.append(self._chunks.popleft())
            have += len(pieces[-1])
        self._at = 0
        self._chunks.appendleft(b"".join(pieces))

    def _refuse_header(self, length: int) -> Refusal:
        if self._chunks[0].startswith(_WORD, self._at):
            self._skip(_HEADER)
            return self._refuse("too_large", _HEADER, length)
        left = self.buffered
        self._join(left)
        found = self._chunks[0].find(_WORD, self._at + 1)
        garbage = found - self._at if found != -1 else left - (len(_WORD) - 1)
        self._skip(garbage)
        return self._refuse("desync", garbage, 0)

    def _partial_frame(self) -> tuple[bool, int]:
        left = self.buffered
        if left < _HEADER:
            return b"".join(self._chunks)[self._at :] not in {b"", b"\n"}, left
        return True, _HEADER + _length_of(self._chunks[0], self._at + 4)[0]


SPLITTERS: dict[str, type[Splitter]] = {
    "lines": LineSplitter,
    "fixed": FixedSplitter,
    "frames": FrameSplitter,
}
"""Splitters by the names of their framings."""
