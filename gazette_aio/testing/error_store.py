"""Store whose calls fail, for tests of what a shard does then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.protocol.consumer import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard


class ErrorStore:
    """Store whose calls fail, for tests of what a shard does then.

    Args:
        start_commit_error: Error of commits; None if commits succeed, at once and without effect.
        restore_error: Error of `restore_checkpoint()`; None to restore an empty checkpoint.
    """

    def __init__(
        self,
        start_commit_error: Exception | None = None,
        restore_error: Exception | None = None,
    ) -> None:
        self.start_commit_error = start_commit_error
        """Error of commits. Tests may set it at any time."""
        self.restore_error = restore_error
        """Error of restoring. Tests may set it at any time."""
        self.is_destroyed: bool = False
        """Whether `destroy()` was called."""

    def start_commit(
        self,
        shard: Shard,  # noqa: ARG002 - As of the protocol, and below.
        checkpoint: Checkpoint,  # noqa: ARG002
        wait_for: Collection[OpFuture[Any]],  # noqa: ARG002
        /,
    ) -> OpFuture[None]:
        """Return a commit that is done: successful, or failed with `start_commit_error`."""
        return finished_operation(self.start_commit_error)

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:  # noqa: ARG002
        """Return an empty checkpoint.

        Raises:
            Exception: `restore_error`, if it's set.

        Cancellation: safe.
        """
        if self.restore_error is not None:
            raise self.restore_error
        return Checkpoint()

    async def destroy(self) -> None:
        """Set `is_destroyed`.

        Cancellation: safe.
        """
        self.is_destroyed = True
