"""Health checks of fragment stores, made when somebody asks and the last one is due for renewal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import os_error_text

if TYPE_CHECKING:
    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.metrics import Metrics
    from gazette_aio.broker.host.workers import Workers
    from gazette_aio.broker.stores.base import Store

logger = logging.getLogger(__name__)

_CHECK_PATH = ".test/health-check"
_CHECK_CONTENT = b"health-check\n"
_CHECK_URL_SECONDS = 300.0
_FETCH_TIMEOUT_SECONDS = 5.0
_PROBE_NAME = ".gazette-delete-probe"
_HEALTHY_SECONDS = 30 * 60.0
_RETRY_SECONDS = (0.0, 0.1, 1.0, 1.0, 10.0, 10.0)
_LAST_RETRY_SECONDS = 100.0
_SLOW_TEXT = "health check takes longer than an append may wait"


def retry_seconds(failures: int) -> float:
    """Return how long after the given number of failed checks the next one is due."""
    index = failures - 1
    return _RETRY_SECONDS[index] if index < len(_RETRY_SECONDS) else _LAST_RETRY_SECONDS


def check_store(store: Store) -> str:
    """Write, read and list a file of a store; return what failed, or an empty text. Blocks."""
    try:
        store.put(_CHECK_PATH, (_CHECK_CONTENT,))
    except (OSError, pb.StoreError) as error:
        return f"health check PUT failed: {_text(error)}"
    try:
        with contextlib.closing(store.open(_CHECK_PATH)) as file:
            content = file.read(len(_CHECK_CONTENT) + 1)
    except (OSError, pb.StoreError) as error:
        return f"health check GET failed: {_text(error)}"
    if content != _CHECK_CONTENT:
        return f"health check content mismatch: {_mismatch(content)}"
    directory, _, name = _CHECK_PATH.rpartition("/")
    try:
        if name not in (listed.path for listed in store.list(directory + "/")):
            return "health check LIST did not find test file"
    except (OSError, pb.StoreError) as error:
        return f"health check LIST failed: {_text(error)}"
    try:
        url = store.sign_get(_CHECK_PATH, _CHECK_URL_SECONDS)
    except (OSError, pb.StoreError) as error:
        return f"health check SignGet failed: {_text(error)}"
    return _check_url(url) if url.startswith(("http://", "https://")) else ""


def probe_delete(store: Store, prefix: str) -> str:
    """Write and remove a file below `prefix`; return what failed, or an empty text. Blocks."""
    path = prefix + _PROBE_NAME
    try:
        store.put(path, (b"delete-probe\n",))
    except (OSError, pb.StoreError) as error:
        return f"delete-probe PUT failed: {_text(error)}"
    try:
        store.remove(path)
    except (OSError, pb.StoreError) as error:
        return f"delete-probe DELETE failed: {_text(error)}"
    return ""


class _Check(NamedTuple):
    """A check in progress."""

    store: Store
    ended: asyncio.Event


class StoreHealth:
    """A store of some URL, or the reason why there's none, and its health.

    Args:
        store: The store.
        problem: Why there's none.
        workers: Threads for operations on the store.
        checkers: Threads for checks of its health.
        metrics: Counters.
        clock: Clock of checks.
        is_remote: Whether operations on the store go over a network.
    """

    def __init__(
        self,
        store: Store | None,
        problem: str,
        *,
        workers: Workers,
        checkers: Workers,
        metrics: Metrics,
        clock: ManualClock,
        is_remote: bool,
    ) -> None:
        self.store = store
        self.workers = workers
        self.is_remote = is_remote
        self._own = (store, problem)
        self._problem = problem
        self._checkers = checkers
        self._metrics = metrics
        self._due = 0.0
        self._failures = 0
        self._running: _Check | None = None
        self._clock = clock
        self._replaced = asyncio.Event()

    def __repr__(self) -> str:
        return f"<StoreHealth {self.store} failures={self._failures} {self._problem}>"

    @property
    def is_busy(self) -> bool:
        """Whether its health is being checked."""
        return self._running is not None

    @property
    def is_replaced(self) -> bool:
        """Whether another store is taken in place of the URL's own."""
        return self.store is not self._own[0]

    async def check(self) -> str:
        """Return why the store is unhealthy, or an empty text; makes a check if one is due.

        Cancellation: safe.
        """
        while (running := self._begin_check()) is not None:
            await running.ended.wait()
            if running.store is self.store:
                break
        return self._problem

    def replace(self, store: Store | None) -> None:
        """Take another store in place of the URL's own; None is the latter again."""
        self.store, self._problem = self._own if store is None else (store, "")
        self._due = 0.0
        self._failures = 0
        self._replaced.set()
        self._replaced = asyncio.Event()

    async def wait_healthy(self, seconds: float) -> str:
        """Wait for the store to be healthy; return why it still isn't, or an empty text.

        Cancellation: safe.
        """
        clock = self._clock
        deadline = clock.monotonic() + seconds
        while True:
            while (running := self._begin_check()) is not None:
                # A check of a local store comes to its end at once.
                if not await clock.wait(running.ended, deadline) and self.is_remote:
                    return self._problem or _SLOW_TEXT
                await running.ended.wait()
                if running.store is self.store:
                    break
            problem = self._problem
            now = clock.monotonic()
            if not problem or self.store is None or now >= deadline:
                return problem
            await clock.wait(self._replaced, min(self._due, deadline))
            if clock.monotonic() >= deadline:
                self._due = min(self._due, clock.monotonic())

    async def probe_delete(self, prefix: str) -> str:
        """Write and remove a file below `prefix`; return what failed, or an empty text.

        Cancellation: safe — takes effect when that's done.
        """
        if self.store is None:
            return self._problem
        return await self._checkers.run(probe_delete, self.store, prefix)

    def _begin_check(self) -> _Check | None:
        """Return the check in progress, if there's one, or one is due."""
        store = self.store
        if self._running is None and store is not None and self._clock.monotonic() >= self._due:
            self._metrics.store_health_checks += 1
            self._running = _Check(store, asyncio.Event())
            # A check goes on when nobody waits for it anymore: its outcome is for all.
            future = self._checkers.submit(check_store, store)
            future.add_done_callback(self._end_check)
        return self._running

    def _end_check(self, future: asyncio.Future[str]) -> None:
        running, self._running = self._running, None
        assert running is not None, "no check in progress"
        store, ended = running
        ended.set()
        if future.cancelled():
            problem = "broker is stopping"
        elif isinstance(error := future.exception(), pb.StoreError):
            problem = str(error)
        elif error is not None:
            logger.error("health check failed", extra={"store": repr(store)}, exc_info=error)
            problem = f"health check failed: {type(error).__name__}"
        else:
            problem = future.result()
        if store is not self.store:
            return  # It was replaced meanwhile: the next check is due.
        self._problem = problem
        self._failures = self._failures + 1 if problem else 0
        wait = retry_seconds(self._failures) if problem else _HEALTHY_SECONDS
        self._due = self._clock.monotonic() + wait


def _text(error: OSError | pb.StoreError) -> str:
    return os_error_text(error) if isinstance(error, OSError) else str(error)


def _mismatch(content: bytes) -> str:
    got, want = (repr(part)[1:].replace("'", '"') for part in (content, _CHECK_CONTENT))
    return f"got {got}, want {want}"


def _check_url(url: str) -> str:
    """Fetch the file of a check as clients do; return what failed, or an empty text. Blocks."""
    import http.client  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    try:
        with urllib.request.urlopen(url, timeout=_FETCH_TIMEOUT_SECONDS) as response:  # noqa: S310
            content = response.read(len(_CHECK_CONTENT) + 1)
    except urllib.error.HTTPError as error:
        error.close()
        return f"health check fetch returned status {error.code}"
    # Texts of these errors have no URL, which nobody may see.
    except urllib.error.URLError as error:
        reason = error.reason
        text = os_error_text(reason) if isinstance(reason, OSError) else type(error).__name__
        return f"health check fetch failed: {text}"
    except (OSError, http.client.HTTPException) as error:
        text = os_error_text(error) if isinstance(error, OSError) else type(error).__name__
        return f"health check fetch failed: {text}"
    if content != _CHECK_CONTENT:
        return f"health check fetch content mismatch: {_mismatch(content)}"
    return ""
