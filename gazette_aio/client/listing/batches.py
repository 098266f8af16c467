"""Changes of specs, applied in batches: the rule of `apply_journals()` and `apply_shards()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.protocol.errors import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_aio.client.deadline import Deadline

Change = TypeVar("Change")
Response = TypeVar("Response")


async def apply_in_batches(
    changes: Sequence[Change],
    batch_size: int,
    deadline: Deadline,
    *,
    check: Callable[[Change], None],
    item_of: Callable[[Change], str],
    apply: Callable[[Sequence[Change]], Awaitable[Response]],
) -> Response:
    """Check all changes, apply them batch by batch, and return the response to the last batch.

    Args:
        changes: The changes. None at all are still one batch.
        batch_size: Changes of each batch, at least 0; 0 makes one batch.
        deadline: Bound of all batches.
        check: Raises ValidationError if a change is invalid.
        item_of: Text of the journal or shard of a change.
        apply: Applies one batch.

    Raises:
        ValidationError: A change is invalid; nothing was applied.
        ConfigurationError: The batch size is negative.
        GazetteError: A batch failed. `applied` has the number of changes of the batches before.

    Cancellation: aborts — batches that were applied remain.
    """
    if batch_size < 0:
        raise pb.ConfigurationError("batch_size must not be negative")
    turns = Turns()
    for index, change in enumerate(changes):
        try:
            within(f"Changes[{index}]", check, change)
        except pb.ValidationError as error:
            text = f"{error.text} (of {item_of(change)})"
            raise pb.ValidationError(text, error.context) from None
        await turns.rest()
    size = batch_size or max(len(changes), 1)
    applied = 0

    async def apply_all() -> Response:
        nonlocal applied
        response = await apply(changes[:size])
        for applied in range(size, len(changes), size):
            response = await apply(changes[applied : applied + size])
        return response

    try:
        return await deadline.run(apply_all())
    except pb.GazetteError as error:
        error.applied = applied
        raise
