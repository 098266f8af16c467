"""Layout of the content of a batch: where each of its bytes is, in a file or in memory.

    | file  [0, filed) | moving: one piece on its way to the file | tail: pieces in memory |

New content is added to the tail. `begin_move()` takes all of the tail, for the caller to write it
behind `filed`; `end_move()` notes how much of it got there. `truncate()` is legal at any time, also
while a move is under way: bytes of the file at and behind `filed` don't count, whatever they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class ContentBuffer:
    """Content which is appended to, cut back to an earlier length, and read as a whole."""

    __slots__ = ("filed", "length", "moving", "tail", "tail_bytes")

    def __init__(self) -> None:
        self.length = 0
        """Length of all content, in bytes."""
        self.filed = 0
        """Length of the leading content which is in the file."""
        self.moving = b""
        """Content next to it, which is being written."""
        self.tail: list[bytes] = []
        """Remaining content."""
        self.tail_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Length of the content which isn't in the file."""
        return self.length - self.filed

    def append(self, data: bytes) -> None:
        """Add `data` to the end."""
        self.tail.append(data)
        size = len(data)
        self.tail_bytes += size
        self.length += size

    def truncate(self, length: int) -> None:
        """Drop everything but the first `length` bytes."""
        assert 0 <= length <= self.length
        surplus = self.length - length
        self.length = length

        while surplus and self.tail:
            piece = self.tail.pop()
            kept = max(len(piece) - surplus, 0)
            surplus -= len(piece) - kept
            self.tail_bytes -= len(piece) - kept
            if kept:
                self.tail.append(piece[:kept])
        if surplus:
            kept = max(len(self.moving) - surplus, 0)
            surplus -= len(self.moving) - kept
            self.moving = self.moving[:kept]
            self.filed -= surplus

    def begin_move(self) -> bytes:
        """Take the tail, and return it as one piece to be written to the file at `filed`."""
        assert not self.moving
        self.moving = b"".join(self.tail)
        self.tail = []
        self.tail_bytes = 0
        return self.moving

    def end_move(self, written: int) -> None:
        """Note that the first `written` bytes of the piece have reached the file."""
        # Race: the content may have been cut back since the move began.
        written = min(written, len(self.moving))
        self.filed += written
        if remainder := self.moving[written:]:
            self.tail.insert(0, remainder)
            self.tail_bytes += len(remainder)
        self.moving = b""

    def pieces(self, size: int) -> Iterator[bytes | memoryview]:
        """Yield the content which isn't in the file, in pieces of `size` and a shorter last one."""
        parts: list[bytes | memoryview] = []
        missing = size
        for piece in (self.moving, *self.tail):
            if len(piece) < missing:
                if piece:
                    parts.append(piece)
                    missing -= len(piece)
                continue
            view = memoryview(piece)
            while len(view) >= missing:
                parts.append(view[:missing])
                view = view[missing:]
                yield parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                missing = size
            if view:
                parts.append(view)
                missing -= len(view)
        if parts:
            yield parts[0] if len(parts) == 1 else b"".join(parts)
