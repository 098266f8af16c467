"""Transactions of a Publisher, which commit across journals and survive crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from gazette_aio.aio.owner import Scope
from gazette_aio.message.publishing.intents import append_intents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.client import AsyncJournalClient, Span, Tracing
    from gazette_aio.message.publishing.block import Block
    from gazette_aio.message.publishing.intent_record import AckIntent, State
    from gazette_aio.message.publishing.uncommitted import Uncommitted


class TransactionLog(Protocol):
    """A store of the acknowledgements and the state of transactions, such as IntentLog."""

    @property
    def state(self) -> State:
        """State of the latest transaction."""
        ...

    async def require_recovered(self) -> None:
        """Raise unless a transaction may begin.

        Raises:
            GazetteError: `recover()` of the log has to be called, or the log is in use elsewhere.

        Cancellation: safe.
        """
        ...

    async def persist(self, intents: Sequence[AckIntent], state: State = None, /) -> None:
        """Store acknowledgements and state as one durable record.

        Raises:
            GazetteError: It isn't stored, or may be stored nevertheless.

        Cancellation: poisons — it may or may not be stored; the log must be recovered.
        """
        ...

    async def decide(self, appends: AsyncJournalClient, /) -> None:
        """Decide the transaction that was persisted.

        Raises:
            GazetteError: It isn't decided, or may be decided nevertheless.

        Cancellation: poisons — it may or may not be decided; the log must be recovered.
        """
        ...

    async def mark_written(self) -> None:
        """Note that all acknowledgements were appended.

        Raises:
            GazetteError: The note can't be stored.

        Cancellation: safe — they're appended again by a recovery.
        """
        ...


class Transaction(Scope):
    """Commits all uncommitted messages of a Publisher, or none. Made by `Publisher.transaction()`.

    At the end of its block, in this order:

    1. queued messages are handed on, and publishing by other tasks is held back;
    2. all uncommitted messages are awaited until the broker has written them;
    3. acknowledgements are built, and stored in the IntentLog along with `state`, durably and as
       one record;
    4. if the log has a fence, an append that checks the fence decides the transaction; without one,
       storing the record has decided it;
    5. the acknowledgements are appended to their journals, and awaited;
    6. the record is marked as written, and other tasks publish again.

    A crash before the decision leaves messages that never commit, and the state of the
    transaction before. After a later crash, `IntentLog.recover()` appends the acknowledgements,
    and the transaction is committed with its state. Readers deliver each message once, since they
    ignore repeated acknowledgements.

    If the block raises, or a step fails before the record may be stored, the messages are
    abandoned: `Publisher.abandon()` makes sure that no acknowledgement commits them later. After a
    failure of a later step, `recover()` decides the outcome, and must be called before the next
    transaction with the same IntentLog.

    A call to publish that was made in the block, or by a task started there, and isn't awaited when
    the block ends, fails the transaction with a NotAwaitedError.

    Messages that were published uncommitted before the block, or by other tasks, are part of the
    transaction.
    """

    def __init__(
        self,
        uncommitted: Uncommitted,
        block: Block,
        intents: TransactionLog | None,
        tracing: Tracing | None = None,
    ) -> None:
        self._uncommitted = uncommitted
        self._block = block
        self._intents = intents
        self._tracing = tracing
        self._span: Span | None = None
        self.state: State = None
        """State to store with the intents; at the start of the block that of the record before.
        A checkpoint, bytes, or an object of JSON, which may be modified in place."""

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            LockedError: The IntentLog is in use by another process.
            FencedError: Another process has taken the fence of the IntentLog.
            StoreError: The IntentLog can't be read, or has intents which `recover()` must append.
            RuntimeError: Another transaction of the Publisher is open.

        Cancellation: safe — nothing began.
        """
        log = self._intents
        if log is not None:
            await log.require_recovered()
        self._block.begin()
        if self._tracing is not None:
            self._span = self._tracing.start("transaction", current=True)
        if log is not None:
            self.state = log.state
        return self

    async def _leave(self, error: BaseException | None) -> None:
        """Commit, or abandon if the block raised.

        Cancellation: aborts — until the record is stored; later, `recover()` decides.
        """
        try:
            if error is not None:
                self._uncommitted.abandon()
                return
            await self._commit()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if self._span is not None:
                self._span.end(error)
            # A log that only this transaction refers to is unlocked, for the next one of its path.
            self._intents = None
            self._block.end()

    async def _commit(self) -> None:
        uncommitted, log = self._uncommitted, self._intents
        try:
            await self._block.seal()
            await uncommitted.flush()
            intents = uncommitted.acknowledge()
            if self._span is not None:
                self._span.set("gazette.journals", len(intents))
        except BaseException:
            uncommitted.abandon()
            raise
        persisted = log is not None and (bool(intents) or self.state != log.state)
        try:
            if log is not None and persisted:
                await log.persist(intents, self.state)
                await log.decide(uncommitted.appends)
            await append_intents(uncommitted.appends, intents)
            if log is not None and persisted:
                await log.mark_written()
        except BaseException:
            # Invariant: the producer of messages in doubt publishes nothing more. Its next
            # acknowledgement would commit them, or recovery would roll back its later messages.
            uncommitted.abandon()
            raise

    def __repr__(self) -> str:
        return f"<Transaction of {self._uncommitted!r}>"
