"""Player of a recovery log: recovers the files of a store, and may take the log over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.aio.turns import in_thread_slices
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.client.listing.calls import outlasted
from gazette_aio.client.listing.fragment_calls import iter_fragments
from gazette_aio.consumer.recoverylog.author import Author
from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
from gazette_aio.consumer.recoverylog.playing.holes import LogHole, loss_of
from gazette_aio.consumer.recoverylog.playing.playback import Playback, PlaybackError
from gazette_aio.consumer.recoverylog.playing.progress import PlaybackProgress, RateMeter
from gazette_aio.consumer.recoverylog.playing.ranges import LogRange
from gazette_aio.consumer.recoverylog.playing.reader import LogReader
from gazette_aio.consumer.recoverylog.retries import retry_passing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from gazette_aio.client import JournalClient
    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.recoverylog.fsm import FSM
    from gazette_aio.protocol.recoverylog import FSMHints

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Result of a playback."""

    log: str
    """The log, which is that of the hints."""
    fsm: FSM
    """Its history, which a Recorder continues."""
    directory: Path
    """Directory of the recovered files."""
    read_through: int
    """Offset of the log up to which it was played."""
    holes: tuple[LogHole, ...] = ()
    """Holes of the log whose loss was accepted. The files are as of the first of them."""


class Player:
    """Plays a recovery log into a directory, once.

    Playback goes on at the end of the log, and keeps files up to date, until it's told to finish or
    to take the log over.

    Args:
        wipe: Whether to remove what the directory has. Otherwise it must be empty or missing.
        accept_loss: Whether operations that a hole of the log held may be lost. If none after the
            hole continues the history, files are recovered as of the hole, which is in
            `Resolved.holes`, and a warning is logged. By default, the player refuses such a log.
            With it, the player doesn't take logs over: recoveries would refuse the log later on.
        on_progress: Called with the progress after each batch, in the event loop. An exception of
            it fails the playback.

    Example:
        player = Player()
        playing = asyncio.create_task(player.play(hints, directory, client))
        await player.tailing.wait()
        player.inject_handoff(Author.random())
        resolved = await playing
    """

    def __init__(
        self,
        *,
        wipe: bool = False,
        accept_loss: bool = False,
        on_progress: Callable[[PlaybackProgress], object] | None = None,
    ) -> None:
        self.tailing: asyncio.Event = asyncio.Event()
        """Set when the end of the log is reached for the first time, or playback has ended."""
        self.progress: PlaybackProgress = PlaybackProgress()
        """Progress of the latest batch."""
        self._wipe = wipe
        self._accept_loss = accept_loss
        self._on_progress = on_progress
        self._done = AsyncOperation()
        self._resolved: Resolved | None = None
        self._log = ""
        self._has_begun = False
        self._is_told = False
        self._author: Author | None = None
        self._wake = asyncio.Event()
        self._readers: list[LogReader] = []
        self._holes: list[LogHole] = []
        self._meter = RateMeter(time.monotonic())
        self._bytes_played = 0
        self._junk_bytes = 0
        # Of `play()`.
        self._client: JournalClient
        self._playback: Playback

    @property
    def done(self) -> OpFuture[None]:
        """End of the playback. Awaiting it raises the error of `play()`.

        If `play()` is cancelled, that is a PlaybackError.
        """
        return self._done

    @property
    def resolved(self) -> Resolved:
        """Result of the playback.

        Raises:
            UsageError: The playback hasn't succeeded yet.
        """
        if self._resolved is None:
            raise pb.UsageError(f"{self!r} has no result: await its `done` before")
        return self._resolved

    def finish_at_write_head(self) -> None:
        """Have playback end at the present end of the log, before or during `play()`.

        Raises:
            UsageError: This, or `inject_handoff()`, was called before.
        """
        self._tell(None)

    def inject_handoff(self, author: int) -> None:
        """Have playback take the log over, and end after that, before or during `play()`.

        Args:
            author: Author of what is recorded from then on, drawn at random for this call.

        Raises:
            UsageError: This, or `finish_at_write_head()`, was called before.
            ValueError: The author is out of range, or the player accepts losses. It can still be
                told to finish then.
        """
        if self._accept_loss:
            raise ValueError(
                "a player with accept_loss=True can't take the log over, as recoveries would "
                "refuse the log later on: record the recovered files in another log"
            )
        self._tell(Author(author))

    def _tell(self, author: Author | None) -> None:
        if self._is_told:
            raise pb.UsageError("inject_handoff() or finish_at_write_head() was called before")
        self._is_told, self._author = True, author
        self._wake.set()

    async def play(
        self, hints: FSMHints, directory: str | os.PathLike[str], client: JournalClient
    ) -> Resolved:
        """Play a log until an error, or until it's told to end.

        Logs are appended to, also if they are only read: that tells where they end, and resumes
        suspended ones. If playback fails, the directory is removed.

        Args:
            hints: Hints to follow.
            directory: Directory to recover files in, which is created.
            client: Client to use.

        Raises:
            ConfigurationError: The directory has files, and isn't to be wiped. It's left alone.
            ValidationError: A segment of the hints is invalid.
            RecoveryError: The log can't be played; a PlaybackError names the log and the offset.
            GazetteError: Reading failed.
            OSError: The directory can't be created.
            UsageError: The player has played before.

        Cancellation: aborts — raised after files are closed and the directory is removed.
        """
        if self._has_begun:
            raise pb.UsageError("a Player plays once")
        self._has_begun = True
        self._log, self._client = hints.log, client
        try:
            self._resolved = resolved = await self._recover(hints, _absolute(directory))
        except BaseException as error:
            self._done.resolve(error if isinstance(error, Exception) else self._cancelled())
            raise
        finally:
            self.tailing.set()
        self._done.resolve()
        return resolved

    def _cancelled(self) -> PlaybackError:
        return PlaybackError(
            f"playback of {self._log} was cancelled", log=self._log, offset=self.progress.offset
        )

    async def _recover(self, hints: FSMHints, directory: Path) -> Resolved:
        files = StagedFiles(directory)
        # In a thread, as hints may have thousands of files.
        self._playback = playback = await in_thread(
            Playback, hints, files, accept_loss=self._accept_loss
        )
        try:
            await in_thread(files.prepare, wipe=self._wipe)
            try:
                await self._run()
            finally:
                # Invariant: nothing outlives the call, however it's cancelled.
                await finish(self._close_readers())
            await in_thread(files.make_live, playback.fsm)
        except BaseException:
            await finish(in_thread(files.discard))
            raise
        return Resolved(hints.log, playback.fsm, directory, playback.offset, tuple(self._holes))

    async def _run(self) -> None:
        """Play to the end that the player is told of."""
        playback = self._playback
        was_told = self._is_told
        playback.begin({log: await self._head_of(log) for log in playback.logs})
        goal = playback.last_head if was_told else None
        has_injected = False
        while True:
            self._wake.clear()
            if self._is_told and goal is None:
                goal = await self._goal()
            if not self.tailing.is_set() and playback.has_reached(playback.last_head):
                self._check_history()
                self._report(0)
                self.tailing.set()
            if goal is None or not playback.has_reached(goal):
                await self._advance(goal)
                continue
            self._check_history()
            # Race: an injected operation may be appended twice, and others' between the two. The
            # log is taken over if nothing was applied since, up to the end of the latest attempt.
            author = self._author
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
            self._holes.append(hole)
            extra = {"journal": hole.log, "offset": hole.begin}
            _logger.warning("%s, which is accepted", loss_of([hole]), extra=extra)

    async def _goal(self) -> int:
        """Return the offset to reach before playback ends, or before the log is taken over."""
        playback = self._playback
        if self._author is None:
            playback.extend(await self._head_of(playback.hints_log))
            return playback.last_head
        # What was received is played first: otherwise it would be sure to precede the handoff.
        if self._readers and self._readers[0].log == playback.hints_log:
            return max(playback.last_head, self._readers[0].received_end)
        return playback.last_head

    async def _advance(self, goal: int | None) -> None:
        """Play what was received, or wait for more, or for the player to be told."""
        playback = self._playback
        playback.check_hints()
        reader = await self._reader_due()
        is_last = playback.log == playback.hints_log and playback.fsm.hinted_segment is None
        begin = reader.offset
        try:
            chunks = reader.take(goal if is_last else None)
        except pb.OffsetJumpError as jump:
            if jump.offset > playback.offset:  # Otherwise, hints pass over the hole.
                self._jump(jump.offset)
            return
        if chunks:
            size = sum(map(len, chunks))
            await in_thread(_play, playback, begin, chunks)
            self._report(size)
        else:
            await self._wait(reader)

    def _jump(self, offset: int) -> None:
        playback = self._playback
        _logger.warning(
            "%s goes on at %d after a hole at %d",
            playback.log,
            offset,
            playback.offset,
            extra={"journal": playback.log, "offset": playback.offset},
        )
        playback.jump(offset)

    async def _reader_due(self) -> LogReader:
        """Return the reader of what is to be played next, while another one reads ahead of it."""
        playback, readers = self._playback, self._readers
        log, offset = playback.log, playback.offset
        while readers and not readers[0].reaches(log, offset):
            await self._close_reader()
        ranges = playback.ranges()
        if not readers:
            end = ranges[0].end
            part = LogRange(log, offset, end if end > offset else 0)
            readers.append(LogReader(self._client, part, self._wake))
        if len(readers) == 1 and len(ranges) > 1:
            readers.append(LogReader(self._client, ranges[1], self._wake))
        return readers[0]

    async def _close_reader(self) -> None:
        # Invariant: a reader is held until it's closed, also if this is cancelled.
        await self._readers[0].aclose()
        del self._readers[0]

    async def _close_readers(self) -> None:
        while self._readers:
            await self._close_reader()

    async def _wait(self, reader: LogReader) -> None:
        """Wait for content, or for the player to be told."""
        playback = self._playback
        if reader.content_end <= playback.offset < playback.head:
            # Brokers let a read wait for content that was removed up to the end of the log.
            reader.content_end = await outlasted(
                self._client, lambda: self._end_of_content(playback.log)
            )
            if playback.offset >= reader.content_end:
                playback.end_in_hole()
                # Wire: brokers let a read in the hole wait until what follows it is old.
                await self._close_reader()
                return
        await self._wake.wait()

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
        policy = retry_passing(self._client.retry_policy)
        try:
            response = await self._client.append(
                request, *content, retry_policy=policy, timeout=math.inf
            )
        except pb.GazetteError as error:
            raise PlaybackError(f"{what}: {error}", log=request.journal) from error
        return response.commit

    def _report(self, size: int) -> None:
        playback = self._playback
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
        remaining = max(playback.remaining_bytes(), self._lag())
        self.progress = PlaybackProgress(
            log=playback.log,
            offset=playback.offset,
            read_through=playback.head,
            bytes_played=self._bytes_played,
            bytes_total=self._bytes_played + remaining,
            content_bytes=playback.content_bytes,
            bytes_per_second=self._meter.count(size, time.monotonic()),
            is_tailing=self.tailing.is_set() or playback.has_reached(playback.last_head),
        )
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _lag(self) -> int:
        """Return how far brokers told that the last log has gone on."""
        playback = self._playback
        if not self._readers or not self._readers[0].log == playback.hints_log == playback.log:
            return 0
        return self._readers[0].write_head - playback.offset

    def __repr__(self) -> str:
        state = "ended" if self._done.done() else "playing" if self._has_begun else "ready"
        return f"<Player of {self._log!r} at {self.progress.offset}, {state}>"


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


def _absolute(directory: str | os.PathLike[str]) -> Path:
    return Path(directory).absolute()
