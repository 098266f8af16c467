"""Writers of Spark for batches and streams.

| call | process |
| --- | --- |
| constructor of a batch's writer | planning; the writer is pickled to all other processes |
| constructor of a stream's writer | planning, for every batch; and committing |
| `write()` | executing |
| `commit()`, `abort()` | committing |

A stream's writer plans when it's pickled, because only the writer for the tasks is. A commit knows
only the reports of the tasks.
"""

from __future__ import annotations

import functools
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import bridge
from gazette_aio.spark.sink.commit_records import SinkKey, TaskMessage
from gazette_aio.spark.sink.committing import (
    abort_batch,
    commit_batch,
    plan_sink,
    sink_name,
)
from gazette_aio.spark.sink.publishing import SinkPlan, publish_rows
from gazette_aio.spark.sink.rows import classify_rows
from gazette_aio.spark.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyarrow import RecordBatch
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from gazette_aio.spark.options import SinkOptions
else:
    # PySpark 4.0 has no such class. Streams are refused there.
    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

_logger = logging.getLogger(__name__)

_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """Report of a task to the driver."""

    task: TaskMessage
    run: str = ""
    """Run of the query, informative."""


class GazetteWriter(DataSourceArrowWriter):
    """Publishes one batch.

    The batch is visible as a whole, or not at all. With a commit journal, this holds even if the
    driver dies, and the batch is published once even if it runs several times: the option `txnId`
    identifies it, or query and batch within `foreachBatch`.

    Args:
        schema: Schema of the rows.
        options: Options of the sink.
        overwrite: Whether to replace existing content, which is refused.

    Raises:
        ConfigurationError: The schema and the options don't fit the journals.
        GazetteError: An RPC failed.
    """

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:  # noqa: FBT001 - Spark's.
        _refuse_overwrite("mode('overwrite')", overwrite=overwrite)
        columns = classify_rows(parse_schema(schema.json()), options.key_column)
        self.options = options
        self.plan: SinkPlan = bridge.run(plan_sink(options, columns))
        self._nonce = secrets.token_hex(8)

    def write(  # type: ignore[override]  # PySpark overrides it in the same way.
        self, iterator: Iterator[RecordBatch]
    ) -> SinkMessage:
        """Publish the rows of a task, which are pending until the batch is committed."""
        name, transaction = sink_name(self.options), self.options.txn_id
        properties = _Properties.current()
        if transaction is not None:
            key, batch = SinkKey.of_transaction(transaction, name), 0
        elif properties.query is not None and properties.batch is not None:
            key, batch = SinkKey(properties.query, name), properties.batch
        else:
            key, batch = SinkKey.of_run(self._nonce, name), 0
        task = publish_rows(self.plan, key, batch, iterator, partition=properties.partition)
        return SinkMessage(task, properties.run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch.

        Raises:
            ConfigurationError: Another write published the same batch of the query.
            GazetteError: The batch may be committed. Running it again is safe with a commit journal
                and an identity.
        """
        found = _reports(messages)
        if not found:
            return
        tasks, run = [message.task for message in found], found[0].run
        batch = tasks[0].batch
        record = bridge.run(commit_batch(self.options, tasks, batch, run=run))
        own = {task.producer for task in tasks if task.journals}
        if record is None or record.key.is_of_one_batch or not own or not _is_run(run):
            return
        # A run of a query writes a batch once, thus this isn't a repetition of the batch. If
        # another run decided the batch, only this process knows which write came first.
        before, _committed[record.key] = _committed.pop(record.key, None), (run, batch)
        if len(_committed) > _MOST_COMMITTED:
            del _committed[next(iter(_committed))]
        if own.isdisjoint(record.producers) and (record.run == run or before == (run, batch)):
            raise ConfigurationError(
                f"batch {batch} was published by this run of its query before: if it writes to"
                " the same journals more than once, each write needs an option 'sinkId'"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back the messages, unless they are committed. Never fails."""
        if found := _reports(messages):
            bridge.run(abort_batch(self.options, _tasks(messages), found[0].task.batch))


def _is_run(text: str) -> bool:
    """Return whether a job group is the run of a query, and not named by a user."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


_committed: Final[dict[SinkKey, tuple[str, int]]] = {}
"""Latest batches which writers of this process committed, with the runs of their queries; the
latest query is last."""

_MOST_COMMITTED: Final = 1000
"""Number of queries beyond which those which committed nothing for longest are forgotten."""


class GazetteStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the batches of a stream, each exactly once with a commit journal.

    Args:
        schema: Schema of the rows.
        options: Options of the sink.
        overwrite: Whether a batch replaces existing content, which is refused.

    Raises:
        ConfigurationError: The schema and the options contradict.
    """

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:  # noqa: FBT001 - Spark's.
        _refuse_overwrite("outputMode('complete')", overwrite=overwrite)
        self.schema = schema
        self.options = options
        self._columns = classify_rows(parse_schema(schema.json()), options.key_column)
        self._plan: SinkPlan | None = None

    @property
    def plan(self) -> SinkPlan:
        """Plan of the batch, made at the first access.

        Raises:
            ConfigurationError: The schema and the options don't fit the journals.
            GazetteError: An RPC failed.
        """
        if self._plan is None:
            if self.options.exactly_once is None:
                _warn(sink_name(self.options))
            self._plan = bridge.run(plan_sink(self.options, self._columns))
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        assert self.plan is not None
        return vars(self).copy()

    def write(  # type: ignore[override]  # PySpark overrides it in the same way.
        self, iterator: Iterator[RecordBatch]
    ) -> SinkMessage:
        """Publish the rows of a task, which are pending until the batch is committed."""
        properties = _Properties.current()
        if properties.query is None or properties.batch is None:
            raise ConfigurationError(
                f"Spark doesn't set {_QUERY} and {_BATCH}, which identify batches"
            )
        key = SinkKey(properties.query, sink_name(self.options))
        partition = properties.partition
        task = publish_rows(self.plan, key, properties.batch, iterator, partition=partition)
        return SinkMessage(task, properties.run)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name.
    ) -> None:
        """Commit a batch, and return when the commit is complete.

        Raises:
            GazetteError: The batch may be committed. Spark runs it again.
        """
        if found := _reports(messages):
            tasks = [message.task for message in found]
            bridge.run(commit_batch(self.options, tasks, batchId, run=found[0].run))

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name.
    ) -> None:
        """Roll back the messages, unless they are committed. Never fails."""
        bridge.run(abort_batch(self.options, _tasks(messages), batchId))


@dataclass(frozen=True)
class _Properties:
    """Spark's properties of a task's query."""

    query: str | None
    batch: int | None
    run: str
    partition: int
    """Number of the task's partition."""

    @classmethod
    def current(cls) -> _Properties:
        context = TaskContext.get()
        if context is None:
            return cls(None, None, "", 0)
        batch = context.getLocalProperty(_BATCH)
        return cls(
            context.getLocalProperty(_QUERY),
            None if batch is None else int(batch),
            context.getLocalProperty(_RUN) or "",
            context.partitionId(),
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    """Return the reports of the successful tasks."""
    return [message for message in messages if isinstance(message, SinkMessage)]


def _tasks(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage | None]:
    """Return the reports of all tasks, with None for failed tasks."""
    return [message.task if isinstance(message, SinkMessage) else None for message in messages]


def _refuse_overwrite(what: str, *, overwrite: bool) -> None:
    if overwrite:
        instead = "mode('append')" if what.startswith("mode") else "outputMode('append')"
        raise ConfigurationError(
            f"{what} is refused, because journals are append-only: use {instead}"
        )


@functools.lru_cache
def _warn(_sink: str) -> None:
    """Warn of a sink without a commit journal, once unless it's one of very many."""
    _logger.warning(
        "without option 'commitJournal', a batch of the stream may be partly visible, or be"
        " published twice, if its driver dies"
    )
