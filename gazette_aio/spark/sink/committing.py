"""Steps of a sink's driver: planning, committing, aborting and recovering batches."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.planning.listing import check_found
from gazette_aio.spark.sink.appending import RETRY, acknowledge, roll_back
from gazette_aio.spark.sink.commit_log import CommitLog
from gazette_aio.spark.sink.commit_records import commit_record, roll_backs
from gazette_aio.spark.sink.publishing import SinkPlan, list_targets
from gazette_aio.spark.sink.routing import check_keys, check_routing
from gazette_aio.spark.sink.rows import check_target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.message.mapping import Target
    from gazette_aio.spark.sink.commit_records import CommitRecord, TaskMessage
    from gazette_aio.spark.sink.rows import SinkColumns

_logger = logging.getLogger(__name__)

TARGETS_SECONDS: Final = 10.0
"""Seconds for which a listing of journals is reused."""


def sink_name(options: SinkOptions) -> str:
    """Return the identity of a sink in its query: the option, or else a hash of the targets.

    The hash doesn't include brokers: a restarted query may use other addresses of the same brokers.
    """
    if options.sink_id is not None:
        return options.sink_id
    selection = options.selection
    journals = sorted(selection.journals)
    targets = json.dumps([options.journal, selection.selector, journals, selection.prefix])
    return hashlib.sha256(targets.encode()).hexdigest()[:16]


async def plan_sink(options: SinkOptions, columns: SinkColumns) -> SinkPlan:
    """Return the plan of the next batch, as of now.

    Args:
        options: Options of the sink.
        columns: Columns of the rows.

    Raises:
        ConfigurationError: Journals don't exist, or rows can't be published to them.
        GazetteError: An RPC failed, or the commit journal can't be read.

    Cancellation: safe.
    """
    check_routing(options, columns)
    client = await spark_client(options.connection)
    targets = await _targets(client, options)
    for content_type in {content_type for _, content_type in targets}:
        check_target(content_type, options)
    check_keys(options, columns, targets)
    if options.commit_journal in dict(targets):
        raise ConfigurationError(
            f"option 'commitJournal': {options.commit_journal!r} is also selected as a target"
        )
    plan = SinkPlan(options, columns, targets)
    if options.exactly_once:
        async with _log_of(client, options) as log:
            plan.plans.update(await log.plans(sink_name(options)))
    return plan


async def commit_batch(
    options: SinkOptions, messages: Sequence[TaskMessage], batch: int, *, run: str = ""
) -> CommitRecord | None:
    """Commit the messages of tasks, and return when the commit is complete.

    Args:
        options: Options of the sink.
        messages: Reports of all tasks.
        batch: Number of the batch.
        run: Run of the query, informative.

    Returns:
        The record which committed the batch, possibly of another attempt.

    Raises:
        FencedError: Other producers must publish the batch again.
        GazetteError: An RPC failed.

    Cancellation: aborts — the batch may be committed. Call again, with any messages of the batch.
    """
    if options.exactly_once is False or not messages:
        return None
    key = messages[0].key
    client = await spark_client(options.connection)
    if options.exactly_once:
        async with _log_of(client, options) as log:
            return await log.of_sink(key, run=run).decide(batch, messages)
    record = commit_record(key, batch, messages, run=run)
    if record is not None:
        ignores = options.on_missing_journal == "ignore"
        _, error = await acknowledge(client, record, RETRY, ignores_missing=ignores)
        if error is not None:
            raise error
    return record


async def abort_batch(
    options: SinkOptions, messages: Sequence[TaskMessage | None], batch: int
) -> None:
    """Roll back the messages of tasks, unless they are committed. Never fails.

    Args:
        options: Options of the sink.
        messages: Reports of all tasks; None for failed tasks.
        batch: Number of the batch.

    Cancellation: aborts — messages may stay pending.
    """
    known = [message for message in messages if message is not None and message.journals]
    if options.exactly_once is False or not known:
        return
    try:
        client = await spark_client(options.connection)
        if options.exactly_once:
            async with _log_of(client, options) as log:
                await log.of_sink(known[0].key).abort(batch, known)
        elif None in messages:
            # If no task failed, the commit failed. Its acknowledgements can't be undone, because
            # readers have seen the messages.
            await roll_back(client, roll_backs(known))
    except Exception as error:  # noqa: BLE001 - No error may hide the cause of the abort.
        _logger.warning("messages of batch %d remain pending: %s", batch, error)


async def recover_batches(
    options: Mapping[str, str],
    commit_journal: str,
    *,
    on_missing_journal: Literal["fail", "ignore"] = "fail",
) -> list[CommitRecord]:
    """Recover as `recover_sink()` does, in an event loop.

    Cancellation: aborts — call again.
    """
    given = {**options, "commitJournal": commit_journal}
    parsed = SinkOptions.parse(given, streaming=False)
    client = await spark_client(parsed.connection)
    log = CommitLog(client, commit_journal, on_missing_journal=on_missing_journal)
    return await log.recover()


def recover_sink(
    brokers: str | Mapping[str, str],
    commit_journal: str,
    *,
    on_missing_journal: Literal["fail", "ignore"] = "fail",
) -> list[CommitRecord]:
    """Finish decided batches whose drivers died before all acknowledgements were appended.

    This function needs no Spark. A restarted query recovers by itself; use this for queries which
    aren't restarted. A running driver must publish its current batch again.

    Args:
        brokers: URLs of brokers, or options of a sink with the brokers and credentials.
        commit_journal: The commit journal.
        on_missing_journal: Whether missing journals are an error, or are skipped.

    Returns:
        The records whose acknowledgements were appended.

    Raises:
        ConfigurationError: An option is invalid.
        GazetteError: An RPC failed, or the journal can't be read. The other sinks were finished.
    """
    options = {"brokers": brokers} if isinstance(brokers, str) else brokers
    return bridge.run(
        recover_batches(options, commit_journal, on_missing_journal=on_missing_journal)
    )


class _Kept:
    """State of a sink which a process keeps between batches, in the event loop of its client."""

    def __init__(self) -> None:
        self.log: CommitLog | None = None
        self.targets: tuple[Target, ...] = ()
        self.listed_at: float | None = None
        self.lock = asyncio.Lock()

    async def aclose(self) -> None:
        """Do nothing: there are no resources."""


@asynccontextmanager
async def _log_of(client: JournalClient, options: SinkOptions) -> AsyncGenerator[CommitLog]:
    """Provide the log of a commit journal, which keeps the records already read."""
    journal = options.commit_journal
    assert journal is not None
    kept = await bridge.client_of((client, journal, options.on_missing_journal), lambda _: _Kept())
    if kept.log is None:
        kept.log = CommitLog(client, journal, on_missing_journal=options.on_missing_journal)
    try:
        yield kept.log
    except (pb.DataLossError, pb.StoreError):
        # The journal may be replaced or repaired: the next attempt reads all of it.
        kept.log = None
        raise


async def _targets(client: JournalClient, options: SinkOptions) -> tuple[Target, ...]:
    """Return the journals which options select, from a recent listing."""
    selection = options.selection
    if options.journal is not None:
        selector = pb.LabelSelector(include=pb.label_set("name", options.journal))
    elif selection:
        selector = selection.label_selector()
    else:
        return ()
    kept = await bridge.client_of((client, options.journal, selection), lambda _: _Kept())
    async with kept.lock:
        now = asyncio.get_running_loop().time()
        if kept.listed_at is None or now - kept.listed_at > TARGETS_SECONDS:
            kept.targets = tuple(await list_targets(client, selector))
            if options.journal is None:
                check_found(selection, dict(kept.targets))
            elif not kept.targets:
                text = f"JOURNAL_NOT_FOUND: journal {options.journal!r} doesn't exist"
                raise ConfigurationError(text)
            kept.listed_at = now
        return kept.targets
