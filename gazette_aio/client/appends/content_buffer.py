"""Content of a batch, partly in a file and partly in memory.

    | head: in memory | file [0, filed) | tail: in memory |

New content is added to the tail. `retain()` adds the tail to the head, which stays in memory. That
takes a share of the memory of a client, which may be used up. Otherwise `settle()` writes the tail
to the file. Bytes of the file from `filed` on have no meaning, so that a write that failed, was
cancelled, or was overtaken by another change than an addition is simply repeated.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import IO, TYPE_CHECKING, Final, TypeAlias

from gazette_aio.aio.threads import in_thread
from gazette_aio.client.append_memory import AppendMemory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

_logger = logging.getLogger(__name__)

SPILL_BYTES: Final = 256 << 10
"""Bytes of the tail at which it's retained, or written to the file."""

CROWDED_BYTES: Final = 1 << 20
"""Bytes beyond which no content is added: those of the tail, while the disk is full, and those that
were added since the event loop had a turn, without which nothing is sent."""

TURN_BYTES: Final = 256 << 10
"""Bytes beyond which one who can wait gives the event loop a turn."""

_SLICE_BYTES: Final = 1 << 20

_SMALL_BYTES: Final = 4 << 10
"""Average length of pieces below which it's faster to join them first."""

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Content."""


def require_bytes(data: object) -> None:
    """Raise unless `data` is bytes.

    Raises:
        TypeError: It's something else.
    """
    if not isinstance(data, Bytes):
        raise TypeError(f"data: expected bytes, not {type(data).__name__}")


def checked_bytes(data: Bytes) -> bytes:
    """Return `data` as bytes.

    Raises:
        TypeError: It's something else. A number would make as many zeros.
    """
    require_bytes(data)
    return bytes(data)


_NO_MEMORY: Final = AppendMemory(0)


class ContentBuffer:
    """Content that grows, is truncated to an earlier length, and is read as a whole.

    The file is opened when it's first needed, and unlinked at once.

    Args:
        cutoff_bytes: Length beyond which the buffer takes no more content.
        memory: Memory of the head.
        directory: Directory of the file, or None for the system's.
    """

    __slots__ = (
        "_changes",
        "_cutoff_bytes",
        "_directory",
        "_file",
        "_memory",
        "filed",
        "head",
        "head_bytes",
        "length",
        "quick_length",
        "start_length",
        "tail",
        "turned",
    )

    def __init__(
        self,
        cutoff_bytes: int = 1 << 62,
        memory: AppendMemory = _NO_MEMORY,
        directory: str | None = None,
    ) -> None:
        self._cutoff_bytes = cutoff_bytes
        self._memory = memory
        self._directory = directory
        self._file: _UnlinkedFile | None = None
        self._changes = 0
        self.length: int = 0
        """Length of all content, in bytes."""
        self.head: list[bytes] = []
        """Leading content, which stays in memory."""
        self.head_bytes: int = 0
        """Length of the head."""
        self.filed: int = 0
        """Length of the content after it that is in the file."""
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
        return self.length - self.head_bytes - self.filed

    @property
    def is_crowded(self) -> bool:
        """Whether no content is added before the tail is settled, or the loop had a turn."""
        return max(self.tail_bytes, self.length - self.turned) > CROWDED_BYTES

    @property
    def needs_turn(self) -> bool:
        """Whether one who can wait gives the event loop a turn."""
        return self.length - self.turned > TURN_BYTES

    def append(self, data: bytes) -> None:
        """Add `data` to the end."""
        self.tail.append(data)
        self.length += len(data)

    def truncate(self, length: int) -> None:
        """Drop everything but the first `length` bytes."""
        assert 0 <= length <= self.length
        surplus = self.length - length
        self.length = length
        self._changes += 1
        self.turned = min(self.turned, length)
        surplus = _cut(self.tail, surplus)
        if surplus:
            kept = max(self.filed - surplus, 0)
            surplus -= self.filed - kept
            self.filed = kept
            _cut(self.head, surplus)
            self.head_bytes -= surplus
            self._memory.release(surplus)
            self._set_quick_length()

    def retain(self) -> bool:
        """Add the tail to the head if it's long, and return whether it isn't long any more.

        It stays as it is if content is in the file, or no memory is left for it.
        """
        size = self.tail_bytes
        if size < SPILL_BYTES:
            return True
        if self.filed or not self._memory.reserve(size):
            return False
        self._changes += 1
        self.head += _joined(self.tail, size)
        self.head_bytes += size
        self.tail = []
        self._set_quick_length()
        return True

    async def settle(self) -> None:
        """Retain the tail if it's long, or else write it to the file.

        Raises:
            OSError: It can't be written. It stays in memory.

        Cancellation: safe — raised after the thread has left the file. The tail stays in memory.
        """
        while not self.retain():
            if self._file is None:
                self._file = _UnlinkedFile(self._directory)
            file = self._file
            # Race: a holder may be released, or rolled back, while a task of it still awaits this.
            async with file.turn:
                position, pieces, changes = self.filed, len(self.tail), self._changes
                data = b"".join(self.tail)
                await in_thread(file.write, data, position)
                if file is not self._file:
                    return  # It was discarded.
                if changes == self._changes:
                    self.filed += len(data)
                    self.tail = self.tail[pieces:]
                    self._set_quick_length()

    async def pieces(self) -> AsyncGenerator[Collection[bytes]]:
        """Yield all content, in lists of pieces.

        Raises:
            OSError: The file can't be read.

        Cancellation: aborts — the iteration ends, and the content stays.
        """
        # Race: a task of a holder may still write the tail to the file.
        file, filed = self._file, self.filed
        rest = _joined(self.tail, self.tail_bytes)
        if file is None or not filed:
            yield [*self.head, *rest]
            return
        yield self.head
        for position in range(0, filed, _SLICE_BYTES):
            size = min(_SLICE_BYTES, filed - position)
            yield (await in_thread(file.read, size, position),)
        yield rest

    def note_turn(self) -> None:
        """Note that the event loop has a turn."""
        self.turned = self.length
        self._set_quick_length()

    def discard(self) -> asyncio.Future[None] | None:
        """Release the memory of the head, and begin to close the file. The buffer has ended.

        Returns:
            A future that completes when the file is closed, or None without a file.
        """
        self._memory.release(self.head_bytes)
        self.head_bytes = 0
        file, self._file = self._file, None
        if file is None:
            return None
        try:
            # Freeing the blocks of a long file takes a while.
            return asyncio.get_running_loop().run_in_executor(None, file.close)
        except RuntimeError:  # No thread could be started.
            file.close()
            return None

    def _set_quick_length(self) -> None:
        settled = self.head_bytes + self.filed
        # Without memory for a longer tail, only one who can wait shortens it.
        may_retain = not self.filed and self._memory.free_bytes >= SPILL_BYTES
        room = SPILL_BYTES if may_retain else CROWDED_BYTES
        most = min(settled + room, self.turned + CROWDED_BYTES, self._cutoff_bytes)
        self.quick_length = most
        self.start_length = min(most, settled + SPILL_BYTES, self.turned + TURN_BYTES)


class _UnlinkedFile:
    """Temporary file, which worker threads use one at a time.

    Args:
        directory: Directory of the file, or None for the system's.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self.turn: asyncio.Lock = asyncio.Lock()
        """Held to write."""
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._closed = False

    def write(self, data: bytes, position: int) -> None:
        """Write all of `data` at `position`, unless the file was closed."""
        # Imported only here: most programs never append that much at once.
        import tempfile  # noqa: PLC0415

        with self._lock:
            if self._closed:
                return
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - Kept until `close()`.
                    "w+b", buffering=0, prefix="gazette-append", dir=self._directory
                )
            self._file.seek(position)
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]

    def read(self, size: int, position: int) -> bytes:
        """Return exactly `size` bytes at `position`."""
        with self._lock:
            assert self._file is not None, "only written content is read"
            self._file.seek(position)
            parts: list[bytes] = []
            while size:
                part = self._file.read(size)
                if not part:
                    raise OSError("the temporary file of an append was cut short")
                parts.append(part)
                size -= len(part)
            return b"".join(parts)

    def close(self) -> None:
        """Close the file, after the thread that uses it. It isn't opened any more."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:
                    _logger.warning("closing the spool of an append failed: %s", error)


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
