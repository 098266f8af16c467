"""Reader of a journal that continues after failures of RPCs and brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import time
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.closing import Closing
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.reads.head import look_at_head
from gazette_aio.client.reads.head_check import (
    CONFIRM_SECONDS,
    SILENT_SECONDS,
    HeadCheck,
    beyond_head,
)
from gazette_aio.client.reads.reader import JournalReader, Reader, seek_target
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
        self._policy = retry_policy or client.context.retry_policy
        self._claims = claims
        self._wants_direct = direct
        self._verify = verify
        self._deadline = client.context.deadline("read", timeout, journal=request.journal)
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self._interrupted = False
        self._looking = OwnedTask()
        self._closed = asyncio.Event()
        self._replaced = Closing()
        self._begin(request)

    def _begin(self, request: pb.ReadRequest) -> None:
        self.client.context.rpc.check_request(request)
        if request.metadata_only:
            raise pb.ConfigurationError("a RetryReader reads content, not only metadata")
        self._request = pb.ReadRequest()
        self._request.CopyFrom(request)
        wants = self._wants_direct
        self._direct = self._request.do_not_proxy if wants is None else wants
        endpoint = self.client.context.dispatcher.endpoint
        self._attempts = Attempts(Operation.READ, self._policy, self._request, endpoint)
        self._at_head_since: float | None = None
        self._renew(request.offset)

    def _renew(self, offset: int) -> None:
        """Put a new reader in place."""
        self._began = now = time.monotonic()
        self._is_working = False
        since = self._at_head_since
        is_known = since is not None and now < since + SILENT_SECONDS
        due = now + SILENT_SECONDS * random.uniform(1, 3)  # noqa: S311 - Others begin as well.
        self._head_check = None if is_known else HeadCheck(due)
        self._request.offset = offset
        self._request.do_not_proxy = self._direct
        self._reader = Reader(self.client, self._request, claims=self._claims, verify=self._verify)

    @property
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on. Its `block` may be changed."""
        self._request.offset = self.offset
        return self._request

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""
        return self._reader.offset

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response. A response with content also has the last fragment and head."""
        return self._reader.response

    @property
    def write_head(self) -> int:
        """Write head of the journal as of the latest response, or 0 before the first."""
        return self._reader.write_head

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
        self._arm()
        try:
            while limit:
                if self._reader.has_ended:
                    await self._reader.aclose()  # Ended, but its close may have been cancelled.
                    self._check_open()  # Race: another task may close the reader.
                    if self._reader.is_at_end:
                        return b""
                    self._renew(self.offset)
                error: pb.GazetteError | None = None
                try:
                    # The end is awaited as well, so that the RPC doesn't outlive the read.
                    data = self._reader.read_nowait(limit) or await self._arrival(limit)
                except pb.OffsetJumpError as jump:
                    self._attempts.succeeded()
                    if jump.requested >= 0:
                        raise
                    continue
                except pb.GazetteError as failure:
                    if self._direct and isinstance(failure, pb.ConfigurationError):
                        _logger.debug("reading %s through the broker: %s", self.journal, failure)
                        self._direct = False
                        self._reader.abandon()
                        continue
                    error = failure
                else:
                    if data:
                        self._works()
                        return data
                    if self._reader.is_at_end:
                        return b""
                if not self._closed.is_set():
                    await self._restart_after(error)
        except asyncio.CancelledError:
            self._interrupted_by_cancel()
            raise
        finally:
            self._task = None
        return b""

    def _arm(self) -> None:
        """Have reads time out later, unless the RPC is found to work."""
        seconds = self._deadline.seconds
        self._due = math.inf if seconds is None else time.monotonic() + seconds

    def _works(self) -> None:
        self._attempts.succeeded()
        self._is_working = True

    async def _arrival(self, limit: int) -> bytes:
        """Return what the reader reads, within the time-out. Check the head while it's silent."""
        reader, check = self._reader, self._head_check
        if check is None or not self._request.block or self.offset <= 0 or reader.has_answered:
            return await self._next_chunk(reader, limit)
        await self._looking.aclose()  # That of an earlier wait.
        self._looking.start(self._check_silence(reader, check), f"gazette head {self.journal}")
        try:
            return await self._next_chunk(reader, limit)
        finally:
            self._looking.cancel()

    async def _next_chunk(self, reader: Reader, limit: int) -> bytes:
        # Hot: a blocking RPC that works is waited for without a timer.
        while (pause := self._next_look()) is not None:
            timer = asyncio.timeout(pause)
            try:
                async with timer:
                    return await reader.read(limit)
            except TimeoutError:
                if not timer.expired():
                    raise
            # A blocking read waits for content, which may take any time, but not for a broker whose
            # machine alone holds the connection.
            left = self._due - time.monotonic()
            probe_seconds = max(left, _PROBE_SECONDS) if left < math.inf else None
            if self._request.block and await reader.is_served(probe_seconds):
                self._works()
            elif left <= 0:
                raise await self._timed_out()
        return await reader.read(limit)

    def _next_look(self) -> float | None:
        """Return the seconds until the RPC is looked after; None if there's no need."""
        blocks, limit = self._request.block, self._deadline.seconds
        if blocks and self._is_working:
            return None
        pauses = [LONGEST_DELAY] if blocks and self._attempts.count else []
        if limit is not None:
            left = self._due - time.monotonic()
            # Half of the time is for a probe.
            pauses.append(max(left - limit / 2 if blocks and left > limit / 2 else left, 0))
        return min(pauses, default=None)

    async def _timed_out(self) -> pb.OperationTimeoutError:
        self._attempts.reset()
        reason = await self.client.context.dispatcher.failure()
        return self._deadline.expired(reason)

    async def _check_silence(self, reader: Reader, check: HeadCheck) -> None:
        """Have the RPC fail if it's silent because its offset is beyond the write head."""
        try:
            await self._look_at_head(check, reader)
        except pb.OffsetBeyondHeadError as error:
            reader.fail(error)

    async def check_head(self) -> None:
        """Wait until the write head isn't before the next byte, or raise an error if it stays so.

        Use this at the end of a read that doesn't block, if the error says that its offset is
        beyond the write head. It returns without a result after ten seconds in which the primary
        broker can't be reached.

        Raises:
            OffsetBeyondHeadError: The primary broker has confirmed it for five seconds.

        Cancellation: safe.
        """
        now = time.monotonic()
        await self._look_at_head(HeadCheck(now), until=now + 2 * CONFIRM_SECONDS)

    async def _look_at_head(
        self, check: HeadCheck, silent: Reader | None = None, until: float = math.inf
    ) -> None:
        """Look at the write head until it decides.

        Args:
            check: What earlier looks amount to.
            silent: A reader, whose first response decides, too.
            until: Time after which there are no further looks.

        Raises:
            OffsetBeyondHeadError: The offset is beyond the write head.
        """
        while silent is None or not silent.has_answered:
            if (pause := check.due - time.monotonic()) > 0:
                await asyncio.sleep(pause)
                continue
            check.note(None, self.offset, time.monotonic())  # A look that's cancelled counts, too.
            answer: pb.ReadResponse | None = None
            if silent is None or await silent.is_served():
                answer = await look_at_head(self.client, self.journal, check.header, self._claims)
            now = time.monotonic()
            verdict = check.note(answer, self.offset, now)
            if verdict and answer is not None and not (silent and silent.has_answered):
                raise beyond_head(self.journal, self.offset, answer.write_head)
            if verdict is False or now >= until:
                return

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Continue at another offset, and return it.

        Args:
            offset: The offset, or the distance from the present one.
            whence: `os.SEEK_SET` or `os.SEEK_CUR`.

        Raises:
            ValueError: The offset is negative, beyond the end of the read, or relative to it.
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
        before = self._reader
        self._begin(request)
        self._replaced.add(before)
        self._cancelled = False
        self._closed.clear()
        await self._replaced.aclose()

    async def aclose(self) -> None:
        """End the present RPC, and a pause before the next one. Idempotent.

        Cancellation: safe — the RPC ends anyway; call again to wait for that.
        """
        self._closed.set()
        self._reader.abandon()
        await self._looking.aclose()
        await self._reader.aclose()
        await self._replaced.aclose()

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
        if 0 < (end := self._request.end_offset) < target:
            raise ValueError(f"seek to {target}, beyond the end of the read ({end})")
        reader = self._reader
        try:
            await reader.seek(target)
        except pb.SeekRequiresNewReaderError:
            pass
        except pb.GazetteError as error:
            extra = {"journal": self.journal, "offset": target}
            _logger.warning(
                "seek of journal %s begins anew: %s", self.journal, str(error), extra=extra
            )
        finally:
            # Race: `restart()` may directly follow `cancel()`, and must not be undone.
            if reader is self._reader and reader.offset != target:
                self._replaced.add(reader)
                self._renew(target)
                await self._replaced.aclose()

    async def _restart_after(self, error: pb.GazetteError | None) -> None:
        """Wait before the next RPC, or raise the error that ends the read."""
        if error is None and time.monotonic() - self._began > LONGEST_DELAY:
            self._attempts.succeeded()  # The stream lasted for a while.
        await self._reader.aclose()
        if isinstance(error, pb.OperationTimeoutError) and time.monotonic() >= self._due:
            raise error  # It's that of this read.
        self._attempts.request = self.request  # Has the present offset.
        if self._is_working:
            self._is_working = False
            self._arm()
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
        left = max(self._due - time.monotonic(), 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(delay, left)):
                await self._closed.wait()
                return
        if delay >= left:
            raise await self._timed_out()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "cancelled" if self._cancelled else "open"
        return (
            f"<RetryReader of {self.journal!r} at {self.offset}, {state}, "
            f"{self._attempts.count} failures in a row>"
        )
