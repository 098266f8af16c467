"""Appends of a recorder: what its threads hand over, the event loop appends in order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.appends.futures import AsyncOperation, OpFuture, finished_operation
from gazette_aio.client.appends.journal_errors import failed_dependency

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from gazette_aio.client import AppendService, AsyncAppend

QUEUED_BYTES: Final = 8 << 20
"""Queued bytes from which threads wait until the event loop has appended some."""
STALL_SECONDS: Final = 1.0
"""Time without an append after which a thread goes on, as the event loop may wait for it."""
CHUNK_BYTES: Final = 1 << 20
"""Bytes that are joined at once."""


class Barrier(OpFuture["pb.AppendResponse"]):
    """Completion of an append that commits everything that was recorded before.

    Awaiting it returns the response of the broker, whose `commit.end` was the write head, or raises
    RuntimeError within the `atomic()` block that it waits for.

    Cancellation: safe — recording goes on.
    """

    __slots__ = ("_check", "_operation", "_response")

    def __init__(self, check: Callable[[], object] | None = None) -> None:
        self._check = check
        """Raises if it would never be done while its caller waits for it."""
        self._operation = AsyncOperation()
        self._response: pb.AppendResponse | None = None

    @property
    def operation(self) -> AsyncOperation:
        """The operation that completes with the append."""
        return self._operation

    def done(self) -> bool:
        """Whether the append was committed, or has failed."""
        return self._operation.done()

    def exception(self) -> BaseException | None:
        """Return the error of the append, or None if it was committed.

        Raises:
            asyncio.InvalidStateError: The append is pending.
        """
        return self._operation.exception()

    def __await__(self) -> Generator[Any, None, pb.AppendResponse]:
        if self._check is not None and not self.done():
            self._check()
        return super().__await__()

    def _value(self) -> pb.AppendResponse:
        assert self._response is not None
        return self._response

    def complete(self, response: pb.AppendResponse) -> None:
        """Note that the append was committed. Its recorder does this."""
        self._response = response
        self._operation.resolve()

    def fail(self, error: BaseException) -> None:
        """Note that the append has failed. Its recorder does this."""
        self._operation.resolve(error)

    def __repr__(self) -> str:
        return f"<Barrier {self._operation!r}>"


class Piece(NamedTuple):
    """Recorded operations and contents, to be appended at once."""

    position: int
    """Position at which they begin."""
    size: int
    """Length of the content."""
    content: list[bytes]
    barriers: tuple[Barrier, ...] = ()
    """Barriers that complete with the append."""
    wait_for: tuple[asyncio.Future[Any], ...] = ()
    """Operations that have to succeed before the append."""
    is_open: bool = False
    """Whether the next piece belongs to the same append."""
    error: Exception | None = None
    """Error because of which neither this piece nor a later one is appended."""


class RecorderAppends(Owner):
    """Queue of pieces, and the task that appends them while there are any.

    Args:
        service: Service to append by, which is closed with this object.
        request: Request of all appends.
        on_commit: Called with the position of each committed append and the commit's begin and end.
        on_failure: Called with the first error, and returns the one to tell. Nothing is appended
            after it.
        drain_timeout: Seconds for which `aclose()` waits for the queue.
    """

    def __init__(
        self,
        service: AppendService,
        request: pb.AppendRequest,
        on_commit: Callable[[int, int, int], None],
        on_failure: Callable[[Exception], Exception],
        drain_timeout: float,
    ) -> None:
        self._service = service
        self._request = request
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._drain_timeout = drain_timeout
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        """Notified whenever some of the queue was appended, or dropped."""
        self._pieces: deque[Piece] = deque()
        self._queued_bytes = 0
        self._is_scheduled = False
        self._is_working = False
        """Whether the task was started, and hasn't found the queue empty since."""
        self._task = OwnedTask()
        self._idle = asyncio.Event()
        self._idle.set()
        self._held: tuple[AsyncAppend, int] | None = None
        """The append that takes further pieces, and its position."""
        self._error: Exception | None = None

    def wait_for_room(self) -> None:
        """Wait while much is queued, except in the thread of the event loop, which appends it.

        Call it without a lock.
        """
        if self._queued_bytes >= QUEUED_BYTES and threading.get_ident() != self._loop_thread:
            with self._room:
                while self._queued_bytes >= QUEUED_BYTES and self._room.wait(STALL_SECONDS):
                    pass

    def put(self, piece: Piece) -> None:
        """Have a piece appended after all earlier ones. Called from any thread, one at a time."""
        with self._lock:
            self._pieces.append(piece)
            self._queued_bytes += piece.size
            if self._is_scheduled:
                return
            self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            self._abandon()  # The loop was closed.

    def cancel(self) -> None:
        """End all appends. Some of them may have been committed. Idempotent."""
        self._service.cancel()
        self._task.cancel()
        self._abandon()

    async def aclose(self) -> None:
        """Wait for pending appends, and cancel those left after the time-out. Idempotent.

        Cancellation: poisons — pending appends are cancelled at once.
        """
        try:
            async with asyncio.timeout(self._drain_timeout):
                while self._is_scheduled:
                    await asyncio.sleep(0)  # Race: the task may be about to start.
                    await self._idle.wait()
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

    def _start(self) -> None:
        if self._task.running:
            return  # Race: a piece was put after a cancellation, and before this call.
        self._idle.clear()
        self._is_working = True
        self._task.start(self._work(), name="gazette recorder", on_end=self._ended)

    def _next(self) -> Piece | None:
        with self._lock:
            if self._pieces:
                return self._pieces.popleft()
            # Race: a piece that is put from here on needs another task.
            self._is_scheduled = False
        self._is_working = False
        self._idle.set()
        return None

    async def _work(self) -> None:
        while (piece := self._next()) is not None:
            error = self._error or (piece.error and self._fail(piece.error))
            if error is None:
                try:
                    await self._append(piece)
                except (pb.GazetteError, OSError, RuntimeError, TypeError, ValueError) as failure:
                    error = self._fail(failure)
                except BaseException:
                    self._pieces.appendleft(piece)
                    raise
            if error is not None:
                _fail_all(piece, error)
            self._forget(piece)

    def _ended(self) -> None:
        # Race: a piece may have been put since the task ended, which another task is to append.
        if self._is_working and not self._task.running:
            # It was cancelled, maybe before it began.
            self._is_working = False
            self._abandon()

    def _abandon(self) -> None:
        """Fail all pieces that aren't appended, and all later ones."""
        error = self._fail(pb.TransportError("CANCELLED", "the recorder was cancelled"))
        with self._lock:
            pieces = list(self._pieces)
            self._pieces.clear()
            if not self._task.running:
                self._is_scheduled = False
        if not self._task.running:
            self._idle.set()
        for piece in pieces:
            _fail_all(piece, error)
            self._forget(piece)

    def _forget(self, piece: Piece) -> None:
        with self._room:
            self._queued_bytes -= piece.size
            self._room.notify_all()

    async def _append(self, piece: Piece) -> None:
        if self._held is None:
            # Invariant: appends before a block that lasts are in another batch, and don't wait for
            # its end. A dependency of its own sees to that.
            own = (finished_operation(),) if piece.is_open else ()
            append = await self._service.start_append(self._request, (*piece.wait_for, *own))
            self._held = append, piece.position
        elif (failed := await failed_dependency(piece.wait_for)) is not None:
            raise failed
        append, position = self._held
        chunks = _joined(piece.content)
        append.write(next(chunks, b""))
        for chunk in chunks:
            await append.drain()
            append.write(chunk)
        if piece.is_open:
            await append.drain()
            return
        self._held = None
        append.release()
        append.operation.when_done(lambda: self._appended(append, position, piece.barriers))

    def _appended(self, append: AsyncAppend, position: int, barriers: tuple[Barrier, ...]) -> None:
        error = append.exception()
        if error is None:
            try:
                self._on_commit(position, *append.commit_range)
            except pb.GazetteError as failure:
                error = failure
        if error is None:
            for barrier in barriers:
                barrier.complete(append.response)
            return
        told = self._fail(error)
        for barrier in barriers:
            barrier.fail(told)

    def _fail(self, error: BaseException) -> Exception:
        """Note the first error, and return the one to tell."""
        if self._held is not None:
            append, _ = self._held
            self._held = None
            append.roll_back(error)
        if self._error is None:
            assert isinstance(error, Exception), "appends fail with exceptions"
            self._error = self._on_failure(error)
        return self._error


def _joined(content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield content in chunks of about `CHUNK_BYTES`."""
    chunk: list[bytes] = []
    size = 0
    for part in content:
        chunk.append(part)
        size += len(part)
        if size >= CHUNK_BYTES:
            yield b"".join(chunk)
            chunk.clear()
            size = 0
    if chunk:
        yield b"".join(chunk)


def _fail_all(piece: Piece, error: Exception) -> None:
    for barrier in piece.barriers:
        if not barrier.done():
            barrier.fail(error)


def current_caller() -> object:
    """Return the running task, or the thread if it's none of an event loop."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()
