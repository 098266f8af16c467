"""Commit journal of Spark sinks: decisions about batches, and their acknowledgements."""

from __future__ import annotations

import asyncio
import copy
import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.sink import commit_rules as rules
from gazette_aio.spark.sink.appending import RETRY, acknowledge, roll_back
from gazette_aio.spark.sink.commit_records import commit_record, encode_record, roll_backs
from gazette_aio.spark.sink.commit_tail import CommitTail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.client import JournalClient, RetryPolicy
    from gazette_aio.spark.sink.commit_records import CommitRecord, SinkKey, TaskMessage
    from gazette_aio.spark.sink.commit_rules import Plan, SinkState

S = TypeVar("S")
OnMissingJournal = Literal["fail", "ignore"]

_logger = logging.getLogger(__name__)

_MOST_FAILURES: Final = 3
"""Greatest number of failed appends of a decision, without appends which lost a race."""
MOST_PRODUCERS: Final = 4096
"""Greatest number of reusable producers of a sink's queries; older queries are left out."""


class CommitLog:
    """Decides batches of a sink by a commit journal, and appends their acknowledgements.

    Any number of drivers may use the journal concurrently, for the same sink or others. Concurrent
    tasks of one event loop may call the methods. The object holds no resources: after a crash, an
    error or a cancellation, a driver continues with the same object or a new one.

    Args:
        client: Client to use. It isn't closed.
        journal: The commit journal. Nothing else may append to it, and its content must be retained
            longer than any outage of a driver.
        key: The sink; None for all sinks.
        run: Run of the query, informative.
        on_missing_journal: Whether acknowledgements to a missing journal fail, or are skipped.
        retry_policy: Retry policy; by default, failures are retried for two minutes.
    """

    def __init__(
        self,
        client: JournalClient,
        journal: str,
        key: SinkKey | None = None,
        *,
        run: str = "",
        on_missing_journal: OnMissingJournal = "fail",
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.journal = journal
        self._client = client
        self._key = key
        self._run = run
        self._ignores_missing = on_missing_journal == "ignore"
        self._policy = retry_policy or RETRY
        self._state = rules.CommitState(key)
        self._tail = CommitTail(client, journal, self._policy, self._state.fold)
        self._lock = asyncio.Lock()

    async def refresh(self) -> SinkState:
        """Read up to the head of the journal, and return the state of the sink.

        Raises:
            DataLossError: Unread records are missing.
            StoreError: The journal has records which this release doesn't understand.
            ConfigurationError: The log has no sink.
            GazetteError: An RPC failed.

        Cancellation: safe — reading continues where it stopped.
        """
        async with self._lock:
            await self._tail.refresh()
            return self._state.of(self._own_key())

    async def plan(self) -> Plan:
        """Return the plan of the next batch, as of now.

        Raises:
            GazetteError: As `refresh()`.

        Cancellation: safe.
        """
        return (await self.refresh()).plan(self._own_key())

    def of_sink(self, key: SinkKey, *, run: str = "") -> CommitLog:
        """Return the log of one sink, which shares the records already read."""
        log = copy.copy(self)
        log._key, log._run = key, run
        return log

    async def plans(self, sink: str) -> dict[SinkKey, Plan]:
        """Return the plans of the next batches of a sink, for its latest queries.

        Raises:
            GazetteError: As `refresh()`.

        Cancellation: safe.
        """
        async with self._lock:
            await self._tail.refresh()
            # The latest queries are last. A query with unreadable records stops only itself.
            keys = [
                key
                for key in self._state
                if key.sink == sink and not key.is_of_one_batch and not self._state.refuses(key)
            ]
            plans: dict[SinkKey, Plan] = {}
            count = 0
            for key in reversed(keys):
                plan = self._state.of(key).plan(key)
                count += len(plan.clean)
                if plans and count > MOST_PRODUCERS:
                    break
                plans[key] = plan
            return plans

    async def decide(self, batch: int, messages: Iterable[TaskMessage]) -> CommitRecord | None:
        """Commit a batch, or finish the commit of another call, and return when it's complete.

        Args:
            batch: Number of the batch.
            messages: Reports of the tasks.

        Returns:
            The record which decided the batch, whose acknowledgements are appended; or None if
            nothing had to be appended.

        Raises:
            FencedError: Another driver retired a producer. The batch isn't decided by these
                messages, and must be published again.
            ValidationError: The messages aren't of one batch.
            GazetteError: As `refresh()`, or acknowledgements failed. Call again.

        Cancellation: aborts — the batch may be decided. Call again, with any messages of the batch.
        """
        key, nonce = self._own_key(), _new_nonce()
        proposal = commit_record(key, batch, messages, run=self._run, nonce=nonce)
        step = await self._agree(
            key, partial(rules.decide, batch=batch, proposal=proposal, nonce=nonce)
        )
        match step:
            case rules.Acknowledge(record):
                await self.acknowledge(record)
                return record
            case rules.Republish(producers):
                names = ", ".join(sorted(producer.hex() for producer in producers))
                raise pb.FencedError(
                    f"batch {batch} has messages of producers which were retired meanwhile: {names}"
                )
            case _:
                return None

    async def acknowledge(self, record: CommitRecord) -> None:
        """Append the acknowledgements of a record which decides its batch.

        Producers are retired if further copies of their acknowledgements may arrive.

        Raises:
            GazetteError: An append failed; all other appends were tried.

        Cancellation: aborts — some acknowledgements may be appended; `decide()` the batch again.
        """
        repeated, error = await acknowledge(
            self._client, record, self._policy, ignores_missing=self._ignores_missing
        )
        # Invariant: a producer is retired before its batch returns, thus before its next use.
        if producers := record.producers_of(repeated):
            nonce = _new_nonce()
            retire = partial(rules.retire, record=record, producers=producers, nonce=nonce)
            await self._agree(record.key, retire)
        if error is not None:
            raise error

    async def abort(self, batch: int, messages: Iterable[TaskMessage | None]) -> None:
        """Abort a batch and roll its messages back, unless the batch is decided. Never fails.

        Args:
            batch: Number of the batch.
            messages: Reports of the tasks; None for failed tasks.

        Cancellation: aborts — messages may stay pending.
        """
        try:
            known = [message for message in messages if message is not None and message.journals]
            key, nonce = self._own_key(), _new_nonce()
            decision = partial(rules.abort, key=key, batch=batch, messages=known, nonce=nonce)
            if not known or isinstance(await self._agree(key, decision), rules.Return):
                return
            await roll_back(self._client, roll_backs(known))
        except Exception as error:  # noqa: BLE001 - No error may hide the cause of the abort.
            _logger.warning(
                "messages of batch %d remain pending: %s",
                batch,
                error,
                extra={"journal": self.journal, "batch": batch},
            )

    async def recover(self) -> list[CommitRecord]:
        """Finish the latest decided batches, which may not be acknowledged completely.

        Use this for sinks whose drivers have ended. A running driver must publish its current batch
        again.

        Returns:
            The records whose acknowledgements were appended.

        Raises:
            GazetteError: As `decide()`. The other sinks were finished.

        Cancellation: aborts — call again.
        """
        async with self._lock:
            await self._tail.refresh()
        recovered: list[CommitRecord] = []
        failure: pb.GazetteError | None = None
        for key in self._state:
            try:
                if (record := await self._recover(key)) is not None:
                    recovered.append(record)
            except pb.GazetteError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return recovered

    async def _recover(self, key: SinkKey) -> CommitRecord | None:
        nonce = _new_nonce()
        last = self._state.of(key).last
        if last is None:
            return None
        decision = partial(rules.decide, batch=last.batch, proposal=None, nonce=nonce)
        step = await self._agree(key, decision)
        if not isinstance(step, rules.Acknowledge):
            return None
        await self.acknowledge(step.record)
        await self._agree(key, partial(rules.finish, record=step.record, nonce=nonce))
        return step.record

    async def _agree(self, key: SinkKey, decide: Callable[[SinkState], rules.Append | S]) -> S:
        """Append the records which a decision requests, and return its result."""
        failures = 0
        async with self._lock:
            await self._tail.refresh()
            while True:
                step = decide(self._state.of(key))
                if not isinstance(step, rules.Append):
                    return step
                try:
                    await self._tail.append(encode_record(step.record))
                except pb.GazetteError as error:
                    # Race: another driver's record came first, or an earlier attempt appended this
                    # record, or will. The journal's content decides.
                    offset = self._tail.offset
                    await self._tail.refresh()
                    if isinstance(error, pb.WrongAppendOffsetError) and self._tail.offset > offset:
                        continue
                    failures += 1
                    if failures == _MOST_FAILURES:
                        raise
                    _logger.warning(
                        "an append to the commit journal failed: %s",
                        error,
                        extra={"journal": self.journal, "attempt": failures},
                    )

    def _own_key(self) -> SinkKey:
        if self._key is None:
            raise ConfigurationError("this CommitLog has no sink: use of_sink()")
        return self._key

    def __repr__(self) -> str:
        return f"<CommitLog of {self._tail!r}, {self._state!r}>"


def _new_nonce() -> str:
    return secrets.token_hex(8)
