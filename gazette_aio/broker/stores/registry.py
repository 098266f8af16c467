"""Registry of fragment stores, by their URLs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.workers import Workers
from gazette_aio.broker.stores.handle import StoreHandle
from gazette_aio.broker.stores.opening import is_remote_store, open_store

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.metrics import BrokerMetrics
    from gazette_aio.broker.host.options import BrokerOptions
    from gazette_aio.broker.stores.fragment_store import FragmentStore

_REMOTE_THREADS = 16
_VISIT_THREADS = 4
_LOCAL_THREADS = 4
_CHECK_THREADS = 4
_HANG_SECONDS = 1.0
_MAX_VISITED = 32
_MANY = 64
_UNUSED_SECONDS = 2 * 3600.0


class StoreRegistry:
    """Stores by URL.

    Stores of journals are kept until they are unused for long. Of other stores, which clients may
    name at will, only the latest are kept. A dropped store is opened again on demand.

    Args:
        root: Local directory of `file://` stores.
        clock: Clock of health checks.
    """

    def __init__(
        self, options: BrokerOptions, root: Path, metrics: BrokerMetrics, clock: ManualClock
    ) -> None:
        self._file_only = options.file_only
        self._open_store = partial(
            open_store,
            root=root.absolute(),
            origins=options.store_origins,
            files=options.files,
            file_only=options.file_only,
            sync=options.syncs,
            # No other broker writes below a root that is within the data directory.
            owned_since=time.time() if options.file_root is None else 0.0,
            open_client=options.object_stores,
        )
        self.stopping: threading.Event = threading.Event()
        """Set when long calls should give up between two slices, as the broker ends."""
        # Invariant: calls that wait for a network take no threads from other calls.
        self._remote = Workers(_REMOTE_THREADS, "broker-remote", abandonable=True)
        # Nor do stores that only clients name take threads from journals' stores.
        self._visits = Workers(_VISIT_THREADS, "broker-visit", abandonable=True)
        # Nor does a hanging file system take threads from the broker's own files.
        self._local = Workers(_LOCAL_THREADS, "broker-store")
        self._checks = Workers(_CHECK_THREADS, "broker-check")
        self._giving_up: asyncio.TimerHandle | None = None
        self._metrics = metrics
        self._clock = clock
        # Of stores that only clients have named, the least recently used first.
        self._stores: OrderedDict[str, StoreHandle] = OrderedDict()
        self._sweep_at = _MANY

    def __repr__(self) -> str:
        return f"<StoreRegistry stores={len(self._stores)}>"

    def __len__(self) -> int:
        return len(self._stores)

    def get(self, url: str) -> StoreHandle:
        """Return the store of a valid URL, for a journal."""
        handle = self._stores.get(url)
        if handle is None or handle.used_at is None:
            # Opened again if only clients have named it, since other threads check that store.
            handle = self._open(url, self._remote)
        handle.used_at = self._clock.monotonic()
        return handle

    def visit(self, url: str) -> StoreHandle:
        """Return the store of a valid URL, for a client."""
        handle = self._stores.get(url) or self._open(url, self._visits)
        self._stores.move_to_end(url)
        return handle

    def failing(self) -> dict[str, str]:
        """Return the errors of journals' stores that fail and are retried, by names of stores."""
        since = self._clock.monotonic() - _UNUSED_SECONDS
        return {
            handle.name: problem
            for handle in self._stores.values()
            if (problem := handle.problem) and handle.used_at is not None and handle.used_at > since
        }

    def _sweep(self) -> None:
        since = self._clock.monotonic() - _UNUSED_SECONDS
        visited: list[str] = []
        for url, handle in list(self._stores.items()):
            if handle.used_at is None:
                visited.append(url)
            elif handle.used_at < since and not handle.is_busy and not handle.is_replaced:
                del self._stores[url]
        for url in visited[:-_MAX_VISITED]:
            del self._stores[url]
        self._sweep_at = max(_MANY, 2 * len(self._stores))

    def _open(self, url: str, checkers: Workers) -> StoreHandle:
        self._stores.pop(url, None)
        if len(self._stores) >= self._sweep_at:
            self._sweep()
        store: FragmentStore | None = None
        problem = ""
        is_remote = False
        try:
            is_remote = is_remote_store(url, file_only=self._file_only)
            store = self._open_store(url)
        except (pb.StoreError, pb.ValidationError) as error:
            problem = str(error)
        handle = self._stores[url] = StoreHandle(
            store,
            problem,
            url=url,
            workers=self._remote if is_remote else self._local,
            checkers=checkers if is_remote else self._checks,
            metrics=self._metrics,
            clock=self._clock,
            is_remote=is_remote,
            stopping=self.stopping,
        )
        return handle

    def give_up_after(self, seconds: float) -> None:
        """Fail calls of local stores that take longer than so many seconds from now.

        Otherwise, a hanging directory would delay the end of the broker.
        """
        if self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self.stopping.set()
        self._local.give_up()
        self._checks.give_up()

    def begin_close(self) -> None:
        """Fail all calls of remote stores, and let calls give up between two slices.

        Calls of local stores have some seconds to end.
        """
        self.stopping.set()
        self._remote.give_up()
        self._visits.give_up()
        self.give_up_after(_HANG_SECONDS)

    async def aclose(self) -> None:
        """End or give up the calls of local stores, and end the threads. Idempotent.

        Cancellation: safe — call again.
        """
        self.begin_close()
        for workers in (self._local, self._checks, self._remote, self._visits):
            await workers.aclose()
        if self._giving_up is not None:
            self._giving_up.cancel()
