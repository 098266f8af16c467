"""Transactions of a Publisher, which commit across journals and survive crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from gazette_aio.aio.owner import Scope
from gazette_aio.message.publishing.intents import append_intents

if TYPE_CHECKING:
    from gazette_aio.message.publishing.gate import Gate
    from gazette_aio.message.publishing.intent_record import State
    from gazette_aio.message.publishing.intents import IntentLog
    from gazette_aio.message.publishing.uncommitted import Uncommitted


class Transaction(Scope):
    """Commits the uncommitted messages of a Publisher, all or none of them. Made by a Publisher.

    At the end of its block, in this order:

    1. other tasks which publish through the Publisher start to wait;
    2. all of its uncommitted messages are awaited to be written by the broker;
    3. acknowledgements are built, and stored in the IntentLog together with `state`, durably and as
       one record;
    4. the acknowledgements are appended to their journals, and awaited;
    5. the record is marked as written, and tasks which wait go on.

    So a crash before the record is stored leaves messages which never commit, and the state of the
    transaction before. After a crash from then on, `IntentLog.recover()` appends the
    acknowledgements, and the transaction is committed with its state. Readers see each message
    once, since they drop acknowledgements which are repeated.

    If the block raises, or a failure comes before the record may be stored, the messages are
    abandoned: `Publisher.abandon()` makes sure that nothing commits them later. A failure after
    that leaves the outcome to `recover()`, which must be called before the next transaction with
    the same IntentLog.

    Messages which were published uncommitted before the block, or by other tasks, take part.
    """

    def __init__(self, uncommitted: Uncommitted, gate: Gate, intents: IntentLog | None) -> None:
        self._uncommitted = uncommitted
        self._gate = gate
        self._intents = intents
        self.state: State = None
        """State to store with the intents, from the start of the block that of the record before.
        Modifying it in place is as good as setting another."""

    async def __aenter__(self) -> Self:
        """Begin.

        Cancellation: safe — nothing began.

        Raises:
            StoreError: The IntentLog can't be read, or has intents which `recover()` must append.
            RuntimeError: Another transaction of the Publisher is open.
        """
        log = self._intents
        if log is not None:
            await log.require_settled()
        self._gate.reserve()
        if log is not None:
            self.state = log.state
        return self

    async def _leave(self, error: BaseException | None) -> None:
        """Commit, or abandon if the block raised.

        Cancellation: aborts — until the record is stored; then it's up to `recover()`.
        """
        try:
            if error is not None:
                self._uncommitted.abandon()
                return
            await self._commit()
        finally:
            self._gate.release()

    async def _commit(self) -> None:
        uncommitted, log = self._uncommitted, self._intents
        try:
            await self._gate.close()
            await uncommitted.flush()
            intents = uncommitted.acknowledge()
        except BaseException:
            uncommitted.abandon()
            raise
        persisted = log is not None and (bool(intents) or self.state != log.state)
        try:
            if log is not None and persisted:
                await log.persist(intents, self.state)
            await append_intents(uncommitted.appends, intents)
            if log is not None and persisted:
                await log.mark_written()
        except BaseException:
            # Invariant: the producer of messages in doubt publishes nothing any more. Otherwise
            # an acknowledgement of its own would commit them, or recovery roll back its later ones.
            uncommitted.abandon()
            raise

    def __repr__(self) -> str:
        return f"<Transaction of {self._uncommitted!r}>"
