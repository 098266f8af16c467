"""Store in memory, for tests and for state that may be lost with its process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.consumer.stores.failures import fenced
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application import Shard

S = TypeVar("S")


class _Row(NamedTuple):
    fence: int
    checkpoint: Checkpoint
    states: tuple[Any, ...]
    """The committed state, or nothing before the first commit."""


class MemoryDatabase:
    """Committed states and checkpoints of shards, which outlive the stores of one process."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def take(self, shard: str) -> tuple[int, Checkpoint, tuple[Any, ...]]:
        """Fence off earlier owners of a shard.

        Args:
            shard: FQN of the shard.

        Returns:
            The new fence, and copies of the checkpoint and of the state, if one was committed.
        """
        row = self._rows.get(shard) or _Row(0, Checkpoint(), ())
        self._rows[shard] = taken = row._replace(fence=row.fence + 1)
        return copy.deepcopy((taken.fence, taken.checkpoint, taken.states))

    def put(self, shard: str, fence: int, checkpoint: Checkpoint, state: Any) -> None:
        """Commit the state and the checkpoint of a shard.

        Raises:
            FencedError: Somebody else has taken the shard.
        """
        if self._rows[shard].fence != fence:
            raise fenced()
        self._rows[shard] = _Row(fence, checkpoint, (state,))


class MemoryStore(Generic[S]):
    """Store in a `MemoryDatabase`, which stores of the same process share.

    Args:
        state: State of a shard that has none so far. It has to support `copy.deepcopy()`.
        database: Database to commit to. By default, the store has one of its own, so that its state
            ends with the store.
    """

    def __init__(self, state: S, database: MemoryDatabase | None = None) -> None:
        self.state: Any = state
        """State, which the application changes within transactions. Restoring replaces it."""
        self.database: MemoryDatabase = MemoryDatabase() if database is None else database
        """The database."""
        self._initial: tuple[Any, ...] = ()
        self._fence = 0
        self._commits = Commits()

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[OpFuture[Any]], /
    ) -> OpFuture[None]:
        """Begin to commit a copy of the state, and the checkpoint. See `Store.start_commit()`."""
        fqn, fence, stored = shard.fqn, self._fence, copy.deepcopy(checkpoint)
        try:
            state = copy.deepcopy(self.state)
        except Exception as error:  # noqa: BLE001 - the commit has it.
            return finished_operation(StoreError(f"copying the state: {error}"))

        async def apply() -> None:
            self.database.put(fqn, fence, stored, state)

        return self._commits.start(wait_for, apply)

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        """Restore state and checkpoint, and fence off other stores of the shard.

        Cancellation: safe.
        """
        self._fence, checkpoint, states = self.database.take(shard.fqn)
        if states or self._initial:
            (self.state,) = states or copy.deepcopy(self._initial)
        self._initial = self._initial or copy.deepcopy((self.state,))
        return checkpoint

    async def destroy(self) -> None:
        """End the commit under way. The database keeps what was committed.

        Cancellation: safe — call again.
        """
        await self._commits.aclose()

    def __repr__(self) -> str:
        return f"<MemoryStore fence={self._fence}>"
