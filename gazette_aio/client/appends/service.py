"""Service that appends in the background: batched, in order, retried, with dependencies."""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import call_from_anywhere
from gazette_aio.client.appends.batch import NO_DEPENDENCIES
from gazette_aio.client.appends.content_buffer import checked_bytes
from gazette_aio.client.appends.futures import OpFuture, parked
from gazette_aio.client.appends.handle import AsyncAppend
from gazette_aio.client.appends.journal_appends import AppendSettings, JournalAppends
from gazette_aio.client.appends.journal_errors import JournalErrors
from gazette_aio.client.deadline import checked_timeout
from gazette_aio.client.status import AppendStatus
from gazette_aio.protocol.journal import encodable, require_request

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from gazette_aio.client.appends.futures import Dependencies
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.reads.retry_reader import RetryReader
    from gazette_aio.client.retry import RetryPolicy
    from gazette_aio.client.tracing import Tracing

_logger = logging.getLogger(__name__)

CUTOFF_BYTES: Final = 64 << 20
"""Length beyond which a batch takes no further appends."""

DRAIN_SECONDS: Final = 30.0
"""Seconds to wait for pending appends when closing."""

MAX_PENDING_BYTES: Final = 1 << 30
"""Pending bytes at which appends after a full batch have to wait."""


class AppendContext:
    """Context of `AppendService.append()`, which holds an append."""

    __slots__ = ("_append", "_dependencies", "_request", "_service")

    def __init__(
        self,
        service: AppendService,
        request: pb.AppendRequest | str,
        dependencies: Iterable[asyncio.Future[Any]],
    ) -> None:
        self._service = service
        self._request = request
        self._dependencies = dependencies
        self._append: AsyncAppend | None = None

    async def __aenter__(self) -> AsyncAppend:
        assert self._append is None, "entered twice"
        self._append = append = await self._service.start_append(self._request, self._dependencies)
        return append

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        append = self._append
        assert append is not None, "left without being entered"
        if exc is None:
            append.release()
        else:
            append.roll_back(exc)


class AppendService(Owner):
    """Service that appends to any number of journals in the background.

    Appends of one journal commit in the order in which they were started. During an RPC, further
    appends gather in a batch, which the next RPC appends as a whole. Failures are retried according
    to the policy. A permanent failure ends the batch, and with the same error all appends of its
    journal that were started before and should have followed it. One that is started later is tried
    afresh, except after a RegisterMismatchError: then it needs a check of registers of its own,
    until one has succeeded, or `clear_error()`. `flush()` and barriers of `pending_except()` fail
    until `clear_error()`.

    Content is appended at least once. A broker may have committed a batch whose RPC failed, and the
    next attempt appends it again; handles have the range of the last attempt. A request with an
    `offset` prevents that: brokers refuse its second attempt.

    Pending content of a client stays in memory up to 32 MiB. Beyond that, batches of more than
    256 KiB are written to temporary files, by `drain()` or when the next append is started.

    Closing waits for pending appends up to a bound, and cancels the rest.

    Args:
        client: Client to use.
        retry_policy: Failures to retry; None for the policy of the client.
        claims: Claims of the RPCs; None for the least ones they need.
        cutoff_bytes: Length beyond which a batch takes no further appends; 64 MiB by default.
        max_pending_bytes: Pending bytes of all journals at which an append waits if the newest
            batch of its journal is full; 1 GiB by default.
        spool_directory: Directory of temporary files; None for that of the system.
        drain_timeout: Seconds for which `aclose()` waits for pending appends; 30 by default.
        timeout: Seconds for which an `await` of an append, `flush()`, and an append that has to
            wait because too much is pending, wait for brokers; `math.inf` for no limit, None for
            that of the client. Pending appends stay pending, and are appended when a broker takes
            them. Functions of asyncio that take futures, such as `gather()`, have no bound.
    """

    heals: ClassVar[bool] = True
    """Whether appends that are started after a failed one are tried afresh."""

    def __init__(
        self,
        client: JournalClient,
        *,
        retry_policy: RetryPolicy | None = None,
        claims: pb.Claims | None = None,
        cutoff_bytes: int = CUTOFF_BYTES,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        spool_directory: str | None = None,
        drain_timeout: float = DRAIN_SECONDS,
        timeout: float | None = None,
    ) -> None:
        self.cutoff_bytes = cutoff_bytes
        """Length beyond which a batch takes no further appends."""
        self.client = client
        """Client of the RPCs."""
        self.uncommitted: set[tuple[bytes, str]] = set()
        """Producers and journals of messages that no transaction commits."""
        self._context = client.context
        self._errors = JournalErrors(heals=self.heals)
        self._settings = AppendSettings(
            client,
            retry_policy or client.context.retry_policy,
            claims,
            checked_timeout(timeout, client.context.timeout),
            cutoff_bytes,
            spool_directory,
            self._errors,
        )
        self._flush_deadline = client.context.deadline(
            "flush", timeout, doubt="appends are still pending"
        )
        self._max_pending_bytes = max_pending_bytes
        self._drain_timeout = drain_timeout
        self._journals = self._settings.journals
        self._closed = False
        self._takes_appends = True  # Neither closed nor cancelled.
        client.context.append_services.add(self)

    @property
    def tracing(self) -> Tracing | None:
        """Makes spans of this client, and of publishers that append through it."""
        return self._context.tracing

    @property
    def is_live(self) -> bool:
        """Whether there's anything to report."""
        return bool(self._journals) or bool(len(self._errors))

    @property
    def pending_bytes(self) -> int:
        """Bytes of content that isn't appended yet."""
        return sum(appends.pending_bytes for appends in self._journals.values())

    def status(self) -> AppendStatus:
        """Return the number and size of pending appends."""
        batches = [batch for appends in self._journals.values() for batch in appends.batches]
        return AppendStatus(
            journals=len(self._journals),
            batches=len(batches),
            appends=sum(batch.kept for batch in batches),
            pending_bytes=sum(batch.buffer.length for batch in batches),
            failed_journals=len(self._errors),
        )

    async def start_append(
        self, request: pb.AppendRequest | str, dependencies: Iterable[asyncio.Future[Any]] = ()
    ) -> AsyncAppend:
        """Lock a journal, and return an append to write to and to `release()`.

        Args:
            request: Name of the journal, or a request that may have preconditions.
            dependencies: Futures that have to succeed before the content is appended: other
                appends, or futures of your own. If one fails or is cancelled, this append and those
                of its journal that wait after it fail with `DependencyError`. So use only futures
                that fail if their result is lost permanently.

        Raises:
            ValidationError: The request is invalid.
            TypeError: A dependency isn't a future.
            ValueError: A dependency belongs to another event loop.
            TransportError: The service was cancelled.
            OperationTimeoutError: Too much stayed pending for longer than `timeout`.
            UsageError: The service is closed.

        Cancellation: safe — nothing was started.
        """
        if (
            type(request) is str
            and not dependencies
            and (appends := self._journals.get(request)) is not None
            and (batch := appends.open) is not None
            and (buffer := batch.buffer).length <= buffer.start_length
            and batch.is_plain
            and self._takes_appends
            and not (lock := appends.lock).held
        ):
            # Hot: no precondition, no dependency, the lock is free. This is `try_acquire()`.
            lock.held = 1
            return AsyncAppend(batch, buffer.length, -1, appends)

        self._check()
        require_request(request, pb.AppendRequest)
        awaited = _operations_of(dependencies) if dependencies else NO_DEPENDENCIES
        if not isinstance(request, str):
            self._context.rpc.check_request(request)
        journal = request if isinstance(request, str) else request.journal
        self._errors.pass_over(journal, journal)
        before = self._errors.changes(journal)
        attempt = 0
        while True:
            if (existing := self._journals.get(journal)) is not None:
                # Not within the lock, for which all tasks that append now would get in line.
                await existing.give_turn()
            appends = await self._locked(journal)
            try:
                self._check()
                # Race: while this was in line, an append failed that it was to follow.
                doom = self._errors.since(before, journal)
                batch = (
                    appends.admit(appends.request, awaited, is_plain=True, doom=doom)
                    if isinstance(request, str)
                    else appends.admit(request, awaited, is_plain=False, doom=doom)
                )
                if await appends.settle(batch) or not batch.buffer.is_crowded:
                    return AsyncAppend(batch, batch.buffer.length, -1, appends)
            except BaseException:
                appends.unlock()
                raise
            # The disk is full. The worker may take the lock, and send the batch as it is.
            appends.unlock()
            await asyncio.sleep(self._settings.policy.backoff(attempt))
            attempt += 1

    async def _locked(self, journal: str) -> JournalAppends:
        """Wait until a journal isn't clogged, lock it, and return its state."""
        # Invariant: a journal has one state at a time, which may be replaced during any suspension,
        # except one in line for its lock.
        while (appends := self._journals.get(journal)) is not None and self._is_clogged(appends):
            room = parked(appends.batches[0].operation)
            await (room if appends.deadline is None else appends.deadline.run(room))
        if appends is None:
            appends = self._begin(journal)
        try:
            await appends.lock.acquire()
        except BaseException:
            appends.forget_if_idle()
            raise
        return appends

    def append(
        self, request: pb.AppendRequest | str, dependencies: Iterable[asyncio.Future[Any]] = ()
    ) -> AppendContext:
        """Return a context that holds an append of a journal, and releases it at the end.

        An exception, or an error given to `require()`, rolls back and is raised. The arguments are
        those of `start_append()`.

        Cancellation: aborts — written content is rolled back.

        Example:
            async with service.append("a/journal") as append:
                append.write(b"content")
            response = await append
        """
        return AppendContext(self, request, dependencies)

    def try_append(self, journal: str, data: bytes) -> AsyncAppend | None:
        """Append `data` without suspension, if that's possible at this moment.

        Returns:
            The released append. None if the caller has to use `start_append()`, because the journal
            is locked, or content has to be moved out of memory first.

        Raises:
            ValidationError: `journal` isn't the name of a journal.
            TypeError: `data` is something else than bytes.
        """
        appends = self._journals.get(journal)
        if (
            appends is None
            or (batch := appends.open) is None
            or (begin := (buffer := batch.buffer).length) > buffer.quick_length
            or appends.lock.held
            or not batch.is_plain
            or not self._takes_appends
            or type(data) is not bytes
        ):
            return self._try_append(appends, journal, data)
        # Hot: `buffer.append()` and `leave()`, inlined.
        buffer.tail.append(data)
        buffer.length = end = begin + len(data)
        batch.kept += 1
        return AsyncAppend(batch, begin, end)

    def _try_append(
        self, appends: JournalAppends | None, journal: str, data: bytes
    ) -> AsyncAppend | None:
        if self._closed or self._errors.cancellation is not None or journal in self._errors:
            return None
        if appends is None:
            appends = self._begin(journal)
        elif appends.lock.held or self._is_clogged(appends):
            return None
        content = checked_bytes(data)
        batch = appends.admit(appends.request, NO_DEPENDENCIES, is_plain=True)
        buffer = batch.buffer
        if buffer.is_crowded:
            return None
        begin = buffer.length
        buffer.append(content)
        appends.keep(batch)
        return AsyncAppend(batch, begin, buffer.length)

    def pending_except(self, journal: str) -> set[OpFuture[Any]]:
        """Return operations that complete when all appends pending now have completed.

        They form a barrier: an append of `journal` that depends on them, and is started at once,
        follows all earlier appends. Failed appends of all journals are part of it until
        `clear_error()`, even if a later append was tried afresh. After `cancel()` it always fails.

        Args:
            journal: Journal whose pending appends to leave out, or empty.
        """
        pending: set[OpFuture[Any]] = {
            appends.batches[-1].operation
            for appends in self._journals.values()
            if appends.batches and appends.journal != journal
        }
        pending.update(self._errors.operations())
        return pending

    def clear_error(self, journal: str) -> BaseException | None:
        """Have barriers and new appends of a journal succeed after a failed one.

        Later barriers of `pending_except()`, and `flush()`, don't have that failure any more, so
        await the appends that you rely on. A Publisher uses `cleared_error()` to fail transactions
        of which messages may be missing.

        Returns:
            The error that was cleared, or None.
        """
        return self._errors.clear(journal)

    def cleared_error(self, journal: str) -> ClearedError | None:
        """Return the latest error that was cleared, or that a new append passed over, or None.

        While it's the same object, the success of an append means that all earlier appends of the
        journal have succeeded.
        """
        return self._errors.cleared(journal)

    def cancel(self) -> None:
        """End all pending appends. Some of them may have been committed. Idempotent."""
        self._errors.cancel()
        self._takes_appends = False
        for appends in self._journals.values():
            if appends.worker is not None:
                appends.worker.cancel()

    # The RPCs of the client, so that the service is an AsyncJournalClient.

    async def list(self, selector: str | pb.LabelSelector | pb.ListRequest = "") -> pb.ListResponse:
        """Return all journals that a selector matches, as `JournalClient.list()`.

        Cancellation: safe.
        """
        return await self.client.list(selector)

    async def apply(
        self, request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change]
    ) -> pb.ApplyResponse:
        """Create, update and delete journals, as `JournalClient.apply()`.

        Cancellation: aborts — changes that were applied remain.
        """
        return await self.client.apply(request)

    def read(self, request: pb.ReadRequest | str) -> RetryReader:
        """Return a reader of a journal, as `JournalClient.read()`."""
        return self.client.read(request)

    async def list_fragments(self, request: pb.FragmentsRequest | str) -> pb.FragmentsResponse:
        """Return all fragments of a journal, as `JournalClient.list_fragments()`.

        Cancellation: safe.
        """
        return await self.client.list_fragments(request)

    async def fragment_store_health(self, store: str) -> pb.FragmentStoreHealthResponse:
        """Have a broker check a fragment store, as `JournalClient.fragment_store_health()`.

        Cancellation: safe.
        """
        return await self.client.fragment_store_health(store)

    async def flush(self) -> None:
        """Wait until all appends pending now have completed.

        Raises:
            GazetteError: One of them failed, or an earlier one whose error wasn't cleared.
            OperationTimeoutError: One was still pending after `timeout`.

        Cancellation: safe.
        """
        await self._flush_deadline.run(self._flush())

    async def _flush(self) -> None:
        for operation in self.pending_except(""):
            await operation

    async def aclose(self) -> None:
        """Wait for pending appends, and cancel those left after the time-out. Idempotent.

        Cancellation: poisons — pending appends are cancelled at once.
        """
        self._closed = True
        self._takes_appends = False
        if self.uncommitted:
            _logger.warning(
                "uncommitted messages of %s stay pending, and readers don't see them: call "
                "publish_uncommitted() within a transaction(), or commit by build_ack_intents()",
                ", ".join(sorted({journal for _, journal in self.uncommitted})),
            )
            self.uncommitted.clear()
        try:
            if workers := self._workers():
                await asyncio.wait(workers, timeout=self._drain_timeout)
        finally:
            if workers := self._workers():
                pending = self.status()
                _logger.warning(
                    "%d pending appends of %d journals are cancelled",
                    pending.appends,
                    pending.journals,
                    extra={"journals": pending.journals, "pending_bytes": pending.pending_bytes},
                )
                self.cancel()
                await asyncio.wait(workers)
        if self._settings.closing:
            await asyncio.wait(self._settings.closing)

    def _begin(self, journal: str) -> JournalAppends:
        self._context.rpc.check_request(pb.AppendRequest(journal=encodable(journal)))
        self._context.dispatcher.check()
        return JournalAppends(journal, self._settings)

    def _is_clogged(self, appends: JournalAppends) -> bool:
        return appends.is_full and self.pending_bytes > self._max_pending_bytes

    def _workers(self) -> set[asyncio.Task[None]]:
        return {appends.worker for appends in self._journals.values() if appends.worker is not None}

    def _check(self) -> None:
        if self._closed:
            raise pb.UsageError(
                f"the append service of {self._context.dispatcher.endpoint} is closed"
            )
        if (cancellation := self._errors.cancellation) is not None:
            raise cancellation.with_traceback(None)
        self._context.dispatcher.check()

    def __del__(self) -> None:
        if getattr(self, "_journals", None) and not self._closed:
            # Nobody will release the appends that hold up their journals.
            for appends in self._journals.values():
                if (worker := appends.worker) is not None:
                    call_from_anywhere(worker.get_loop(), appends.end_left_behind)
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        status = self.status()
        return (
            f"<AppendService with {status.pending_bytes} pending bytes in {status.batches} "
            f"batches of {status.journals} journals, {status.failed_journals} failed>"
        )


class StrictAppendService(AppendService):
    """AppendService of which a failed append ends all later ones of its journal.

    They fail with the same error until `clear_error()`, as in Go's package. Shards and recorders
    use it, since what they append builds on what they have appended before.
    """

    heals = False

    async def give_up(self, journal: str = "") -> None:
        """Wait for all appends that are pending now, and clear the errors of all journals but one.

        Refusals by registers stay: another process owns their journals.

        Args:
            journal: Journal whose appends aren't given up, or empty.

        Cancellation: safe — no error is cleared.
        """
        for operation in self.pending_except(journal):
            if not operation.done():
                await parked(operation)
        self._errors.clear_except(journal)


def _operations_of(
    dependencies: Iterable[asyncio.Future[Any]],
) -> Dependencies:
    return frozenset(_operation_of(dependency) for dependency in dependencies)


def _operation_of(dependency: asyncio.Future[Any]) -> asyncio.Future[Any]:
    if isinstance(dependency, OpFuture):
        # A batch is what its appends have in common; which of them it is makes no difference.
        return dependency if dependency.done() else dependency.operation
    if not asyncio.isfuture(dependency):
        raise TypeError(f"dependencies: expected futures, not {type(dependency).__name__}")
    if dependency.get_loop() is not asyncio.get_running_loop():
        raise ValueError("dependencies: a future belongs to another event loop")
    return dependency
