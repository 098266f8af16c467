"""Time limit of calls, for brokers which accept a call and never answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

ANSWER_SECONDS: Final = 300.0
"""Seconds which a call may take, with all of its attempts."""


async def answered(call: Awaitable[T], what: str, journal: str = "") -> T:
    """Return the result of a call, or cancel the call after `ANSWER_SECONDS`.

    Args:
        call: The call. A cancelled call may still take effect at the broker.
        what: Description for errors.
        journal: Journal of the call, or empty.

    Raises:
        TransportError: There was no answer in time.

    Cancellation: as that of the call.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await call
    except TimeoutError:
        text = f"{what}: no answer within {ANSWER_SECONDS:g} s"
        code = "DEADLINE_EXCEEDED"
        raise pb.TransportError(code, text, journal=journal, retryable=True) from None
