"""Worker threads for blocking work, and background tasks with one owner."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_aio.broker.host.clock import Deadline

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """A small pool of threads, started on first use.

    Args:
        threads: Most threads to run.
        name: Prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self.stopping: threading.Event = threading.Event()
        """Set when long work should give up between two slices."""

    def submit(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Start a call in a thread, and return the future of its result."""
        self._check()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        return asyncio.wrap_future(self._pool.submit(function, *args, **kwargs))

    def _check(self) -> None:
        if self._closed:
            raise UsageError("the threads have ended")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and return its result.

        Cancellation: safe — takes effect only when the call has returned.
        """
        return await finish(self.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Wait for running calls, and end the threads. Blocks for up to a slice of work."""
        self.stopping.set()
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def resolve(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """Set the result or error of a future, unless it's done. The error may stay unretrieved."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()


async def wait_until(event: asyncio.Event, until: Deadline | None) -> bool:
    """Wait for an event up to a time; return whether the event was set.

    Cancellation: safe.
    """
    if until is None:
        return await event.wait()
    return await until.wait(event)


class Background:
    """Owner of tasks that run in the background. Failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Background tasks={len(self._tasks)}>"

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
        """Start a task, unless the owner is closed already."""
        if self._closed:
            work.close()
            return None
        task = start_task(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    async def join(self) -> None:
        """Wait until all present tasks are done.

        Cancellation: safe — the tasks continue.
        """
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Cancel all tasks, and wait until they're done. Idempotent.

        Cancellation: safe — the tasks end anyway; call again to wait for their end.
        """
        if not self._closed:
            self._closed = True
            for task in self._tasks:
                task.cancel()
        await self.join()

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("background task failed", extra={"task": task.get_name()}, exc_info=error)
