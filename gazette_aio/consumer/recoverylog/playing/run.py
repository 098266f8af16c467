"""Playback under way: reads logs, and carries out what the player is told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import math
import time
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.aio.turns import in_thread_slices
from gazette_aio.client.listing.calls import outlasted
from gazette_aio.client.listing.fragment_calls import iter_fragments
from gazette_aio.consumer.recoverylog.playing.feed import LogFeed, LogFeeds
from gazette_aio.consumer.recoverylog.playing.holes import loss_of
from gazette_aio.consumer.recoverylog.playing.playback import PlaybackError
from gazette_aio.consumer.recoverylog.playing.progress import PlaybackProgress, RateMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gazette_aio.client import JournalClient
    from gazette_aio.client.retry import Failure, RetryPolicy
    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.playing.holes import LogHole
    from gazette_aio.consumer.recoverylog.playing.playback import Playback

_logger = logging.getLogger(__name__)

_PASSING: Final = (pb.FragmentStoreUnhealthyError, pb.IndexHasGreaterOffsetError)


@dataclasses.dataclass(slots=True, kw_only=True)
class PlayerState:
    """State that a player shares with its callers."""

    on_progress: Callable[[PlaybackProgress], object] | None
    """Called with the progress after each batch."""
    progress: PlaybackProgress = dataclasses.field(default_factory=PlaybackProgress)
    """Progress of the latest batch."""
    is_told: bool = False
    """Whether the player was told how to end."""
    author: Author | None = None
    """Author to take the log over for, or None to only finish."""
    tailing: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set at the end of the log, or of playback."""
    wake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set when something was received, or the player was told."""


class PlayerRun:
    """A playback under way, which appends to logs and reads them.

    Args:
        state: State that the player shares with its callers.
        playback: The playback.
        client: Client to use.
    """

    def __init__(self, state: PlayerState, playback: Playback, client: JournalClient) -> None:
        self.feeds: LogFeeds = LogFeeds(client, state.wake)
        """Feeds of the logs, which the caller closes."""
        self.holes: list[LogHole] = []
        """Holes of the log whose loss is accepted."""
        self._state = state
        self._playback = playback
        self._client = client
        self._meter = RateMeter(time.monotonic())
        self._bytes_played = 0
        self._junk_bytes = 0
        self._checked: LogFeed | None = None
        self._content_end = 0
        """Offset up to which the log of the checked feed had content."""

    async def run(self) -> None:
        """Play to the end that the player is told of.

        Cancellation: aborts — close the feeds.
        """
        state, playback = self._state, self._playback
        was_told = state.is_told
        playback.begin({log: await self._head_of(log) for log in playback.logs})
        goal = playback.last_head if was_told else None
        has_injected = False
        while True:
            state.wake.clear()
            if state.is_told and goal is None:
                goal = await self._goal()
            if not state.tailing.is_set() and playback.has_reached(playback.last_head):
                self._check_history()
                self._report(0)
                state.tailing.set()
            if goal is None or not playback.has_reached(goal):
                await self._advance(goal)
                continue
            self._check_history()
            author = state.author
            # Race: an injected operation may be appended twice, and others' between the two. The
            # log is taken over if nothing was applied since, up to the end of the latest attempt.
            if author is None or (has_injected and playback.is_held_by(author)):
                return
            if playback.has_rest:
                # Wire: operations are within an append. This one goes on, or is torn.
                playback.extend(await self._head_of(playback.hints_log))
                goal = playback.last_head
                continue
            goal = await self._inject(author)
            has_injected = True

    def _check_history(self) -> None:
        for hole in self._playback.check_history():
            self.holes.append(hole)
            extra = {"journal": hole.log, "offset": hole.begin}
            _logger.warning("%s, which is accepted", loss_of([hole]), extra=extra)

    async def _goal(self) -> int:
        """Return the offset to reach before playback ends, or before the log is taken over."""
        playback, feed = self._playback, self.feeds.current
        if self._state.author is None:
            playback.extend(await self._head_of(playback.hints_log))
            return playback.last_head
        # What was received is played first: otherwise it would be sure to precede the handoff.
        received = feed.buffered_end if feed is not None and feed.log == playback.hints_log else 0
        return max(playback.last_head, received)

    async def _advance(self, goal: int | None) -> None:
        """Play what was received, or wait for more, or for the player to be told."""
        playback = self._playback
        playback.check_hints()
        feed = await self.feeds.at(playback.log, playback.offset, playback.ranges())
        is_last = playback.log == playback.hints_log and playback.fsm.hinted_segment is None
        chunks = feed.take(playback.offset, goal if is_last else None)
        if chunks:
            size = sum(map(len, chunks))
            await in_thread(_play, playback, feed.offset - size, chunks)
            self._report(size)
            return
        failure = feed.take_failure()
        if isinstance(failure, pb.OffsetJumpError):
            _logger.warning(
                "%s goes on at %d after a hole at %d",
                feed.log,
                failure.offset,
                playback.offset,
                extra={"journal": feed.log, "offset": playback.offset},
            )
            playback.jump(failure.offset)
        elif failure is not None:
            raise failure
        elif not feed.has_ended:
            await self._wait(feed)

    async def _wait(self, feed: LogFeed) -> None:
        """Wait for content, or for the player to be told."""
        playback = self._playback
        is_checked = feed is self._checked and playback.offset < self._content_end
        if playback.offset < playback.head and not is_checked:
            # Brokers let a read wait for content that was removed up to the end of the log.
            self._checked = feed
            self._content_end = await outlasted(
                self._client, lambda: self._end_of_content(playback.log)
            )
            if playback.offset >= self._content_end:
                playback.end_in_hole()
                # Wire: brokers let a read in the hole wait until what follows it is old.
                self.feeds.restart()
                return
        await self._state.wake.wait()

    async def _end_of_content(self, log: str) -> int:
        """Return where the last fragment of a log ends that has content, or 0."""
        end = 0
        async with contextlib.aclosing(iter_fragments(self._client, log)) as fragments:
            async for each in fragments:
                if each.spec.end > each.spec.begin:
                    end = max(end, each.spec.end)
        return end

    async def _inject(self, author: Author) -> int:
        """Append an operation by which the author takes the log over, and return its end."""
        playback = self._playback
        request = pb.AppendRequest(journal=playback.hints_log, union_registers=author.fence())
        commit = await self._append("injecting no-op", request, playback.handoff(author))
        playback.extend(commit.begin, commit.end)
        return commit.end

    async def _head_of(self, log: str) -> int:
        request = pb.AppendRequest(journal=log)
        return (await self._append(f'determining head of "{log}"', request)).end

    async def _append(self, what: str, request: pb.AppendRequest, *content: bytes) -> pb.Fragment:
        policy = _patient(self._client.retry_policy)
        try:
            response = await self._client.append(
                request, *content, retry_policy=policy, timeout=math.inf
            )
        except pb.GazetteError as error:
            raise PlaybackError(f"{what}: {error}", log=request.journal) from error
        return response.commit

    def _report(self, size: int) -> None:
        state, playback = self._state, self._playback
        self._bytes_played += size
        if playback.junk_bytes > self._junk_bytes:
            passed_over = playback.junk_bytes - self._junk_bytes
            self._junk_bytes = playback.junk_bytes
            extra = {"journal": playback.log, "offset": playback.offset}
            _logger.warning(
                "%d bytes of %s before %d hold no operations, and are passed over",
                passed_over,
                playback.log,
                playback.offset,
                extra=extra,
            )
        remaining = max(playback.remaining_bytes(), self._lag(self.feeds.current))
        state.progress = PlaybackProgress(
            log=playback.log,
            offset=playback.offset,
            read_through=playback.head,
            bytes_played=self._bytes_played,
            bytes_total=self._bytes_played + remaining,
            content_bytes=playback.content_bytes,
            bytes_per_second=self._meter.count(size, time.monotonic()),
            is_tailing=state.tailing.is_set() or playback.has_reached(playback.last_head),
        )
        if state.on_progress is not None:
            state.on_progress(state.progress)

    def _lag(self, feed: LogFeed | None) -> int:
        playback = self._playback
        if feed is None or feed.log != playback.hints_log or feed.log != playback.log:
            return 0
        return feed.write_head - playback.offset


def _play(playback: Playback, begin: int, chunks: list[bytes]) -> None:
    """Play chunks in a worker thread, in slices of time."""
    slices = in_thread_slices(itertools.repeat(None))
    playback.play(begin, _drained(chunks), rest=slices.__next__)


def _drained(chunks: list[bytes]) -> Iterator[bytes]:
    """Iterate chunks, and drop each of them before the next one."""
    # Hot: memory is used again by what is read meanwhile, rather than returned to the system.
    chunks.reverse()
    while chunks:
        yield chunks.pop()


def _patient(policy: RetryPolicy) -> RetryPolicy:
    """Return a policy that also waits out what only a broker or a store can mend."""
    on_error = policy.on_error

    def decide(failure: Failure) -> Any:
        answer = on_error(failure) if on_error is not None else None
        return True if answer is None and isinstance(failure.error, _PASSING) else answer

    return dataclasses.replace(policy, on_error=decide)
