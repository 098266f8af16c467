"""Services shared by the parts of a running broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.heads import Heads
    from gazette_aio.broker.host.metrics import BrokerMetrics
    from gazette_aio.broker.host.options import BrokerOptions
    from gazette_aio.broker.host.scheduler import Scheduler
    from gazette_aio.broker.host.workers import Background, Workers
    from gazette_aio.broker.stores import StoreRegistry


@dataclass(frozen=True, slots=True)
class Runtime:
    """Services of a running broker."""

    options: BrokerOptions
    clock: ManualClock
    files: FileOps
    io: Workers
    """Threads for short work of requests."""
    appends: Workers
    """Threads that write and hash long appends: few, so that they don't delay the loop, and calls
    that wait for a disk."""
    bulk: Workers
    """Threads for long work, such as parsing large requests."""
    background: Background
    scheduler: Scheduler
    stores: StoreRegistry
    metrics: BrokerMetrics
    heads: Heads
    """What is acknowledged of each journal, by the name of its directory."""

    @property
    def syncs(self) -> bool:
        """Whether the broker syncs files."""
        return self.options.fsync != "off"
