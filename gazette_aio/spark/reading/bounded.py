"""Reads of exact ranges of a journal.

A journal may have holes: content which was removed, or whose fragment isn't in its store yet.
Brokers skip content before the first fragment, and old holes. At other holes a read ends as it does
at the write head. The reader of a range which existed must distinguish these cases.
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
from gazette_aio.client import RetryReader, iter_fragments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from gazette_aio.client import JournalClient
    from gazette_aio.client.retry import Failure

_logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

FETCH_TIMEOUT: Final = 120.0
"""Seconds to wait for missing content: longer than brokers take to list a store."""

PROBES_AT_ONCE: Final = 32
"""Greatest number of concurrent probes."""

_OLD_SECONDS: Final = 6 * 3600.0
"""Age of a fragment from which brokers assume that all fragments before it are listed or gone."""

STALL_SECONDS: Final = 10.0

_NO_FILE: Final = "no such file or directory"
"""Text of brokers for a missing file of a `file` store, which is the error of open()."""


class BoundedReader(Owner):
    """Reads every byte of `[begin, end)` of a journal, once and in order.

    The object is an async iterator of (offset, non-empty bytes). Iteration ends after every byte
    was returned, except the `gaps`. Committed content which seems missing is awaited up to the
    time-out. It's lost if it's still missing then, if the broker skipped it before an old fragment,
    if its file is gone, or if the journal no longer exists. After an error, further calls raise the
    error again.

    Args:
        client: Client to use, which retries failures and renews expired URLs.
        journal: Name of the journal.
        begin: Offset of the first byte.
        end: Offset after the last byte, which must be committed.
        direct: Whether to fetch the files of persisted fragments from their store. Other fragments,
            and files which the client can't fetch, are read through a broker.
        on_missing_file: Called once if a file of a local `file` store isn't found or readable. The
            rest is then read through a broker. Without it, such a file is lost as in other stores.
        fetch_timeout: Seconds without progress after which missing content is lost, or a failure
            is raised.
        fail_on_data_loss: Whether lost content is an error. Otherwise reading continues with the
            next fragment.
        on_gap: Called with begin and end of each skipped gap.

    Raises:
        ValidationError: The range or the name of the journal is invalid.
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
        """Name of the journal."""
        self.end = end
        """Offset after the last byte."""
        self._offset = begin
        self._timeout = fetch_timeout
        self._fails = fail_on_data_loss
        self._on_gap = on_gap
        self._gaps: list[tuple[int, int]] = []
        self._on_missing_file = on_missing_file if direct else None
        self._policy = client.retry_policy.within(fetch_timeout)
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
        """Return False for a missing local file, which isn't retried."""
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
        """Offset of the next byte."""
        return self._offset

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Lost and skipped ranges, as (begin, end) pairs."""
        return tuple(self._gaps)

    @property
    def is_direct(self) -> bool:
        """Whether files are fetched from their store; false after the client turned out unable."""
        return self._reader.is_direct

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        """Return the offset and the next bytes.

        Raises:
            DataLossError: Content is lost; `missing` has its range.
            TransportError: Reading failed or made no progress until the time-out.
            GazetteError: As `RetryReader.read()`.
            RuntimeError: The reader is closed.

        Cancellation: safe.
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
        """Return content at the current offset, or nothing after a hole was handled."""
        await self._reader.seek(self._offset)
        try:
            data = await self._read()
        except pb.OffsetJumpError as jump:
            await self._skip(jump.offset)
        except pb.OffsetNotYetAvailableError as error:
            head = error.response.write_head
            if not await self._waits():
                begin = await self._next_begin()
                where = "after" if head < self.end else "before"
                self._lose(begin, f"it doesn't appear, {where} the write head {head}")
        except (pb.JournalNotFoundError, pb.SuspendedError) as error:
            self._lose(self.end, str(error))
        except pb.TransportError as error:
            if self._is_missing_here(error):
                self._turn_to_broker()
            elif error.http_status == 404 or (
                error.code == "UNKNOWN" and _NO_FILE in error.details
            ):
                # The policy retried until the time-out.
                self._lose(await self._next_begin(), f"its file is gone: {error}")
            else:
                raise
        else:
            # Invariant: the content begins at the expected offset.
            begin = self._reader.offset - len(data)
            if begin == self._offset and data:
                self._attempt, self._deadline = 0, None
                return data
            await self._skip(begin)
        return b""

    def _turn_to_broker(self) -> None:
        """Read the rest through a broker."""
        told = self._on_missing_file
        assert told is not None
        self._on_missing_file = None
        self._reader = self._reader_of(direct=False)  # The previous reader has closed its RPC.
        told()

    async def _skip(self, begin: int) -> None:
        """Treat content which the broker skipped as lost, unless it may appear soon."""
        # Race: a broker which took over the journal may have persisted a fragment before it lists
        # the last fragment of the previous broker, and skips to the first fragment it knows.
        if is_old(self._reader.response.fragment) or not await self._waits():
            self._lose(begin, "the broker skipped it")

    async def _read(self) -> bytes:
        try:
            # Retries of failures end before this time-out.
            async with asyncio.timeout(2 * self._timeout + STALL_SECONDS):
                return await self._reader.read()
        except TimeoutError:
            text = f"no content of journal {self.journal} at {self._offset}"
            raise pb.TransportError(
                "DEADLINE_EXCEEDED", text, journal=self.journal, retryable=True
            ) from None

    async def _waits(self) -> bool:
        """Wait until the next attempt; return False if no time is left."""
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
        """Return the begin of the next fragment, or the end of the range."""
        try:
            async with aclosing(iter_fragments(self._client, self.journal)) as listed:
                begins = [fragment.spec.begin async for fragment in listed]
        except pb.GazetteError as error:
            if not self._fails:
                raise
            # Without a listing, the whole rest counts as missing.
            _logger.debug("listing fragments of %s: %s", self.journal, str(error))
            begins = []
        return min((begin for begin in begins if begin > self._offset), default=self.end)

    def _lose(self, end: int, why: str) -> None:
        """Record or raise the loss of content up to `end`."""
        begin, end = self._offset, min(end, self.end)
        assert begin < end, f"{self!r} got content at {end}"
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
        """End the current RPC. Idempotent.

        Cancellation: safe — closing continues; call again to await it.
        """
        await self._reader.aclose()

    def __repr__(self) -> str:
        return f"<BoundedReader of {self.journal!r} at {self._offset} of {self.end}>"


def is_old(fragment: pb.Fragment) -> bool:
    """Return whether a fragment is so old that missing content before it has expired."""
    return 0 < fragment.mod_time < time.time() - _OLD_SECONDS


async def map_bounded(
    function: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int = PROBES_AT_ONCE
) -> list[R]:
    """Call a function for each item with bounded concurrency, and return the results in order.

    Args:
        function: The function.
        items: Arguments of the calls.
        limit: Greatest number of concurrent calls.

    Raises:
        Exception: First exception of a call. The other calls are cancelled.

    Cancellation: aborts — calls are cancelled.
    """
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
