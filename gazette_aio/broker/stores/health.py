"""Health checks of fragment stores, made when somebody asks and the last one is due for renewal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.files import FileOps, os_error_text
from gazette_aio.broker.stores.file_store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gazette_aio.broker.metrics import Metrics
    from gazette_aio.broker.stores.base import Store
    from gazette_aio.broker.workers import Workers

_CHECK_PATH = ".test/health-check"
_CHECK_CONTENT = b"health-check\n"
_PROBE_NAME = ".gazette-delete-probe"
_HEALTHY_SECONDS = 30 * 60.0
_RETRY_SECONDS = (0.0, 0.1, 1.0, 1.0, 10.0, 10.0)
_LAST_RETRY_SECONDS = 100.0


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
        with store.open(_CHECK_PATH) as file:
            content = file.read(len(_CHECK_CONTENT) + 1)
    except (OSError, pb.StoreError) as error:
        return f"health check GET failed: {_text(error)}"
    if content != _CHECK_CONTENT:
        got, want = (repr(part)[1:].replace("'", '"') for part in (content, _CHECK_CONTENT))
        return f"health check content mismatch: got {got}, want {want}"
    directory, _, name = _CHECK_PATH.rpartition("/")
    try:
        if name not in (listed.path for listed in store.list(directory + "/")):
            return "health check LIST did not find test file"
    except (OSError, pb.StoreError) as error:
        return f"health check LIST failed: {_text(error)}"
    return ""


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


class StoreHealth:
    """A store of some URL, or the reason why there's none, and its health."""

    def __init__(
        self, store: Store | None, problem: str, workers: Workers, metrics: Metrics
    ) -> None:
        self.store = store
        self._problem = problem
        self._workers = workers
        self._metrics = metrics
        self._due = 0.0
        self._failures = 0
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<StoreHealth {self.store} failures={self._failures} {self._problem}>"

    async def check(self) -> str:
        """Return why the store is unhealthy, or an empty text; makes a check if one is due.

        Cancellation: safe.
        """
        if self.store is None:
            return self._problem
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:
            return self._problem
        async with self._lock:
            if loop.time() >= self._due:
                self._metrics.store_health_checks += 1
                self._problem = await self._workers.run(check_store, self.store)
                self._failures = self._failures + 1 if self._problem else 0
                wait = retry_seconds(self._failures) if self._problem else _HEALTHY_SECONDS
                self._due = loop.time() + wait
        return self._problem

    async def wait_healthy(self, seconds: float) -> str:
        """Wait for the store to be healthy; return why it still isn't, or an empty text.

        Cancellation: safe.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while problem := await self.check():
            now = loop.time()
            if self.store is None or now >= deadline:
                return problem
            await asyncio.sleep(max(0.0, min(self._due, deadline) - now))
            if loop.time() >= deadline:
                self._due = min(self._due, loop.time())
                return await self.check()
        return ""


class StoreRegistry:
    """Stores by URL.

    Args:
        files: File operations.
        root: File root of `file://` stores.
        file_only: Whether stores of all schemes are kept below the root.
        sync: Whether persisted files are made durable.
        workers: Threads for checks.
        metrics: Counters.
    """

    def __init__(
        self,
        files: FileOps,
        root: Path,
        *,
        file_only: bool,
        sync: bool,
        workers: Workers,
        metrics: Metrics,
    ) -> None:
        self._open: Callable[[str], Store] = lambda url: FileStore(files, root, url, sync=sync)
        self._file_only = file_only
        self._workers = workers
        self._metrics = metrics
        self._stores: dict[str, StoreHealth] = {}

    def __repr__(self) -> str:
        return f"<StoreRegistry stores={len(self._stores)}>"

    def get(self, url: str) -> StoreHealth:
        """Return the store of a valid URL."""
        if (health := self._stores.get(url)) is None:
            store: Store | None = None
            problem = ""
            try:
                scheme = pb.parse_fragment_store(url).scheme
                if scheme != "file" and not self._file_only:
                    raise pb.StoreError(f"unsupported fragment store scheme: {scheme}")
                store = self._open(url)
            except (pb.StoreError, pb.ValidationError) as error:
                problem = str(error)
            health = StoreHealth(store, problem, self._workers, self._metrics)
            self._stores[url] = health
        return health


def _text(error: OSError | pb.StoreError) -> str:
    return os_error_text(error) if isinstance(error, OSError) else str(error)
