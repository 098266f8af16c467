"""Recovery by playing the log of a shard into a directory of its own."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.listing.calls import get_journal, outlasted
from gazette_aio.consumer.api import pick_first_hints
from gazette_aio.consumer.recoverylog.hints import shrink_hints
from gazette_aio.consumer.recoverylog.playing.player import Player
from gazette_aio.consumer.recoverylog.recording.recorder import HINTS_BYTES, Recorder
from gazette_aio.consumer.transactions.explain import explaining
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.consumer.application import Shard
    from gazette_aio.consumer.recoverylog import Author, PlaybackProgress
    from gazette_aio.consumer.recoverylog.playing.player import Resolved
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.protocol.recoverylog import FSMHints

_logger = logging.getLogger(__name__)

_MAX_PREFIX: Final = 200
"""Bytes of an ID beyond which it's cut in names of directories, which have 255 at most."""


class LogRecovery:
    """Plays the recovery log of a shard, from the hints that are stored for it.

    Args:
        shard: The shard.
        service: The member.
        log: Recovery log of the shard, which later changes of its spec don't change.
    """

    def __init__(self, shard: Shard, service: Service, log: str) -> None:
        self.log = log
        """Recovery log of the shard."""
        self.hints: pc.GetHintsResponse | None = None
        """Hints that were fetched for the recovery, once they are."""
        # The replica refers to its recovery: both would wait for a collection of garbage.
        self._shard: Shard = weakref.proxy(shard)
        self._service = service
        self._player = Player(on_progress=self._count)
        self._counted_bytes = 0
        self._directory = ""
        self._recorder: Recorder | None = None
        self._is_cancelled = False

    def __repr__(self) -> str:
        return f"<LogRecovery of {self.log} by {self._player!r}>"

    async def play(self, on_tailing: Callable[[], None]) -> None:
        """Recover the files, then follow the log until `complete()` takes it over.

        Raises:
            GazetteError: There are no usable hints, or the log can't be played.

        Cancellation: aborts — raised after the files are closed.
        """
        with explaining("fetching hints"):
            self.hints = await self._fetch_hints()
        hints = pick_first_hints(self.hints, self.log)
        await self._check_log(hints.log)
        # Finished: the directory would remain if this was cancelled.
        await finish(self._make_directory(_prefix_of(self._shard.id)))
        _logger.info("began recovering %s into %s", self._shard.id, self._directory)
        playing = start_task(
            self._player.play(hints, self._directory, self._shard.client),
            f"player of shard {self._shard.id}",
        )
        try:
            await self._player.tailing.wait()
            if not self._player.done.done():
                _logger.info("shard %s is tailing its log", self._shard.id)
                on_tailing()
            with explaining(f"playing log {hints.log}"):
                await asyncio.shield(playing)
        finally:
            playing.cancel()
            await finish(asyncio.wait((playing,)))
            if not playing.cancelled():
                playing.exception()  # Retrieved: the caller may see a cancellation instead.

    async def complete(self, author: Author) -> tuple[Recorder, FSMHints]:
        """Take the log over; return a recorder that continues it, and hints of what was recovered.

        Raises:
            RecoveryError: The playback failed.
            GazetteError: The log can't be appended to.

        Cancellation: aborts — the log may be fenced.
        """
        self._player.inject_handoff(author)
        try:
            await self._player.done
        except Exception as error:
            raise pb.RecoveryError("the recovery log can't be played") from error
        resolved = self._player.resolved
        # The recorder modifies the history.
        hints = await in_thread(_hints_of, resolved)
        self._recorder = await Recorder.open(
            self._shard.client, self.log, resolved.fsm, author, resolved.directory
        )
        if self._is_cancelled:
            self._recorder.cancel()
        return self._recorder, hints

    def _count(self, progress: PlaybackProgress) -> None:
        if (metrics := self._service.metrics) is not None:
            metrics.recovered(progress.content_bytes - self._counted_bytes)
        self._counted_bytes = progress.content_bytes

    def cancel(self) -> None:
        """End appends of the recorder, which would hold up the end of the store."""
        self._is_cancelled = True
        if self._recorder is not None:
            self._recorder.cancel()

    async def aclose(self) -> None:
        """Close the recorder, and remove the directory. Idempotent.

        Cancellation: waits — the framework doesn't cancel it.
        """
        try:
            if self._recorder is not None:
                await self._recorder.aclose()
        finally:
            if self._directory:
                await in_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def _fetch_hints(self) -> pc.GetHintsResponse:
        """Return the hints of the shard: a user's function may know better ones."""
        request = pc.GetHintsRequest(shard=self._shard.id)
        claims = pb.Claims(pb.Capability.ALL)
        response = await self._service.shard_api.get_hints(claims, self._service, request)
        if response.status != pc.Status.OK:
            raise pb.RecoveryError(pc.Status.Name(response.status))
        return response

    async def _check_log(self, log: str) -> None:
        with explaining(f"specification of {log}"):
            try:
                client = self._shard.client
                listed = await outlasted(client, lambda: get_journal(client, log))
            except pb.JournalNotFoundError:
                raise pb.RecoveryError(f"named journal does not exist ({log})") from None
        found = pb.value_of(listed.spec.labels, pb.CONTENT_TYPE)
        if found != pb.CONTENT_TYPE_RECOVERY_LOG:
            raise pb.RecoveryError(
                f"expected label {pb.CONTENT_TYPE} value {pb.CONTENT_TYPE_RECOVERY_LOG} "
                f"(got {found})"
            )

    async def _make_directory(self, prefix: str) -> None:
        parent = self._service.options.recovery_directory
        if parent is not None:
            await in_thread(parent.mkdir, 0o777, parents=True, exist_ok=True)
        self._directory = await in_thread(tempfile.mkdtemp, "", prefix, parent)


def _prefix_of(shard: str) -> str:
    """Return the beginning of the name of a directory."""
    return shard.replace("/", "_").encode()[:_MAX_PREFIX].decode(errors="ignore") + "-"


def _hints_of(resolved: Resolved) -> FSMHints:
    """Return hints of what was recovered, short enough for the store of the group if possible."""
    hints = resolved.fsm.build_hints(resolved.log)
    shrink_hints(hints, HINTS_BYTES)
    return hints
