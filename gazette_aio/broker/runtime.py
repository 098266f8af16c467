"""State and services that all parts of a running broker share."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from gazette_aio.broker.host.metrics import BrokerMetrics
from gazette_aio.broker.host.scheduler import Scheduler
from gazette_aio.broker.host.workers import Background, Workers
from gazette_aio.broker.stores import StoreRegistry

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.heads import Heads
    from gazette_aio.broker.host.options import BrokerOptions
    from gazette_aio.broker.keyspace.data_directory import DataDirectory
    from gazette_aio.broker.keyspace.keyspace import KeySpace

_APPEND_THREADS = max(2, min(8, os.cpu_count() or 1) // 2)
_BULK_THREADS = 4


class Runtime:
    """Options, threads, stores and the key space of a running broker, and how far its end is.

    Args:
        data: The locked data directory.
        space: The key space as loaded.
        io: Threads for short work of requests.
        root: Local directory of `file://` stores.
    """

    def __init__(
        self,
        options: BrokerOptions,
        clock: ManualClock,
        data: DataDirectory,
        space: KeySpace,
        *,
        io: Workers,
        root: Path,
    ) -> None:
        self.options = options
        self.clock = clock
        self.files: FileOps = options.files
        self.syncs: bool = options.syncs
        """Whether the broker syncs files."""
        self.io = io
        self.appends: Workers = Workers(_APPEND_THREADS, "broker-append")
        """Threads that write and hash long appends: few, so that they don't delay the loop, and
        calls that wait for a disk."""
        self.bulk: Workers = Workers(_BULK_THREADS, "broker-bulk")
        """Threads for long work, such as parsing large requests."""
        self.background: Background = Background()
        self.scheduler: Scheduler = Scheduler(self.background, clock)
        self.metrics: BrokerMetrics = BrokerMetrics()
        self.data = data
        self.heads: Heads = data.heads
        """What is acknowledged of each journal, by the name of its directory."""
        self.space = space
        self.stores: StoreRegistry = StoreRegistry(options, root, self.metrics, clock)
        self.ending: asyncio.Event = asyncio.Event()
        """Set when blocked reads and watches are to end, as the broker does."""
        self.stopped: bool = False
        """Whether journals aren't served any more."""
