"""End of transactions by the hook `finished_txn()`, which cancellations and failures leave time."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store

_logger = logging.getLogger(__name__)

_UNSET: Final = object()

FINISHED_SECONDS: Final = 30.0
"""Time that `finished_txn()` has after a failure or cancellation."""


class Finisher:
    """Calls `finished_txn()` of an application, if it has that.

    Args:
        hooks: Hooks of the application.
        shard: First argument of the hook.
        store: Second argument of the hook.
    """

    def __init__(self, hooks: Hooks, shard: Shard, store: Store) -> None:
        self._hooks = hooks
        self._shard = shard
        self._store = store

    async def committing(self, commit: OpFuture[None]) -> None:
        """Tell that a transaction commits.

        Raises:
            Exception: The hook raises it.

        Cancellation: safe — raised after the hook has returned, or was cancelled as its time was
        over.
        """
        waiting = self._hooks.finished_txn(self._shard, self._store, commit)
        if waiting is None:
            return
        context = contextvars.copy_context()
        ending = self._task(waiting, context)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await finish(self._ended(ending))
            raise
        # Later hooks see the context variables that this one has set.
        for variable, value in context.items():
            if variable.get(_UNSET) is not value:
                variable.set(value)

    async def failed(self, commit: OpFuture[None]) -> None:
        """Tell that a transaction failed. An error of the hook is logged.

        Cancellation: safe — as of `committing()`.
        """
        try:
            waiting = self._hooks.finished_txn(self._shard, self._store, commit)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - the caller raises.
            self._warn(failure)
            return
        if waiting is not None:
            await finish(self._ended(self._task(waiting, contextvars.copy_context())))

    def _task(
        self, waiting: Awaitable[object], context: contextvars.Context
    ) -> asyncio.Task[object]:
        # Invariant: a task of its own. Cancellation can't be kept from what the caller awaits.
        name = f"gazette end of a transaction of shard {self._shard.id}"
        return start_task(_awaited(waiting), name, context=context)

    async def _ended(self, ending: asyncio.Task[object]) -> None:
        await asyncio.wait((ending,), timeout=FINISHED_SECONDS)
        failure: BaseException | None
        if not ending.done():
            ending.cancel()
            await asyncio.wait((ending,))
            failure = TimeoutError()
        elif ending.cancelled():
            failure = asyncio.CancelledError()
        else:
            failure = ending.exception()
        if failure is not None:
            self._warn(failure)

    def _warn(self, failure: BaseException) -> None:
        _logger.warning(
            "finished_txn() failed after its transaction: %r",
            failure,
            extra={"shard": self._shard.id},
        )


async def _awaited(waiting: Awaitable[object]) -> object:
    return await waiting
