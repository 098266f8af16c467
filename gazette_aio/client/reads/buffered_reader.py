"""Buffered reader of a journal, by lines, separators and exact lengths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client.reads.reader import JournalReader, seek_target

if TYPE_CHECKING:
    from gazette_aio.client.reads.retry_reader import RetryReader

BUFFER_BYTES: Final = 1 << 20


class BufferedRetryReader(JournalReader):
    """Buffered reader of a journal that knows the exact offset of every byte.

    It's an async iterator of lines, each of which begins at `offset - len(line)`.

    No result spans a hole of the journal. If a hole cuts off a line, or the bytes wanted by
    `readexactly()` or `readuntil()`, OffsetJumpError is raised and reading continues after the
    hole: the discarded bytes began at the former `offset`, and end at `requested` of the error.
    At the write head of a read that doesn't block, and after other errors, the bytes read so far
    stay in the buffer, and reading may continue later.

    Only one task at a time may use a reader.

    Args:
        reader: Source of the bytes, which is closed with this reader.
        limit: Most bytes to buffer, and the longest line; 1 MiB by default. `readexactly()` and
            `peek()` buffer more if asked for more.

    Raises:
        ValueError: The limit isn't positive.
    """

    def __init__(self, reader: RetryReader, *, limit: int = BUFFER_BYTES) -> None:
        if limit < 1:
            raise ValueError("limit must be positive")
        self.reader = reader
        """Source of the bytes. Use it only while the buffer is empty."""
        self._limit = limit
        self._buffer = bytearray()
        # Invariant: the buffer has no hole. It ends at the offset of `reader`, or at `_hole`.
        self._hole: pb.OffsetJumpError | None = None

    @property
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte to be buffered on."""
        return self.reader.request

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the head is known."""
        end = self.reader.offset if self._hole is None else self._hole.requested
        return end - len(self._buffer)

    @property
    def buffered(self) -> int:
        """Bytes in the buffer."""
        return len(self._buffer)

    def tell(self) -> int:
        """Return `offset`."""
        return self.offset

    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, at least one but at most `limit`, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.

        Raises:
            GazetteError: As of `RetryReader.read()`.

        Cancellation: safe.
        """
        if self._buffer or not limit:
            return self._taken(len(self._buffer) if limit < 0 else limit)
        self._raise_hole()
        return await self.reader.read(limit)

    async def readexactly(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            UnexpectedEOFError: Fewer bytes are left. They stay buffered.
            GazetteError: As of `RetryReader.read()`.

        Cancellation: safe.
        """
        if count < 0:
            raise ValueError(f"count must not be negative ({count})")
        while len(self._buffer) < count:
            if not await self._fill(count):
                raise self._ended(f"{len(self._buffer)} of {count} bytes")
        return self._taken(count)

    async def readline(self) -> bytes:
        r"""Return the next line with its `\n`, which the last line may lack, or nothing at the end.

        Raises:
            FrameTooLargeError: No line ends within `limit` bytes. They stay buffered.
            GazetteError: As of `RetryReader.read()`.

        Cancellation: safe.
        """
        if (end := await self._find(b"\n")) < 0:
            end = len(self._buffer)
        return self._taken(end)

    async def readuntil(self, separator: bytes = b"\n") -> bytes:
        """Return the next bytes up to a separator, and the separator.

        Raises:
            UnexpectedEOFError: No separator is left. The bytes up to the end stay buffered.
            FrameTooLargeError: No separator is within `limit` bytes. They stay buffered.
            GazetteError: As of `RetryReader.read()`.

        Cancellation: safe.
        """
        if not separator:
            raise ValueError("separator must not be empty")
        if (end := await self._find(separator)) < 0:
            raise self._ended(f"{len(self._buffer)} bytes without separator")
        return self._taken(end)

    async def peek(self, count: int = 1) -> bytes:
        """Return the next `count` bytes without consuming them; fewer before a hole or the end.

        Raises:
            GazetteError: As of `RetryReader.read()`.

        Cancellation: safe.
        """
        if not self._buffer:
            self._raise_hole()
        while len(self._buffer) < count and self._hole is None and await self._fill(count):
            pass
        return bytes(self._buffer[:count])

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Continue at another offset, and return it.

        Buffered bytes are used if they reach up to the offset.

        Args:
            offset: The offset, or the distance from the present one.
            whence: `os.SEEK_SET` or `os.SEEK_CUR`.

        Raises:
            ValueError: The offset is negative, beyond the end of the read, or relative to it.
            asyncio.CancelledError: `cancel()` of the reader was called.
            RuntimeError: The reader is closed.

        Cancellation: safe — the offset is the new one.
        """
        target = seek_target(offset, whence, self.offset)
        if 0 <= target - self.offset <= len(self._buffer):
            del self._buffer[: target - self.offset]
        else:
            try:
                await self.reader.seek(target)
            finally:
                # A closed or cancelled reader didn't move, and loses no bytes.
                if self.reader.offset == target:
                    self._reset()
        return target

    async def restart(self, request: pb.ReadRequest) -> None:
        """Begin anew with another request, as `restart()` of the reader.

        Raises:
            ValidationError: The request is invalid.

        Cancellation: safe — the new request is in place.
        """
        try:
            await self.reader.restart(request)
        except pb.GazetteError:
            raise  # Nothing has changed.
        except BaseException:
            self._reset()
            raise
        self._reset()

    async def aclose(self) -> None:
        """Close the reader. Idempotent.

        Cancellation: safe — it ends anyway.
        """
        await self.reader.aclose()

    async def __anext__(self) -> bytes:
        if line := await self.readline():
            return line
        raise StopAsyncIteration

    async def _find(self, separator: bytes) -> int:
        """Return the length up to and including the first separator, or -1 if there is none."""
        buffer = self._buffer
        searched = 0
        # Invariant: what counts is within the limit, though more was buffered for other calls, so
        # that the pieces in which content arrives make no difference.
        while (at := buffer.find(separator, searched, self._limit)) < 0:
            # Hot: bytes that were searched already aren't searched again.
            searched = max(len(buffer) - len(separator) + 1, 0)
            if len(buffer) >= self._limit:
                begin = self.offset
                raise pb.FrameTooLargeError(
                    f"no separator within {self._limit} bytes",
                    journal=self.journal,
                    begin=begin,
                    end=begin + self._limit,
                    kind="too_large",
                )
            if not await self._fill(self._limit):
                return -1
        return at + len(separator)

    async def _fill(self, goal: int) -> bool:
        """Read more into the buffer, towards `goal` bytes; return whether more may follow."""
        self._raise_hole()
        try:
            data = await self.reader.read(max(goal, self._limit) - len(self._buffer))
        except pb.OffsetJumpError as jump:
            if not self._buffer:
                raise
            self._hole = jump
            return True
        self._buffer += data
        return bool(data)

    def _raise_hole(self) -> None:
        """Raise the error of the hole after the buffer, if any, and continue after the hole."""
        if (hole := self._hole) is not None:
            self._reset()
            raise hole.with_traceback(None)

    def _reset(self) -> None:
        self._buffer.clear()
        self._hole = None

    def _taken(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _ended(self, text: str) -> pb.UnexpectedEOFError:
        return pb.UnexpectedEOFError(
            f"unexpected EOF after {text}", journal=self.journal, offset=self.offset
        )

    def __repr__(self) -> str:
        buffered = len(self._buffer)
        return f"<BufferedRetryReader at {self.offset}, {buffered} bytes ahead, of {self.reader!r}>"
