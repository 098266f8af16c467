"""Examination of requests, without keeping the event loop from the shards of the member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from gazette_aio.aio.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES: Final = 8 << 10
"""Longest request that the event loop itself looks at."""


async def examine(
    request: Message, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a function that looks at all of a request; in a worker thread if that is long.

    Cancellation: safe — takes effect when the call has returned.
    """
    if request.ByteSize() > _INLINE_BYTES:
        return await in_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
