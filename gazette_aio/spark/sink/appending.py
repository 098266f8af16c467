"""Acknowledgements and roll-backs of messages in many journals."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.sink import answers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.client import JournalClient
    from gazette_aio.client.retry import Failure
    from gazette_aio.spark.sink.commit_records import CommitRecord

_logger = logging.getLogger(__name__)

RETRY: Final = RetryPolicy(max_elapsed=120.0)
"""Default retry policy of appends: failures are retried for two minutes."""
_ROLL_BACK_SECONDS: Final = 5.0


async def acknowledge(
    client: JournalClient, record: CommitRecord, retry_policy: RetryPolicy, *, ignores_missing: bool
) -> tuple[set[str], pb.GazetteError | None]:
    """Append the acknowledgements of a record; failures don't stop other journals.

    Args:
        client: Client to use.
        record: The record.
        retry_policy: Retry policy of appends.
        ignores_missing: Whether to ignore journals which don't exist.

    Returns:
        Journals to which further copies may arrive; and the first error, or None.

    Cancellation: aborts — some acknowledgements may be appended.
    """
    repeated: set[str] = set()
    errors: list[pb.GazetteError] = []

    async def append(item: tuple[str, bytes]) -> None:
        journal, frames = item

        def note(failure: Failure) -> bool | None:
            repeated.add(journal)
            return retry_policy.on_error(failure) if retry_policy.on_error else None

        policy = dataclasses.replace(retry_policy, on_error=note)
        try:
            timeout = answers.ANSWER_SECONDS
            await client.append(journal, frames, retry_policy=policy, timeout=timeout)
        except pb.JournalNotFoundError as error:
            if not ignores_missing:
                errors.append(error)
            else:
                text = "batch %d can't be acknowledged in %s, which doesn't exist"
                _logger.warning(text, record.batch, journal, extra={"journal": journal})
        except pb.GazetteError as error:
            repeated.add(journal)  # The append may still arrive.
            errors.append(error)

    await map_bounded(append, record.acknowledgements().items())
    return repeated, errors[0] if errors else None


async def roll_back(client: JournalClient, frames: Mapping[str, bytes]) -> None:
    """Append acknowledgements which roll messages back, within a time limit.

    Without the roll back, readers keep the pending messages for a day, which does no harm.

    Args:
        client: Client to use.
        frames: Acknowledgements by journal.

    Cancellation: aborts — messages remain pending.
    """

    async def append(item: tuple[str, bytes]) -> None:
        journal, frame = item
        try:
            await client.append(journal, frame)
        except pb.GazetteError as error:
            _logger.warning("messages remain pending: %s", error, extra={"journal": journal})

    try:
        async with asyncio.timeout(_ROLL_BACK_SECONDS):
            await map_bounded(append, frames.items())
    except TimeoutError:
        _logger.warning("messages remain pending: rolling them back took too long")
