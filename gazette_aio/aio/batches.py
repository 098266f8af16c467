"""Calls for many journals, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")

CONCURRENT: Final = 32
"""Calls at a time."""


async def in_batches(
    call: Callable[[Item], Awaitable[Result]], items: Sequence[Item], size: int = CONCURRENT
) -> AsyncGenerator[Result]:
    """Yield the results of calls in the order of their items.

    Args:
        call: Called with each item.
        items: The items.
        size: Number of concurrent calls, and of results in memory.

    Raises:
        Exception: The first error of a call, in the order of items.

    Cancellation: aborts — ongoing calls are cancelled.
    """
    for begin in range(0, len(items), size):
        tasks = [asyncio.ensure_future(call(item)) for item in items[begin : begin + size]]
        try:
            results = [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            yield result
