"""Process of a server: its signals, its ready line, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Protocol

from anyio import open_signal_receiver

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping
    from pathlib import Path
    from typing import Any

_logger = logging.getLogger(__name__)

_STOP_GRACE_SECONDS = 2.0


class Served(Protocol):
    """A server run by a process."""

    async def start(self) -> None:
        """Begin to serve.

        Cancellation: safe, if `stop()` is called.
        """
        ...

    def ready(self) -> Mapping[str, object]:
        """Return the members of the ready line."""
        ...

    async def flush(self) -> None:
        """Persist as much as possible before the end.

        Cancellation: safe — what is left stays for the next start.
        """
        ...

    async def stop(self, grace: float) -> None:
        """End calls within `grace` seconds, and release everything. Idempotent.

        Cancellation: safe — call again.
        """
        ...


async def run_until_signal(
    server: Served, *, drain_seconds: float, ready_file: Path | None = None
) -> None:
    """Run a server until SIGTERM or SIGINT, flush it, and stop it.

    When it's ready, one line of JSON has `server.ready()` and `pid`. The flush is ended by a second
    signal, or after `drain_seconds`. With `ready_file` the line is in that file instead of stdout
    while the server runs; an older file is removed first.

    Raises:
        Exception: The error of `server.start()`.

    Cancellation: safe — the server is stopped.
    """
    try:
        with open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            await in_thread(_withdraw, ready_file)  # It may be of a process which was killed.
            await server.start()
            line = json.dumps({**server.ready(), "pid": os.getpid()})
            await in_thread(_announce, line + "\n", ready_file)
            await anext(signals)
            with contextlib.suppress(OSError):  # What's acknowledged matters more.
                await in_thread(_withdraw, ready_file)
            await flush_within(server.flush(), drain_seconds, anext(signals))
    finally:
        await server.stop(_STOP_GRACE_SECONDS)


async def flush_within(
    flush: Coroutine[Any, Any, None], seconds: float, interruption: Awaitable[object]
) -> None:
    """Run a flush for some seconds at most, or until an interruption; its failure is logged.

    Cancellation: safe — the flush is cancelled.
    """
    flushing, interrupted = asyncio.ensure_future(flush), asyncio.ensure_future(interruption)
    both = (flushing, interrupted)
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.wait(both)
    with contextlib.suppress(asyncio.CancelledError):
        if (error := flushing.exception()) is not None:
            expected = isinstance(error, (OSError, pb.GazetteError))
            level = logging.WARNING if expected else logging.ERROR
            _logger.log(level, "unable to flush everything", exc_info=error)


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
