"""Checkpoints packed into transactions that the store accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.consumer.allocator.convergence import Checkpoint
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_aio.consumer.keyspace.operations import Compare


def pack(
    checkpoints: Iterable[Checkpoint],
    fixed: Sequence[Compare] = (),
    *,
    max_operations: int = MAX_OPERATIONS,
) -> Iterator[Checkpoint]:
    """Yield transactions: whole checkpoints, each with the comparisons `fixed` in front.

    Comparisons and operations are bounded by `max_operations` each. A checkpoint that exceeds the
    bounds by itself is a transaction of its own, which the store refuses.
    """
    packed = Checkpoint(list(fixed))
    for checkpoint in checkpoints:
        if not checkpoint.operations:
            assert not checkpoint.compares, "a checkpoint compares only where it changes something"
            continue
        if packed.operations and (
            len(packed.compares) + len(checkpoint.compares) > max_operations
            or len(packed.operations) + len(checkpoint.operations) > max_operations
        ):
            yield packed
            packed = Checkpoint(list(fixed))
        packed.compares.extend(checkpoint.compares)
        packed.operations.extend(checkpoint.operations)
    if packed.operations:
        yield packed
