"""Decoding of recovery logs: frames of operations, and the raw content of writes after them.

Content isn't framed, and may hold anything, frames of operations included. A decoder of frames
alone would thus take content for operations.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from gazette_aio.consumer.recoverylog.operations import (
    MAX_PAYLOAD_BYTES,
    decode_operation,
    decode_write,
)
from gazette_aio.message.framing import FIXED_FRAME_HEADER_LENGTH, FIXED_FRAME_WORD
from gazette_aio.protocol.errors import RecoveryError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.protocol.recoverylog import RecordedOp

_HEADER: Final = FIXED_FRAME_HEADER_LENGTH
_WORD: Final = FIXED_FRAME_WORD
_WORD_AND_SIZE: Final = struct.Struct(f"<{len(_WORD)}sI")


class Operation(NamedTuple):
    """An operation of the log. If it is a write, its content follows."""

    op: RecordedOp
    """The operation, with its log and the offsets of its frame and content."""
    payload: bytes
    """The operation as it was encoded, without the header of its frame."""


class Content(NamedTuple):
    """A piece of the content of the latest write."""

    data: bytes
    position: int
    """Bytes of the content before this piece."""


class Junk(NamedTuple):
    """Bytes that begin no frame, and are passed over."""

    begin: int
    end: int


# Of `Any`, as a field named `property` hides the decorator from the checkers of its stub.
BegunWrite: TypeAlias = tuple[Any, bytes, Any, memoryview, int, int]
"""A write without the meta-fields of its operation, the operation as it was encoded, the write's
own message, its content as far as it was fed, and the offsets at which its frame begins and its
content ends."""


class LogDecoder:
    """Decoder of a recovery log.

    Operations don't depend on where chunks end; content and junk come in pieces of any length.

    Args:
        log: Name of the log, which operations are given.
        offset: Offset of the log at which the first chunk begins.
        max_payload_bytes: Greatest length of an operation. A frame of a greater one is junk.
    """

    def __init__(
        self, log: str, offset: int = 0, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES
    ) -> None:
        self._log = log
        self._base = offset
        self._max_payload_bytes = max_payload_bytes
        # Invariant: `_more` follows `_buffer`, and isn't joined until the next frame is whole.
        self._buffer = b""
        self._more: list[bytes] = []
        self._needed = 0
        self._fed = offset
        self._position = 0
        self._content = 0
        self._content_done = 0

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

    def next(self) -> Operation | Content | Junk | None:
        """Return what comes next, or None until more is fed.

        Raises:
            RecoveryError: A frame doesn't hold a sound operation.
        """
        if self._more and not self._join():
            return None
        if self._content:
            return self._next_content()
        buffer, begin = self._buffer, self._position
        available = len(buffer) - begin
        if available < _HEADER:
            if _WORD.startswith(buffer[begin : begin + len(_WORD)]):
                return None
            if not buffer.startswith(_WORD, begin):
                return self._next_junk(begin)
            return None
        word, size = _WORD_AND_SIZE.unpack_from(buffer, begin)
        if word != _WORD:
            return self._next_junk(begin)
        if size > self._max_payload_bytes:
            return self._next_junk(begin + 1)
        end = begin + _HEADER + size
        if available < _HEADER + size:
            self._needed = _HEADER + size
            return None
        payload = buffer[begin + _HEADER : end]
        try:
            op: Any = decode_operation(payload)
        except RecoveryError as error:
            raise RecoveryError(f"{error}, at {self.offset} of {self._log}") from error
        op.log = self._log
        op.first_offset = self.offset
        self._position = end
        # Hot: reading an absent message costs as much as asking for it.
        self._content, self._content_done = op.write.length, 0
        op.last_offset = self._base + end + self._content
        return Operation(op, payload)

    def writes(self) -> Iterator[BegunWrite]:
        """Iterate what comes next, as long as that's writes.

        Hot: `next()` returns the same in pieces. It also returns what follows the last of these
        writes: the rest of its content, or another operation.
        """
        if self._content or self._more:
            return
        buffer, base, begin = self._buffer, self._base, self._position
        limit, max_payload_bytes = len(buffer), self._max_payload_bytes
        unpack = _WORD_AND_SIZE.unpack_from
        view = memoryview(buffer)
        while limit - begin >= _HEADER:
            word, size = unpack(buffer, begin)
            content_begin = begin + _HEADER + size
            if word != _WORD or size > max_payload_bytes or content_begin > limit:
                return
            payload = buffer[begin + _HEADER : content_begin]
            decoded = decode_write(payload)
            if decoded is None:
                return
            op, write = decoded
            end = content_begin + write.length
            if end <= limit:
                self._position = end
            else:
                self._position = limit
                self._content, self._content_done = end - limit, limit - content_begin
            content = view[content_begin:end]
            yield op, payload, write, content, base + begin, base + end
            begin = end

    def end(self, *, is_append_boundary: bool = False) -> Junk | None:
        """Return what is left at the end of the log, if that's junk.

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
            if not self._content and is_append_boundary and begins_none:
                return self._pass_over(len(self._buffer))
            what = "content of a write" if self._content else "an operation"
            raise RecoveryError(f"{self._log} ends at {self._fed} within {what}")
        return None

    def _next_content(self) -> Content | None:
        begin = self._position
        end = min(len(self._buffer), begin + self._content)
        if begin == end:
            return None
        piece = Content(self._buffer[begin:end], self._content_done)
        self._position = end
        self._content -= end - begin
        self._content_done += end - begin
        return piece

    def _next_junk(self, searched: int) -> Junk | None:
        """Pass over bytes up to the next word at or after `searched`, or to where it may begin."""
        end = self._buffer.find(_WORD, searched)
        if end < 0:
            # A word may begin with the last bytes of what is there.
            end = len(self._buffer) - len(_WORD) + 1
        return self._pass_over(end) if end > self._position else None

    def _pass_over(self, end: int) -> Junk:
        junk = Junk(self.offset, self._base + end)
        self._position = end
        return junk

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
