"""Blocking calls in worker threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gazette_aio.aio.finish import finish

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of the loop's default executor, and return its result.

    Cancellation: safe — raised once the call has returned, so that nothing runs on behind the
    caller. What it returned is dropped.
    """
    loop = asyncio.get_running_loop()
    return await finish(loop.run_in_executor(None, lambda: function(*args, **kwargs)))
