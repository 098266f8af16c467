"""Worker threads for blocking work, and background tasks with one owner."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, cast

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.protocol.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from gazette_aio.broker.host.clock import Deadline

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

STOPPING: Final = "broker is stopping"

_Call: TypeAlias = "tuple[asyncio.Future[object], Callable[[], object]]"


class Workers:
    """Daemon threads for blocking calls, started on demand.

    Args:
        threads: Most threads to run.
        name: Prefix of their names.
        abandonable: Whether callers may leave a call, which then continues in its thread, and whose
            result is dropped. A silent store thus delays neither callers nor the end of the broker.
    """

    def __init__(self, threads: int, name: str, *, abandonable: bool = False) -> None:
        self._threads = threads
        self._name = name
        self._abandonable = abandonable
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._results = _Results()
        self._pending: set[asyncio.Future[object]] = set()
        self._started = 0
        self._fails_calls = False
        self._closed = False
        # Invariant: at most the number of idle threads without a call. Abandoned calls still occupy
        # their threads, so the number of pending calls doesn't show it.
        self._idle = threading.Semaphore(0)

    def __repr__(self) -> str:
        return f"<Workers {self._name} threads={self._started} pending={len(self._pending)}>"

    def submit(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Start a call in a thread, and return the future of its result."""
        if self._closed:
            raise UsageError("the threads have ended")
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._fails_calls:
            resolve(future, None, StoreError(STOPPING))
            return cast("asyncio.Future[T]", future)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._calls.put((future, functools.partial(function, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self._threads:
            self._started += 1
            name = f"{self._name}_{self._started}"
            arguments = (self._calls, self._results, self._idle)
            threading.Thread(target=_serve, args=arguments, name=name, daemon=True).start()
        return cast("asyncio.Future[T]", future)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and return its result.

        Cancellation: safe — takes effect when the call has returned or was given up, and at once if
        calls may be abandoned.
        """
        call = self.submit(function, *args, **kwargs)
        return await call if self._abandonable else await finish(call)

    def give_up(self) -> None:
        """Fail all calls, now and later."""
        self._fails_calls = True
        for future in list(self._pending):
            resolve(future, None, StoreError(STOPPING))

    async def aclose(self) -> None:
        """Wait until all calls have returned or were given up, and end the threads. Idempotent.

        Cancellation: safe — call again.
        """
        while self._pending:
            await asyncio.wait(list(self._pending))
        self.close()

    def close(self) -> None:
        """End the threads after their present calls, without waiting. Idempotent."""
        if not self._closed:
            self._closed = True
            for _ in range(self._started):
                self._calls.put(None)


class _Results:
    """Results of calls. The event loop takes all at once, as each wake-up costs a system call."""

    def __init__(self) -> None:
        self._results: list[tuple[asyncio.Future[object], object, BaseException | None]] = []
        self._lock = threading.Lock()

    def add(
        self, future: asyncio.Future[object], result: object, error: BaseException | None
    ) -> None:
        with self._lock:
            self._results.append((future, result, error))
            is_first = len(self._results) == 1
        if is_first:
            # The loop may have ended meanwhile, with all its waiters.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(self._take)

    def _take(self) -> None:
        with self._lock:
            results, self._results = self._results, []
        for future, result, error in results:
            resolve(future, result, error)


def _serve(
    calls: queue.SimpleQueue[_Call | None], results: _Results, idle: threading.Semaphore
) -> None:
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            idle.release()
            call = calls.get()
        if call is None:
            return
        future, function = call
        if not future.done():
            result: object = None
            error: BaseException | None = None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 - It's the caller's.
                error = raised
            results.add(future, result, error)
            del result, error
        del call, future, function  # Nothing of it is kept until the next one.


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
