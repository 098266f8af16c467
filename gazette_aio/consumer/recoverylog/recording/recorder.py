"""Recorder of the files of a directory in a recovery log."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import os
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.client.appends.journal_errors import failed_dependency
from gazette_aio.client.appends.service import DRAIN_SECONDS, AppendService, StrictAppendService
from gazette_aio.consumer.recoverylog.paths import clean_directory
from gazette_aio.consumer.recoverylog.recording import errors
from gazette_aio.consumer.recoverylog.recording.barrier import Barrier, current_caller
from gazette_aio.consumer.recoverylog.recording.encoder import PROPERTY_PATHS, LogEncoder
from gazette_aio.consumer.recoverylog.recording.hints import CommittedOffsets, committed_hints
from gazette_aio.consumer.recoverylog.recording.opening import begin_recording
from gazette_aio.consumer.recoverylog.recording.recorded_files import RecordedFiles
from gazette_aio.consumer.recoverylog.retries import retry_passing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator

    from gazette_aio.client import AsyncAppend, JournalClient
    from gazette_aio.consumer.recoverylog.author import Author
    from gazette_aio.consumer.recoverylog.fsm import FSM
    from gazette_aio.protocol.recoverylog import FSMHints

HAND_OVER_BYTES: Final = 1 << 20
"""Recorded bytes from which they're appended without a barrier."""

QUEUED_BYTES: Final = 8 << 20
"""Queued bytes from which threads wait until the event loop has appended some."""

STALL_SECONDS: Final = 1.0
"""Time without an append after which a thread goes on, as the event loop may wait for it."""

HINTS_BYTES: Final = 256 << 10
"""Length of encoded hints beyond which playback reads gaps rather than hints grow."""

_CHUNK_BYTES: Final = 1 << 20


class _Piece(NamedTuple):
    """Operations and contents that are appended at once."""

    size: int
    content: list[bytes]
    barriers: tuple[Barrier, ...]
    """Barriers that complete with the append."""
    wait_for: tuple[asyncio.Future[Any], ...]
    """Operations that have to succeed before the append."""
    is_open: bool
    """Whether the next piece belongs to the same append."""
    error: Exception | None
    """Error because of which neither this piece nor a later one is appended."""


class Recorder(RecordedFiles, Owner):
    """Recorder of the files of a directory in a recovery log.

    Call a `record_*` method after each change of a file below `directory`, in the order of the
    changes. These methods may be called from any thread, and operations are kept until a barrier,
    or until there's 1 MiB of them. All operations of one call, and of one `atomic()` block, are in
    the same append, so that playback has all of them or none. The event loop's thread never waits.
    Another thread waits for the event loop while 8 MiB are left to append; but no longer than a
    second if nothing is appended meanwhile, as the event loop may wait for that thread.

    The log is fenced by a register, which each append checks. If another process has taken over,
    pending and later barriers fail with RecorderFencedError, and further calls raise it. Likewise,
    calls raise RecorderError after an append that failed permanently, or after a call that the
    history contradicts. After `cancel()`, calls record nothing and don't raise.

    Use `open()` to make one. Closing appends what is recorded, and waits for it within a bound.
    """

    def __init__(
        self,
        encoder: LogEncoder,
        log: str,
        author: Author,
        directory: str,
        service: AppendService,
        *,
        drain_timeout: float,
    ) -> None:
        super().__init__(encoder, directory)
        self.log = log
        """Recovery log."""
        self.author = author
        """Author of the operations."""
        self.before_hints: Callable[[], Awaitable[None]] | None = None
        """Called before hints are built, so that a store can shorten what they name."""
        self._begin = encoder.offset
        self._offsets = CommittedOffsets(log, encoder.offset, encoder.fsm.next_seq_no)
        self._error: Exception | None = None
        """Why nothing is recorded any longer."""
        self._atomic_blocks: list[object] = []
        """The task, or the thread without one, of each open atomic block."""
        self._deferred: list[Barrier] = []
        """Barriers that were made within atomic blocks, and are part of their append."""
        self._deferred_for: list[asyncio.Future[Any]] = []
        """What these barriers wait for."""
        self._has_open_append = False
        self._room = threading.Condition(self._lock)
        """Notified whenever some of the queue was appended, or dropped."""
        self._queue: deque[_Piece] = deque()
        self._queued_bytes = 0
        self._is_scheduled = False
        """Whether the task that appends the queue was started, and hasn't found it empty since."""
        # All below is of the event loop's thread.
        self._service = service
        self._drain_timeout = drain_timeout
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        checks = pb.LabelSelector(include=author.fence())
        self._request = pb.AppendRequest(journal=log, check_registers=checks)
        self._task = OwnedTask()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._position = encoder.offset
        """Position after all that was taken from the queue."""
        self._held: tuple[AsyncAppend, int] | None = None
        """The append that takes further pieces, and its position."""
        self._append_error: Exception | None = None
        """Why nothing is appended any longer."""

    @classmethod
    async def open(
        cls,
        client: JournalClient,
        log: str,
        fsm: FSM,
        author: Author,
        directory: str | os.PathLike[str],
        *,
        drain_timeout: float = DRAIN_SECONDS,
    ) -> Recorder:
        """Return a recorder that continues a history.

        The log is fenced off from earlier authors, unless playback of the same log has done it.
        Appends are retried by the policy of the client, without its bounds, and unhealthy fragment
        stores are waited for.

        Args:
            client: Client of brokers.
            log: Recovery log. If it isn't the one that was played, it's a fork of that.
            fsm: History up to the head of the log, which the recorder owns from now on.
            author: Author of the operations: the one that playback has handed over to, if any.
            directory: Absolute path of the directory whose files are recorded.
            drain_timeout: Seconds for which `aclose()` waits for pending appends; 30 by default.

        Raises:
            ConfigurationError: `directory` isn't absolute and clean.
            RecoveryError: The history has remaining hints, or is fresh and the log isn't.
            GazetteError: The log can't be appended to.

        Cancellation: aborts — the log may be fenced.
        """
        path = clean_directory(directory)
        if fsm.has_remaining_hints:
            raise pb.RecoveryError(f"history of {log} has remaining hints: {fsm!r}")
        policy = dataclasses.replace(
            retry_passing(client.retry_policy),
            max_attempts=None,
            max_elapsed=None,
            # Only a new recorder can help.
            retry_check_registers=False,
        )
        service = StrictAppendService(
            client, retry_policy=policy, timeout=math.inf, drain_timeout=drain_timeout
        )
        try:
            encoder = await begin_recording(service, log, fsm, author)
        except BaseException:
            service.cancel()
            await finish(service.aclose())
            raise
        return cls(encoder, log, author, path, service, drain_timeout=drain_timeout)

    @property
    def recorded_bytes(self) -> int:
        """Length of all operations and contents recorded so far."""
        return self._encoder.offset - self._begin

    @property
    def error(self) -> Exception | None:
        """Error because of which nothing is recorded any longer, or None."""
        return self._error

    def record_create(self, path: str | os.PathLike[str]) -> int:
        """Record a file that was created, or made empty, and return its fnode.

        Raises:
            ValueError: The path isn't below the directory.
            RecorderError: It's the path of a property, or recording has failed before.
        """
        return self.record_open(path, create=True, truncate=True)

    def record_open(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        exclusive: bool = False,
        truncate: bool = False,
    ) -> int:
        """Record the opening of a file for writing, and return its fnode.

        Args:
            path: Path of the file.
            create: Whether the file may have been created.
            exclusive: Whether it must have been created.
            truncate: Whether it was made empty, which gives it another fnode.

        Raises:
            ValueError: The path isn't below the directory.
            RecorderError: It's the path of a property, `create` isn't set and the file isn't known,
                `exclusive` is set and the file is known, or recording has failed before.
        """
        recorded = self.path_of(path)
        with self._recording() as encoder:
            return encoder.open(recorded, create=create, exclusive=exclusive, truncate=truncate)

    def record_write_at(
        self, fnode: int, data: bytes | bytearray | memoryview, offset: int
    ) -> None:
        """Record a write.

        Args:
            fnode: The file.
            data: What was written.
            offset: Offset of the file at which it was written.

        Raises:
            ValueError: The offset is negative.
            RecorderError: The file has no path, or recording has failed before.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        # Not `bytes(data)`, which makes a number as many zeros.
        content = data if type(data) is bytes else bytes(memoryview(data))
        # Hot: this is `_recording()`.
        if self._queued_bytes >= QUEUED_BYTES:
            self._wait_for_room()
        with self._lock:
            if self._error is not None:
                self._check()
            encoder = self._encoder
            try:
                encoder.write(fnode, content, offset)
            except errors.RecorderError as error:
                self._poison(error)
                raise
            if encoder.pending_bytes >= HAND_OVER_BYTES:
                self._hand_over()

    def record_remove(self, path: str | os.PathLike[str]) -> None:
        """Record the removal of a path. The file dies with its last path.

        Raises:
            ValueError: The path isn't below the directory.
            RecorderError: It's the path of a property, or isn't known, or recording has failed.
        """
        recorded = self.path_of(path)
        with self._recording() as encoder:
            encoder.remove(recorded)

    def record_link(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Record a further path of a file.

        Args:
            source: Path of the file.
            target: Its further path.

        Raises:
            ValueError: A path isn't below the directory.
            RecorderError: `target` is the path of a property or is known, `source` isn't known, or
                recording has failed.
        """
        recorded_source, recorded_target = self.path_of(source), self.path_of(target)
        with self._recording() as encoder:
            encoder.link(recorded_source, recorded_target)

    def record_rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Record that a file was renamed, and has replaced a file at its new path, if any.

        A file that is renamed to the path of a property, `IDENTITY` at the root of the directory,
        becomes a property. Nothing is recorded if both are paths of the same file.

        Args:
            source: Former path of the file.
            target: Its new path.

        Raises:
            ValueError: A path isn't below the directory, or a property isn't UTF-8. After the
                latter, recording has failed.
            OSError: A property can't be read. Recording has failed then.
            RecorderError: `source` isn't known, or recording has failed.
        """
        recorded_source, recorded_target = self.path_of(source), self.path_of(target)
        content = self._property(target) if recorded_target in PROPERTY_PATHS else None
        with self._recording() as encoder:
            encoder.rename(recorded_source, recorded_target, content)

    def _property(self, path: str | os.PathLike[str]) -> str:
        """Return the content of a file that has become a property."""
        try:
            return Path(path).read_bytes().decode()
        except (OSError, UnicodeError) as error:
            self.fail(errors.RecorderError(f"property {os.fspath(path)!r} can't be read: {error}"))
            raise

    def fail(self, error: pb.StoreError) -> None:
        """Record nothing further, because of a change of files that can't be recorded.

        What isn't handed over to be appended is dropped, and so is all of an open `atomic()` block.
        Nothing changes if recording has failed before.
        """
        with self._lock:
            if self._error is None:
                self._poison(error)

    @contextlib.contextmanager
    def atomic(self) -> Generator[None]:
        """Have everything that is recorded within the block in one append.

        This includes what other threads record meanwhile. An error in the block drops nothing, as
        the files were changed; call `fail()` in the block if no part of it must be recovered.
        Barriers that are made within the block complete after it.

        Raises:
            RecorderError: Recording has failed before.
        """
        owner = current_caller()
        with self._lock:
            if self._error is not None:
                self._check()
            self._atomic_blocks.append(owner)
        try:
            yield
        finally:
            with self._lock:
                self._atomic_blocks.remove(owner)
                if self._error is not None:
                    self._drop()
                elif not self._atomic_blocks and (self._deferred or self._has_open_append):
                    self._hand_over(*self._take_deferred())
                elif self._encoder.pending_bytes >= HAND_OVER_BYTES:
                    self._hand_over()

    def barrier(self, wait_for: Collection[asyncio.Future[Any]] = ()) -> Barrier:
        """Return a future that completes when everything recorded so far is committed.

        It's made by an append, even of no bytes, so that its success also means that nobody had
        fenced off this recorder. It may be called from any thread, and awaited in the event loop,
        but not within an `atomic()` block of one's own: that raises RuntimeError.

        Args:
            wait_for: Futures of the event loop. Nothing that is recorded after this call is
                committed before all of them succeed. If one fails, the barrier and all later ones
                fail with DependencyError. If others are within an `atomic()` block, all of the
                block waits.

        Raises:
            TypeError: `wait_for` has something else than futures.
            UsageError: `wait_for` isn't empty within an `atomic()` block of one's own.
        """
        wait_for = tuple(wait_for)
        if not all(map(asyncio.isfuture, wait_for)):
            raise TypeError("wait_for: expected futures")
        barrier = Barrier()
        with self._lock:
            if self._error is not None:
                barrier.resolve(errors.later_error(self.log, self._error))
            elif self._atomic_blocks:
                if wait_for and current_caller() in self._atomic_blocks:
                    raise pb.UsageError("a barrier within atomic() can't wait for futures")
                barrier = Barrier(self._check_outside)
                self._deferred.append(barrier)
                self._deferred_for += wait_for
            else:
                if wait_for and self._encoder.pending_bytes:
                    # What is recorded already has nothing to wait for.
                    self._hand_over()
                self._hand_over((barrier,), wait_for)
        return barrier

    def when_committed(self, size: int, call: Callable[[], object]) -> None:
        """Have a function called as soon as `size` bytes, as of `recorded_bytes`, are committed.

        It's called once, in the event loop, and replaces the function of an earlier call.
        """
        self._offsets.call_at(self._begin + size, call)

    async def build_hints(self, *, budget_bytes: int = HINTS_BYTES) -> FSMHints:
        """Return hints by which playback finds the files as they are now.

        All operations that the hints name are committed then.

        Args:
            budget_bytes: Length of the encoded hints to stay within, if possible; 256 KiB by
                default.

        Raises:
            RecorderError: Recording has failed.
            RecoveryError: Playback would refuse these hints, so they must not be stored. It's so
                until something is recorded in a forked log.
            GazetteError: The log can't be appended to.

        Cancellation: safe.
        """
        if self.before_hints is not None:
            await self.before_hints()
        live = await in_thread(self.live_nodes)
        # What is recorded in between is committed, too, and the hints don't name it.
        await self.barrier()
        return await in_thread(committed_hints, self.log, live, self._offsets, budget_bytes)

    def cancel(self) -> None:
        """End all appends. Some of them may have been committed. Idempotent."""
        self._service.cancel()
        self._task.cancel()
        self._abandon()

    async def aclose(self) -> None:
        """Append what is recorded, and wait for it; cancel what's left after a time. Idempotent.

        Cancellation: poisons — pending appends are cancelled at once.
        """
        with self._lock:
            if self._error is None and self._atomic_blocks:
                # Invariant: no part of a block is committed.
                self._poison(errors.RecorderError("it was closed within an atomic block"))
            elif self._error is None:
                if self._encoder.pending_bytes:
                    self._hand_over()
                self._error = errors.RecorderError("it was closed")
        try:
            async with asyncio.timeout(self._drain_timeout):
                while self._is_scheduled:
                    await asyncio.sleep(0)  # Race: the task may be about to start.
                    await self._is_idle.wait()
                # Within the bound, which the service would begin anew.
                await self._close()
        except TimeoutError:
            self.cancel()
        except asyncio.CancelledError:
            self.cancel()
            await finish(self._close())
            raise
        await self._close()

    async def _close(self) -> None:
        await self._task.aclose()
        await self._service.aclose()

    def _check_outside(self) -> None:
        """Raise RuntimeError within an atomic block of the caller, which must end first."""
        if current_caller() in self._atomic_blocks:
            raise pb.UsageError("a barrier isn't done before the end of the atomic() block")

    @contextlib.contextmanager
    def _recording(self) -> Generator[LogEncoder]:
        if self._queued_bytes >= QUEUED_BYTES:
            self._wait_for_room()
        with self._lock:
            if self._error is not None:
                self._check()
            try:
                yield self._encoder
            except errors.RecorderError as error:
                self._poison(error)
                raise
            if self._encoder.pending_bytes >= HAND_OVER_BYTES:
                self._hand_over()

    def _poison(self, error: pb.StoreError) -> None:
        """Record nothing further: the files were changed, and the history wasn't."""
        self._error = error
        self._drop()

    def _drop(self) -> None:
        """Drop what isn't handed over, and the append of an atomic block. The lock is held."""
        assert self._error is not None
        self._encoder.take()
        if self._has_open_append or self._deferred:
            barriers, _ = self._take_deferred()
            self._hand_over(barriers, error=errors.later_error(self.log, self._error))

    def _take_deferred(self) -> tuple[tuple[Barrier, ...], tuple[asyncio.Future[Any], ...]]:
        """Return barriers of atomic blocks, and what they wait for. The lock is held."""
        barriers, wait_for = tuple(self._deferred), tuple(self._deferred_for)
        self._deferred.clear()
        self._deferred_for.clear()
        return barriers, wait_for

    def _check(self) -> None:
        """Raise the error because of which nothing is recorded, unless that's a cancellation."""
        if self._error is not None and not errors.is_cancellation(self._error):
            raise errors.later_error(self.log, self._error)

    def _wait_for_room(self) -> None:
        """Wait while much is queued, except in the thread of the event loop, which appends it.

        Call it without the lock.
        """
        if threading.get_ident() != self._loop_thread:
            with self._room:
                while self._queued_bytes >= QUEUED_BYTES and self._room.wait(STALL_SECONDS):
                    pass

    def _hand_over(
        self,
        barriers: tuple[Barrier, ...] = (),
        wait_for: tuple[asyncio.Future[Any], ...] = (),
        error: Exception | None = None,
    ) -> None:
        """Have the event loop append what is recorded, or roll back. The lock is held."""
        self._has_open_append = is_open = bool(self._atomic_blocks) and error is None
        size, content = self._encoder.pending_bytes, self._encoder.take()
        self._queue.append(_Piece(size, content, barriers, wait_for, is_open, error))
        self._queued_bytes += size
        if self._is_scheduled:
            return
        self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            self._abandon()  # The loop was closed.

    # Appends, in the event loop.

    def _start(self) -> None:
        if self._task.running:
            return  # Race: a piece was queued after a cancellation, and before this call.
        self._is_idle.clear()
        self._task.start(self._append_queued(), name="gazette recorder", on_end=self._ended)

    async def _append_queued(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    # Race: a piece that is queued from here on needs another task.
                    self._is_scheduled = False
                    break
                piece = self._queue.popleft()
            error = self._append_error or (piece.error and self._fail(piece.error))
            if error is None:
                try:
                    await self._append(piece)
                except (pb.GazetteError, OSError, RuntimeError, TypeError, ValueError) as failure:
                    error = self._fail(failure)
                except BaseException:
                    self._queue.appendleft(piece)
                    raise
            self._forget((piece,), error)
        self._is_idle.set()

    def _ended(self) -> None:
        # Race: a piece may have been queued since the task ended, which another one is to append.
        if not (self._is_idle.is_set() or self._task.running):
            self._abandon()  # It was cancelled, maybe before it began.

    def _abandon(self) -> None:
        """Fail all pieces that aren't appended, and all later ones."""
        error = self._fail(pb.TransportError("CANCELLED", "the recorder was cancelled"))
        with self._lock:
            pieces = tuple(self._queue)
            self._queue.clear()
            if not self._task.running:
                self._is_scheduled = False
        if not self._task.running:
            self._is_idle.set()
        self._forget(pieces, error)

    def _forget(self, pieces: Iterable[_Piece], error: Exception | None) -> None:
        """Make room for others in place of some pieces, whose barriers fail by an error, if any."""
        if error is not None:
            for barrier in itertools.chain.from_iterable(piece.barriers for piece in pieces):
                barrier.resolve(error)
        with self._room:
            self._queued_bytes -= sum(piece.size for piece in pieces)
            self._room.notify_all()

    async def _append(self, piece: _Piece) -> None:
        position, self._position = self._position, self._position + piece.size
        if self._held is None:
            # Invariant: appends before a block that lasts are in another batch, and don't wait for
            # its end. A dependency of its own sees to that.
            own = (finished_operation(),) if piece.is_open else ()
            append = await self._service.start_append(self._request, (*piece.wait_for, *own))
            self._held = append, position
        elif (failed := await failed_dependency(piece.wait_for)) is not None:
            raise failed
        append, position = self._held
        for chunk in _joined(piece.content):
            append.write(chunk)
            if piece.size > _CHUNK_BYTES or piece.is_open:
                await append.drain()
        if piece.is_open:
            return
        self._held = None
        append.release()
        append.operation.when_done(lambda: self._appended(append, position, piece.barriers))

    def _appended(self, append: AsyncAppend, position: int, barriers: tuple[Barrier, ...]) -> None:
        error = append.exception()
        if error is None:
            try:
                self._offsets.add(position, *append.commit_range)
            except pb.GazetteError as failure:
                error = failure
        outcome = append.response if error is None else self._fail(error)
        for barrier in barriers:
            barrier.resolve(outcome)

    def _fail(self, error: BaseException) -> Exception:
        """Note the first error of appends, and return it as it's told."""
        if self._held is not None:
            append, _ = self._held
            self._held = None
            append.roll_back(error)
        if self._append_error is None:
            assert isinstance(error, Exception), "appends fail with exceptions"
            self._append_error = errors.append_error(self.log, self.author, error)
            # Race: another thread may note an error, too. Either will do.
            self._error = self._error or self._append_error
        return self._append_error

    def __repr__(self) -> str:
        state = f"failed: {self._error}" if self._error is not None else "live"
        what = f"{self.recorded_bytes} bytes of {self.directory!r} in {self.log!r}"
        return f"<Recorder of {what}, {state}>"


def _joined(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield content in chunks of about `_CHUNK_BYTES`."""
    chunk: list[bytes] = []
    size = 0
    for part in content:
        chunk.append(part)
        size += len(part)
        if size >= _CHUNK_BYTES:
            yield b"".join(chunk)
            chunk.clear()
            size = 0
    if chunk:
        yield b"".join(chunk)
