"""Layout of the content of a batch: where each of its bytes is, in a file or in memory.

    | file  [0, filed) | moving: one piece on its way to the file | tail: pieces in memory |

New content is added to the tail. `begin_move()` takes all of the tail, for the caller to write it
behind `filed`; `end_move()` notes how much of it got there. `truncate()` is legal at any time, also
while a move is under way: bytes of the file at and behind `filed` don't count, whatever they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


SPILL_BYTES: Final = 256 << 10
"""Bytes in memory from which on content moves to the file."""

CROWDED_BYTES: Final = 1 << 20
"""Bytes in memory from which on new holders wait for content to move."""


class ContentBuffer:
    """Content which is appended to, cut back to an earlier length, and read as a whole.

    Args:
        cutoff_bytes: Length beyond which it takes no more content.
    """

    __slots__ = ("_cutoff_bytes", "filed", "length", "moving", "quick_length", "tail")

    def __init__(self, cutoff_bytes: int = 1 << 62) -> None:
        self._cutoff_bytes = cutoff_bytes
        self.length = 0
        """Length of all content, in bytes."""
        self.filed = 0
        """Length of the leading content which is in the file."""
        self.moving = b""
        """Content next to it, which is being written."""
        self.tail: list[bytes] = []
        """Remaining content."""
        self.quick_length = 0
        """Length up to which appending takes no more than adding to the tail."""
        self._set_quick_length()

    @property
    def tail_bytes(self) -> int:
        """Length of the tail."""
        return self.length - self.filed - len(self.moving)

    @property
    def memory_bytes(self) -> int:
        """Length of the content which isn't in the file."""
        return self.length - self.filed

    def append(self, data: bytes) -> None:
        """Add `data` to the end."""
        self.tail.append(data)
        self.length += len(data)

    def truncate(self, length: int) -> None:
        """Drop everything but the first `length` bytes."""
        assert 0 <= length <= self.length
        surplus = self.length - length
        self.length = length

        while surplus and self.tail:
            piece = self.tail.pop()
            kept = max(len(piece) - surplus, 0)
            surplus -= len(piece) - kept
            if kept:
                self.tail.append(piece[:kept])
        if surplus:
            kept = max(len(self.moving) - surplus, 0)
            surplus -= len(self.moving) - kept
            self.moving = self.moving[:kept]
            self.filed -= surplus
            self._set_quick_length()

    def begin_move(self) -> bytes:
        """Take the tail, and return it as one piece to be written to the file at `filed`."""
        assert not self.moving
        self.moving = b"".join(self.tail)
        self.tail = []
        self._set_quick_length()
        return self.moving

    def end_move(self, written: int) -> None:
        """Note that the first `written` bytes of the piece have reached the file."""
        # Race: the content may have been cut back since the move began.
        written = min(written, len(self.moving))
        self.filed += written
        if remainder := self.moving[written:]:
            self.tail.insert(0, remainder)
        self.moving = b""
        self._set_quick_length()

    def _set_quick_length(self) -> None:
        # While a move is under way there's nothing to do but to wait for it.
        room = CROWDED_BYTES if self.moving else SPILL_BYTES
        self.quick_length = min(self.filed + room, self._cutoff_bytes)

    def pieces(self, size: int) -> Iterator[bytes | memoryview]:
        """Yield the content which isn't in the file, in pieces of `size` and a shorter last one."""
        content = (self.moving, *self.tail)
        if self.memory_bytes <= 2 * CROWDED_BYTES:
            # Hot: small pieces are joined at once. Long content would take too long.
            content = (b"".join(content),)
        parts: list[bytes | memoryview] = []
        missing = size
        for piece in content:
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
