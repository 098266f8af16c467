"""Key space of a running broker: durable transactions, and waits for revisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from gazette_aio.aio.finish import finish
from gazette_aio.aio.signal import Signal
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.host.workers import Workers, wait_until
from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace, KeySpaceTransaction
from gazette_aio.broker.keyspace.meta_log import MetaLog, encode_snapshot
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.broker.host.clock import Deadline, ManualClock

_logger = logging.getLogger(__name__)

OnChange = Callable[[KeySpaceTransaction, list[JournalItem]], None]


class KeySpaceStore:
    """Applies transactions one after the other. Each transaction is durable before it's visible.

    Args:
        space: The key space as loaded.
        workers: Threads to write in.
        on_change: Called after each commit with the transaction and the journals that it deleted.
        ending: Set when the broker stops, and all waits end.
    """

    def __init__(
        self,
        space: KeySpace,
        log: MetaLog,
        workers: Workers,
        on_change: OnChange,
        ending: asyncio.Event,
    ) -> None:
        self.space = space
        self._log = log
        self._workers = workers
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._changed = Signal()
        self._ending = ending
        self.failure: str = ""
        """Why the latest change or snapshot of specs wasn't written, or an empty text."""

    def __repr__(self) -> str:
        return f"<KeySpaceStore {self.space!r} {self._log!r}>"

    async def apply(
        self,
        changes: Sequence[pb.ApplyRequest.Change],
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """Apply valid changes, all or none; return whether they were applied.

        Args:
            changes: The changes.
            admit: Raises if the changes aren't permitted. The key space doesn't change between this
                call and the transaction.

        Raises:
            TransactionError: The changes are malformed.
            RpcError: The changes can't be made durable.

        Cancellation: safe — the changes may have been applied.
        """
        async with self._lock:
            if admit is not None:
                await admit()
            transaction = self.space.decide(changes)
            if transaction is None:
                return False
            if transaction.revision > self.space.revision:
                await finish(self._commit(transaction))
            return True

    async def suspend(
        self, item: JournalItem, level: pb.JournalSpec.Suspend.Level.ValueType, offset: int
    ) -> None:
        """Write a suspension to the spec of a journal, unless the spec has changed.

        Raises:
            RpcError: The suspension can't be made durable.

        Cancellation: safe — the suspension may have been written.
        """
        async with self._lock:
            if self.space.get(item.name) is not item:
                return
            spec = deepcopy(item.spec)
            spec.suspend.Clear()
            spec.suspend.SetInParent()
            spec.suspend.level = level
            spec.suspend.offset = offset
            await finish(self._commit(KeySpaceTransaction(self.space.revision + 1, (spec,))))

    def forgive(self) -> None:
        """Forget a failure that needs no restart, because the disk takes other writes."""
        if not self._log.has_failed:
            self.failure = ""

    async def wait_for(self, revision: int, until: Deadline | None = None) -> bool:
        """Wait until the key space has reached a revision.

        Args:
            revision: The revision.
            until: Time at which to give up.

        Returns:
            False if the broker is stopping, or the time has come.

        Cancellation: safe.
        """
        while self.space.revision < revision:
            if self._ending.is_set() or not await wait_until(self._changed.next(), until):
                return False
        return True

    async def wait_merged(
        self, revision: int, delay: float, clock: ManualClock, until: Deadline | None = None
    ) -> bool:
        """Wait until the key space has reached a revision, and for changes that follow closely.

        Args:
            revision: The revision. If it's reached already, the method returns at once.
            delay: Seconds in which further changes are merged with the first one.
            clock: Clock of the delay, which is zero if the clock is frozen.
            until: Time at which to give up.

        Returns:
            False if the broker is stopping, or the time has come.

        Cancellation: safe.
        """
        if self.space.revision >= revision:
            return True
        if not await self.wait_for(revision, until):
            return False
        if clock.is_frozen:
            return True
        when = clock.monotonic() + delay
        if until is not None and until.when < when:
            # The client's token ends before the changes are shown.
            await until.wait(self._ending)
            return False
        return not await clock.wait(self._ending, when)

    def wake(self) -> None:
        """Let all waits look whether the broker stops."""
        self._changed.set()

    async def close(self) -> None:
        """Write a snapshot, and close the log.

        Cancellation: safe — takes effect when it's done.
        """
        async with self._lock:
            if not self._log.has_failed:
                await self._snapshot()
            await self._workers.run(self._log.close)

    async def _commit(self, transaction: KeySpaceTransaction) -> None:
        # Invariant: await it by `finish`. A logged transaction is adopted, even if its caller is
        # cancelled. Otherwise the next transaction would have the same revision, and be lost at the
        # next start.
        if self._log.has_failed:
            raise RpcError(self.failure)
        try:
            await self._workers.run(self._log.append, transaction)
        except OSError as error:
            self.failure = f"key space: {os_error_text(error)}"
            _logger.exception("unable to write a transaction of the key space")
            raise RpcError(self.failure) from error
        self.failure = ""
        deletes = (self.space.get(name) for name in transaction.deletes)
        removed = [item for item in deletes if item is not None]
        self.space.commit(transaction)
        self._on_change(transaction, removed)
        self._changed.set()
        if self._log.snapshot_is_due:
            await self._snapshot()

    async def _snapshot(self) -> None:
        try:
            # The lock is held: the key space doesn't change while a thread reads it.
            payload = await self._workers.run(encode_snapshot, self.space)
            await self._workers.run(self._log.snapshot, payload, self.space.revision)
        except OSError as error:
            # The log has all transactions, and remains in use unless it has failed.
            self.failure = f"key space: {os_error_text(error)}"
            _logger.warning("unable to write a snapshot of the key space", exc_info=error)
