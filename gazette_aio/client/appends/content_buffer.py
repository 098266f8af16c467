"""Content of a batch, partly in a file and partly in memory.

    | head: in memory | file [0, filed) | moving: on its way to the file | tail: in memory |

New content is added to the tail. `retain()` adds the tail to the head, which stays in memory. That
takes a share of the memory of a client, which may be used up. Otherwise `begin_move()` takes the
whole tail, and the caller writes it to the file at `filed`; `end_move()` notes how much was
written. `truncate()` is allowed at any time, also during a move: bytes of the file from `filed` on
have no meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.client.append_memory import AppendMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SPILL_BYTES: Final = 256 << 10
"""Bytes of the tail at which it's retained, or begins to move to the file."""

CROWDED_BYTES: Final = 1 << 20
"""Bytes beyond which no content is added: those that have yet to move, and those that were added
since the event loop had a turn, without which nothing is sent."""

TURN_BYTES: Final = 256 << 10
"""Bytes beyond which one who can wait gives the event loop a turn."""

_SMALL_BYTES: Final = 4 << 10
"""Average length of pieces below which it's faster to join them first."""

Chunk = list[bytes | memoryview]
"""Content of one message, in parts."""


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


_NO_MEMORY: Final = AppendMemory(0)


class ContentBuffer:
    """Content that grows, is truncated to an earlier length, and is read as a whole.

    Args:
        cutoff_bytes: Length beyond which the buffer takes no more content.
        memory: Memory of the head.
    """

    __slots__ = (
        "_cutoff_bytes",
        "_memory",
        "filed",
        "head",
        "head_bytes",
        "length",
        "moving",
        "quick_length",
        "start_length",
        "tail",
        "turned",
    )

    def __init__(self, cutoff_bytes: int = 1 << 62, memory: AppendMemory = _NO_MEMORY) -> None:
        self._cutoff_bytes = cutoff_bytes
        self._memory = memory
        self.length: int = 0
        """Length of all content, in bytes."""
        self.head: list[bytes] = []
        """Leading content, which stays in memory."""
        self.head_bytes: int = 0
        """Length of the head."""
        self.filed: int = 0
        """Length of the content after it that is in the file."""
        self.moving: bytes = b""
        """Content after it, which is being written."""
        self.tail: list[bytes] = []
        """Remaining content."""
        self.turned: int = 0
        """Length of the content when the event loop last had a turn, as far as that's noted."""
        self.quick_length: int = 0
        """Length up to which appending only means adding to the tail."""
        self.start_length: int = 0
        """Length up to which the next holder needn't wait either."""
        self._set_quick_length()

    @property
    def tail_bytes(self) -> int:
        """Length of the tail."""
        return self.unsettled_bytes - len(self.moving)

    @property
    def unsettled_bytes(self) -> int:
        """Length of the content that is neither in the head nor in the file."""
        return self.length - self.head_bytes - self.filed

    @property
    def is_crowded(self) -> bool:
        """Whether no content is added before content has moved, or the loop had a turn."""
        return max(self.unsettled_bytes, self.length - self.turned) > CROWDED_BYTES

    @property
    def needs_turn(self) -> bool:
        """Whether one who can wait gives the event loop a turn."""
        return self.length - self.turned > TURN_BYTES

    @property
    def rest(self) -> list[bytes]:
        """The content that is neither in the head nor in the file."""
        return [self.moving, *_joined(self.tail, self.tail_bytes)]

    def append(self, data: bytes) -> None:
        """Add `data` to the end."""
        self.tail.append(data)
        self.length += len(data)

    def truncate(self, length: int) -> None:
        """Drop everything but the first `length` bytes."""
        assert 0 <= length <= self.length
        surplus = self.length - length
        self.length = length
        self.turned = min(self.turned, length)

        surplus = _cut(self.tail, surplus)
        if surplus:
            kept = max(len(self.moving) - surplus, 0)
            surplus -= len(self.moving) - kept
            self.moving = self.moving[:kept]
            kept = max(self.filed - surplus, 0)
            surplus -= self.filed - kept
            self.filed = kept
            _cut(self.head, surplus)
            self.head_bytes -= surplus
            self._memory.release(surplus)
            self._set_quick_length()

    def retain(self) -> bool:
        """Add the tail to the head, unless content is in the file, or no memory is left for it."""
        size = self.tail_bytes
        if self.filed or self.moving or not self._memory.reserve(size):
            return False
        self.head += _joined(self.tail, size)
        self.head_bytes += size
        self.tail = []
        self._set_quick_length()
        return True

    def note_turn(self) -> None:
        """Note that the event loop has a turn."""
        self.turned = self.length
        self._set_quick_length()

    def discard(self) -> None:
        """Release the memory of the head. The buffer isn't used any more."""
        self._memory.release(self.head_bytes)
        self.head_bytes = 0

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
        settled = self.head_bytes + self.filed
        self.quick_length = min(settled + room, self.turned + CROWDED_BYTES, self._cutoff_bytes)
        self.start_length = min(self.quick_length, self.turned + TURN_BYTES)


def chunks(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[Chunk]:
    """Yield content as chunks of `size` bytes, and a shorter last one."""
    parts: Chunk = []
    missing = size
    for piece in pieces:
        if len(piece) < missing:
            if piece:
                parts.append(piece)
                missing -= len(piece)
            continue
        view = memoryview(piece)
        while len(view) >= missing:
            yield [*parts, view[:missing]]
            view = view[missing:]
            parts = []
            missing = size
        if view:
            parts.append(view)
            missing -= len(view)
    if parts:
        yield parts


def _joined(pieces: list[bytes], size: int) -> list[bytes]:
    """Return content of `size` bytes, whose pieces were joined if they're small."""
    return [b"".join(pieces)] if size < len(pieces) * _SMALL_BYTES else pieces


def _cut(pieces: list[bytes], surplus: int) -> int:
    """Remove up to `surplus` bytes from the end of content, and return how many are missing."""
    while surplus and pieces:
        piece = pieces.pop()
        kept = max(len(piece) - surplus, 0)
        surplus -= len(piece) - kept
        if kept:
            pieces.append(piece[:kept])
    return surplus
