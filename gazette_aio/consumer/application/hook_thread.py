"""Thread of a shard's hooks, which can't be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gazette_aio.aio.contexts import adopt
from gazette_aio.aio.finish import finish
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

T = TypeVar("T")

ABANDON_SECONDS: Final = 30.0
"""Time for which a cancelled caller waits for a running hook."""


class HookThread:
    """A thread that runs one hook at a time. It starts with the first call.

    It doesn't keep the process from its end.

    Args:
        name: Name of the thread.
        abandon_seconds: Time for which a cancelled caller waits for a running hook.
    """

    def __init__(self, name: str, *, abandon_seconds: float = ABANDON_SECONDS) -> None:
        self._name = name
        self._abandon_seconds = abandon_seconds
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._awaited: set[asyncio.Future[Any]] = set()
        self._is_closed = False

    async def call(
        self, hook: Callable[..., T], *args: Any, dropped: Callable[[T], object] | None = None
    ) -> T:
        """Call a hook in the thread, and return its result.

        Args:
            hook: The hook.
            args: Its arguments.
            dropped: Called in the event loop with the result if the caller was cancelled, whenever
                the hook returns.

        The hook sees the context variables of the caller's task, which takes over those that the
        hook set, even if it raised: so later hooks see them, as they do without a thread.

        Raises:
            UsageError: After `aclose()`, or the hook raised StopIteration.

        Cancellation: safe — raised after the hook has returned, or after `abandon_seconds`, which
        logs that the hook is still running.
        """
        if self._is_closed:
            raise UsageError(f"the thread of {self._name} has ended")
        future = asyncio.get_running_loop().create_future()
        self._awaited.add(future)
        context = contextvars.copy_context()
        self._calls.put(_Call(future, functools.partial(context.run, hook, *args)))
        if self._thread is None:
            # A daemon: a hook that never returns must not keep the process from its end.
            self._thread = threading.Thread(
                target=_make_calls, args=(self._calls,), name=f"gazette {self._name}", daemon=True
            )
            self._thread.start()
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if dropped is not None:
                future.add_done_callback(functools.partial(_drop, dropped))
            await finish(self._over(future))
            raise
        finally:
            self._awaited.discard(future)
            if future.done():
                adopt(context)

    async def _over(self, future: asyncio.Future[Any]) -> None:
        await asyncio.wait((future,), timeout=self._abandon_seconds)
        if not future.done():
            _logger.warning(
                "a hook of %s is still running %.0f s after its cancellation",
                self._name,
                self._abandon_seconds,
                extra={"shard": self._name},
            )
        elif not future.cancelled() and future.exception() is not None:
            _logger.debug("a cancelled hook of %s failed: %s", self._name, future.exception())

    async def aclose(self) -> None:
        """Take no further calls, and wait for those that callers wait for, within their bound.

        Cancellation: safe — call again.
        """
        if not self._is_closed:
            self._is_closed = True
            self._calls.put(None)
        for future in tuple(self._awaited):
            await self._over(future)


def _drop(dropped: Callable[[T], object], future: asyncio.Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        dropped(future.result())


class _Call:
    """A call of a hook, whose outcome a future of an event loop gets."""

    def __init__(self, future: asyncio.Future[Any], hook: Callable[[], Any]) -> None:
        self._future = future
        self._hook = hook

    def make(self) -> None:
        """Make the call. Runs in the thread."""
        result: Any = None
        failure: BaseException | None = None
        try:
            result = self._hook()
        except StopIteration as error:
            # A future doesn't take it. Coroutines raise this, too.
            failure = RuntimeError("a hook raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - The caller has it.
            failure = error
        # A loop that was closed meanwhile has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._future.get_loop().call_soon_threadsafe(self._resolve, result, failure)
        failure = None  # Its traceback refers to this frame.

    def _resolve(self, result: Any, failure: BaseException | None) -> None:
        if failure is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(failure)


def _make_calls(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # An idle thread retains no messages.
