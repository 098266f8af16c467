"""Content of a recovery log, read ahead of its playback."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.retry import backoff
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.recoverylog.playing.ranges import LogRange

_logger = logging.getLogger(__name__)

READ_AHEAD_BYTES: Final = 4 << 20
"""Content of a reader that is in memory, beside a chunk of the client."""


class LogReader:
    """Content of a part of a log, which a task of its own reads ahead.

    Files of fragments are fetched from their stores, where the stores permit it, and otherwise
    through brokers. A suspended log is waited for.

    Args:
        client: Client to use.
        part: Part of the log to read.
        wake: Set when there is something to take.
    """

    def __init__(self, client: JournalClient, part: LogRange, wake: asyncio.Event) -> None:
        self.log: str = part.log
        """The log."""
        self.offset: int = part.begin
        """Offset of the next byte to be taken."""
        self.received_end: int = part.begin
        """Offset up to which content was received."""
        self.content_end: int = 0
        """Offset up to which the log has content, as far as the player has looked that up."""
        self.write_head: int = 0
        """End of the log, as far as brokers told."""
        self._client = client
        self._end = part.end
        self._wake = wake
        self._room = asyncio.Event()
        self._received: deque[bytes | Exception] = deque()
        self._received_bytes = 0
        self._has_ended = False
        self._task = OwnedTask()
        self._task.start(self._run(), f"gazette recovery log {self.log}", on_end=wake.set)

    def reaches(self, log: str, offset: int) -> bool:
        """Return whether this reader has content at an offset, or is about to."""
        return (
            log == self.log
            and self.offset <= offset <= self.received_end + READ_THROUGH_BYTES
            and not (self._end and offset >= self._end)
            and not (self._has_ended and not self._received)
        )

    def take(self, end: int | None) -> list[bytes]:
        """Return what was received from `offset` on, of any length.

        Args:
            end: Offset at which to stop, or None.

        Raises:
            OffsetJumpError: A hole of the log is next. There is content from its offset on.
            GazetteError: Reading failed.
        """
        taken: list[bytes] = []
        received = self._received
        while received and (end is None or self.offset < end):
            chunk = received[0]
            if isinstance(chunk, Exception):
                if taken:
                    break
                received.popleft()
                if isinstance(chunk, pb.OffsetJumpError):
                    self.offset = chunk.offset
                raise chunk
            part = chunk if end is None else chunk[: end - self.offset]
            if len(part) < len(chunk):
                received[0] = chunk[len(part) :]
            else:
                received.popleft()
            taken.append(part)
            self.offset += len(part)
            self._received_bytes -= len(part)
        self._room.set()
        return taken

    async def aclose(self) -> None:
        """Stop to read. Idempotent.

        Cancellation: safe — reading ends anyway; call again to wait for that.
        """
        await self._task.aclose()
        self._received.clear()

    async def _run(self) -> None:
        try:
            if not await self._read(direct=True):
                await self._read(direct=False)
        except Exception as error:  # noqa: BLE001 - The player raises it.
            await self._put(error)

    async def _read(self, *, direct: bool) -> bool:
        """Read to the end, and return whether that worked. If not, brokers may have content."""
        attempt = 0
        async with self._client.read(
            self.log,
            offset=self.received_end,
            end_offset=self._end,
            block=True,
            direct=direct,
            timeout=math.inf,
        ) as reader:
            while not self._has_ended:
                try:
                    data = await reader.read()
                except pb.SuspendedError:
                    # Nothing comes until somebody appends.
                    await asyncio.sleep(backoff(attempt))
                    attempt += 1
                except pb.OffsetJumpError as jump:
                    self.received_end = jump.offset
                    await self._put(jump)
                except pb.GazetteError as error:
                    if not direct or isinstance(error, pb.StatusError | pb.OffsetBeyondHeadError):
                        raise
                    _logger.warning("reading %s through brokers: %s", self.log, error)
                    return False
                else:
                    attempt = 0
                    self.write_head = max(self.write_head, reader.write_head)
                    self.received_end += len(data)
                    self._has_ended = not data
                    await self._put(data)
        return True

    async def _put(self, chunk: bytes | Exception) -> None:
        if isinstance(chunk, Exception):
            self._received.append(chunk)
        elif chunk:
            self._received.append(chunk)
            self._received_bytes += len(chunk)
        self._wake.set()
        while self._received_bytes >= READ_AHEAD_BYTES:
            self._room.clear()
            await self._room.wait()

    def __repr__(self) -> str:
        return f"<LogReader of {self.log!r} at {self.offset}, read to {self.received_end}>"
