"""From chunks of one journal to record batches: the parts of this package, put together."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.columnar.outputs import DONE, Output, Progress, RecordMaker
from gazette_aio.message.columnar.payloads import Payloads
from gazette_aio.message.columnar.plan import NO_ROWS
from gazette_aio.message.columnar.regions import region_splitter
from gazette_aio.message.columnar.replayed import ReplayRecords
from gazette_aio.message.columnar.uuids import UuidReader
from gazette_aio.protocol.errors import FramingError, UnexpectedEOFError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from gazette_aio.message.checkpoint import ProducerState
    from gazette_aio.message.columnar.columns import Indices, UuidColumns
    from gazette_aio.message.columnar.outputs import RecordOptions
    from gazette_aio.message.columnar.regions import Region, RegionSplitter
    from gazette_aio.message.columnar.sequencer import ColumnarSequencer
    from gazette_aio.message.framing import Framing


class JournalRecords:
    """Makes record batches of the content of one journal.

    It's fed chunks, and each `work()` makes the outputs of their next region. `take()` hands them
    out one by one, so that a checkpoint tells of exactly what was handed out. Where a commit takes
    a replay, `replay` is set once what comes before is handed out, until the commit is.

    `work()` is what takes time, and may run in a thread while nothing else is called.

    Args:
        journal: Name of the journal.
        framing: Its framing.
        offset: Offset to begin at.
        options: What to make.
        sequencer: Says which messages commit; or None for all of them, as they are.
        explain: Returns an error as it's to be raised.
    """

    def __init__(
        self,
        journal: str,
        framing: Framing,
        offset: int,
        options: RecordOptions,
        *,
        sequencer: ColumnarSequencer | None,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        self.journal = journal
        self.is_read = False
        """Whether any message was processed."""
        self._framing = framing
        self._options = options
        self._sequencer = sequencer
        self._maker = RecordMaker(journal, options, explain)
        self._splitter = self._splitter_at(offset)
        self._uuids = UuidReader(options.adapter, strict=options.strict_uuid)
        self._payloads = Payloads()
        self._batch: tuple[Region, UuidColumns] | None = None  # To be processed next.
        self._failed: FramingError | None = None  # Comes behind the batch.
        self._unread: Region | None = None  # Comes behind that.
        self._truncation_told = False
        self._outputs: deque[Output] = deque()
        self._progress = DONE
        self._replay: ReplayRecords | None = None
        self._carry: Indices = NO_ROWS

    @property
    def offset(self) -> int:
        """Offset of the next message to process."""
        for region in (None if self._batch is None else self._batch[0], self._unread):
            if region is not None:
                return region.begin
        return self._splitter.offset

    @property
    def at_hand(self) -> int:
        """Bytes of content to work on, roughly."""
        if self._replay is not None or self._batch is not None or self._unread is not None:
            return self._options.batch_bytes
        return self._splitter.buffered

    @property
    def skipped(self) -> int:
        """Number of messages which were left out as they can't be decoded."""
        return self._maker.skipped

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages which are retained since they may commit."""
        return 0 if self._sequencer is None else self._sequencer.pending_bytes

    @property
    def replay(self) -> ReplayRecords | None:
        """The replay which is next, or under way."""
        return None if self._outputs else self._replay

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take the next content, and return how many bytes before it were discarded.

        They're discarded if `begin` isn't where content before ended.
        """
        discarded = 0
        if begin != self._splitter.offset + self._splitter.buffered:
            discarded = self.jump(begin)
        self._truncation_told = False
        self._splitter.feed(chunk)
        return discarded

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes which were discarded."""
        return self._splitter.jump(offset)

    def end(self) -> None:
        """Declare the end of content."""
        self._splitter.end()

    def take(self) -> pa.RecordBatch | None:
        """Hand out the next output, or None if none is at hand.

        Raises:
            FramingError: It's the next output.
        """
        if not self._outputs:
            return None
        value, self._progress = self._outputs.popleft()
        if isinstance(value, FramingError):
            raise value from value.__cause__
        return value

    def work(self) -> bool:
        """Make outputs of the next region, and return False if that takes more content.

        There may be none, of content which commits nothing.

        Raises:
            ReplayError: Content which is read again isn't what it was.
        """
        assert not self._outputs, "outputs are handed out first"
        if self._replay is not None:
            return self._work_on_replay(self._replay)
        if self._batch is None:
            if self._failed is not None:
                self._outputs.append(Output(self._failed, DONE))
                self._failed = None
                return True
            try:
                if not self._read():
                    return False
            except FramingError as error:
                self._outputs.append(Output(error, DONE))
                return True
        if self._batch is not None:
            self._process(*self._batch)
        return True

    def _read(self) -> bool:
        """Split off the next batch and read its UUIDs; return False if that takes more content."""
        region, self._unread = self._unread or self._split(), None
        if region is None:
            return False
        columns, bad = self._uuids.read(region)
        if bad is not None:
            begin = int(region.ends[bad.position - 1]) if bad.position else region.begin
            end = int(region.ends[bad.position])
            kind = "uuid" if isinstance(bad.error, ValidationError) else "decode"
            self._failed = self._failure(bad.error, begin, end, kind)
            if bad.position + 1 < region.rows:
                self._unread = region.slice(bad.position + 1)
            region = region.slice(0, bad.position)
        if region.rows:
            self._batch = region, columns
        return True

    def _split(self) -> Region | None:
        while not self._truncation_told:
            try:
                return self._splitter.next_region(self._options.batch_bytes)
            except FramingError as error:
                failed = self._failure(error, error.begin, error.end, error.kind, type(error))
            except UnexpectedEOFError as error:
                self._truncation_told = True
                at = self._splitter.offset
                failed = self._failure(error, at, at, "unexpected_eof")
            if failed is not None:
                raise failed
        return None

    def _failure(
        self,
        error: Exception,
        begin: int,
        end: int,
        kind: str,
        cls: type[FramingError] = FramingError,
    ) -> FramingError | None:
        if self._options.skip_errors:
            self._maker.skipped += 1
            return None
        return self._maker.failure(error, begin, end, kind, cls)

    def _process(self, region: Region, columns: UuidColumns) -> None:
        self.is_read = True
        payloads = self._payloads
        if self._sequencer is None:
            self._batch = None
            payloads.add(region)
            indices = np.arange(columns.rows, dtype=np.int64)
            self._outputs.extend(self._maker.make(columns, payloads, indices, Progress, DONE))
            payloads.keep(NO_ROWS)
            return
        plan = self._sequencer.process(columns)
        consumed, span = plan.consumed, plan.replay
        if consumed < columns.rows:
            self._batch = region.slice(consumed), columns.slice(consumed)
            region = region.slice(0, consumed)
        else:
            self._batch = None
        payloads.add(region)
        final = DONE if span is None else Progress(len(plan.rows))
        rows = plan.table.take(plan.rows)
        self._outputs.extend(self._maker.make(rows, payloads, plan.rows, Progress, final))
        self._progress = Progress(0) if self._outputs else final
        if span is None:
            payloads.keep(plan.carry)
        else:
            self._replay = ReplayRecords(
                plan,
                span,
                maker=self._maker,
                uuids=self._uuids,
                retained=payloads,
                splitter_at=self._splitter_at,
            )
            self._carry = plan.carry  # Kept behind the replay, which takes others, too.

    def _work_on_replay(self, replay: ReplayRecords) -> bool:
        outputs = replay.work()
        if outputs is None:
            return False
        self._outputs.extend(outputs)
        if replay.finished:
            self._replay = None
            self._payloads.keep(self._carry)
            if not outputs:
                self._progress = DONE
        return True

    def evict(self, limit: int) -> None:
        """Retain no more than `limit` bytes of messages; others are read again if they commit."""
        if self._sequencer is not None and self._replay is None:
            kept = self._sequencer.evict(limit)
            if kept is not None:
                self._payloads.keep(kept)

    def checkpoint(self, prune_horizon_ns: int = 0) -> tuple[int, list[ProducerState]]:
        """Return the offset and producer states as of what was handed out."""
        assert self._sequencer is not None
        delivered, replayed = self._progress
        return self._sequencer.checkpoint(prune_horizon_ns, delivered=delivered, replayed=replayed)

    def _splitter_at(self, offset: int) -> RegionSplitter:
        return region_splitter(self._framing, offset, max_frame_bytes=self._options.max_frame_bytes)
