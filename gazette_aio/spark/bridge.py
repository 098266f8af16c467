"""Bridge from synchronous code to coroutines: one event loop per process.

Spark calls sources and sinks from plain threads of processes which it forks and reuses. The first
use in a process starts a thread with an event loop, which later uses share, with its clients. The
thread ends with the interpreter or by `close()`; the next use starts another one.

Invariant: all state is keyed by process ID. State copied by a fork is never used: waiting for a
loop whose thread doesn't exist would hang.
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
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient

if TYPE_CHECKING:
    import contextlib
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable

    from gazette_aio.aio.closing import Closeable

_logger = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound="Hashable")
C = TypeVar("C", bound="Closeable")

CLOSE_SECONDS: Final = 10.0
"""Seconds within which iterators, tasks and clients must end when their loop is closed."""

MOST_CLIENTS: Final = 256
"""Number of clients of a loop beyond which those which nobody uses are closed."""


def run(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine in the loop of this process, and return its result.

    If the waiting thread is interrupted, the coroutine is cancelled.

    Args:
        coroutine: The coroutine. It's closed if it can't be run.
        timeout: Seconds until the coroutine is cancelled, and its end awaited; None for no limit.

    Raises:
        TimeoutError: The coroutine took too long.
        concurrent.futures.CancelledError: The coroutine was cancelled, for example by `close()`.
        UsageError: This is the loop's own thread, where the coroutine can be awaited.
        BaseException: Exception of the coroutine, with its traceback.
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
        future.cancel()  # No effect on a finished coroutine.
        del future  # The traceback of an error must not keep the error alive.


async def _bounded(coroutine: Coroutine[Any, Any, T], timeout: float) -> T:  # noqa: ASYNC109
    # Invariant: the coroutine has ended when the caller continues.
    async with asyncio.timeout(timeout):
        return await coroutine


def iterate(make: Callable[[], AsyncIterator[T]], depth: int = 4) -> Generator[T]:
    """Iterate over an async iterator, which is read ahead in the loop of this process.

    Reading starts with the first item. The async iterator is closed at its end, and when the
    generator is closed or dropped, which waits up to 10 seconds for its end.

    Args:
        make: Makes the async iterator; called in the loop.
        depth: Greatest number of items read ahead.

    Raises:
        ConfigurationError: `depth` is less than one.
        concurrent.futures.CancelledError: The iteration was cancelled, for example by `close()`.
        UsageError: This is the loop's own thread, or the process was forked meanwhile.
        BaseException: Exception of the async iterator, with its traceback.
    """
    if depth < 1:
        raise pb.ConfigurationError(f"the depth of read-ahead must be one or more, not {depth}")
    return _iterate(make, depth)


def _iterate(make: Callable[[], AsyncIterator[T]], depth: int) -> Generator[T]:
    pump = _submit(lambda bridge: _Pump(bridge, make, depth))
    try:
        while not isinstance(item := pump.take(), _End):
            yield item.value
            del item  # Don't keep an item while waiting for the next one.
        if item.error is not None:
            raise item.error
    finally:
        item = _NOTHING  # The traceback of an error must not keep the error alive.
        pump.close()


async def client_of(key: K, factory: Callable[[K], C]) -> C:
    """Return the client of a key: one per event loop, and thus per process.

    Clients of the bridge's loop are closed with the loop. Users of another loop call
    `close_clients()` before the loop ends. If there are too many, for example because of tokens
    which are renewed, the one which wasn't asked for longest and has nothing under way is closed.
    So ask for a client again for each piece of work.

    Args:
        key: Key of the client.
        factory: Makes a client at the first use of the key. It must not block.

    Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    clients = _clients.setdefault(loop, {})
    if (client := clients.pop(key, None)) is None:
        client = factory(key)
    clients[key] = client  # The last one.
    if len(clients) > MOST_CLIENTS:
        unused = next((each for each, client in clients.items() if _is_unused(client)), key)
        if unused != key:
            _closing.setdefault(loop, []).append(clients.pop(unused))
            await _close_left(loop)
    return cast("C", client)


def _is_unused(client: Closeable) -> bool:
    if not isinstance(client, JournalClient):
        return True
    status = client.status()
    rpcs = sum(member.rpcs for member in status.members)
    return not (rpcs or status.streams or status.watches or status.appends.journals)


async def close_clients() -> None:
    """Close all clients of the running loop. Idempotent.

    Cancellation: safe — call again.
    """
    loop = asyncio.get_running_loop()
    # Race: who asks for a client meanwhile gets a new one.
    _closing.setdefault(loop, []).extend(_clients.pop(loop, {}).values())
    await _close_left(loop)


async def _close_left(loop: asyncio.AbstractEventLoop) -> None:
    closing = _closing[loop]
    while closing:
        client = closing[-1]
        try:
            await client.aclose()
        except Exception as error:  # noqa: BLE001 - The other clients must be closed too.
            _logger.warning("closing a client failed: %s", error)
        if client in closing:
            closing.remove(client)


def close() -> None:
    """End the loop of this process, with its clients, tasks and threads. Idempotent.

    Running tasks are cancelled. Call this before a fork: gRPC works in a child only if its parent
    has no connected client.

    Raises:
        UsageError: This is the loop's own thread.
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
    """A thread with an event loop; `start()` starts it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        # An own executor: ending the default executor takes another thread, which can't be started
        # while the interpreter exits.
        self._executor = ThreadPoolExecutor(thread_name_prefix="gazette-spark-io")
        self.loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._main, name="gazette-spark", daemon=True)
        self._ending = asyncio.Event()
        # Threads of anyio live as long as the task which runs the loop.
        self._root = self.loop.create_task(self._until_end(), name="gazette-spark")
        self.pumps: set[_Pump[Any]] = set()
        """Pumps which may have a task. Without this reference, a task which waits for its consumer
        could be garbage-collected with the consumer before it ends."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the current thread is the loop's."""
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Raise RuntimeError in the loop's own thread."""
        if self.is_here:
            raise pb.UsageError(
                "called from the event loop's own thread, which would wait for itself forever; "
                "await it instead"
            )

    def close(self) -> None:
        ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        try:
            ending.result(CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - No caller could handle the error.
            _logger.warning("ending the event loop failed: %s", error or type(error).__name__)
        self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            _logger.warning("the event loop is blocked, and is abandoned")
        else:
            self._executor.shutdown(cancel_futures=True)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task(), self._root}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS / 2)
        await close_clients()
        await self.loop.shutdown_asyncgens()

    async def _until_end(self) -> None:
        await self._ending.wait()

    def _main(self) -> None:
        try:
            while not self._root.done():
                try:
                    self.loop.run_until_complete(self._root)
                except (SystemExit, KeyboardInterrupt):
                    # This is the outcome of the task which raised it. Other tasks continue.
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
        """Wait for the next item or the end."""
        self._check()
        item = self._items.get()
        if isinstance(item, _End):
            self._has_ended = True
        else:
            self._call(self._slots.release)
        return item

    def close(self) -> None:
        """Cancel the task, and wait for its end."""
        if self._has_ended or self._bridge.process != os.getpid():
            return
        self._has_ended = True
        if self._bridge.is_here:
            # Race: a garbage collection in the loop's thread may have dropped the generator.
            self._cancel()
        elif self._call(self._cancel):
            self._await_end()

    def _await_end(self) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            while not isinstance(self._items.get(timeout=deadline - time.monotonic()), _End):
                pass
        except (queue.Empty, ValueError):  # ValueError: the time-out is negative.
            # Race: a garbage collection may drop the generator while its thread holds a resource
            # which the iterator needs in order to end.
            _logger.warning("an iterator doesn't end, and is abandoned")

    def _check(self) -> None:
        if self._bridge.process != os.getpid():
            raise pb.UsageError("this process was forked since the iteration began")
        self._bridge.check()

    def _call(self, function: Callable[[], object]) -> bool:
        try:
            self._bridge.loop.call_soon_threadsafe(function)
        except RuntimeError:
            return False  # The loop is closed, and ended the task.
        return True

    def _begin(self) -> None:
        self._bridge.pumps.add(self)
        self._task = asyncio.get_running_loop().create_task(self._read())
        # Invariant: the end is always queued, even if the task never ran.
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
"""Bridges by process. Bridges of parents are kept: collecting them would close their loops."""

_locks: Final[dict[int, contextlib.AbstractContextManager[bool]]] = {}
"""Locks by process: a fork may copy a lock whose thread doesn't exist in the child."""

_clients: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Closeable]]] = (
    weakref.WeakKeyDictionary()
)

_closing: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Closeable]]] = (
    weakref.WeakKeyDictionary()
)


def _lock_of(process: int) -> contextlib.AbstractContextManager[bool]:
    return _locks.setdefault(process, threading.RLock())


def _submit(function: Callable[[_Bridge], T]) -> T:
    """Call a function which submits work to the loop of this process; start the loop if needed.

    Race: work submitted under the lock runs before the end which `close()` submits.
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
