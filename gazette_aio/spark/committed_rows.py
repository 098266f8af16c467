"""Committed rows of a DataFrame read with `isolation=read-uncommitted`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gazette_aio.message.columnar.pyarrow_api import pa, pc
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.message.uuid import ACK_TXN
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from pyarrow import RecordBatch, Table
    from pyspark.sql import DataFrame

    from gazette_aio.message.sequencing.columns import Indices

NEEDED: Final = ("_journal", "_producer", "_clock", "_flags", "_begin")
"""Columns which decide what commits."""

IDLE_ROWS: Final = 1 << 16


def read_committed(df: DataFrame) -> DataFrame:
    """Return the committed rows of a batch, each once.

    The result equals that of a source with `isolation=read-committed` for the same ranges of
    journals. But any number of tasks reads the rows, and Spark sorts them, which spills to disk.
    Use this for rows which are needed for other purposes too, or were stored: for example an
    archive of all messages, rolled back or not. A worker holds the rows of open transactions in
    memory.

    Rows without a UUID are committed. Acknowledgements are left out.

    Args:
        df: Rows with the columns `_journal`, `_producer`, `_clock`, `_flags` and `_begin`, read
            with `isolation=read-uncommitted` and `includeAcks=true`. Without acknowledgements, rows
            of transactions would stay pending.

    Raises:
        ConfigurationError: A column is missing, or `df` is a stream.

    Example:
        rows = (
            spark.read.format("gazette").options(brokers=..., prefix="events/")
            .options(isolation="read-uncommitted", includeAcks="true")
            .schema("id BIGINT, _journal STRING, _producer STRING, _clock STRING, _flags INT,"
                    " _begin BIGINT")
            .load()
        )
        read_committed(rows).drop("_producer", "_clock", "_flags")
    """
    if missing := [name for name in NEEDED if name not in df.columns]:
        raise ConfigurationError(
            f"read_committed() needs column {missing[0]!r}: read with a schema which has"
            f" {', '.join(NEEDED)}, with isolation=read-uncommitted and includeAcks=true"
        )
    if df.isStreaming:
        raise ConfigurationError(
            "read_committed() is for batches: streams are sequenced by their source, with"
            " isolation=read-committed"
        )
    by_producer = df.repartition("_journal", "_producer")
    in_order = by_producer.sortWithinPartitions("_journal", "_begin")
    return in_order.mapInArrow(committed_batches, df.schema)


def committed_batches(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield the committed rows of batches, which have all rows of their producers.

    Args:
        batches: Rows with the columns of `NEEDED`, ordered by journal and offset.
    """
    name, journal = None, None
    for batch in batches:
        for part_of, part in _by_journal(batch):
            if journal is None or part_of != name:
                name, journal = part_of, _Journal(part_of)
            if rows := journal.process(part):
                yield from rows.to_batches(max_chunksize=max(batch.num_rows, 1))


def _by_journal(batch: RecordBatch) -> Iterator[tuple[str, RecordBatch]]:
    runs = pc.run_end_encode(batch.column("_journal"))
    begin = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield str(name), batch.slice(begin, end - begin)
        begin = end


class _Journal:
    """Rows of some producers of a journal."""

    def __init__(self, name: str) -> None:
        self._sequencer = ColumnarSequencer(name)
        self._rows: Table | None = None
        self._pending: Indices = np.empty(0, np.int64)
        """Indices of the pending rows of `_rows`; other rows aren't needed."""

    def process(self, batch: RecordBatch) -> Table | None:
        """Process the next rows, and return the rows which they commit, if any."""
        plan = self._sequencer.process(_uuids(batch))
        assert plan.replay is None
        assert plan.consumed == batch.num_rows
        rows = pa.Table.from_batches([batch])
        held = 0 if self._rows is None else self._rows.num_rows
        if self._rows is not None:
            rows = pa.concat_tables([self._rows, rows])
        at = np.concatenate((self._pending, np.arange(held, held + batch.num_rows)))
        committed = plan.rows[plan.table.flags[plan.rows] != ACK_TXN]
        delivered: Table | None = rows.take(at[committed]) if committed.size else None
        self._rows, self._pending = rows, at[plan.carry]
        if rows.num_rows > 2 * self._pending.size + IDLE_ROWS or not self._pending.size:
            self._rows = rows.take(self._pending).combine_chunks() if self._pending.size else None
            self._pending = np.arange(self._pending.size)
        return delivered


def _uuids(batch: RecordBatch) -> UuidColumns:
    begin = batch.column("_begin").to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    flags = pc.fill_null(batch.column("_flags"), 0).to_numpy(zero_copy_only=False)
    return UuidColumns(
        _numbers(batch.column("_producer")),
        _numbers(batch.column("_clock")),
        flags.astype(np.uint16),
        begin,
        begin + 1,  # Only the order of ends matters, and messages don't overlap.
    )


def _numbers(texts: Any) -> NDArray[np.uint64]:
    """Return the values of texts of at most 16 hexadecimal digits; null is zero."""
    filled = pc.utf8_lpad(pc.fill_null(texts, "0"), 16, "0")
    digits = "".join(filled.to_pylist())
    return np.frombuffer(bytes.fromhex(digits), ">u8").astype(np.uint64)
