"""Reader of a journal that continues after failures of RPCs and brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.closing import Closing
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.reads.head import LOOK_LIMIT_SECONDS, look_at_head
from gazette_aio.client.reads.head_check import (
    CONFIRM_SECONDS,
    SILENT_SECONDS,
    HeadCheck,
    beyond_head,
)
from gazette_aio.client.reads.journal_reader import JournalReader
from gazette_aio.client.reads.position import ReadPosition
from gazette_aio.client.reads.reader import Reader, seek_target
from gazette_aio.client.retry import LONGEST_DELAY, Operation, RetryPolicy

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient

_logger = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 1.0
"""Least time for the answer to a probe. A broker may be busy."""


class RetryReader(JournalReader):
    """Reader of a journal that uses as many RPCs as needed.

    It's an async iterator of non-empty chunks, each of which begins at `offset - len(chunk)`. The
    iteration ends at the `end_offset` of the request. Without `block`, the reader raises
    OffsetNotYetAvailableError at the write head, and may be iterated again later. With `block`, it
    raises OffsetBeyondHeadError if the offset is beyond the write head, and the primary broker has
    confirmed that for five seconds. After a hole of the journal it raises OffsetJumpError once, and
    continues after the hole; the change of an offset of -1 to that of the head isn't a jump.
    Failures are retried according to the policy.

    A direct reader fetches content that brokers have no local file of from the files of its
    fragments. A Read RPC refers to each file when its first byte is needed. Other content comes
    from a broker, and so does everything after a file that this client has no transport for.

    Only one task at a time may use a reader, except for `cancel()`.

    Args:
        client: Client to use.
        request: Journal, offsets and options of the read. It's copied.
        retry_policy: Failures to retry; None for the policy of the client.
        claims: Claims of the RPCs; None for the least ones they need.
        direct: Whether to read directly; None for `do_not_proxy` of the request.
        verify: Whether to check the sums of fragment files that are read directly, as a whole.
        timeout: Seconds after which a read raises OperationTimeoutError if no RPC could be made to
            work meanwhile; `math.inf` for no limit, None for that of the client. Waiting for new
            content at the write head isn't limited, once the broker has answered. Reading may
            continue after the error.

    Raises:
        ValidationError: The request is invalid.
        ConfigurationError: The request is for metadata only; use a Reader. Or the timeout isn't
            positive.
    """

    def __init__(
        self,
        client: JournalClient,
        request: pb.ReadRequest,
        *,
        retry_policy: RetryPolicy | None = None,
        claims: pb.Claims | None = None,
        direct: bool | None = None,
        verify: bool = False,
        timeout: float | None = None,
    ) -> None:
        self.client = client
        """Client of the reader."""
        self._check(request)
        self._policy = retry_policy or client.context.retry_policy
        self._claims = claims
        self._wants_direct = direct
        self._verify = verify
        self._deadline = client.context.deadline("read", timeout, journal=request.journal)
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self._interrupted = False
        self._timer: asyncio.Timeout | None = None
        self._looking = OwnedTask()
        self._closed = asyncio.Event()
        self._reader: Reader | None = None
        self._dropped = Closing()
        self._begin(request)

    def _begin(self, request: pb.ReadRequest) -> None:
        self._request = pb.ReadRequest()
        self._request.CopyFrom(request)
        wants = self._wants_direct
        self._direct = self._request.do_not_proxy if wants is None else wants
        endpoint = self.client.context.dispatcher.endpoint
        self._attempts = Attempts(Operation.READ, self._policy, self._request, endpoint)
        self._is_working = False
        self._at_head_since: float | None = None
        self._head_check: HeadCheck | None = None
        self._beyond: pb.OffsetBeyondHeadError | None = None
        self._has_looked = False
        self._response = pb.ReadResponse()
        self._position = ReadPosition(request.offset, request.end_offset)
        self._reader = self._fresh_reader()

    @property
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on. Its `block` may be changed."""
        self._request.offset = self._position.offset
        return self._request

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""
        return self._position.offset

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response. A response with content also has the last fragment and head."""
        return self._response if self._reader is None else self._reader.response

    @property
    def write_head(self) -> int:
        """Write head of the journal as of the latest response, or 0 before the first."""
        reader = self._reader
        return self._response.write_head if reader is None else reader.write_head

    @property
    def reader(self) -> Reader | None:
        """Reader of the present RPC, or None between two RPCs. It must not be read from."""
        return self._reader

    @property
    def is_direct(self) -> bool:
        """Whether it reads directly. False after a file that this client has no transport for."""
        return self._direct

    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, at least one but at most `limit`, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.

        Raises:
            OffsetJumpError: A hole was skipped. Reading may continue.
            OffsetNotYetAvailableError: The request doesn't block, and the write head was reached.
            OffsetBeyondHeadError: The request blocks, and the offset is beyond the write head.
            OperationTimeoutError: No broker could be reached, or served the journal, in time.
            GazetteError: Another error that isn't retried.
            asyncio.CancelledError: `cancel()` was called.
            UsageError: The reader is closed.

        Cancellation: safe.
        """
        self._enter()
        self._waits_since = time.monotonic()
        try:
            while limit:
                self._check_open()  # Race: another task may close the reader.
                error: pb.GazetteError | None = None
                if self._reader is None:
                    self._reader = self._fresh_reader()
                try:
                    # The end is awaited as well, so that the RPC doesn't outlive the read.
                    data = self._reader.read_nowait(limit) or await self._arrival(
                        self._reader, limit
                    )
                except pb.OffsetJumpError as jump:
                    self._attempts.succeeded()
                    if jump.requested >= 0:
                        raise
                    continue
                except pb.GazetteError as failure:
                    if self._direct and isinstance(failure, pb.ConfigurationError):
                        _logger.debug("reading %s through the broker: %s", self.journal, failure)
                        self._direct = False
                        await self._drop_reader()
                        continue
                    error = failure
                else:
                    if data:
                        self._attempts.succeeded()
                        self._is_working = True
                        return data
                    if self._position.is_at_end:
                        return b""
                if not self._closed.is_set():
                    await self._restart_after(error)
        except asyncio.CancelledError:
            self._interrupted_by_cancel()
            raise
        finally:
            self._task = None
        return b""

    async def _arrival(self, reader: Reader, limit: int) -> bytes:
        """Return what the reader reads. Look after its RPC until that's known to work."""
        try:
            return await self._next_chunk(reader, limit)
        finally:
            self._looking.cancel()
            self._beyond, self._has_looked = None, False

    async def _next_chunk(self, reader: Reader, limit: int) -> bytes:
        # Hot: a blocking RPC that works is waited for without a timer.
        while (pause := self._next_look()) is not None:
            self._timer = timer = asyncio.timeout(pause)
            try:
                async with timer:
                    return await reader.read(limit)
            except TimeoutError:
                if not timer.expired():
                    raise
            finally:
                self._timer = None
            if self._goes_on_looking(reader):
                continue
            # A blocking read waits for content, which may take any time, but not for a broker whose
            # machine alone holds the connection.
            if self._request.block and await self._is_served(reader):
                self._works()
            elif self._is_overdue():
                raise await self._timed_out()
        return await reader.read(limit)

    async def _is_served(self, reader: Reader) -> bool:
        if self._deadline.seconds is None:
            return reader.is_connected
        return await reader.is_served(max(self._left(), _PROBE_SECONDS))

    def _left(self) -> float:
        """Return the seconds until the time-out, which must be limited."""
        assert self._deadline.seconds is not None
        return self._waits_since + self._deadline.seconds - time.monotonic()

    def _next_look(self) -> float | None:
        """Return the seconds until the RPC is looked after; None if there's no need."""
        blocks = self._request.block
        check = self._due_check()
        pauses = [] if check is None else [max(check.due - time.monotonic(), 0.0)]
        if not (blocks and self._is_working):
            limit = self._deadline.seconds
            if blocks and self._attempts.count:
                pauses.append(LONGEST_DELAY)
            if limit is not None:
                left = self._left()
                # Half of the time is for a probe.
                pauses.append(max(left - limit / 2 if blocks and left > limit / 2 else left, 0))
        return min(pauses, default=None)

    def _due_check(self) -> HeadCheck | None:
        """Return the check of the head that the present RPC needs, or None."""
        is_silent = self._request.block and 0 < self.offset > self.write_head
        return self._head_check if is_silent else None

    def _goes_on_looking(self, reader: Reader) -> bool:
        """Begin to look at the write head if it's time, or raise the error that looks amount to.

        Returns:
            Whether the wait for content was interrupted because of that.
        """
        beyond, self._beyond = self._beyond, None
        if beyond is not None:
            raise beyond
        check = self._due_check()
        if self._has_looked or check is None or check.due > time.monotonic():
            looked, self._has_looked = self._has_looked, False
            return looked
        # Content that arrives meanwhile doesn't wait for the broker that is asked.
        if reader.is_connected and not self._looking.running:
            check.due = time.monotonic() + LOOK_LIMIT_SECONDS
            self._looking.start(self._look_aside(check), f"gazette head {self.journal}")
        else:
            check.note(None, self.offset, time.monotonic())
        return True

    async def _look_aside(self, check: HeadCheck) -> None:
        try:
            if not await self._look_at_head(check) and check is self._head_check:
                self._head_check = None
        except pb.OffsetBeyondHeadError as error:
            self._beyond = error
        self._has_looked = True
        # Race: the time-out may have expired, but not been exited yet.
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def check_head(self) -> None:
        """Wait until the write head isn't before the next byte, or raise an error if it stays so.

        Use this at the end of a read that doesn't block, if the error says that its offset is
        beyond the write head. It returns without a result after ten seconds in which the primary
        broker can't be reached.

        Raises:
            OffsetBeyondHeadError: The primary broker has confirmed it for five seconds.

        Cancellation: safe.
        """
        began = time.monotonic()
        check = HeadCheck(began)
        while await self._look_at_head(check):
            if (now := time.monotonic()) >= began + 2 * CONFIRM_SECONDS:
                return
            await asyncio.sleep(max(check.due - now, 0))

    async def _look_at_head(self, check: HeadCheck) -> bool:
        """Look at the write head, and return whether to look again."""
        answer: pb.ReadResponse | None = None
        verdict: bool | None = None
        try:
            answer = await look_at_head(self.client, self.journal, check.header, self._claims)
        finally:
            verdict = check.note(answer, self.offset, time.monotonic())
        if verdict and answer is not None:
            raise beyond_head(self.journal, self.offset, answer.write_head)
        return verdict is None

    def _works(self) -> None:
        self._attempts.succeeded()
        self._is_working = True

    def _is_overdue(self, delay: float = 0) -> bool:
        limit = self._deadline.seconds
        return limit is not None and time.monotonic() + delay - self._waits_since >= limit

    async def _timed_out(self) -> pb.OperationTimeoutError:
        self._attempts.reset()
        reason = await self.client.context.dispatcher.failure()
        return self._deadline.expired(reason)

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Continue at another offset, and return it.

        Args:
            offset: The offset, or the distance from the present one.
            whence: `os.SEEK_SET` or `os.SEEK_CUR`.

        Raises:
            ValueError: The offset is negative, or relative to the end.
            asyncio.CancelledError: `cancel()` was called.
            UsageError: The reader is closed.

        Cancellation: safe — the offset is the new one.
        """
        target = seek_target(offset, whence, self.offset)
        self._enter()
        try:
            if target != self.offset:
                await self._move(target)
        except asyncio.CancelledError:
            self._interrupted_by_cancel()
            raise
        finally:
            self._task = None
        return target

    def cancel(self) -> None:
        """End an ongoing or the next read or seek with CancelledError, until `restart()`."""
        self._cancelled = True
        if self._task is not None and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    async def restart(self, request: pb.ReadRequest) -> None:
        """Begin anew with another request, also after `cancel()`.

        Raises:
            ValidationError: The request is invalid.

        Cancellation: safe — the new request is in place.
        """
        self._check(request)
        if self._reader is not None:
            self._dropped.add(self._reader)
        self._begin(request)
        self._cancelled = False
        self._closed.clear()
        await self._dropped.aclose()

    async def aclose(self) -> None:
        """End the present RPC, and a pause before the next one. Idempotent.

        Cancellation: safe — the RPC ends anyway; call again to wait for that.
        """
        self._closed.set()
        await self._looking.aclose()
        await self._drop_reader()

    def _check(self, request: pb.ReadRequest) -> None:
        self.client.context.rpc.check_request(request)
        if request.metadata_only:
            raise pb.ConfigurationError("a RetryReader reads content, not only metadata")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise pb.UsageError(f"{self!r} is closed")

    def _enter(self) -> None:
        self._check_open()
        if self._cancelled:
            raise asyncio.CancelledError("the reader was cancelled")
        if self._task is not None:
            raise pb.UsageError(f"two tasks use one reader, of {self.journal}")
        self._task = asyncio.current_task()

    def _interrupted_by_cancel(self) -> None:
        # Invariant: only this operation was cancelled, and not the task.
        if self._interrupted and self._task is not None:
            self._interrupted = False
            self._task.uncancel()

    async def _move(self, target: int) -> None:
        position = self._position
        try:
            if self._reader is not None:
                await self._reader.seek(target)
        except pb.SeekRequiresNewReaderError:
            pass
        except pb.GazetteError as error:
            extra = {"journal": self.journal, "offset": target}
            _logger.warning(
                "seek of journal %s begins anew: %s", self.journal, str(error), extra=extra
            )
        finally:
            # Race: `restart()` may directly follow `cancel()`, and must not be undone.
            if position is self._position and position.offset != target:
                position.offset = target
                await self._drop_reader()

    async def _restart_after(self, error: pb.GazetteError | None) -> None:
        if error is None and time.monotonic() - self._began > LONGEST_DELAY:
            self._attempts.succeeded()  # The stream lasted for a while.
        await self._drop_reader()
        if isinstance(error, pb.OperationTimeoutError) and self._is_overdue():
            raise error  # It's that of this read.
        self._attempts.request = self.request  # Has the present offset.
        if self._is_working:
            self._is_working = False
            self._waits_since = time.monotonic()
            self._deadline.note(None)
        if error is not None:
            self._deadline.note(error)
        if isinstance(error, pb.OffsetNotYetAvailableError) and not error.is_beyond_head:
            self._at_head_since = time.monotonic()
        try:
            delay = self._attempts.failed(error)
        except pb.GazetteError:
            self._attempts.reset()  # The caller may read on, which begins anew.
            raise
        is_last = self._is_overdue(delay)
        if is_last and self._deadline.seconds is not None:
            delay = max(self._left(), 0)
        if delay > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closed.wait()
                    return
        if is_last:
            raise await self._timed_out()

    def _fresh_reader(self) -> Reader:
        self._began = now = time.monotonic()
        self._is_working = False
        since = self._at_head_since
        is_known = since is not None and now < since + SILENT_SECONDS
        due = now + SILENT_SECONDS * random.uniform(1, 3)  # noqa: S311 - Others begin as well.
        self._head_check = None if is_known else HeadCheck(due)
        self._request.do_not_proxy = self._direct
        reader = Reader(self.client, self.request, claims=self._claims, verify=self._verify)
        self._position = reader.position
        return reader

    async def _drop_reader(self) -> None:
        # Invariant: a reader is referenced until it's closed, and not read from meanwhile.
        if self._reader is not None:
            self._response = self._reader.response
            self._dropped.add(self._reader)
            self._reader = None
        await self._dropped.aclose()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "cancelled" if self._cancelled else "open"
        return (
            f"<RetryReader of {self.journal!r} at {self.offset}, {state}, "
            f"{self._attempts.count} failures in a row>"
        )
