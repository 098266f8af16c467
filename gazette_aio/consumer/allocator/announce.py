"""Announcement of a member: its key, which lives as long as its lease."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from gazette_aio.consumer.keyspace.errors import StoreRefusedError, StoreUnavailableError
from gazette_aio.consumer.keyspace.operations import Compare, Get, Put

if TYPE_CHECKING:
    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import KeyValueStore

_logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""Pause before a key is announced again."""


class Announcement:
    """Key of this process in a store, which no other process modifies.

    Use `announce()` to make it.

    Attributes:
        key: The key.
        revision: Revision of the store at which this process last wrote the key.
    """

    def __init__(self, store: KeyValueStore, key: str, lease: int, revision: int) -> None:
        self._store = store
        self._lease = lease
        self.key = key
        self.revision: int = revision

    def __repr__(self) -> str:
        return f"<Announcement {self.key} revision={self.revision}>"

    @classmethod
    async def announce(
        cls,
        store: KeyValueStore,
        key: str,
        value: bytes,
        lease: int,
    ) -> Self:
        """Create a key with a lease. A key that another lease holds is waited for.

        So a process that starts again after a crash, under the same name, waits until its earlier
        lease has expired. The wait is logged, and so are failures of a store that doesn't answer.

        Args:
            store: Store of the key.
            key: The key.
            value: Its value.
            lease: Identity of the lease.

        Raises:
            KeyValueStoreError: The store refuses the key, such as for a missing permission.

        Cancellation: aborts — the key may have been created, and ends with the lease.
        """
        while True:
            try:
                put = Put(key, value, lease=lease)
                result = await store.transact([Compare.absent(key)], [put], [Get(key)])
                if result.succeeded:
                    return cls(store, key, lease, result.header.revision)
                entry = result.entries[0]
                # An earlier try may have taken effect though its answer got lost.
                if entry is not None and entry.lease == lease:
                    return cls(store, key, lease, entry.mod_revision)
                reason = "key exists with different lease"
            except StoreUnavailableError as error:
                reason = str(error)
            _logger.warning("failed to announce %s (will retry): %s", key, reason)
            await asyncio.sleep(RETRY_SECONDS)

    async def update(self, value: bytes) -> None:
        """Replace the value. The lease stays.

        Raises:
            StoreRefusedError: Another process has modified or deleted the key, or the lease has
                ended.
            KeyValueStoreError: The store fails. The value may have been replaced; repeat the
                call.

        Cancellation: aborts — the value may have been replaced; repeat the call.
        """
        result = await self._store.transact(
            [Compare.mod_revision(self.key, self.revision)],
            [Put(self.key, value, ignore_lease=True)],
            [Get(self.key)],
        )
        if result.succeeded:
            self.revision = result.header.revision
        elif (entry := result.entries[0]) is not None and self._is_ours(entry, value):
            self.revision = entry.mod_revision
        else:
            raise StoreRefusedError(
                f"key modified or deleted externally (expected revision {self.revision})"
            )

    def _is_ours(self, entry: KeyValue, value: bytes) -> bool:
        """Return whether an earlier update took effect though its answer got lost."""
        return entry.lease == self._lease and entry.value == value
