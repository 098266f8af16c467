"""Intake of a shard: the messages that it reads, in the order in which they're consumed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message import Envelope, SequencerCheckpoint

PRUNE_HORIZON: Final = timedelta(hours=24)
"""Age at which a checkpoint forgets producers."""

RETAINED_BYTES: Final = 64 << 20
"""Limit of the bytes of pending messages that a shard retains."""


class Intake(Protocol):
    """Reads messages, and decides which of them commit next."""

    @property
    def ready(self) -> Sequence[Envelope[Any]]:
        """Decoded messages of one journal to consume next."""
        ...

    @property
    def is_replaying(self) -> bool:
        """Whether the messages after the ready ones have to be read again, by `read_again()`."""
        ...

    @property
    def has_input(self) -> bool:
        """Whether `advance()` has something to handle."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether reading has ended, and all that was read is handled."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether messages are pending that were handled since the last checkpoint."""
        ...

    def start(self) -> None:
        """Begin to read."""
        ...

    def advance(self) -> tuple[str, int] | None:
        """Handle some of the input. All ready messages were consumed.

        Returns:
            A journal, and the offset after messages that no later one reports: duplicates, and what
            was rolled back. Or None.

        Raises:
            TransactionError: Reading has failed.
        """
        ...

    async def read_again(self) -> None:
        """Read some content again.

        Raises:
            TransactionError: It can't be read, or has changed.

        Cancellation: aborts — the intake must be closed.
        """
        ...

    def consumed(self, count: int) -> None:
        """Note that the first ready messages were consumed."""
        ...

    def checkpoint(self) -> SequencerCheckpoint:
        """Return the checkpoint of the messages consumed so far."""
        ...

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — reading ends anyway.
        """
        ...
