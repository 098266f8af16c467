"""Work of a sink's task: publishing its rows, and reporting them to the driver."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

import gazette_aio.protocol as pb
from gazette_aio.client import StrictAppendService
from gazette_aio.message.mapping import content_type_of
from gazette_aio.message.uuid import CONTINUE_TXN, OUTSIDE_TXN, ProducerID, new_producer_id
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.references import import_object
from gazette_aio.spark.sink import answers
from gazette_aio.spark.sink.appending import RETRY, roll_back
from gazette_aio.spark.sink.commit_records import SinkKey, TaskMessage, roll_backs
from gazette_aio.spark.sink.commit_rules import Plan
from gazette_aio.spark.sink.producers import PROCESS_POOL, Lease
from gazette_aio.spark.sink.routing import Router
from gazette_aio.spark.sink.rows import RowEncoder, SinkColumns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from pyarrow import RecordBatch

    from gazette_aio.client import AsyncAppend, JournalClient
    from gazette_aio.message.mapping import Target
    from gazette_aio.spark.options import SinkOptions

_logger = logging.getLogger(__name__)

_NOBODY: Final = ProducerID(bytes(6))
_NAMES_AT_ONCE: Final = 100

APPEND_BYTES: Final = 4 << 20
"""Bytes beyond which an append takes no further messages."""
MEMORY_BYTES: Final = 32 << 20
"""Greatest number of bytes kept until they are appended: what a client keeps in memory."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Plan of a batch for its tasks. Pickles."""

    options: SinkOptions
    columns: SinkColumns
    targets: tuple[Target, ...] = ()
    """Journals which the options select."""
    plans: dict[SinkKey, Plan] = field(default_factory=dict[SinkKey, Plan])
    """Plans of an exactly-once sink, by query."""


def publish_rows(
    plan: SinkPlan,
    key: SinkKey,
    batch: int,
    rows: Iterable[RecordBatch],
    *,
    partition: int = 0,
    memory_bytes: int = MEMORY_BYTES,
) -> TaskMessage:
    """Publish the rows of a task, and return its report after all of them are appended.

    Unless delivery is at least once, the messages are pending until the driver acknowledges them. A
    record batch is encoded as a whole before any of it is appended. After an error, pending
    messages are rolled back within a time limit.

    Args:
        plan: Plan of the batch.
        key: The sink.
        batch: Number of the batch.
        rows: The rows.
        partition: Number of Spark's partition of the rows.
        memory_bytes: Greatest number of bytes kept until they are appended, without those of one
            record batch.

    Raises:
        ConfigurationError: Rows can't be published to a journal.
        ValidationError: A row can't be encoded, for example because it isn't a JSON object.
        GazetteError: An append failed.
    """
    task = _Task(plan, key, batch, partition, memory_bytes)
    try:
        for each in rows:
            if each.num_rows:
                task.publish(each)
        return task.finish()
    except BaseException:
        task.fail()
        raise


class _Task:
    def __init__(
        self,
        plan: SinkPlan,
        key: SinkKey,
        batch: int,
        partition: int,
        memory_bytes: int,
    ) -> None:
        self._plan = plan
        self._key = key
        self._batch = batch
        self._memory_bytes = memory_bytes
        self._flags = OUTSIDE_TXN if plan.options.exactly_once is False else CONTINUE_TXN
        self._router = Router(plan.options, plan.columns, plan.targets, _choose, partition)
        self._lease: Lease | None = None
        self._encoder: RowEncoder | None = None
        self._appends: StrictAppendService | None = None
        self._gathered: dict[str, list[bytes]] = {}
        """Frames of journals of which no append was started."""
        self._gathered_bytes = 0
        self._latest: dict[str, AsyncAppend] = {}
        """Latest appends of journals which may be pending."""
        self._pending_bytes = 0
        """Bound of the bytes of appends which may be pending."""
        self._content_types: dict[str, str] = {}
        """Content types of the journals with messages."""
        self._firsts: dict[str, int] = {}
        """Clocks of the journals' first messages."""
        self._rows = 0

    def publish(self, batch: RecordBatch) -> None:
        """Encode rows, and append them in the event loop."""
        options = self._plan.options
        if unknown := self._router.unknown(batch):
            self._router.add(bridge.run(_find(options, unknown)))
        rows_of = self._router.route(batch)
        if self._lease is None:
            self._lease = self._take()
        if self._encoder is None:
            message_type = options.message_type
            found = import_object("messageType", message_type) if message_type else None
            producer = self._lease.producer
            self._encoder = RowEncoder(self._plan.columns, options, found, producer)
        encoder, clock = self._encoder, self._lease.clock
        frames: list[tuple[str, bytes]] = []
        for target, parts in encoder.encode(batch, rows_of):
            for part in parts:
                first, data = encoder.stamp(target, part, clock, self._flags)
                self._firsts.setdefault(target[0], first)
                frames.append((target[0], data))
        # Invariant: a roll back covers all messages which may have been appended.
        self._content_types.update(rows_of.keys())
        self._rows += batch.num_rows
        bridge.run(self._put(frames))

    async def _put(self, frames: list[tuple[str, bytes]]) -> None:
        """Append frames in the background, once they are enough for all journals."""
        if self._appends is None:
            client = await spark_client(self._plan.options.connection)
            self._appends = StrictAppendService(
                client,
                retry_policy=RETRY,
                cutoff_bytes=APPEND_BYTES,
                timeout=answers.ANSWER_SECONDS,
            )
        for journal, data in frames:
            self._gathered.setdefault(journal, []).append(data)
            self._gathered_bytes += len(data)
        if self._gathered_bytes > self._memory_bytes // 4:
            await self._append(self._appends)

    async def _append(self, appends: StrictAppendService) -> None:
        """Start appends of the gathered frames; wait if too much is pending.

        Invariant: a failed append is repeated with the same bytes before any later append of its
            journal. Readers drop repeated messages by their clocks.
        """
        for append in self._latest.values():
            if append.done():
                await append  # After a failure, the task ends before its other rows are encoded.
        if self._pending_bytes + self._gathered_bytes > self._memory_bytes:
            self._pending_bytes = appends.pending_bytes
        if self._pending_bytes + self._gathered_bytes > self._memory_bytes:
            await self._drain()
        for journal, parts in self._gathered.items():
            async with appends.append(journal) as append:
                for part in parts:
                    append.write(part)
            self._latest[journal] = append
        self._pending_bytes += self._gathered_bytes
        self._gathered.clear()
        self._gathered_bytes = 0

    async def _drain(self) -> None:
        """Wait until all appends are complete."""
        # The success of an append means that of all earlier appends of its journal.
        for append in self._latest.values():
            await append
        self._latest.clear()
        self._pending_bytes = 0

    def finish(self) -> TaskMessage:
        """Wait for all appends, and return the report."""
        if self._lease is None or self._encoder is None or self._appends is None:
            return TaskMessage(self._key, self._batch, _NOBODY, 0, 0, ())
        bridge.run(self._end(self._appends))
        lease = self._lease
        ack = lease.clock.tick()
        if self._flags == OUTSIDE_TXN:
            _put_back(lease)
            return TaskMessage(self._key, self._batch, lease.producer, ack, self._rows, ())
        if self._plan.options.exactly_once:
            lease.finish(ack)
        return self._report(ack)

    def _report(self, ack: int) -> TaskMessage:
        assert self._lease is not None
        assert self._encoder is not None
        journals = tuple(
            (journal, self._encoder.template(content_type))
            for journal, content_type in self._content_types.items()
        )
        firsts = tuple(map(self._firsts.__getitem__, self._content_types))
        producer = self._lease.producer
        return TaskMessage(self._key, self._batch, producer, ack, self._rows, journals, firsts)

    def fail(self) -> None:
        """Stop appends, and roll back the messages."""
        try:
            bridge.run(self._fail())
        except Exception as error:  # noqa: BLE001 - No error may hide the cause.
            _logger.warning("messages of a task remain pending: %s", error)

    async def _end(self, appends: StrictAppendService) -> None:
        await self._append(appends)
        await self._drain()
        await appends.aclose()

    async def _fail(self) -> None:
        if self._appends is not None:
            self._appends.cancel()
            await self._appends.aclose()
        if self._flags == OUTSIDE_TXN or self._lease is None or self._encoder is None:
            return
        if frames := roll_backs([self._report(0)]):
            await roll_back(await spark_client(self._plan.options.connection), frames)

    def _take(self) -> Lease:
        if self._flags == OUTSIDE_TXN:
            return _take_idle(self._key, self._batch)
        plan = self._plan.plans.get(self._key) or Plan(self._key, -1, {})
        return PROCESS_POOL.take(plan, self._batch)


_idle: Final[dict[int, list[tuple[ProducerID, int]]]] = {}
"""Idle producers of committed messages by process, and their last clocks."""


def _take_idle(key: SinkKey, batch: int) -> Lease:
    try:
        producer, clock = _idle.setdefault(os.getpid(), []).pop()
    except IndexError:
        producer, clock = new_producer_id(), 0
    return Lease(PROCESS_POOL, key, batch, producer, clock)


def _put_back(lease: Lease) -> None:
    _idle.setdefault(os.getpid(), []).append((lease.producer, lease.clock.value))


async def _find(options: SinkOptions, names: list[str]) -> list[Target]:
    """Return the journals which rows name, or all journals which options select."""
    client = await spark_client(options.connection)
    if options.selection:
        return await list_targets(client, options.selection.label_selector())
    found: list[Target] = []
    for begin in range(0, len(names), _NAMES_AT_ONCE):
        labels = pb.LabelSet()
        for name in sorted(names[begin : begin + _NAMES_AT_ONCE]):
            labels.labels.add(name="name", value=name)
        found += await list_targets(client, pb.LabelSelector(include=labels))
    return found


async def list_targets(client: JournalClient, selector: pb.LabelSelector) -> list[Target]:
    """Return the journals of a selector with their content types, in the order of the listing.

    Raises:
        GazetteError: The listing failed.

    Cancellation: safe.
    """
    listing = await client.list(selector, timeout=answers.ANSWER_SECONDS)
    return [(each.spec.name, content_type_of(each.spec)) for each in listing.journals]


def _choose(limit: int, count: int) -> NDArray[np.int64]:
    # Race: a shared generator would be copied by forks, and choose the same in all workers.
    return np.random.default_rng().integers(limit, size=count)
