"""Content of a batch, partly in a file and partly in memory.

    | file  [0, filed) | moving: one piece on its way to the file | tail: pieces in memory |

New content is added to the tail. `begin_move()` takes the whole tail, and the caller writes it to
the file at `filed`; `end_move()` notes how much was written. `truncate()` is allowed at any time,
also during a move: bytes of the file from `filed` on have no meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


SPILL_BYTES: Final = 256 << 10
"""Bytes in memory at which content begins to move to the file."""

CROWDED_BYTES: Final = 1 << 20
"""Bytes in memory at which new holders wait until content has moved."""


def require_bytes(data: object) -> None:
    """Raise unless `data` is bytes.

    Raises:
        TypeError: It's something else.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"data: expected bytes, not {type(data).__name__}")


def checked_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Return `data` as bytes.

    Raises:
        TypeError: It's something else. A number would make as many zeros.
    """
    require_bytes(data)
    return bytes(data)


class ContentBuffer:
    """Content that grows, is truncated to an earlier length, and is read as a whole.

    Args:
        cutoff_bytes: Length beyond which the buffer takes no more content.
    """

    __slots__ = ("_cutoff_bytes", "filed", "length", "moving", "quick_length", "tail")

    def __init__(self, cutoff_bytes: int = 1 << 62) -> None:
        self._cutoff_bytes = cutoff_bytes
        self.length: int = 0
        """Length of all content, in bytes."""
        self.filed: int = 0
        """Length of the leading content that is in the file."""
        self.moving: bytes = b""
        """Content after it, which is being written."""
        self.tail: list[bytes] = []
        """Remaining content."""
        self.quick_length: int = 0
        """Length up to which appending only means adding to the tail."""
        self._set_quick_length()

    @property
    def tail_bytes(self) -> int:
        """Length of the tail."""
        return self.length - self.filed - len(self.moving)

    @property
    def memory_bytes(self) -> int:
        """Length of the content that isn't in the file."""
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
        """Note that the first `written` bytes of the piece are in the file."""
        # Race: the content may have been truncated during the move.
        written = min(written, len(self.moving))
        self.filed += written
        if remainder := self.moving[written:]:
            self.tail.insert(0, remainder)
        self.moving = b""
        self._set_quick_length()

    def _set_quick_length(self) -> None:
        # During a move, appending can't begin another one.
        room = CROWDED_BYTES if self.moving else SPILL_BYTES
        self.quick_length = min(self.filed + room, self._cutoff_bytes)

    def pieces(self, size: int) -> Iterator[bytes | memoryview]:
        """Yield the content that isn't in the file, in pieces of `size` and a shorter last one."""
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
