"""Coroutines called from code which isn't asynchronous: one event loop for each process.

Spark calls sources and sinks from plain threads of processes which it forks and uses again. The
first use in a process starts a thread with an event loop, and all later ones share it, and its
clients. They end with the interpreter, or by `close()`, after which the next use begins anew.

Invariant: everything is kept by the ID of the process. What was copied by a fork is never touched:
a loop whose thread isn't there would hang whoever waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import queue
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    import contextlib
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_SECONDS: Final = 10.0
"""Seconds within which iterators, and tasks and clients of a loop, must end when it's closed."""


class _Closable(Protocol):
    async def aclose(self) -> None: ...


K = TypeVar("K", bound="Hashable")
C = TypeVar("C", bound=_Closable)


def run(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine in the loop of this process, and return its result.

    If the waiting thread is interrupted, the coroutine is cancelled.

    Args:
        coroutine: The coroutine. It's closed if it can't be run.
        timeout: Seconds after which it's cancelled, and waited for to end; None for any.

    Raises:
        TimeoutError: It took too long.
        concurrent.futures.CancelledError: It was cancelled, as all are by `close()`.
        RuntimeError: This is the loop's own thread, where it can be awaited.
        BaseException: What the coroutine raised, with its traceback.
    """
    wanted = coroutine if timeout is None else _bounded(coroutine, timeout)
    try:
        future = _submit(lambda bridge: asyncio.run_coroutine_threadsafe(wanted, bridge.loop))
    except BaseException:
        wanted.close()
        coroutine.close()
        raise
    try:
        return future.result()
    finally:
        future.cancel()  # Without effect on what's done.
        del future  # An error doesn't keep itself, by the frame of this call.


async def _bounded(coroutine: Coroutine[Any, Any, T], timeout: float) -> T:  # noqa: ASYNC109
    # Invariant: the coroutine has ended when the caller goes on.
    async with asyncio.timeout(timeout):
        return await coroutine


def iterate(make: Callable[[], AsyncIterator[T]], depth: int = 4) -> Generator[T]:
    """Iterate an async iterator, which is read ahead in the loop of this process.

    Nothing happens before the first item is asked for. The async iterator is closed at its end, and
    when the generator is closed or dropped, by whom that's waited for, though not for ever.

    Args:
        make: Called in the loop, makes the async iterator.
        depth: Most items which are there ahead of the one that was taken last.

    Raises:
        ConfigurationError: `depth` isn't one or more.
        concurrent.futures.CancelledError: It was cancelled, as all are by `close()`.
        RuntimeError: This is the loop's own thread, or the process was forked meanwhile.
        BaseException: What the async iterator raised, with its traceback.
    """
    if depth < 1:
        raise pb.ConfigurationError(f"the depth of read-ahead must be one or more, not {depth}")
    return _iterate(make, depth)


def _iterate(make: Callable[[], AsyncIterator[T]], depth: int) -> Generator[T]:
    pump = _submit(lambda bridge: _Pump(bridge, make, depth))
    try:
        while not isinstance(item := pump.take(), _End):
            yield item.value
            del item  # Nothing is held on to while the next one is awaited.
        if item.error is not None:
            raise item.error
    finally:
        item = _NOTHING  # An error doesn't keep itself, by the frame of this call.
        pump.close()


async def client_of(key: K, factory: Callable[[K], C]) -> C:
    """Return the client of a key: one for each event loop, and so for each process.

    Those of the bridge's loop are closed with it. Who awaits this in another loop calls
    `close_clients()` before it ends.

    Args:
        key: What the client is of; it's hashable, and picklable where tasks bring it along.
        factory: Makes a client at the first use of the key. It must not block.

    Cancellation: safe.
    """
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if (client := clients.get(key)) is None:
        client = clients[key] = factory(key)
    return cast("C", client)


async def close_clients() -> None:
    """Close all clients of the running loop. Idempotent.

    Cancellation: poisons — clients which are left are closed when they're collected.
    """
    clients = _clients.pop(asyncio.get_running_loop(), {})
    for client in clients.values():
        try:
            await client.aclose()
        except Exception as error:  # noqa: BLE001 - The others are closed nevertheless.
            _logger.warning("a client wasn't closed well: %s", error)


def close() -> None:
    """End the loop of this process, with its clients, tasks and threads. Idempotent.

    Tasks which are under way are cancelled. It's of use before a fork, as gRPC works in a child
    only if its parent has no client which is connected.

    Raises:
        RuntimeError: This is the loop's own thread.
    """
    process = os.getpid()
    with _lock_of(process):
        bridge = _bridges.get(process)
        if bridge is not None:
            bridge.check()
            del _bridges[process]
    if bridge is not None:
        bridge.close()


class _Bridge:
    """A thread with an event loop. It begins to run with `start()`."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        # Threads of its own: the default ones can't be ended without another thread, for which
        # it's too late when the interpreter exits.
        self._executor = ThreadPoolExecutor(thread_name_prefix="gazette-spark-io")
        self.loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._main, name="gazette-spark", daemon=True)
        self._is_closing = False
        self.pumps: set[_Pump[Any]] = set()
        """Those which may have a task. Without them, a task which waits for its consumer would be
        collected along with it, before it could end."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the current thread is the one of the loop."""
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Refuse to be waited for in the loop's own thread."""
        if self.is_here:
            raise RuntimeError(
                "called from the event loop's own thread, which would wait for itself for ever; "
                "await it instead"
            )

    def close(self) -> None:
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ending.result(_CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - Nobody could do anything about it.
            _logger.warning("the event loop didn't end well: %s", error or type(error).__name__)
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _logger.warning("the event loop is blocked, and is left to itself")
        else:
            self._executor.shutdown(cancel_futures=True)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS / 2)
        await close_clients()
        await self.loop.shutdown_asyncgens()

    def _main(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    # It's the outcome of the task which raised it. The others go on.
                    _logger.debug("a task tried to end the interpreter", exc_info=True)
        finally:
            self.loop.close()

    def __repr__(self) -> str:
        state = "running" if self._thread.is_alive() else "ended"
        return f"<_Bridge of process {self.process}, {state}>"


class _Item(NamedTuple, Generic[T]):
    value: T


class _End(NamedTuple):
    error: BaseException | None


_NOTHING: Final = _End(None)


class _Pump(Generic[T]):
    """Reads an async iterator ahead, by a task in the loop."""

    def __init__(self, bridge: _Bridge, make: Callable[[], AsyncIterator[T]], depth: int) -> None:
        self._bridge = bridge
        self._make = make
        self._items: queue.SimpleQueue[_Item[T] | _End] = queue.SimpleQueue()
        self._slots = asyncio.Semaphore(depth)
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False
        bridge.loop.call_soon_threadsafe(self._begin)

    def take(self) -> _Item[T] | _End:
        """Wait for the next item, or the end."""
        self._check()
        item = self._items.get()
        if isinstance(item, _End):
            self._has_ended = True
        else:
            self._call(self._slots.release)
        return item

    def close(self) -> None:
        """Cancel what's left, and wait for its end."""
        if self._has_ended or self._bridge.process != os.getpid():
            return
        self._has_ended = True
        if self._bridge.is_here:
            # Race: who dropped the generator may be a garbage collection in the loop's thread.
            self._cancel()
        elif self._call(self._cancel):
            self._await_end()

    def _await_end(self) -> None:
        deadline = time.monotonic() + _CLOSE_SECONDS
        try:
            while not isinstance(self._items.get(timeout=deadline - time.monotonic()), _End):
                pass
        except (queue.Empty, ValueError):  # A time-out mustn't be negative.
            # Race: a garbage collection may drop the generator while its thread holds what the
            # iterator needs in order to end. Others are of no use any more, but do no harm.
            _logger.warning("an iterator doesn't end, and is left to itself")

    def _check(self) -> None:
        if self._bridge.process != os.getpid():
            raise RuntimeError("this process was forked since the iteration began")
        self._bridge.check()

    def _call(self, function: Callable[[], object]) -> bool:
        try:
            self._bridge.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # The loop was closed, and has ended the task.
        return True

    def _begin(self) -> None:
        self._bridge.pumps.add(self)
        self._task = asyncio.get_running_loop().create_task(self._read())
        # Invariant: an end comes whatever happens, even if the task never ran.
        self._task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._bridge.pumps.discard(self)
        self._task = None
        if task.cancelled():
            error: BaseException | None = concurrent.futures.CancelledError(
                "the iteration was cancelled"
            )
        else:
            error = task.exception()
        self._items.put(_End(error))

    async def _read(self) -> None:
        iterator = aiter(self._make())
        try:
            while True:
                await self._slots.acquire()
                try:
                    self._items.put(_Item(await anext(iterator)))
                except StopAsyncIteration:
                    return
        finally:
            if (aclose := getattr(iterator, "aclose", None)) is not None:
                await aclose()


_bridges: Final[dict[int, _Bridge]] = {}
"""Bridges by process. Those of parents are kept, as collecting them would close their loops."""

_locks: Final[dict[int, contextlib.AbstractContextManager[bool]]] = {}
"""Locks by process: a fork may copy one which is held, by a thread which isn't there."""

_clients: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Closable]]] = (
    weakref.WeakKeyDictionary()
)


def _lock_of(process: int) -> contextlib.AbstractContextManager[bool]:
    return _locks.setdefault(process, threading.RLock())


def _submit(function: Callable[[_Bridge], T]) -> T:
    """Have a function hand something to the loop of this process, which is started if need be.

    Race: what's handed over under the lock comes before the end which `close()` hands over.
    """
    process = os.getpid()
    with _lock_of(process):
        if (bridge := _bridges.get(process)) is None:
            if not _bridges:
                atexit.register(close)
            bridge = _Bridge()
            bridge.start()
            _bridges[process] = bridge
        bridge.check()
        return function(bridge)
