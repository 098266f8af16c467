"""Patience with brokers which accept a call, and never answer it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable

T = TypeVar("T")

ANSWER_SECONDS: Final = 300.0
"""Seconds for which a call may take, with all of its attempts."""


async def answered(call: Awaitable[T], what: str, journal: str = "") -> T:
    """Return what a call comes to, unless that takes too long.

    Args:
        call: The call, which is cancelled then. What it asked for may happen nevertheless.
        what: What it's for, for people.
        journal: Journal which it's of.

    Cancellation: as that of the call.

    Raises:
        TransportError: There was no answer in time.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await call
    except TimeoutError:
        text = f"{what}: no answer within {ANSWER_SECONDS:g} s"
        code = "DEADLINE_EXCEEDED"
        raise pb.TransportError(code, text, journal=journal, retryable=True) from None
