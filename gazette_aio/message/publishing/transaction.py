"""Transactions of a Publisher, which commit across journals and survive crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from gazette_aio.aio.owner import Scope
from gazette_aio.message.publishing.held import Held
from gazette_aio.protocol.errors import ConfigurationError, TransactionError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from gazette_aio.client import AsyncJournalClient, Span, Tracing
    from gazette_aio.message.publishing.commits import Commits
    from gazette_aio.message.publishing.gate import Gate
    from gazette_aio.message.publishing.intent_record import AckIntent, State


class TransactionLog(Protocol):
    """A store of the acknowledgements and the state of transactions, such as IntentLog."""

    exclusive: bool
    """Whether a transaction waits for its turn before its block, and so never shares a record."""
    turn: asyncio.Lock
    """Held while a transaction commits, and while `recover()` runs."""

    @property
    def state(self) -> State:
        """State of the latest transaction."""
        ...

    @property
    def in_doubt(self) -> bool:
        """Whether the latest transaction may be undecided, or acknowledgements not appended."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether a transaction may begin without `prepare()`."""
        ...

    async def prepare(self, appends: AsyncJournalClient, /) -> None:
        """Make the log ready, and recover an earlier transaction that is in doubt.

        Raises:
            GazetteError: `recover()` has to be called, or the log is in use elsewhere.

        Cancellation: safe — call again.
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
    """Commits the messages published in its block, or none. Made by `Publisher.transaction()`.

    Messages belong to the transaction within whose block their task publishes them, or was started.
    They are held in memory. At the end of the block, the transaction gets in line; those that are
    in line when a commit has ended commit together in the next one:

    1. messages are written to their journals, and awaited, while other publishing is held back;
    2. acknowledgements are built, and stored in the IntentLog along with `state`, durably and as
       one record;
    3. if the log has a fence, an append that checks the fence decides the transactions; without
       one, storing the record has decided them;
    4. the acknowledgements are appended to their journals, and awaited;
    5. the record is marked as written, and other tasks publish again.

    A transaction waits for its *turn*, which it has alone, and from then on publishes at once

    * before the block, if it's `exclusive`, or if its log is, such as PostgresIntents;
    * once it would hold more than 64 KiB, or an append of it is awaited within the block.

    Meanwhile other transactions wait at the ends of their blocks: a block that may have its turn
    mustn't wait for a transaction of another task.

    If the block raises or is cancelled, the transaction leaves nothing, unless it has had its turn.
    Then its messages are abandoned: `Publisher.abandon()` makes sure that no acknowledgement
    commits them later.

    A crash before the decision leaves messages that never commit, and the state of the
    transaction before. After a later crash, `IntentLog.recover()` appends the acknowledgements,
    and the transactions are committed with their state. Readers deliver each message once, since
    they ignore repeated acknowledgements.

    If a journal fails before the record is stored, the transactions with messages to it fail, and
    the others commit. If a later step fails, all of them do, and their errors have
    `outcome_unknown`: the next transaction of the log recovers it, as `recover()` does, which
    commits them all or none.

    A call to publish that was made in the block, or by a task started there, and isn't awaited when
    the block ends, fails the transaction with a NotAwaitedError. A task that outlives the block
    can't publish uncommitted messages any more.
    """

    def __init__(
        self,
        commits: Commits,
        gate: Gate,
        intents: TransactionLog | None,
        tracing: Tracing | None = None,
        *,
        exclusive: bool = False,
    ) -> None:
        self._commits = commits
        self._held = Held(gate, intents, commits.publish)
        self._exclusive = exclusive or (intents is not None and intents.exclusive)
        self._began = False
        self._tracing = tracing
        self._span: Span | None = None

    @property
    def state(self) -> State:
        """State to store with the intents; at the start of the block that of the record before.

        A checkpoint, bytes, or an object of JSON, which may be modified in place.

        Raises:
            TransactionError: Another open transaction uses the state. Begin with
                `exclusive=True`, which waits for its end.
        """
        self._claim_state()
        return self._held.state

    @state.setter
    def state(self, state: State) -> None:
        if self._held.log is None and self._held.is_open:
            raise ConfigurationError("a state needs a log: transaction(intents=IntentLog(…))")
        self._claim_state()
        self._held.state = state

    def _claim_state(self) -> None:
        held = self._held
        if held.log is not None and held.is_open and not held.uses_state:
            self._commits.claim_state(held)
            held.uses_state = True
            held.base, held.state = held.log.state, held.log.state

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            TooManyTransactionsError: Too many transactions of the Publisher are open.
            LockedError: The IntentLog is in use by another process.
            FencedError: Another process has taken the fence of the IntentLog.
            StoreError: The IntentLog can't be read, or has a fence that `recover()` must take.
            GazetteError: An earlier transaction of the IntentLog can't be recovered.
            TransactionError: The current task is in a transaction of the Publisher already.

        Cancellation: safe — nothing began.
        """
        if self._began:
            raise TransactionError("a transaction begins once: call transaction() again")
        self._began = True
        await self._commits.begin(self._held, has_turn=self._exclusive)
        self._held.enter()
        if self._tracing is not None:
            self._span = self._tracing.start("transaction", current=True)
        return self

    async def _leave(self, error: BaseException | None) -> None:
        """Commit, or abandon if the block raised.

        Raises:
            NotAwaitedError: At least one call to publish wasn't awaited.
            GazetteError: The commit failed. The text says whether messages may become visible.

        Cancellation: aborts — in line, nothing is committed. A commit that others wait for goes on,
            and the transaction commits with them; any other one is broken off, and if its record
            may be stored, the next transaction, or `recover()`, decides.
        """
        held = self._held
        try:
            if error is None:
                await held.require_awaited()
                await held.idle()
                held.is_open = False
                journals = await self._commits.commit(held)
                if self._span is not None:
                    self._span.set("gazette.journals", journals)
        except BaseException as failure:
            error = failure
            raise
        finally:
            try:
                await self._commits.end(held)
            finally:
                if self._span is not None:
                    self._span.end(error)
                held.leave()

    def __repr__(self) -> str:
        return f"<Transaction of {len(self._held.appends)} journals>"
