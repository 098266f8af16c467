"""Player of a recovery log: recovers the files of a store, and may take the log over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_aio.aio.finish import finish
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import AsyncOperation, OpFuture
from gazette_aio.consumer.recoverylog.author import Author
from gazette_aio.consumer.recoverylog.playing.files import MAX_OPEN_FILES, StagedFiles
from gazette_aio.consumer.recoverylog.playing.playback import Playback, PlaybackError
from gazette_aio.consumer.recoverylog.playing.run import PlayerRun, PlayerState
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    import os
    from collections.abc import Callable

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.recoverylog.fsm import FSM
    from gazette_aio.consumer.recoverylog.playing.holes import LogHole
    from gazette_aio.consumer.recoverylog.playing.progress import PlaybackProgress
    from gazette_aio.protocol.recoverylog import FSMHints


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
        allow_branch: Whether a log that has content, but not the beginning of its history, may be
            played as if it were empty. What is recorded after that is ignored by players of the
            earlier history.
        accept_loss: Whether operations that a hole of the log held may be lost. If none after the
            hole continues the history, files are recovered as of the hole, which is in
            `Resolved.holes`, and a warning is logged. By default, the player refuses such a log.
            With it, the player doesn't take logs over: recoveries would refuse the log later on.
        max_open_files: Files that are open at a time.
        on_progress: Called with the progress after each batch, in the event loop. An exception of
            it fails the playback.

    Raises:
        ValueError: `max_open_files` is less than 1.

    Example:
        player = Player()
        playing = asyncio.create_task(player.play(hints, directory, client))
        await player.tailing.wait()
        player.inject_handoff(Author.random())
        resolved = await player.done
    """

    def __init__(
        self,
        *,
        wipe: bool = False,
        allow_branch: bool = False,
        accept_loss: bool = False,
        max_open_files: int = MAX_OPEN_FILES,
        on_progress: Callable[[PlaybackProgress], object] | None = None,
    ) -> None:
        if max_open_files < 1:
            raise ValueError(f"max_open_files must be at least 1, not {max_open_files}")
        self._state = PlayerState(on_progress=on_progress)
        self._done = _Done()
        self._wipe = wipe
        self._allow_branch = allow_branch
        self._accept_loss = accept_loss
        self._max_open_files = max_open_files
        self._log = ""
        self._has_begun = False

    @property
    def tailing(self) -> asyncio.Event:
        """Set when the end of the log is reached for the first time, or playback has ended."""
        return self._state.tailing

    @property
    def progress(self) -> PlaybackProgress:
        """Progress of the latest batch."""
        return self._state.progress

    @property
    def done(self) -> OpFuture[Resolved]:
        """End of the playback. Awaiting it returns the result, or raises the error of `play()`.

        If `play()` is cancelled, that is a PlaybackError.
        """
        return self._done

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
        state = self._state
        if state.is_told:
            raise UsageError("inject_handoff() or finish_at_write_head() was called before")
        state.is_told, state.author = True, author
        state.wake.set()

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
            raise UsageError("a Player plays once")
        self._has_begun = True
        self._log = hints.log
        try:
            resolved = await self._play(hints, _absolute(directory), client)
        except BaseException as error:
            failure = error if isinstance(error, Exception) else self._cancelled()
            self._done.fail(failure)
            raise
        finally:
            self.tailing.set()
        self._done.succeed(resolved)
        return resolved

    def _cancelled(self) -> PlaybackError:
        return PlaybackError(
            f"playback of {self._log} was cancelled", log=self._log, offset=self.progress.offset
        )

    async def _play(self, hints: FSMHints, directory: Path, client: JournalClient) -> Resolved:
        files = StagedFiles(directory, max_open=self._max_open_files)
        # In a thread, as hints may have thousands of files.
        playback = await in_thread(
            Playback, hints, files, allow_branch=self._allow_branch, accept_loss=self._accept_loss
        )
        run = PlayerRun(self._state, playback, client)
        try:
            await in_thread(files.prepare, wipe=self._wipe)
            try:
                await run.run()
            finally:
                # Invariant: nothing outlives the call, however it's cancelled.
                await finish(run.feeds.aclose())
            await in_thread(files.make_live, playback.fsm)
        except BaseException:
            await finish(in_thread(files.discard))
            raise
        return Resolved(hints.log, playback.fsm, directory, playback.offset, tuple(run.holes))

    def __repr__(self) -> str:
        state = "ended" if self._done.done() else "playing" if self._has_begun else "ready"
        return f"<Player of {self._log!r} at {self.progress.offset}, {state}>"


class _Done(OpFuture[Resolved]):
    """End of a playback."""

    __slots__ = ("_operation", "_resolved")

    def __init__(self) -> None:
        self._operation = AsyncOperation()
        self._resolved: Resolved | None = None

    @property
    def operation(self) -> AsyncOperation:
        return self._operation

    def succeed(self, resolved: Resolved) -> None:
        self._resolved = resolved
        self._operation.resolve()

    def fail(self, error: Exception) -> None:
        self._operation.resolve(error)

    def done(self) -> bool:
        return self._operation.done()

    def exception(self) -> BaseException | None:
        return self._operation.exception()

    def _value(self) -> Resolved:
        assert self._resolved is not None
        return self._resolved


def _absolute(directory: str | os.PathLike[str]) -> Path:
    return Path(directory).absolute()
