"""Protocol of a shard's store, which keeps state and checkpoint in one atomic commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.protocol.consumer import Checkpoint


class Store(Protocol):
    """State of a shard, and the checkpoint of the messages that are part of it.

    `testing.check_store()` tells whether a store keeps what is said here.
    """

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> asyncio.Future[None]:
        """Begin to commit the changes of this transaction and its checkpoint, as one.

        The commit takes effect only after all of `wait_for` succeeded, and fails if one of them
        fails. It fails with FencedError if another process called `restore_checkpoint()` of the
        shard later than this store did.

        It's called within the shard's loop, and never while the commit before is pending. Changes
        that the application makes after it returned belong to the next transaction, and may be
        made before this one has committed.

        Args:
            shard: The shard.
            checkpoint: Checkpoint to store. The store doesn't modify it.
            wait_for: Appends of the transaction.

        Returns:
            The commit: an OpFuture, a future of asyncio, or a task, which nobody but the store
            cancels. If it's done with an error already, the transaction fails at once.
        """
        ...

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        """Drop changes since the last commit, return its checkpoint, and fence off others.

        It's called before the first transaction of an assignment, and again whenever a transaction
        is repeated, or a `MessageProducer` ends its reading. Without a commit so far, the
        checkpoint is empty, and the state the initial one.

        Cancellation: aborts — other processes may have been fenced off.
        """
        ...

    async def destroy(self) -> None:
        """Release resources. It's called once, when nothing refers to the store any longer.

        A resolution that isn't released within `ConsumerOptions.release_timeout` doesn't count. A
        commit under way ends before it returns: one that waits for its dependencies fails.

        Cancellation: aborts — the framework cancels it after `ConsumerOptions.release_timeout`.
        """
        ...
