"""Commit of a store, whatever future the store returned."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

from gazette_aio.client.appends.futures import AsyncOperation, OpFuture
from gazette_aio.protocol.errors import StoreError


def commit_of(returned: object) -> OpFuture[None]:
    """Return the commit that a store's `start_commit()` returned.

    A plain future or a task of the store is followed, so that somebody who awaits the commit and is
    cancelled doesn't cancel it.

    Raises:
        TypeError: It's no future, but the coroutine of an async function, for example.
    """
    if isinstance(returned, OpFuture):
        return cast("OpFuture[None]", returned)
    if asyncio.isfuture(returned):
        return _Followed(returned)
    if inspect.iscoroutine(returned):
        returned.close()
    raise TypeError(f"it must return a future (not {type(returned).__name__})")


class _Followed(AsyncOperation):
    """Completes as a future does."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        super().__init__()
        # Event loops refer to their tasks only weakly.
        self._future: asyncio.Future[Any] | None = future
        if future.done():
            self._follow(future)
        else:
            future.add_done_callback(self._follow)

    def _follow(self, future: asyncio.Future[Any]) -> None:
        self._future = None
        if future.cancelled():
            self.resolve(StoreError("the commit was cancelled"))
        else:
            self.resolve(future.exception())
