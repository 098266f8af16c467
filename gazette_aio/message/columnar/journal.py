"""Engine that makes record batches of the content of one journal."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gazette_aio.message.columnar.outputs import DONE, Output, Progress, RecordMaker
from gazette_aio.message.columnar.payloads import Payloads
from gazette_aio.message.columnar.replayed import ReplayRecords
from gazette_aio.message.columnar.uuids import MAX_BAD_ROWS, UuidReader
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.plan import NO_ROWS, ReplayFilter
from gazette_aio.protocol.errors import FramingError, UnexpectedEOFError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from gazette_aio.message.columnar.outputs import OutputMaker, RecordOptions
    from gazette_aio.message.envelopes.stamps import BadFrame
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.framing.regions import Region, RegionSplitter
    from gazette_aio.message.sequencing.checkpoint import ProducerState
    from gazette_aio.message.sequencing.columns import Indices, UuidColumns
    from gazette_aio.message.sequencing.plan import CommitPlan


MAX_RUNS = 64  # Runs of messages between skipped ones that are read at once.


class BatchSequencer(Protocol):
    """Decides which messages commit, as a ColumnarSequencer does."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of pending rows that are carried to the next batch."""
        ...

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the next rows of the journal, as `ColumnarSequencer.process()` does."""
        ...


class JournalRecords:
    """Makes record batches of the content of one journal.

    `feed()` takes chunks, and each `work()` makes the outputs of their next region. `take()`
    returns one output at a time, and a checkpoint covers exactly the returned outputs. If
    a commit needs a replay, `replay` is set after the outputs before it are taken, until those of
    the commit are.

    `work()` takes time, and may run in a thread. Meanwhile only `checkpoint()` may be called; it
    hardly waits for the thread.

    Args:
        journal: Name of the journal.
        framing: Its framing.
        offset: Offset to begin at.
        options: Options of the outputs.
        sequencer: Decides which messages commit; or None to output all of them.
        explain: Returns the error to raise for an error.
        maker: Makes the outputs; by default a RecordMaker.
    """

    def __init__(
        self,
        journal: str,
        framing: Framing,
        offset: int,
        options: RecordOptions,
        *,
        sequencer: BatchSequencer | None,
        explain: Callable[[FramingError], FramingError],
        maker: OutputMaker | None = None,
    ) -> None:
        self.journal = journal
        self.is_read: bool = False
        """Whether any message was processed."""
        self._framing = framing
        self._options = options
        self._sequencer = sequencer
        self._maker: OutputMaker = maker or RecordMaker(journal, options, explain)
        self._splitter = self._splitter_at(offset)
        self._uuids = UuidReader(options.adapter, strict=options.strict_uuid)
        self._payloads = Payloads()
        self._batch: tuple[Region, UuidColumns] | None = None  # To be processed next.
        self._failed: list[tuple[Region, list[BadFrame]]] = []  # To be raised after the batch.
        self._unread: Region | None = None  # To be read after these errors.
        self._truncation_told = False
        self._outputs: deque[Output] = deque()
        self._progress = DONE
        self._deciding = Lock()
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
        """Approximate bytes of content to work on."""
        if self._replay is not None or self._batch is not None or self._unread is not None:
            return self._options.batch_bytes
        return self._splitter.buffered

    @property
    def skipped(self) -> int:
        """Number of messages that were skipped because they can't be decoded."""
        return self._maker.skipped

    @property
    def pending_bytes(self) -> int:
        """Bytes of pending messages that are retained."""
        return 0 if self._sequencer is None else self._sequencer.pending_bytes

    @property
    def fed_through(self) -> int:
        """Offset of the next content to feed."""
        return self._splitter.offset + self._splitter.buffered

    @property
    def is_drained(self) -> bool:
        """Whether all outputs of the processed messages were taken."""
        return not self._outputs and self._replay is None

    @property
    def replay(self) -> ReplayRecords | None:
        """Replay that is next, or in progress."""
        return None if self._outputs else self._replay

    def feed(self, chunk: bytes, begin: int) -> int:
        """Take content that begins at `begin`, and return the number of bytes discarded before it.

        A partial message is discarded if `begin` isn't where the content before ended.
        """
        discarded = 0
        if begin != self.fed_through:
            discarded = self.jump(begin)
        self._truncation_told = False
        self._splitter.feed(chunk)
        return discarded

    def jump(self, offset: int) -> int:
        """Continue at `offset`, and return the number of bytes discarded."""
        return self._splitter.jump(offset)

    def end(self) -> None:
        """Declare the end of content."""
        self._splitter.end()

    def take(self) -> pa.RecordBatch | None:
        """Return the next output, or None if there is none.

        Raises:
            FramingError: The next output is this error.
        """
        if not self._outputs:
            return None
        value, self._progress = self._outputs.popleft()
        if isinstance(value, FramingError):
            raise value from value.__cause__
        return value

    def work(self) -> bool:
        """Make the outputs of the next region, and return False if more content is needed.

        Content that commits nothing has no outputs.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        assert not self._outputs, "outputs are taken first"
        if self._replay is not None:
            return self._work_on_replay(self._replay)
        if self._batch is None:
            if self._failed:
                for region, bad in self._failed:
                    self._refuse(region, bad)
                self._failed = []
                return True
            if not self._read():
                return bool(self._outputs)
        if self._batch is not None:
            self._process(*self._batch)
        return True

    def _read(self) -> bool:
        """Split off the next batch and read its UUIDs; return False if more content is needed."""
        rest, self._unread = self._unread or self._split(), None
        if rest is None:
            return False
        runs: list[tuple[Region, UuidColumns]] = []
        skipped = 0
        while rest is not None and not self._failed:
            columns, bad = self._uuids.read(rest)
            skipped += len(bad)
            behind = columns.rows + len(bad)
            if bad:
                self._fail(rest.slice(columns.rows, behind), bad)
            runs.append((rest.slice(0, columns.rows), columns))
            rest = rest.slice(behind) if behind < rest.rows else None
            if len(runs) == MAX_RUNS or skipped >= MAX_BAD_ROWS:
                break
        self._unread = rest
        region, columns = runs[0] if len(runs) == 1 else _join(runs)
        if columns.rows:
            self._batch = region, columns
        return True

    def _fail(self, region: Region, bad: list[BadFrame]) -> None:
        """Note the errors of the rows of a region."""
        if self._options.skip_errors:
            self._refuse(region, bad)
        else:
            self._failed.append((region, bad))

    def _refuse(self, region: Region, bad: list[BadFrame]) -> None:
        places = zip(region.payloads(), region.begins().tolist(), region.ends.tolist(), strict=True)
        for one, (frame, begin, end) in zip(bad, places, strict=True):
            self._outputs.extend(self._maker.refuse(one.error, frame, begin, end, one.kind))

    def _split(self) -> Region | None:
        """Return the next region; or None if more content is needed, or an error was output."""
        refuse = self._maker.refuse
        while not self._truncation_told and not self._outputs:
            try:
                return self._splitter.next_region(self._options.batch_bytes)
            except FramingError as error:
                refused = refuse(error, None, error.begin, error.end, error.kind, cls=type(error))
            except UnexpectedEOFError as error:
                self._truncation_told = True
                at = self._splitter.offset
                refused = refuse(error, None, at, at, "unexpected_eof")
            self._outputs.extend(refused)
        return None

    def _process(self, region: Region, columns: UuidColumns) -> None:
        payloads = self._payloads
        if self._sequencer is None:
            self._batch = None
            payloads.add(region)
            indices = np.arange(columns.rows, dtype=np.int64)
            self._outputs.extend(self._maker.make(columns, payloads, indices, Progress, DONE))
            payloads.keep(NO_ROWS)
            return
        with self._deciding:
            plan = self._sequencer.process(columns)
            self._progress = Progress(0)
            self.is_read = True
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
        if not self._outputs:
            self._progress = final
        if span is None:
            payloads.keep(plan.carry)
        else:
            self._replay = ReplayRecords(
                plan,
                span,
                replay=ReplayFilter(span, self.journal),
                maker=self._maker,
                uuids=self._uuids,
                retained=payloads,
                splitter_at=self._splitter_at,
            )
            self._carry = plan.carry  # Applied after the replay, which needs other rows, too.

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
        """Retain at most `limit` bytes of messages. Others are read again if they commit."""
        if isinstance(self._sequencer, ColumnarSequencer) and self._replay is None:
            with self._deciding:
                kept = self._sequencer.evict(limit)
            if kept is not None:
                self._payloads.keep(kept)

    def checkpoint(self, prune_horizon_ns: int = 0) -> tuple[int, list[ProducerState]]:
        """Return the offset and producer states as of the outputs taken."""
        assert isinstance(self._sequencer, ColumnarSequencer)
        with self._deciding:
            delivered, replayed = self._progress
            return self._sequencer.checkpoint(
                prune_horizon_ns, delivered=delivered, replayed=replayed
            )

    def _splitter_at(self, offset: int) -> RegionSplitter:
        return self._framing.splitter(offset, max_frame_bytes=self._options.max_frame_bytes)


def _join(runs: list[tuple[Region, UuidColumns]]) -> tuple[Region, UuidColumns]:
    """Return runs of one region as one, in which only the columns know where frames begin."""
    regions, parts = zip(*runs, strict=True)
    region = regions[0]._replace(
        starts=np.concatenate([run.starts for run in regions]),
        stops=np.concatenate([run.stops for run in regions]),
        ends=np.concatenate([run.ends for run in regions]),
    )
    return region, parts[0].concat(*parts[1:])
