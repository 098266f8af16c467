"""Outputs of a commit that is partly read again because it outgrew the retained bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.columnar.outputs import DONE, Output, OutputMaker, Progress
from gazette_aio.message.columnar.payloads import Payloads
from gazette_aio.message.sequencing.outcome import ReplayRange
from gazette_aio.protocol.errors import FramingError, ReplayError, UnexpectedEOFError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.message.columnar.uuids import UuidReader
    from gazette_aio.message.framing.regions import Region, RegionSplitter
    from gazette_aio.message.sequencing.columns import UuidColumns
    from gazette_aio.message.sequencing.plan import CommitPlan, ReplayFilter, ReplaySpan


class ReplayRecords:
    """Makes outputs of replayed content, and of the retained messages after it.

    Args:
        plan: Plan that ends with the commit.
        span: Span of messages to read again.
        replay: Filter of the content.
        maker: Makes outputs.
        uuids: Reads UUIDs.
        retained: Bytes of the retained messages, by their indices in the plan's table.
        splitter_at: Returns a splitter of content at an offset.
    """

    def __init__(
        self,
        plan: CommitPlan,
        span: ReplaySpan,
        *,
        replay: ReplayFilter,
        maker: OutputMaker,
        uuids: UuidReader,
        retained: Payloads,
        splitter_at: Callable[[int], RegionSplitter],
    ) -> None:
        self._plan = plan
        self._span = span
        self._replay = replay
        self._maker = maker
        self._uuids = uuids
        self._retained = retained
        self._splitter_at = splitter_at
        self._splitter: RegionSplitter | None = None
        self._unread: Region | None = None
        self._ended = False
        self.finished: bool = False
        """Whether all outputs of the commit were made."""

    @property
    def batch_begin(self) -> int:
        """Offset of the first message of the batch that the committing message ended."""
        return int(self._plan.table.begin[-self._plan.consumed])

    def open(self) -> ReplayRange | None:
        """Begin, and return the range to read; or None if the replay has begun."""
        if self._splitter is not None or self.finished:
            return None
        self._splitter = self._splitter_at(self._replay.begin)
        return ReplayRange(self._maker.journal, self._replay.begin, self._replay.end)

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content that begins at `begin`, perhaps after a gap."""
        splitter = self._splitter
        assert splitter is not None
        if begin != splitter.offset + splitter.buffered:
            splitter.jump(begin)
        splitter.feed(chunk)

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range."""
        assert self._splitter is not None
        self.feed(b"", self._replay.end)
        self._splitter.end()
        self._ended = True

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""
        self._splitter = self._unread = None
        self._ended = False

    def work(self) -> list[Output] | None:
        """Return outputs of the next content, or None if more of it is needed.

        Raises:
            ReplayError: The content has changed since it was first read.
        """
        splitter = self._splitter
        if splitter is None or self.finished:
            return None
        region, self._unread = self._unread, None
        while region is None:
            try:
                region = splitter.next_region(self._maker.options.batch_bytes)
            except FramingError:
                # The error was raised when the frame was first read.
                continue
            except UnexpectedEOFError as error:
                if splitter.offset + splitter.buffered < self._replay.end:
                    raise ReplayError(f"replay reader: {error}") from error
                # Garbage, which was skipped when it was first read: no frame reaches into the
                # acknowledgement.
                return self._finish()
            if region is None:
                return self._finish() if self._ended else None
        columns, bad = self._uuids.read(region)
        if bad:
            behind = columns.rows + len(bad)
            if behind < region.rows:
                self._unread = region.slice(behind)
            region = region.slice(0, columns.rows)
        kept = self._replay.keep(columns)
        payloads = Payloads()
        payloads.add(region)
        rows = columns.take(kept)
        progress = self._progress_of(rows)
        return self._maker.make(rows, payloads, kept, progress, progress(len(kept)))

    def _finish(self) -> list[Output]:
        self.finished = True
        tail = self._plan.table.take(self._span.tail)
        kept = self._replay.tail(tail)
        rows = tail.take(kept)
        return self._maker.make(
            rows, self._retained, self._span.tail[kept], self._progress_of(rows), DONE
        )

    def _progress_of(self, rows: UuidColumns) -> Callable[[int], Progress]:
        delivered = len(self._plan.rows)

        def progress(count: int) -> Progress:
            if count == 0:
                return Progress(delivered)
            last = count - 1
            return Progress(delivered, (int(rows.clock[last]), int(rows.begin[last])))

        return progress
