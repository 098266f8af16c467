"""Time limit of calls, for brokers which accept a call and never answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gazette_aio.client import JournalClient

T = TypeVar("T")

ANSWER_SECONDS: Final = 300.0
"""Seconds which a call may take, with all of its attempts."""


async def answered(client: JournalClient, call: Awaitable[T], operation: str, journal: str) -> T:
    """Return the result of a call, or cancel the call after `ANSWER_SECONDS`.

    Args:
        client: Client of the call.
        call: The call, which has no side effects, and no time-out of its own.
        operation: Name of the call for errors.
        journal: Journal of the call.

    Raises:
        OperationTimeoutError: There was no answer in time.

    Cancellation: as of the call.
    """
    deadline = client.context.deadline(operation, ANSWER_SECONDS, journal=journal)
    return await deadline.run(call)
