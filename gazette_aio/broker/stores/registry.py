"""The stores of a broker, by their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.stores import object_config
from gazette_aio.broker.stores.file_store import FileStore
from gazette_aio.broker.stores.health import StoreHealth
from gazette_aio.broker.stores.object_store import ObjectStore
from gazette_aio.broker.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from obstore.store import ObjectStore as Client

    from gazette_aio.broker.clock import ManualClock
    from gazette_aio.broker.files import FileOps
    from gazette_aio.broker.metrics import Metrics
    from gazette_aio.broker.stores.base import Store

_REMOTE_THREADS = 16


class StoreRegistry:
    """Stores by URL.

    Args:
        files: File operations.
        root: File root of `file://` stores.
        file_only: Whether stores of all schemes are kept below the root.
        sync: Whether persisted files are made durable.
        io: Threads for checks of local stores.
        bulk: Threads for operations on local stores.
        metrics: Counters.
        clock: Clock of health checks.
        open_client: Returns clients of object stores; None is `obstore`'s of their scheme.
    """

    def __init__(
        self,
        files: FileOps,
        root: Path,
        *,
        file_only: bool,
        sync: bool,
        io: Workers,
        bulk: Workers,
        metrics: Metrics,
        clock: ManualClock,
        open_client: Callable[[pb.FragmentStoreURL], Client] | None = None,
    ) -> None:
        self._files = files
        self._root = root
        self._file_only = file_only
        self._sync = sync
        self._io = io
        self._bulk = bulk
        # Invariant: whoever waits for a network takes no thread from those who don't.
        self._remote = Workers(_REMOTE_THREADS, "broker-remote")
        self._metrics = metrics
        self._clock = clock
        self._open_client = open_client
        self._stores: dict[str, StoreHealth] = {}

    def __repr__(self) -> str:
        return f"<StoreRegistry stores={len(self._stores)}>"

    def get(self, url: str) -> StoreHealth:
        """Return the store of a valid URL."""
        if (health := self._stores.get(url)) is None:
            store: Store | None = None
            problem = ""
            is_remote = False
            try:
                scheme = pb.parse_fragment_store(url).scheme
                is_remote = scheme != "file" and not self._file_only
                store = self._open_remote(url, scheme) if is_remote else self._open_local(url)
            except (pb.StoreError, pb.ValidationError) as error:
                problem = str(error)
            health = self._stores[url] = StoreHealth(
                store,
                problem,
                workers=self._remote if is_remote else self._bulk,
                checkers=self._remote if is_remote else self._io,
                metrics=self._metrics,
                clock=self._clock,
                is_remote=is_remote,
            )
        return health

    def begin_close(self) -> None:
        """Have long work on remote stores give up between two slices."""
        self._remote.stopping.set()

    def close(self) -> None:
        """End the threads of remote stores. Blocks for as long as a request to one of them."""
        self._remote.close()

    def _open_local(self, url: str) -> Store:
        return FileStore(self._files, self._root, url, sync=self._sync)

    def _open_remote(self, url: str, scheme: str) -> Store:
        object_config.check_installed(scheme)
        return ObjectStore(url, self._open_client or object_config.open_client)
