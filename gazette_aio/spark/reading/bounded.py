"""Reads of exact ranges of a journal, and the probes which they're planned by.

A journal may have holes: content which was removed, or whose fragment isn't in its store yet.
Brokers skip what's before the first fragment, and holes which are old. At others a read ends as it
does at the write head. Who reads a range which was known to be there must tell these apart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Self, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.client import Reader, RetryReader, iter_fragments
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.retry import Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from gazette_aio.client import JournalClient, RetryPolicy
    from gazette_aio.client.retry import Failure

_logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

FETCH_TIMEOUT: Final = 120.0
"""Seconds for which missing content is waited for: longer than brokers take to list a store."""

PROBE_SECONDS: Final = 30.0
"""Seconds after which a probe which keeps failing is given up."""

PROBES_AT_ONCE: Final = 32
"""Journals which are probed at the same time."""

_OLD_SECONDS: Final = 6 * 3600.0
"""Age as of which brokers take the fragments before one to be known, or else gone."""

_STALL_SECONDS: Final = 10.0

_NO_FILE: Final = "no such file or directory"
"""What brokers say of a fragment whose file isn't in a `file` store, as its open() does."""

_ANSWERS: Final = (pb.Status.OK, pb.Status.OFFSET_NOT_YET_AVAILABLE)


class BoundedReader(Owner):
    """Reads `[begin, end)` of a journal: every byte of it, once and in order.

    It's an async iterator of (offset, non-empty bytes). Without an error, its end means that every
    byte was returned, but for the `gaps`. What was committed before is waited for, up to the
    time-out, if it seems not to be there yet. It's lost if it's still missing then, if the broker
    skipped it for an old fragment, if its file is gone, or if there is no such journal any longer.
    After an error it stays in error.

    Args:
        client: Client to use, which re-reads what fails, and asks anew for URLs which expired.
        journal: Name of the journal.
        begin: Offset of the first byte.
        end: Offset behind the last byte, which is committed.
        direct: Whether to fetch the files of persisted fragments from their store. What the client
            can't fetch, and fragments which aren't persisted, still come through a broker.
        on_missing_file: Called once if a file isn't found, or may not be read, where `file` URLs
            are of a directory of this machine: all of the rest then comes through a broker, which
            knows better. Without it, that's as with files of other stores.
        fetch_timeout: Seconds without progress after which missing content is lost, or a failure
            is raised.
        fail_on_data_loss: Whether lost content is an error. Otherwise the read goes on with the
            next fragment.
        on_gap: Called with begin and end of each gap of the range which is skipped.

    Raises:
        ValidationError: The range isn't one, or the journal has no valid name.
    """

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        begin: int,
        end: int,
        *,
        direct: bool = True,
        on_missing_file: Callable[[], object] | None = None,
        fetch_timeout: float = FETCH_TIMEOUT,
        fail_on_data_loss: bool = True,
        on_gap: Callable[[int, int], None] | None = None,
    ) -> None:
        if not 0 <= begin <= end:
            raise pb.ValidationError(f"invalid range of journal {journal}: [{begin}, {end})")
        self._client = client
        self.journal = journal
        """The journal read."""
        self.end = end
        """Offset behind the last byte."""
        self._offset = begin
        self._timeout = fetch_timeout
        self._fails = fail_on_data_loss
        self._on_gap = on_gap
        self._gaps: list[tuple[int, int]] = []
        self._on_missing_file = on_missing_file if direct else None
        self._policy = _within(client.retry_policy, fetch_timeout)
        self._attempt = 0
        self._deadline: float | None = None
        self._error: pb.GazetteError | None = None
        self._reader = self._reader_of(direct=direct)

    def _reader_of(self, *, direct: bool) -> RetryReader:
        policy = self._policy
        if self._on_missing_file is not None:
            policy = dataclasses.replace(policy, on_error=self._retries)
        request = pb.ReadRequest(journal=self.journal, offset=self._offset, end_offset=self.end)
        return RetryReader(self._client, request, retry_policy=policy, direct=direct)

    def _retries(self, failure: Failure) -> bool | None:
        """Return False for a file which isn't found here: there's no use in looking again."""
        if self._is_missing_here(failure.error):
            return False
        on_error = self._policy.on_error
        return None if on_error is None else on_error(failure)

    def _is_missing_here(self, error: pb.GazetteError | None) -> bool:
        return (
            self._on_missing_file is not None
            and isinstance(error, pb.TransportError)
            and error.http_status in (403, 404)
            and self._reader.response.fragment_url.startswith("file:")
        )

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned."""
        return self._offset

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Ranges which were lost and skipped, as (begin, end) pairs."""
        return tuple(self._gaps)

    @property
    def is_direct(self) -> bool:
        """Whether files are fetched from their store; not so once the client turned out unable."""
        return self._reader.is_direct

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        """Return the next bytes and their offset.

        Cancellation: safe.

        Raises:
            DataLossError: Content is lost, which `missing` tells the range of.
            TransportError: It kept failing for as long as the time-out, or nothing came for longer.
            GazetteError: As `RetryReader.read()`.
            RuntimeError: The reader is closed.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            while self._offset < self.end:
                if data := await self._next():
                    begin = self._offset
                    self._offset += len(data)
                    return begin, data
        except pb.GazetteError as error:
            self._error = error
            raise
        raise StopAsyncIteration

    async def _next(self) -> bytes:
        """Return content at the present offset, or nothing if there's none, which was seen to."""
        await self._reader.seek(self._offset)
        try:
            data = await self._read()
        except pb.OffsetJumpError as jump:
            await self._skip(jump.offset)
        except pb.OffsetNotYetAvailableError as error:
            head = error.response.write_head
            if not await self._waits():
                begin = await self._next_begin()
                where = "behind" if head < self.end else "in spite of"
                self._lose(begin, f"it doesn't appear, {where} the write head {head}")
        except (pb.JournalNotFoundError, pb.SuspendedError) as error:
            self._lose(self.end, str(error))
        except pb.TransportError as error:
            if self._is_missing_here(error):
                self._turn_to_broker()
            elif error.http_status == 404 or (
                error.code == "UNKNOWN" and _NO_FILE in error.details
            ):
                # The policy had it tried for as long as the time-out.
                self._lose(await self._next_begin(), f"its file is gone: {error}")
            else:
                raise
        else:
            # Invariant: content is of the very offset which is due.
            begin = self._reader.offset - len(data)
            if begin == self._offset and data:
                self._attempt, self._deadline = 0, None
                return data
            await self._skip(begin)
        return b""

    def _turn_to_broker(self) -> None:
        """Have all of the rest come through a broker."""
        told = self._on_missing_file
        assert told is not None
        self._on_missing_file = None
        self._reader = self._reader_of(direct=False)  # The one before has closed its RPC.
        told()

    async def _skip(self, begin: int) -> None:
        """Lose what the broker skipped, unless it may be about to appear."""
        # Race: a broker which took the journal over may have persisted a fragment before it knows
        # of the last one of the broker before, and skips to the first one which it knows of.
        if is_old(self._reader.response.fragment) or not await self._waits():
            self._lose(begin, "the broker skipped it")

    async def _read(self) -> bytes:
        try:
            # What fails time and again is to be raised before.
            async with asyncio.timeout(2 * self._timeout + _STALL_SECONDS):
                return await self._reader.read()
        except TimeoutError:
            text = f"nothing comes of journal {self.journal} at {self._offset}"
            raise pb.TransportError(
                "DEADLINE_EXCEEDED", text, journal=self.journal, retryable=True
            ) from None

    async def _waits(self) -> bool:
        """Wait until it's time to try again, unless there's no time left."""
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._timeout
        if now >= self._deadline:
            return False
        delay = self._policy.backoff(self._attempt)
        self._attempt += 1
        await asyncio.sleep(min(delay, self._deadline - now))
        return True

    async def _next_begin(self) -> int:
        """Return where the next fragment begins, or the end of the range."""
        try:
            async with aclosing(iter_fragments(self._client, self.journal)) as listed:
                begins = [fragment.spec.begin async for fragment in listed]
        except pb.GazetteError as error:
            if not self._fails:
                raise
            # All of the rest is missing then, for as much as can be told.
            _logger.debug("listing fragments of %s: %s", self.journal, str(error))
            begins = []
        return min((begin for begin in begins if begin > self._offset), default=self.end)

    def _lose(self, end: int, why: str) -> None:
        """Skip up to `end`, or raise."""
        begin, end = self._offset, min(end, self.end)
        assert begin < end, f"{self!r} was given content of {end}"
        text = f"lost [{begin}, {end}) of journal {self.journal}: {why}"
        if self._fails:
            raise pb.DataLossError(
                text, journal=self.journal, offset=begin, missing=((begin, end),)
            ) from None
        self._gaps.append((begin, end))
        self._offset = end
        self._attempt, self._deadline = 0, None
        _logger.warning("%s", text, extra={"journal": self.journal, "begin": begin, "end": end})
        if self._on_gap is not None:
            self._on_gap(begin, end)

    async def aclose(self) -> None:
        """End the present RPC. Idempotent.

        Cancellation: safe — it ends anyway; call again to wait for that.
        """
        await self._reader.aclose()

    def __repr__(self) -> str:
        return f"<BoundedReader of {self.journal!r} at {self._offset} of {self.end}>"


def is_old(fragment: pb.Fragment) -> bool:
    """Whether a fragment was persisted so long ago that what isn't there before it has expired."""
    return 0 < fragment.mod_time < time.time() - _OLD_SECONDS


async def head_of(client: JournalClient, journal: str, seconds: float = PROBE_SECONDS) -> int:
    """Return the write head of a journal, as a broker of it has it.

    It costs one RPC without content. Appends which were acknowledged to others an instant ago may
    not have come to that broker's notice.

    Args:
        client: Client to use.
        journal: Name of the journal.
        seconds: Seconds after which a failure isn't retried, and an answer not waited for.

    Cancellation: safe.

    Raises:
        BrokerStatusError: The broker refused.
        TransportError: The RPC failed, or no broker answers.
    """
    request = pb.ReadRequest(journal=journal, offset=-1, metadata_only=True)
    attempts = Attempts(Operation.READ, _within(client.retry_policy, seconds), request)
    while True:
        # That no broker answers in time isn't retried: it has been.
        await client.context.dispatcher.ready()
        failure: pb.GazetteError | None = None
        async with Reader(client, request, on_offset_jump="skip") as reader:
            try:
                async with asyncio.timeout(seconds):
                    response = await reader.next_response()
                    if response is not None and response.status in _ANSWERS:
                        return response.write_head
                    await reader.next_response()  # Raises what the status stands for.
            except TimeoutError:
                text = f"no answer of a broker to a probe of journal {journal}"
                failure = pb.TransportError("DEADLINE_EXCEEDED", text, journal=journal)
            except pb.GazetteError as error:
                failure = error
        await attempts.pause(failure)


async def map_bounded(
    function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int = PROBES_AT_ONCE
) -> list[R]:
    """Call a function for each item, for some at the same time, and return the results in order.

    Args:
        function: The function, such as one which probes a journal.
        items: What to call it with.
        limit: Most calls, and so tasks, at a time.

    Cancellation: aborts — calls which are under way are cancelled.

    Raises:
        ConfigurationError: The limit isn't one or more.
        Exception: What a call raised first. The others are cancelled.
    """
    if limit < 1:
        raise pb.ConfigurationError(f"the limit of calls must be one or more, not {limit}")
    listed = list(items)
    results: dict[int, R] = {}
    todo = iter(enumerate(listed))

    async def work() -> None:
        for number, item in todo:
            results[number] = await function(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(limit, len(listed))):
                tasks.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [results[number] for number in range(len(listed))]


def _within(policy: RetryPolicy, seconds: float) -> RetryPolicy:
    """Return a policy which gives up after so many seconds, if not before."""
    elapsed = seconds if policy.max_elapsed is None else min(policy.max_elapsed, seconds)
    # With no time at all, not even the end of a stream would be followed by another.
    return dataclasses.replace(policy, max_elapsed=max(elapsed, 0.001))
