"""Decoding of recovery logs: frames of operations, and the raw content of writes after them.

Content isn't framed, and may hold anything, frames of operations included. A decoder of frames
alone would thus take content for operations.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gazette_aio.consumer.recoverylog.operations import MAX_PAYLOAD_BYTES, decode_operation
from gazette_aio.message.framing import FIXED_FRAME_HEADER_LENGTH, FIXED_FRAME_WORD
from gazette_aio.protocol.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = FIXED_FRAME_HEADER_LENGTH
_WORD: Final = FIXED_FRAME_WORD
_WORD_AND_SIZE: Final = struct.Struct(f"<{len(_WORD)}sI")

# Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
Decoded: TypeAlias = tuple[Any, Any, bytes, memoryview | None, int, int]
"""A part of a log: operation, its write, payload, content, and offsets of its begin and end.

* An operation, without its meta-fields. Its payload is the operation as it was encoded. Content of
  a write is given as far as it was fed, and the end is that of all its content. The write of other
  operations has no length, and their content is empty.
* More content of the latest write, without an operation.
* Junk, without an operation and content: bytes that begin no frame, and are passed over.
"""


class LogDecoder:
    """Decoder of a recovery log.

    Operations don't depend on where chunks end; content and junk come in pieces of any length.

    Args:
        log: Name of the log, for texts of errors.
        offset: Offset of the log at which the first chunk begins.
    """

    def __init__(self, log: str, offset: int = 0) -> None:
        self._log = log
        self._base = offset
        # Invariant: `_more` follows `_buffer`, and isn't joined until the next frame is whole.
        self._buffer = b""
        self._more: list[bytes] = []
        self._needed = 0
        self._fed = offset
        self._position: int = 0
        self._content: int = 0

    @property
    def offset(self) -> int:
        """Offset of the next byte to decode."""
        return self._base + self._position

    @property
    def fed_offset(self) -> int:
        """Offset at which the next chunk begins."""
        return self._fed

    @property
    def is_at_boundary(self) -> bool:
        """Whether the next byte isn't content of a write."""
        return not self._content

    def skip_to(self, offset: int) -> None:
        """Pass over what lies before a later offset, at which an operation begins.

        Raises:
            ValueError: The offset is before the present one, or content of a write is due.
        """
        if self._content or offset < self.offset:
            raise ValueError(f"can't skip from {self.offset} to {offset}")
        if offset >= self.fed_offset:
            self._restart_at(offset)
        else:
            self._needed = 0
            self._join()
            self._position = offset - self._base

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the log."""
        self._fed += len(chunk)
        if self._position < len(self._buffer) or self._more:
            self._more.append(chunk)
            return
        # Hot: a chunk of whole operations isn't copied.
        self._base += self._position
        self._buffer, self._position = chunk, 0

    def jump(self, offset: int) -> None:
        """Go on at another offset, because of a hole in the log.

        Raises:
            RecoveryError: The hole is within an operation or the content of a write.
        """
        if self._content or self.offset < self._fed:
            raise RecoveryError(
                f"offset jumps from {self.fed_offset} to {offset} within an operation of "
                f"{self._log} that goes on at {self.offset}"
            )
        self._restart_at(offset)

    def __iter__(self) -> Iterator[Decoded]:
        """Iterate what was fed, as far as it's whole.

        Iterate anew after `skip_to()`, `feed()` and `jump()`.

        Raises:
            OperationError: The frame at `offset` doesn't hold a sound operation.
        """
        if self._more and not self._join():
            return
        buffer, base, begin = self._buffer, self._base, self._position
        limit, view, unpack = len(buffer), memoryview(buffer), _WORD_AND_SIZE.unpack_from
        if self._content and begin < limit:
            content_end = min(limit, begin + self._content)
            self._position, self._content = content_end, begin + self._content - content_end
            yield None, None, b"", view[begin:content_end], base + begin, base + content_end
            begin = content_end
        while True:
            while limit - begin >= _HEADER:
                word, size = unpack(buffer, begin)
                if word != _WORD or size > MAX_PAYLOAD_BYTES:
                    break
                content_begin: int = begin + _HEADER + size
                if content_begin > limit:
                    self._needed = _HEADER + size
                    return
                payload = buffer[begin + _HEADER : content_begin]
                op, write = decode_operation(payload)
                end: int = content_begin + write.length
                # Hot: min() and max() would take longer.
                if end > limit:
                    self._position, self._content = limit, end - limit
                else:
                    self._position = end
                yield op, write, payload, view[content_begin:end], base + begin, base + end
                begin = end
            junk_end = self._next_begin(begin)
            if junk_end <= begin:
                return
            self._position = junk_end
            yield None, None, b"", None, base + begin, base + junk_end
            begin = junk_end

    def end(self, *, is_append_boundary: bool = False) -> int:
        """Return how many bytes of junk are left at the end of the log.

        Args:
            is_append_boundary: Whether the log certainly ends where an append does. Operations
                are within an append. What begins none is then junk, however short.

        Raises:
            RecoveryError: The log ends within an operation or its content.
        """
        if self._content or self.offset < self._fed:
            self._needed = 0
            self._join()
            left = self._buffer[self._position :]
            begins_none = len(left) < _HEADER or not left.startswith(_WORD)
            if self._content or not is_append_boundary or not begins_none:
                what = "content of a write" if self._content else "an operation"
                raise RecoveryError(f"{self._log} ends at {self._fed} within {what}")
            self._position = len(self._buffer)
            return len(left)
        return 0

    def _next_begin(self, begin: int) -> int:
        """Return where a frame begins, or may begin, at or after a position without a frame."""
        found = self._buffer[begin : begin + _HEADER]
        is_too_long = len(found) == _HEADER and found.startswith(_WORD)
        if not is_too_long and _WORD.startswith(found[: len(_WORD)]):
            return begin
        end = self._buffer.find(_WORD, begin + is_too_long)
        # A word may begin with the last bytes of what is there.
        return end if end >= 0 else max(begin, len(self._buffer) - len(_WORD) + 1)

    def _restart_at(self, offset: int) -> None:
        self._buffer, self._more = b"", []
        self._position = self._needed = 0
        self._base = self._fed = offset

    def _join(self) -> bool:
        """Join what was fed, and return whether it may hold what comes next."""
        if self._fed - self.offset < self._needed:
            return False
        self._base += self._position
        self._buffer = b"".join((self._buffer[self._position :], *self._more))
        self._more = []
        self._position = self._needed = 0
        return True

    def __repr__(self) -> str:
        return f"<LogDecoder of {self._log!r} at {self.offset}>"
