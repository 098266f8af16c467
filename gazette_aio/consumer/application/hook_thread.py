"""Thread of a shard's hooks, which can't be cancelled."""

from __future__ import annotations

import asyncio
import functools
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

T = TypeVar("T")

ABANDON_SECONDS: Final = 30.0
"""Time for which a cancelled caller waits for a running hook."""


class HookThread:
    """A thread that runs one hook at a time. It starts with the first call.

    Args:
        name: Name of the thread.
        abandon_seconds: Time for which a cancelled caller waits for a running hook.
    """

    def __init__(self, name: str, *, abandon_seconds: float = ABANDON_SECONDS) -> None:
        self._executor = ThreadPoolExecutor(1, f"gazette {name}")
        self._name = name
        self._abandon_seconds = abandon_seconds
        self._running: asyncio.Future[Any] | None = None

    async def call(
        self, hook: Callable[..., T], *args: Any, dropped: Callable[[T], object] | None = None
    ) -> T:
        """Call a hook in the thread, and return its result.

        Args:
            hook: The hook.
            args: Its arguments.
            dropped: Called in the event loop with the result if the caller was cancelled, whenever
                the hook returns.

        Cancellation: safe — raised after the hook has returned, or after `abandon_seconds`, which
        logs that the hook is still running.
        """
        loop = asyncio.get_running_loop()
        future = self._running = loop.run_in_executor(self._executor, _returned, hook, *args)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if dropped is not None:
                future.add_done_callback(functools.partial(_drop, dropped))
            await finish(self._over(future))
            raise
        finally:
            self._running = None

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
        """Take no further calls, and wait for a running hook, bounded as by a cancellation.

        Cancellation: safe — call again.
        """
        self._executor.shutdown(wait=False)
        if self._running is not None:
            await self._over(self._running)


def _drop(dropped: Callable[[T], object], future: asyncio.Future[T]) -> None:
    if not future.cancelled() and future.exception() is None:
        dropped(future.result())


def _returned(hook: Callable[..., T], *args: Any) -> T:
    try:
        return hook(*args)
    except StopIteration as error:
        # A future doesn't take it, and who waits would wait forever. Coroutines raise this, too.
        raise RuntimeError("a hook raised StopIteration") from error
