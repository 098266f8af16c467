"""Process of a broker: serves until a signal, and then persists complete fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.broker.embedded import EmbeddedBroker
from gazette_aio.serving.process import run_until_signal

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.options import BrokerOptions


async def serve(options: BrokerOptions, *, ready_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT, persist complete fragments, and return.

    When the broker is ready, one line of JSON has `endpoint`, `http_endpoint`, `process_id` and
    `pid`. After the first signal, fragments are persisted for up to `options.drain_seconds`, or
    until a second signal.

    Args:
        options: Options of the broker.
        ready_file: File for the line, instead of stdout. The file exists while the broker serves:
            an older file is removed at the start.

    Raises:
        ConfigurationError: The broker can't be started.
        StoreError: Its key space is damaged.

    Cancellation: safe — the broker is stopped.
    """
    await run_until_signal(
        ServedBroker(**vars(options)), drain_seconds=options.drain_seconds, ready_file=ready_file
    )


class ServedBroker(EmbeddedBroker):
    """A broker that a process runs."""

    def ready(self) -> dict[str, object]:
        """Return the members of the ready line."""
        process_id = self.process_id
        return {
            "endpoint": self.endpoint,
            "http_endpoint": self.http_endpoint,
            "process_id": {"zone": process_id.zone, "suffix": process_id.suffix},
        }
