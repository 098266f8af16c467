"""Runs a broker as a process of its own: signals, the line which says it's ready, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.options import BrokerOptions

logger = logging.getLogger(__name__)

_STOP_GRACE_SECONDS = 2.0


async def serve(options: BrokerOptions, *, ready_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; persist what's complete; and return.

    When it's ready, one line of JSON tells `endpoint`, `http_endpoint`, `process_id` and `pid`. The
    first signal persists fragments for up to `options.drain_seconds`, and a second one ends that.

    Args:
        options: Options of the broker.
        ready_file: File to write the line to, in place of stdout. It's there while the broker
            serves: an older one is removed first, and this one at the end.

    Raises:
        ConfigurationError: If the broker can't be started.
        StoreError: If its key space is damaged.

    Cancellation: safe — the broker is stopped.
    """
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    broker = EmbeddedBroker(options=options)
    try:
        await asyncio.to_thread(_withdraw, ready_file)  # It may be of a broker which was killed.
        await broker.start()
        line = json.dumps(
            {
                "endpoint": broker.endpoint,
                "http_endpoint": broker.http_endpoint,
                "process_id": {
                    "zone": broker.process_id.zone,
                    "suffix": broker.process_id.suffix,
                },
                "pid": os.getpid(),
            }
        )
        await asyncio.to_thread(_announce, line + "\n", ready_file)
        await signals.get()
        with contextlib.suppress(OSError):  # What's acknowledged matters more.
            await asyncio.to_thread(_withdraw, ready_file)
        await _drain(broker, options.drain_seconds, signals)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await broker.stop(_STOP_GRACE_SECONDS)


async def _drain(broker: EmbeddedBroker, seconds: float, signals: asyncio.Queue[int]) -> None:
    """Persist what can be persisted; what can't is in the data directory nonetheless."""
    flush = asyncio.ensure_future(broker.flush())
    again = asyncio.ensure_future(signals.get())
    try:
        await asyncio.wait((flush, again), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        flush.cancel()
        again.cancel()
        await asyncio.wait((flush, again))
    with contextlib.suppress(asyncio.CancelledError):
        if (error := flush.exception()) is not None:
            level = (
                logging.WARNING if isinstance(error, (OSError, pb.GazetteError)) else logging.ERROR
            )
            logger.log(level, "unable to persist all fragments", exc_info=error)


def _announce(line: str, ready_file: Path | None) -> None:
    if ready_file is None:
        sys.stdout.write(line)
        sys.stdout.flush()
        return
    # Written as a whole, so that whoever polls for it never reads half a line.
    temporary = ready_file.with_name(ready_file.name + ".tmp")
    temporary.write_text(line, "utf-8")
    temporary.replace(ready_file)


def _withdraw(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
