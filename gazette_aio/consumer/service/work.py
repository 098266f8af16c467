"""Tasks of an application, which run while its member is in the group."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import start_task
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine

_logger = logging.getLogger(__name__)


class SpawnedWork(Owner):
    """Tasks of an application. They start by `begin()`, or when they're spawned after it.

    Args:
        stop_seconds: Time that tasks have to end after they're cancelled.
    """

    def __init__(self, stop_seconds: float = 15.0) -> None:
        self._stop_seconds = stop_seconds
        self._waiting: list[Coroutine[Any, Any, None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<SpawnedWork of {len(self._waiting) + len(self._tasks)} tasks>"

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until `aclose()`.

        Raises:
            UsageError: After `aclose()`.
        """
        if self._has_ended:
            work.close()
            raise UsageError("the member is stopping, and starts no tasks")
        if self._failure is None:
            self._waiting.append(work)
        else:
            self._start(work, self._failure)

    def has_spawned(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task is one of these."""
        return task in self._tasks

    def begin(self) -> asyncio.Future[None]:
        """Start the tasks, and return a future that fails with the first of them that fails."""
        failure = self._failure = asyncio.get_running_loop().create_future()
        failure.add_done_callback(lambda done: done.cancelled() or done.exception())
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self._start(work, failure)
        return failure

    def end(self) -> None:
        """Cancel the tasks, and refuse others. Idempotent."""
        if self._has_ended:
            return  # Invariant: a second cancellation would interrupt the cleanup of tasks.
        self._has_ended = True
        for work in self._waiting:
            work.close()
        self._waiting = []
        for task in self._tasks:
            task.cancel()

    async def aclose(self) -> None:
        """Cancel the tasks, and wait for their ends, or until their time has passed. Idempotent.

        Cancellation: safe — the tasks end anyway; call again to wait for them.
        """
        self.end()
        if not self._tasks:
            return
        limit = None if math.isinf(self._stop_seconds) else self._stop_seconds
        _, left = await asyncio.wait(self._tasks, timeout=limit)
        for task in left:
            _logger.error(
                "%s is still running %g s after its cancellation",
                task.get_name(),
                self._stop_seconds,
            )

    def _start(self, work: Coroutine[Any, Any, None], failure: asyncio.Future[None]) -> None:
        name = f"gazette task {getattr(work, '__qualname__', work)} of the application"
        task = start_task(work, name)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, failure))

    def _ended(self, task: asyncio.Task[None], failure: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._has_ended or failure.done():
            _logger.error("%s failed after the member's end began", task.get_name(), exc_info=error)
        else:
            failure.set_exception(error)
