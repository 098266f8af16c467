"""Handle of a fragment store: the store, its health, and the threads of its operations."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio.signal import Signal
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.host.workers import STOPPING
from gazette_aio.broker.stores.health import check_store, probe_delete
from gazette_aio.broker.stores.verified import VerifiedFiles
from gazette_aio.protocol.url import redacted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.metrics import BrokerMetrics
    from gazette_aio.broker.host.workers import Workers
    from gazette_aio.broker.stores.fragment_store import FragmentStore

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_HEALTHY_SECONDS = 30 * 60.0
_RETRY_SECONDS = (0.0, 0.1, 1.0, 1.0, 10.0, 10.0)
_LAST_RETRY_SECONDS = 100.0
_SLOW_TEXT = "health check takes longer than an append may wait"
_SIGN_SLICE = 200

LOCAL_CHECK_SECONDS = 5.0
"""Least seconds for a check of a local store. Only a hanging file system takes longer."""


def retry_seconds(failures: int) -> float:
    """Return the seconds before the next check, after a number of failed checks."""
    index = failures - 1
    return _RETRY_SECONDS[index] if index < len(_RETRY_SECONDS) else _LAST_RETRY_SECONDS


class _Check(NamedTuple):
    """A check in progress."""

    store: FragmentStore
    ended: asyncio.Event


class StoreHandle:
    """The store of a URL, or the reason why it can't be used, with its health and threads.

    The health is checked on demand, if the last check is too old.

    Args:
        url: URL by which specs name the store.
        problem: Reason why the store can't be used.
        workers: Threads for operations on the store.
        checkers: Threads for checks of its health.
        clock: Clock of checks.
        is_remote: Whether operations on the store go over a network.
        stopping: Set when the broker ends. From then on, failures don't count.
    """

    def __init__(
        self,
        store: FragmentStore | None,
        problem: str,
        *,
        url: str,
        workers: Workers,
        checkers: Workers,
        metrics: BrokerMetrics,
        clock: ManualClock,
        is_remote: bool,
        stopping: threading.Event,
    ) -> None:
        self.name: str = redacted(url)
        """Name of the store in the log, without secrets."""
        self.used_at: float | None = None
        """Time of the latest use by a journal; None is only a use by clients. They receive the
        errors of such a store, which aren't logged."""
        self._failing: dict[str, str] = {}
        self.store = store
        self.workers = workers
        self.is_remote = is_remote
        self.verified: VerifiedFiles = VerifiedFiles()
        """Files of the store whose content is known to be right."""
        self._own = (store, problem)
        self._problem = problem
        self._checkers = checkers
        self._stopping = stopping
        self._metrics = metrics
        self._due = 0.0
        self._failures = 0
        self._running: _Check | None = None
        self._clock = clock
        self._replaced = Signal()

    def __repr__(self) -> str:
        return f"<StoreHandle {self.store} failures={self._failures} {self._problem}>"

    @property
    def is_busy(self) -> bool:
        """Whether a check of its health is in progress."""
        return self._running is not None

    @property
    def is_healthy(self) -> bool:
        """Whether the store is known to be healthy, and no check is due."""
        return not self._problem and self._clock.monotonic() < self._due

    @property
    def is_replaced(self) -> bool:
        """Whether another store replaces the store of the URL."""
        return self.store is not self._own[0]

    def require(self) -> FragmentStore:
        """Return the store.

        Raises:
            StoreError: The store can't be used.
        """
        if self.store is None:
            raise pb.StoreError(self._problem)
        return self.store

    @property
    def problem(self) -> str:
        """Error of an operation that fails and is retried, or an empty text."""
        return next(iter(self._failing.values()), "")

    async def run(
        self,
        function: Callable[Concatenate[FragmentStore, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function of the store in one of its threads, and return its result.

        Args:
            function: The operation. A failure counts until its next success, of any journal.
            args: Arguments of the operation after the store.
            kwargs: Named arguments of the operation.

        Raises:
            StoreError: There's no store.

        Cancellation: safe — a call of a remote store may continue in its thread; its result is
        dropped. A call of a local store is awaited, unless the broker stops.
        """
        try:
            result = await self.workers.run(function, self.require(), *args, **kwargs)
        except (OSError, pb.StoreError) as error:
            if not self._stopping.is_set():
                text = os_error_text(error) if isinstance(error, OSError) else str(error)
                self._note(function.__name__, text)
            raise
        self._note(function.__name__, "")
        return result

    def _note(self, kind: str, problem: str) -> None:
        """Record the outcome of an operation. The first failure and the recovery are logged."""
        had_failed = bool(self._failing)
        if problem:
            self._failing[kind] = problem
        else:
            self._failing.pop(kind, None)
        if bool(self._failing) == had_failed or self.used_at is None:
            return
        extra = {"store": self.name}
        if problem:
            text = "fragment store %s fails, and will be retried: %s"
            _logger.warning(text, self.name, problem, extra=extra)
        else:
            _logger.warning("fragment store %s works again", self.name, extra=extra)

    async def check(self, *, anew: bool = False) -> str:
        """Check the store if a check is due, and return why it's unhealthy, or an empty text.

        Args:
            anew: Whether a check is due now, however old the last one is.

        Cancellation: safe.
        """
        if anew:
            self._due = 0.0
        while (running := self._begin_check()) is not None:
            await running.ended.wait()
            if running.store is self.store:
                break
        return self._problem

    def replace(self, store: FragmentStore | None) -> None:
        """Replace the store of the URL by another store; None undoes that."""
        self.store, self._problem = self._own if store is None else (store, "")
        self.verified = VerifiedFiles()
        self._due = 0.0
        self._failures = 0
        self._replaced.set()

    async def wait_healthy(self, seconds: float) -> str:
        """Wait until the store is healthy; return why it's still unhealthy, or an empty text.

        A check of a local store that is in progress may take `LOCAL_CHECK_SECONDS` longer.

        Cancellation: safe.
        """
        clock = self._clock
        deadline = clock.monotonic() + seconds
        while True:
            while (running := self._begin_check()) is not None:
                if not await clock.wait(running.ended, deadline) and not await self._ends(running):
                    return self._problem or _SLOW_TEXT
                if running.store is self.store:
                    break
            problem = self._problem
            now = clock.monotonic()
            if not problem or self.store is None or now >= deadline:
                return problem
            await clock.wait(self._replaced.next(), min(self._due, deadline))
            if clock.monotonic() >= deadline:
                self._due = min(self._due, clock.monotonic())

    async def _ends(self, running: _Check) -> bool:
        """Return whether a check ends within the time of checks of local stores."""
        if self.is_remote:
            return False
        try:
            async with asyncio.timeout(LOCAL_CHECK_SECONDS):
                return await running.ended.wait()
        except TimeoutError:
            return False

    async def probe_delete(self, prefix: str) -> str:
        """Write and remove a file below `prefix`; return the failure, or an empty text.

        Cancellation: safe — takes effect after the check.
        """
        if self.store is None:
            return self._problem
        return await self._checkers.run(probe_delete, self.store, prefix)

    async def sign_gets(self, fragments: Sequence[pb.Fragment], seconds: float) -> list[str]:
        """Return URLs for clients to fetch fragments for some time; empty without a URL.

        Raises:
            StoreError: A URL can't be signed.

        Cancellation: safe.
        """
        if (store := self.store) is None:
            return [""] * len(fragments)
        urls: list[str] = []
        for start in range(0, len(fragments), _SIGN_SLICE):
            if start:
                await asyncio.sleep(0)
            paths = [pb.content_path(each) for each in fragments[start : start + _SIGN_SLICE]]
            if self.is_remote:  # Its credentials may have to be asked for first.
                urls += await self.workers.run(_sign, store, paths, seconds)
            else:
                urls += _sign(store, paths, seconds)
        return urls

    def _begin_check(self) -> _Check | None:
        """Return the check in progress, or begin a check if one is due."""
        store = self.store
        if self._running is None and store is not None and self._clock.monotonic() >= self._due:
            self._metrics.store_health_checks += 1
            self._running = _Check(store, asyncio.Event())
            # A check continues without waiters: its outcome is for all users.
            future = self._checkers.submit(check_store, store)
            future.add_done_callback(self._end_check)
        return self._running

    def _end_check(self, future: asyncio.Future[str]) -> None:
        running, self._running = self._running, None
        assert running is not None, "no check in progress"
        store, ended = running
        ended.set()
        if future.cancelled():
            problem = STOPPING
        elif isinstance(error := future.exception(), pb.StoreError):
            problem = str(error)
        elif error is not None:
            _logger.error("health check failed", extra={"store": repr(store)}, exc_info=error)
            problem = f"health check failed: {type(error).__name__}"
        else:
            problem = future.result()
        if store is not self.store:
            return  # It was replaced meanwhile: the next check is due.
        self._problem = problem
        if not self._stopping.is_set():
            self._note("check", problem)
        self._failures = self._failures + 1 if problem else 0
        wait = retry_seconds(self._failures) if problem else _HEALTHY_SECONDS
        self._due = self._clock.monotonic() + wait


def _sign(store: FragmentStore, paths: Sequence[str], seconds: float) -> list[str]:
    return [store.sign_get(path, seconds) for path in paths]
