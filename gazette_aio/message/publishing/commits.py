"""Commits of the transactions of a Publisher, in the order in which their blocks end.

Transactions whose messages are held in memory may be open at the same time. At its end, each gets
in line, and those that meet there commit together. One that has to publish before its end, because
it's large or its caller wants that, gets in line for a *turn*: it publishes and commits alone.

| in line, from the front | next |
| --- | --- |
| a turn | the turn alone, until its transaction ends |
| ends, of one log | all of them up to the first of another kind, in one commit |
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.aio.turns import Turns
from gazette_aio.message.publishing.backlog import append_run, runs
from gazette_aio.message.publishing.blocks import block_of
from gazette_aio.message.publishing.intent_record import encode_record
from gazette_aio.message.publishing.intents import append_intents
from gazette_aio.protocol.errors import (
    GazetteError,
    TooManyTransactionsError,
    TransactionError,
)
from gazette_aio.protocol.status_errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.client import AsyncAppend
    from gazette_aio.message.publishing.held import Held
    from gazette_aio.message.publishing.journals import Journals
    from gazette_aio.message.publishing.routes import Queued
    from gazette_aio.message.publishing.transaction import TransactionLog

_NOTHING: Final = "the transaction did not commit, and nothing of it becomes visible"
_IN_DOUBT: Final = "the transaction may commit, as the next one with its log, or recover(), decides"
_IN_PARTS: Final = (
    "the transaction may commit in some journals and not in others, as it has no log of intents"
)


@dataclasses.dataclass
class _Preparation:
    """Preparation of a log, for all transactions that wait for it."""

    attempt: asyncio.Task[None]
    waiting: int = 0


class Commits:
    """Commits transactions, those that end during a commit together in the next one.

    Args:
        journals: Journals of the Publisher.
        max_waiting: Transactions that may wait for others to end.
    """

    def __init__(self, journals: Journals, max_waiting: int) -> None:
        self._journals = journals
        self._gate = journals.gate
        self._appends = journals.appends
        self._max_waiting = max_waiting
        self._open = 0
        """Transactions that are open, in line, or commit."""
        self._line: deque[Held] = deque()
        """Transactions that wait for a turn or for their commit."""
        self._is_busy = False
        """Whether a turn or a commit is under way."""
        self._group: Sequence[Held] = ()
        """Transactions whose commit is under way."""
        self._commit: asyncio.Task[None] | None = None
        self._preparations: dict[int, _Preparation] = {}
        """By identity of the log: preparations under way."""
        self._stateful: set[Held] = set()
        """Open transactions with a state, one of each log."""

    @property
    def has_open(self) -> bool:
        """Whether any transaction is open."""
        return self._open > 0

    async def begin(self, held: Held, *, has_turn: bool) -> None:
        """Begin a transaction.

        Args:
            held: The transaction.
            has_turn: Whether to wait for its turn first.

        Raises:
            TooManyTransactionsError: Too many are open.
            TransactionError: The current task is in a transaction of the Publisher, or messages are
                pending that belong to none.
            GazetteError: The log can't be prepared.

        Cancellation: safe — nothing began.
        """
        gate = self._gate
        if gate.reserved_by:
            raise TransactionError(
                f"{gate.reserved_by} commits what is published: publish without transaction()"
            )
        block = block_of(gate)
        if block is not None and block.is_open:
            raise TransactionError(
                "a transaction of this Publisher is open in this task, or in a task that started "
                "it: publish in that block, or begin after its end"
            )
        if gate.owner is None and (self._journals.pending or self._journals.backlog):
            raise TransactionError(
                "messages were published by publish_uncommitted() outside of a transaction(): "
                "commit them by build_ack_intents(), or abandon() them"
            )
        if self._open > self._max_waiting:
            raise TooManyTransactionsError(
                f"{self._open} transactions of this Publisher are open, and max_waiting is "
                f"{self._max_waiting}: retry later, or publish less often, or raise max_waiting"
            )
        self._open += 1
        if gate.owner is None:
            gate.owner = self  # From now on, messages outside of transactions belong to nobody.
        try:
            if has_turn:
                await self.publish(held)
            elif held.log is not None:
                await self._prepare(held.log)
        except BaseException:
            await self.end(held)
            raise

    def claim_state(self, held: Held) -> None:
        """Have a transaction use the state of its log.

        Raises:
            TransactionError: Another open transaction does.
        """
        if any(other.log is held.log for other in self._stateful):
            raise TransactionError(
                "another open transaction uses the state: begin with "
                "transaction(intents=…, exclusive=True), which waits for its turn"
            )
        self._stateful.add(held)

    async def publish(self, held: Held) -> None:
        """Wait for the turn of a transaction, and publish what it holds.

        Raises:
            TransactionError: The transaction was abandoned.
            Exception: Messages can't be published. The transaction fails.

        Cancellation: safe — it has its turn nevertheless.
        """
        if held.outcome is not None:
            await asyncio.wait((held.outcome,))
            return
        if held.turn is None:
            held.granted = asyncio.get_running_loop().create_future()
            held.turn = start_task(self._take_turn(held, held.granted), "gazette transaction")
            self._line.append(held)
            self._advance()
        await asyncio.wait((held.turn,))
        if held.turn.cancelled():
            raise TransactionError("the transaction was abandoned")
        held.turn.result()

    async def _take_turn(self, held: Held, granted: asyncio.Future[None]) -> None:
        try:
            await granted
        except asyncio.CancelledError:
            self._withdraw(held)
            raise
        if held.log is not None:
            await self._prepare(held.log)
        items = held.items
        appends, failed = await self._write([held])
        for error in failed.values():
            raise error
        if held.items is not items:  # Race: they were abandoned meanwhile.
            self._journals.abandon()
        held.published(appends)
        self._gate.owner = held

    async def commit(self, held: Held) -> int:
        """Commit a transaction, perhaps with others, and return the number of its journals.

        Raises:
            GazetteError: The commit failed. The text says whether messages may become visible.

        Cancellation: aborts — nothing is committed while the transaction is in line. A commit of
            several goes on if others wait for it; the commit of the last one is broken off.
        """
        if held.turn is not None:
            try:
                await asyncio.shield(held.turn)
                await self._journals.backlog.drained()
            except Exception as error:
                raise explained(error, _NOTHING) from error
        if held.uses_state:
            encode_record((), held.state)  # Transactions that commit with this one must not fail.
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        held.outcome = outcome
        if held.turn is not None:
            self._start([held])
        else:
            self._line.append(held)
            self._advance()
        try:
            return await outcome
        except asyncio.CancelledError:
            commit = self._commit
            if (
                not self._withdraw(held)
                and held in self._group
                and commit is not None
                and all(other.outcome is None or other.outcome.done() for other in self._group)
            ):
                # Invariant: a block outlives its commit, unless the commit is that of others.
                commit.cancel()
                await finish(asyncio.wait((commit,)))
            _retrieve(outcome)
            raise

    async def end(self, held: Held) -> None:
        """End a transaction, and abandon it unless it has committed.

        Cancellation: safe — it has ended nevertheless.
        """
        held.is_open = False
        self._stateful.discard(held)
        self._open -= 1
        try:
            if held.turn is not None and not held.turn.done():
                self._withdraw(held)
                held.turn.cancel()
                await finish(asyncio.wait((held.turn,)))
        finally:
            if held.turn is not None:
                _retrieve(held.turn)
            if held.has_turn and held.outcome is None:
                self._journals.abandon()
                self._next()
            if held not in self._group:  # Or else it commits with others, though it's cancelled.
                held.release()

    def _withdraw(self, held: Held) -> bool:
        """Have a transaction leave the line, and return whether it was there."""
        if held not in self._line:
            return False
        self._line.remove(held)
        return True

    def _advance(self) -> None:
        """Grant the next turn or start the next commit, unless one is under way."""
        if self._is_busy or not self._line:
            return
        self._is_busy = True
        first = self._line.popleft()
        if first.granted is None:
            group = [first]
            while self._line and self._line[0].granted is None and self._line[0].log is first.log:
                group.append(self._line.popleft())
            self._start(group)
        elif first.granted.cancelled():
            self._next()  # Race: its task was cancelled, and is about to leave the line.
        else:
            first.granted.set_result(None)

    def _next(self) -> None:
        self._gate.owner = self
        self._is_busy = False
        self._advance()

    def _start(self, group: Sequence[Held]) -> None:
        self._group = group
        self._commit = start_task(self._run(group), "gazette commit")
        # Race: it may be cancelled before it begins.
        self._commit.add_done_callback(self._ended)

    async def _run(self, group: Sequence[Held]) -> None:
        try:
            await self._commit_all(list(group))
        finally:
            self._ended(self._commit)

    def _ended(self, commit: asyncio.Task[None] | None) -> None:
        if commit is not None and commit is self._commit:
            for held in self._group:
                held.release()
            self._group, self._commit = (), None
            self._next()

    async def _prepare(self, log: TransactionLog) -> None:
        """Prepare a log, in one attempt for all who wait."""
        if log.is_ready:
            return
        found = self._preparations.get(id(log))
        if found is None:
            attempt = start_task(log.prepare(self._appends), "gazette recovery")
            found = self._preparations[id(log)] = _Preparation(attempt)
        attempt = found.attempt
        found.waiting += 1
        try:
            await asyncio.shield(attempt)
        except Exception as error:
            raise explained(error, "the log of intents isn't ready") from error
        except asyncio.CancelledError:
            if found.waiting == 1 and not attempt.done():
                del self._preparations[id(log)]  # Others that begin meanwhile make their own.
                attempt.cancel()
                await finish(asyncio.wait((attempt,)))
            raise
        finally:
            found.waiting -= 1
            if attempt.done() and self._preparations.get(id(log)) is found:
                del self._preparations[id(log)]

    async def _commit_all(self, group: Sequence[Held]) -> None:
        log, doubt = group[0].log, _NOTHING
        try:
            if log is not None and not group[0].has_turn:
                await self._prepare(log)  # A commit may have failed since they began.
            await self._gate.close()
            async with contextlib.nullcontext() if log is None else log.turn:
                if log is not None and log.in_doubt:
                    # Race: another Publisher uses the log. Its record must not be replaced.
                    text = (
                        "an earlier transaction of the log is in doubt: begin again, to recover it"
                    )
                    raise TransactionError(text)
                left = await self._write_all(_of_present_state(group))
                intents = self._journals.acknowledge()
                before = state = None if log is None else log.state
                for held in left:
                    state = held.state if held.uses_state else state
                is_stored = log is not None and (bool(intents) or state != before)
                doubt = _IN_PARTS if log is None else _IN_DOUBT
                if log is not None and is_stored:
                    await log.persist(intents, state)
                    await log.decide(self._appends)
                await append_intents(self._appends, intents)
                if log is not None and is_stored:
                    await log.mark_written()
            for held in left:
                if held.outcome is not None and not held.outcome.done():
                    held.outcome.set_result(len(intents) if held.has_turn else len(held.appends))
        except BaseException as error:
            # Invariant: the producer of messages in doubt publishes nothing more. Its next
            # acknowledgement would commit them, or recovery would roll back its later messages.
            self._journals.abandon()
            if log is not None and not log.in_doubt:
                doubt = _NOTHING
            for held in group:
                _fail(held, error, doubt)
            if not isinstance(error, Exception):
                raise
        finally:
            self._gate.open()

    async def _write_all(self, group: Sequence[Held]) -> Sequence[Held]:
        """Write messages to their journals, and return the transactions that can commit."""
        while True:
            appends, unwritten = await self._write(group)
            failed = await self._journals.failures() | unwritten
            if not failed:
                for held in group:
                    held.published(appends)
                return group
            # Invariant: a journal that fails concerns no transaction without messages to it. Their
            # messages are written again, by a fresh producer.
            self._journals.abandon()
            left: list[Held] = []
            for held in group:
                errors = [failed[journal] for journal in held.appends if journal in failed]
                if len(group) == 1 or errors:
                    _fail(held, errors[0] if errors else next(iter(failed.values())), _NOTHING)
                else:
                    left.append(held)
            assert len(left) < len(group), "messages are of the transactions"
            group = left

    async def _write(
        self, group: Sequence[Held]
    ) -> tuple[dict[str, AsyncAppend], dict[str, Exception]]:
        """Write the messages that transactions hold, and return appends and errors by journal."""
        pace = Turns()
        appends: dict[str, AsyncAppend] = {}
        failed: dict[str, Exception] = {}
        items: dict[str, list[Queued]] = {}
        for item in (item for held in group for item in held.items):
            items.setdefault(item.target[0], []).append(item)
        for journal, some in items.items():
            try:
                for run in runs(some):
                    appends |= await append_run(run, pace)
            except Exception as error:  # noqa: BLE001 - the caller raises it.
                failed[journal] = error
        return appends, failed


def explained(error: BaseException, outcome: str) -> GazetteError:
    """Return an error of the same class whose text begins with what it means."""
    explained: GazetteError
    if not isinstance(error, GazetteError):
        explained = TransactionError(f"{outcome}: {str(error) or repr(error)}")
    else:
        explained = copy.copy(error)
        if isinstance(explained, StatusError):
            explained.detail = ": ".join(filter(None, (outcome, explained.detail)))
        else:
            explained.args = (f"{outcome}: {error}",)
    explained.outcome_unknown = outcome in {_IN_DOUBT, _IN_PARTS}
    explained.__cause__ = error.__cause__ or error
    return explained


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Have asyncio log no error that nobody waits for any more."""
    if future.done() and not future.cancelled():
        future.exception()


def _fail(held: Held, error: BaseException, outcome: str) -> None:
    if held.outcome is None or held.outcome.done():
        return
    failure = explained(error, outcome)
    held.fail(failure)
    held.outcome.set_exception(failure)


def _of_present_state(group: Sequence[Held]) -> Sequence[Held]:
    """Return transactions without the one whose state isn't based on that of the log, if any."""
    for held in group:
        if held.uses_state and held.log is not None and held.log.state != held.base:
            text = "the state of the log was recovered meanwhile: begin the transaction again"
            _fail(held, TransactionError(text), _NOTHING)
            return [other for other in group if other is not held]
    return group
