"""Writer of a replica's status to the value of its assignment."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_aio.aio.signal import Signal
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import Compare, Put
from gazette_aio.consumer.shards.backoff import retry_seconds
from gazette_aio.protocol.consumer import ReplicaStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.consumer.allocator.model import Assignment, GroupEntry
    from gazette_aio.consumer.keyspace.key_space import KeySpace
    from gazette_aio.consumer.keyspace.store import KeyValueStore

_logger = logging.getLogger(__name__)


def merge_status(current: ReplicaStatus, wanted: ReplicaStatus) -> ReplicaStatus | None:
    """Return the status to write, or None if `current` has all of `wanted`.

    Codes only grow. Errors that are already there stay in front, since the first one tends to be
    the cause of the others.
    """
    errors = list(dict.fromkeys((*current.errors, *wanted.errors)))
    code = max(current.code, wanted.code)
    if code == current.code and len(errors) == len(set(current.errors)):
        return None
    return ReplicaStatus(code=code, errors=errors)


class StatusWriter:
    """Writes the latest wanted status of a replica, and merges it with the one that's there.

    Failed writes are repeated until they succeed, with growing delays.

    Args:
        store: Store of the group.
        key_space: Mirror of the group.
        assignment: Assignment of the replica.
    """

    def __init__(
        self,
        store: KeyValueStore,
        key_space: KeySpace[GroupEntry],
        assignment: Assignment,
    ) -> None:
        self._store = store
        self._key_space = key_space
        self._assignment = assignment
        self.wanted: ReplicaStatus = ReplicaStatus()
        """Latest wanted status. It's replaced, never modified."""
        self._wake = asyncio.Event()
        self._is_written = Signal()

    def want(self, code: ReplicaStatus.Code.ValueType, errors: Iterable[str] = ()) -> None:
        """Have a status written. The writer needs no more than one write for several of them."""
        more = ReplicaStatus(code=code, errors=errors)
        self.wanted = merge_status(self.wanted, more) or self.wanted
        self._wake.set()

    def update(self, assignment: Assignment) -> None:
        """Take another state of the assignment, and write the status again if it lacks it."""
        self._assignment = assignment
        if self._missing() is not None:
            self._wake.set()

    async def written(self) -> None:
        """Wait until the key space shows what is wanted.

        Cancellation: safe.
        """
        while self._missing() is not None:
            await self._is_written.wait()

    async def run(self) -> None:
        """Write statuses until cancelled.

        Cancellation: safe — a write under way may take effect.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            attempt = 0
            while self._missing() is not None:
                await asyncio.sleep(retry_seconds(attempt))
                await self._attempt(attempt)
                attempt += 1
            self._is_written.set()

    def _missing(self) -> ReplicaStatus | None:
        return merge_status(self._assignment.status, self.wanted)

    async def _attempt(self, attempt: int) -> None:
        # Race: the assignment may have changed during the delay.
        assignment, status = self._assignment, self._missing()
        if status is None:
            return
        put = Put(assignment.raw.key, status.SerializeToString(), ignore_lease=True)
        compare = Compare.unchanged(assignment.raw)
        reason: object = "the assignment has changed"
        try:
            result = await self._store.transact([compare], [put])
            if result.succeeded:
                await self._key_space.wait_for_revision(result.header.revision)
                return
        except KeyValueStoreError as error:
            reason = error
        if attempt:
            _logger.warning(
                "failed to write the status of %s (will retry): %s", assignment.raw.key, reason
            )
