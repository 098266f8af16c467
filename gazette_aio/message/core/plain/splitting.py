"""Splitting of content into frames, whatever its chunks are."""

from __future__ import annotations

import abc
import struct
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD, _HEADER = b"\x66\x33\x93\x36", 8
_length_of = struct.Struct("<I").unpack_from


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


Block = tuple[list[bytes], list[int], list[int]]
"""Frames as columns: payloads, begins and ends."""


class Splitter(abc.ABC):
    """Splits the content of one journal.

    Args:
        offset: Offset of the content.
        largest: Largest size of a frame.
    """

    def __init__(self, offset: int, largest: int) -> None:
        self._largest = largest
        # What was split off already, and offset and chunks of the content after it.
        self._ahead: deque[Frame | Refusal] = deque()
        self._ahead_bytes: int = 0
        self._offset: int = offset
        self._chunks: deque[bytes] = deque()
        self._chunks_bytes: int = 0
        self._ended = False

    @property
    def offset(self) -> int:
        """Offset of the next frame."""
        return self._ahead[0].begin if self._ahead else self._offset

    @property
    def buffered(self) -> int:
        """Bytes that were fed and aren't returned."""
        return self._ahead_bytes + self._unsplit_bytes

    @property
    def _unsplit_bytes(self) -> int:
        return self._chunks_bytes

    def feed(self, chunk: bytes) -> None:
        """Take content that follows."""
        self._ended = False
        if chunk:
            self._chunks.append(chunk)
            self._chunks_bytes += len(chunk)

    def feed_frames(self, frames: Sequence[tuple[bytes, int, int]]) -> None:
        """Take frames that follow."""
        at = self._offset
        for _, begin, end in frames:
            if begin < at or end <= begin:
                raise ValueError("frames aren't in the order of their offsets")
            at = end
        self._offset = at
        self._ahead.extend(map(Frame._make, frames))
        self._ahead_bytes += sum([end - begin for _, begin, end in frames])

    def end(self) -> None:
        """Declare the end of content."""
        self._ended = True

    def jump(self, offset: int) -> int:
        """Continue at `offset`, behind the frames at hand; return how many bytes are discarded."""
        self._ended = False
        while True:
            frames = list(map(Frame, *self._split(1 << 20)))
            refused = None if frames else self._refuse()
            found = frames if refused is None else [refused]
            if not found:
                break
            self._ahead.extend(found)
            self._ahead_bytes += sum([each.end - each.begin for each in found])
        discarded = self._unsplit_bytes
        self._drop()
        self._offset = offset
        return discarded

    def frames(self, limit: int) -> Block:
        """Return the next frames, up to the first that reaches `limit` bytes.

        If there's none, `refusal()` tells what's there instead.
        """
        if not self._ahead:
            return self._split(limit)
        payloads: list[bytes] = []
        begins: list[int] = []
        ends: list[int] = []
        size = 0
        while self._ahead and size < limit:
            frame = self._ahead[0]
            if isinstance(frame, Refusal):
                break
            self._ahead.popleft()
            payloads.append(frame.payload)
            begins.append(frame.begin)
            ends.append(frame.end)
            size += frame.end - frame.begin
        self._ahead_bytes -= size
        return payloads, begins, ends

    def put_back(self, block: Block, start: int) -> None:
        """Take frames of a block from `start` on, to return them again."""
        frames = list(map(Frame, *(column[start:] for column in block)))
        self._ahead.extendleft(reversed(frames))
        self._ahead_bytes += sum([frame.end - frame.begin for frame in frames])

    def refusal(self) -> Refusal | None:
        """Return the bytes before the next frame that are no frame, if there are any."""
        if not self._ahead:
            return self._refuse()
        refused = self._ahead[0]
        if not isinstance(refused, Refusal):
            return None
        self._ahead.popleft()
        self._ahead_bytes -= refused.end - refused.begin
        return refused

    @abc.abstractmethod
    def _split(self, limit: int) -> Block: ...

    @abc.abstractmethod
    def _refuse(self) -> Refusal | None: ...

    def _drop(self) -> None:
        """Drop what isn't split."""
        self._chunks.clear()
        self._chunks_bytes = 0

    def _pass(self, payloads: list[bytes], overhead: int) -> Block:
        """Return payloads as a block; their framing takes so many bytes each."""
        sizes = [len(payload) + overhead for payload in payloads]
        ends = list(accumulate(sizes, initial=self._offset))
        begins = ends[:-1]
        del ends[0]
        if ends:
            self._offset = ends[-1]
        return payloads, begins, ends

    def _passed(self, kind: str, skipped: int, size: int) -> Refusal:
        begin = self._offset
        self._offset += skipped
        return Refusal(kind, begin, self._offset, size)

    def _end(self, *, is_partial: bool, size: int) -> Refusal | None:
        """Refuse a partial frame at the end of content, once."""
        ended, self._ended = self._ended, False
        return self._passed("unexpected_eof", 0, size) if ended and is_partial else None


class FrameSplitter(Splitter):
    """Returns frames that were split elsewhere."""

    def feed(self, chunk: bytes) -> None:  # noqa: ARG002
        """Refuse content."""
        raise ValueError("content is fed as frames")

    def _split(self, limit: int) -> Block:  # noqa: ARG002
        return [], [], []

    def _refuse(self) -> None:
        return None


class _ChunkSplitter(Splitter):
    def feed_frames(self, frames: Sequence[tuple[bytes, int, int]]) -> None:  # noqa: ARG002
        """Refuse frames."""
        raise ValueError("content isn't fed as frames")


class LineSplitter(_ChunkSplitter):
    """Splits lines."""

    def __init__(self, offset: int, largest: int) -> None:
        super().__init__(offset, largest)
        self._at: int = 0  # Within the first chunk.
        self._partial: list[bytes] = []
        self._partial_bytes: int = 0
        self._skipped: int = 0  # Bytes of a line that is too large. They aren't kept.

    @property
    def is_skipping(self) -> bool:
        """Whether the unfinished line, after all others were returned, is too large."""
        return bool(self._skipped)

    def take_partial(self) -> bytes:
        """Remove the unfinished line, after all others were returned, and return its bytes.

        There are none if it's too large.
        """
        partial = b"".join(self._partial)
        self._offset += self._unsplit_bytes
        self._drop()
        return partial

    @property
    def _unsplit_bytes(self) -> int:
        return self._skipped + self._partial_bytes + self._chunks_bytes - self._at

    def _drop(self) -> None:
        super()._drop()
        self._partial.clear()
        self._at = self._partial_bytes = self._skipped = 0

    def _split(self, limit: int) -> Block:
        lines: list[bytes] = []
        size = 0
        while self._chunks and size < limit and not self._skipped:
            chunk, at = self._chunks[0], self._at
            stop = chunk.find(b"\n", at + max(limit - size - self._partial_bytes - 1, 0))
            if stop == -1:
                stop = chunk.rfind(b"\n", at)
            if stop == -1:
                self._keep_partial(chunk)
                continue
            found = chunk[at:stop].split(b"\n")
            length = stop + 1 - at + self._partial_bytes
            if length > self._largest:
                found = self._cut_large(found)
                if not found:
                    break
                length = sum(map(len, found)) + len(found) + self._partial_bytes
            self._at += length - self._partial_bytes
            if self._partial:
                found[0] = b"".join([*self._partial, found[0]])
                self._partial.clear()
                self._partial_bytes = 0
            if self._at == len(chunk):
                self._pop_chunk()
            lines += found
            size += length
        return self._pass(lines, 1)

    def _cut_large(self, lines: list[bytes]) -> list[bytes]:
        """Return lines up to the first that is too large."""
        largest = self._largest - 1
        if self._partial_bytes + len(lines[0]) > largest:
            return []
        small = next((at for at, line in enumerate(lines) if len(line) > largest), len(lines))
        return lines[:small]

    def _keep_partial(self, chunk: bytes) -> None:
        piece = chunk[self._at :]
        self._pop_chunk()
        self._partial.append(piece)
        self._partial_bytes += len(piece)
        if self._partial_bytes > self._largest:
            self._skipped, self._partial_bytes = self._partial_bytes, 0
            self._partial.clear()

    def _pop_chunk(self) -> None:
        self._chunks_bytes -= len(self._chunks.popleft())
        self._at = 0

    def _refuse(self) -> Refusal | None:
        """Pass over a line that is too large once it ends."""
        while self._chunks:
            chunk = self._chunks[0]
            newline = chunk.find(b"\n", self._at)
            stop = newline + 1 or len(chunk)
            self._skipped += self._partial_bytes + stop - self._at
            self._partial.clear()
            self._partial_bytes = 0
            self._at = stop
            if stop == len(chunk):
                self._pop_chunk()
            if newline != -1:
                size, self._skipped = self._skipped, 0
                return self._passed("too_large", size, size)
        return self._end(is_partial=bool(self._skipped or self._partial), size=0)


class FixedSplitter(_ChunkSplitter):
    """Splits frames with a header of a magic word and their length."""

    def __init__(self, offset: int, largest: int) -> None:
        super().__init__(offset, largest)
        self._at: int = 0  # Within the first chunk.

    @property
    def _unsplit_bytes(self) -> int:
        return self._chunks_bytes - self._at

    def _drop(self) -> None:
        super()._drop()
        self._at = 0

    def _split(self, limit: int) -> Block:
        payloads: list[bytes] = []
        size = 0
        while size < limit:
            length = self._header()
            if not length or length > self._largest or not self._gather(length):
                break
            chunk, at = self._chunks[0], self._at
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

    def _header(self) -> int | None:
        """Return the size of the next frame; 0 if it has no header, None if that isn't at hand."""
        if not self._gather(_HEADER):
            return None
        chunk, at = self._chunks[0], self._at
        size: int = _HEADER + _length_of(chunk, at + 4)[0]
        return size if chunk.startswith(_WORD, at) else 0

    def _gather(self, size: int) -> bool:
        """Have `size` bytes in the first chunk, and return whether there are so many."""
        if self._unsplit_bytes < size:
            return False
        have = len(self._chunks[0]) - self._at
        if have >= size:
            return True
        pieces = [self._chunks.popleft()[self._at :]]
        while have < size:
            pieces.append(self._chunks.popleft())
            have += len(pieces[-1])
        self._chunks_bytes -= self._at
        self._at = 0
        self._chunks.appendleft(b"".join(pieces))
        return True

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at == len(self._chunks[0]):
            self._chunks.popleft()
            self._chunks_bytes -= self._at
            self._at = 0

    def _refuse(self) -> Refusal | None:
        length, left = self._header(), self._unsplit_bytes
        if length is None:
            is_partial = left > 1 or (left == 1 and self._chunks[0][self._at :] != b"\n")
            return self._end(is_partial=is_partial, size=left)
        if not length:
            self._gather(left)
            found = self._chunks[0].find(_WORD, self._at + 1)
            garbage = found - self._at if found != -1 else left - (len(_WORD) - 1)
            self._skip(garbage)
            return self._passed("desync", garbage, 0)
        if length > self._largest:
            self._skip(_HEADER)
            return self._passed("too_large", _HEADER, length)
        # Frames that are complete were returned.
        return self._end(is_partial=True, size=length)


SPLITTERS: dict[str, type[Splitter]] = {
    "lines": LineSplitter,
    "fixed": FixedSplitter,
    "frames": FrameSplitter,
}
"""Splitters by the names of their framings."""
