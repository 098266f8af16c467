"""Threads for calls of fragment stores, since a call may take very long."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.broker.host.workers import Workers, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

STOPPING = "broker is stopping"


class RemoteWorkers(Workers):
    """Threads whose callers may abandon a call. The call continues, and its result is dropped.

    A silent store thus delays neither callers nor the end of the broker.

    Args:
        threads: Most threads to run.
        name: Prefix of their names.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._pending: set[_Call] = set()
        self._started = 0
        self._fails_calls = False
        # Invariant: at most the number of idle threads without a call. Abandoned calls still occupy
        # their threads, so the number of pending calls doesn't show it.
        self._idle = threading.Semaphore(0)

    def __repr__(self) -> str:
        return f"<RemoteWorkers threads={self._started} pending={len(self._pending)}>"

    def submit(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Start a call in a thread, and return the future of its result."""
        self._check()
        call = _Call(functools.partial(function, *args, **kwargs))
        if self._fails_calls:
            resolve(call.future, None, pb.StoreError(STOPPING))
            return cast("asyncio.Future[T]", call.future)
        self._pending.add(call)
        call.future.add_done_callback(lambda _: self._pending.discard(call))
        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and self._started < self._threads:
            self._started += 1
            name = f"{self._name}_{self._started}"
            arguments = (self._calls, self._idle)
            threading.Thread(target=_serve, args=arguments, name=name, daemon=True).start()
        return cast("asyncio.Future[T]", call.future)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and return its result.

        Cancellation: safe — a call that has begun continues in its thread; its result is dropped.
        """
        return await self.submit(function, *args, **kwargs)

    def begin_close(self) -> None:
        """Fail all calls, now and later. Running calls may give up after their present slice."""
        self.stopping.set()
        self._fails_calls = True
        for call in list(self._pending):
            resolve(call.future, None, pb.StoreError(STOPPING))

    def close(self) -> None:
        """End the threads after their present calls, without waiting."""
        self.stopping.set()
        if not self._closed:
            self._closed = True
            for _ in range(self._started):
                self._calls.put(None)


class LocalWorkers(RemoteWorkers):
    """Threads for local stores, whose callers wait for their calls.

    If the file system hangs, the end of the broker gives up the calls by `begin_close()`.
    """

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and return its result.

        Cancellation: safe — takes effect only when the call has returned, or was given up.
        """
        return await finish(self.submit(function, *args, **kwargs))

    async def idle(self) -> None:
        """Wait until all calls have returned, or were given up.

        Cancellation: safe — the calls continue.
        """
        while self._pending:
            await asyncio.wait([call.future for call in self._pending])


class _Call:
    """A call, and the future of its result."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[object] = self.loop.create_future()

    def run(self) -> None:
        if self.future.done():
            return
        result: object = None
        error: BaseException | None = None
        try:
            result = self.function()
        except BaseException as raised:  # noqa: BLE001 - It's the caller's.
            error = raised
        # The loop may have ended meanwhile, with all its waiters.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(resolve, self.future, result, error)


def _serve(calls: queue.SimpleQueue[_Call | None], idle: threading.Semaphore) -> None:
    while True:
        try:
            call = calls.get_nowait()
        except queue.Empty:
            idle.release()
            call = calls.get()
        if call is None:
            return
        call.run()
        del call  # Neither its arguments nor its result are kept until the next one.
