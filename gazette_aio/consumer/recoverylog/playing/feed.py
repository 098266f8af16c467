"""Content of recovery logs, read ahead of its playback."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.closing import Closing
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.retry import backoff
from gazette_aio.consumer.recoverylog.playing.ranges import LogRange
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES

if TYPE_CHECKING:
    from gazette_aio.client import JournalClient

_logger = logging.getLogger(__name__)

FEED_BYTES: Final = 4 << 20
"""Content of a feed that is in memory, beside a chunk of the client."""


class LogFeed(Owner):
    """Content of a log from an offset on, which a task of its own reads ahead.

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
        self.write_head: int = 0
        """End of the log, as far as brokers told."""
        self._client = client
        self._end = part.end
        self._wake = wake
        self._room = asyncio.Event()
        self._chunks: deque[bytes] = deque()
        self._read_offset = part.begin
        self._ending: Exception | None = None
        self._has_ended = False
        self._task = OwnedTask()
        self._task.start(self._run(), f"gazette recovery log {self.log}", on_end=wake.set)

    @property
    def buffered_end(self) -> int:
        """Offset up to which content was received."""
        return self._read_offset

    @property
    def has_ended(self) -> bool:
        """Whether all content was taken that this feed will ever have."""
        return self._has_ended and not self._chunks and self._ending is None

    def reaches(self, log: str, offset: int) -> bool:
        """Return whether this feed has content at an offset, or is about to."""
        return (
            log == self.log
            and self.offset <= offset <= self._read_offset + READ_THROUGH_BYTES
            and not (self._end and offset >= self._end)
        )

    def take(self, begin: int, end: int | None) -> list[bytes]:
        """Return content that was received, of any length.

        Args:
            begin: Offset before which content is dropped.
            end: Offset at which to stop, or None.
        """
        taken: list[bytes] = []
        while self._chunks and (end is None or self.offset < end):
            chunk = self._chunks.popleft()
            if (dropped := min(len(chunk), begin - self.offset)) > 0:
                self.offset += dropped
                chunk = chunk[dropped:]
            if end is not None and self.offset + len(chunk) > end:
                self._chunks.appendleft(chunk[end - self.offset :])
                chunk = chunk[: end - self.offset]
            if chunk:
                taken.append(chunk)
                self.offset += len(chunk)
        self._room.set()
        return taken

    def take_failure(self) -> Exception | None:
        """Return the error that follows all content that was taken, if there is one.

        After an OffsetJumpError, there is content from its offset on.
        """
        if self._chunks:
            return None
        error, self._ending = self._ending, None
        if isinstance(error, pb.OffsetJumpError):
            self.offset = self._read_offset = error.offset
        self._room.set()
        return error

    async def aclose(self) -> None:
        """Stop to read. Idempotent.

        Cancellation: safe — reading ends anyway; call again to wait for that.
        """
        await self._task.aclose()
        self._chunks.clear()

    async def _run(self) -> None:
        try:
            if not await self._read(direct=True):
                await self._read(direct=False)
        except Exception as error:  # noqa: BLE001 - The player raises it.
            self._has_ended = True
            await self._put_failure(error)

    async def _read(self, *, direct: bool) -> bool:
        """Read to the end, and return whether that worked. If not, brokers may have content."""
        attempt = 0
        async with self._client.read(
            self.log,
            offset=self._read_offset,
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
                    await self._put_failure(jump)
                except pb.GazetteError as error:
                    if not direct or isinstance(error, pb.StatusError | pb.OffsetBeyondHeadError):
                        raise
                    _logger.warning("reading %s through brokers: %s", self.log, error)
                    return False
                else:
                    attempt = 0
                    self.write_head = max(self.write_head, reader.write_head)
                    await self._put(data)
        return True

    async def _put(self, data: bytes) -> None:
        self._has_ended = not data
        if data:
            self._chunks.append(data)
            self._read_offset += len(data)
        self._wake.set()
        while self._read_offset - self.offset >= FEED_BYTES:
            self._room.clear()
            await self._room.wait()

    async def _put_failure(self, error: Exception) -> None:
        self._ending = error
        self._wake.set()
        while self._is_ending():
            self._room.clear()
            await self._room.wait()

    def _is_ending(self) -> bool:
        return self._ending is not None

    def __repr__(self) -> str:
        return f"<LogFeed of {self.log!r} at {self.offset}, read to {self._read_offset}>"


class LogFeeds(Owner):
    """The feed that is played, and the one that is due after it.

    Args:
        client: Client to use.
        wake: Set when there is something to take.
    """

    def __init__(self, client: JournalClient, wake: asyncio.Event) -> None:
        self._client = client
        self._wake = wake
        self._current: LogFeed | None = None
        self._next: LogFeed | None = None
        self._stale = Closing()

    async def at(self, log: str, offset: int, ranges: list[LogRange]) -> LogFeed:
        """Return the feed that has content of a log at an offset.

        Args:
            log: The log.
            offset: The offset.
            ranges: What is to be read from here on. The second of them is fetched ahead.

        Cancellation: safe — close the feeds.
        """
        feed = self._current
        if feed is not None and not feed.has_ended and feed.reaches(log, offset):
            return feed
        following, self._next = self._next, None
        self._drop(feed)
        if following is not None and following.reaches(log, offset):
            feed = following
        else:
            self._drop(following)
            end = ranges[0].end
            part = LogRange(log, offset, end if end > offset else 0)
            feed = LogFeed(self._client, part, self._wake)
        # Invariant: each feed is held until it's closed, also if this call is cancelled.
        self._current = feed
        await self._stale.aclose()
        if len(ranges) > 1:
            self._next = LogFeed(self._client, ranges[1], self._wake)
        return feed

    def restart(self) -> None:
        """Have `at()` read from the very offset that is due, rather than through what is before."""
        self._drop(self._current)
        self._current = None

    @property
    def current(self) -> LogFeed | None:
        """The feed that is played, or None before the first."""
        return self._current

    async def aclose(self) -> None:
        """Close all feeds. Idempotent.

        Cancellation: safe — reading ends anyway; call again to wait for that.
        """
        self.restart()
        self._drop(self._next)
        self._next = None
        await self._stale.aclose()

    def _drop(self, feed: LogFeed | None) -> None:
        if feed is not None:
            self._stale.add(feed)
