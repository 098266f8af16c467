"""Engine of envelopes whose commits a given Sequencer decides, message by message."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from gazette_aio.message.envelopes.content import Refusal
from gazette_aio.message.envelopes.outputs import BadMessages, JournalOutputs
from gazette_aio.message.reading.envelopes import EnvelopeEngine, EnvelopeMaker
from gazette_aio.message.uuid import ACK_TXN
from gazette_aio.protocol.errors import FramingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.origin import JournalFormat, Origin
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
    from gazette_aio.message.sequencing.sequencer import Sequencer

T = TypeVar("T")

_MOST_SKIPPED = 1024
_STEP_BYTES = 256 << 10


class SequencedReplay:
    """Replay of a transaction that outgrew the ring of a sequencer.

    Args:
        sequencer: Requires the replay.
        content_at: Returns content of the journal at an offset.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        content_at: Callable[[int], JournalOutputs[list[Envelope[Any]]]],
    ) -> None:
        self._sequencer = sequencer
        self._content_at = content_at
        self._content: JournalOutputs[list[Envelope[Any]]] | None = None
        self._rows: deque[Envelope[Any]] = deque()
        self.has_ended: bool = False
        """Whether all content was fed."""

    def open(self) -> tuple[int, int] | None:
        """Begin, and return the range to read; or None if the replay has begun."""
        if self._content is not None:
            return None
        _, begin, end = self._sequencer.replay_range()
        self._content = self._content_at(begin)
        self._sequencer.start_replay()
        return begin, end

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, perhaps after a gap."""
        assert self._content is not None
        self._content.feed(chunk, begin)

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range."""
        self.has_ended = True

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""
        if self._content is not None:
            self._sequencer.abort_replay()
            self._content, self.has_ended = None, False
            self._rows.clear()

    def next_row(self) -> Envelope[Any] | None:
        """Return the next message, or None if more content is needed."""
        content = self._content
        while content is not None and not self._rows:
            try:
                rows = content.take()
            except FramingError:
                continue  # The error was raised when the frame was first read.
            if rows is not None:
                self._rows.extend(rows)
            elif not content.work(_STEP_BYTES):
                break
        return self._rows.popleft() if self._rows else None


class SequencedEngine(EnvelopeEngine[T]):
    """Makes envelopes of the messages that a given sequencer commits.

    Args:
        sequencer: The sequencer.
        options: Options of reading.
        explain: Returns the error to raise for an error.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        options: ReadOptions,
        *,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        super().__init__(None, {**options, "skip_acks": False}, explain=explain)
        # What follows a commit is read again if its replay fails, and is to be counted once.
        self._limits["skip_errors"] = False
        self.sequencer = sequencer
        """Decides which messages commit."""
        self._skip_acks = options.get("skip_acks", False)
        self._makers: dict[Origin | None, EnvelopeMaker[T]] = {}  # By origin, and the latest.
        self._rows: deque[Envelope[Any]] = deque()  # Read, and not queued yet.
        self._replay: SequencedReplay | None = None
        self._is_dropped = False

    def offsets(self) -> Mapping[str, int]:
        """Return the known offsets by journal."""
        return self.sequencer.offsets

    def maker_of(self, journal_format: JournalFormat[T]) -> EnvelopeMaker[T]:
        """Return the maker of envelopes of a journal, whose messages aren't decoded."""
        maker = EnvelopeMaker(journal_format, self.bad)
        self._makers[journal_format.origin] = self._makers[None] = maker
        return EnvelopeMaker(journal_format, self.bad, is_raw=True)

    def forget(self, journal: str) -> None:
        """Forget the state of a journal, and its undelivered messages."""
        super().forget(journal)
        self.sequencer.forget(journal)
        self._rows.clear()
        self._replay = None

    def step(self, content: JournalOutputs[list[Envelope[T]]]) -> bool:
        """Make an envelope ready. Returns False if more content or a replay is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        pause_at = self.skipped + _MOST_SKIPPED
        while not self.ready and self._stopped is None and self.skipped < pause_at:
            if self.sequencer.emitting:
                if not self._dequeue():
                    return False
            elif self._rows:
                self.sequencer.queue_uncommitted(self._rows.popleft())
            else:
                try:
                    rows = content.take()
                except FramingError as error:
                    self._stopped = error
                    break
                if rows is not None:
                    self._rows.extend(rows)
                elif not self.work(content):
                    return False
        return True

    def _dequeue(self) -> bool:
        """Dequeue a message of the commit; return False if content of a replay is needed."""
        sequencer, replay = self.sequencer, self._replay
        if replay is None:
            if sequencer.replay_required:
                return False
            if sequencer.step() and sequencer.dequeued is not None:
                self._deliver(sequencer.dequeued)
            return True
        row = replay.next_row()
        if row is not None:
            if sequencer.offer_replay(row):
                self._deliver(row)
        elif replay.has_ended:
            sequencer.finish_replay()
            self._replay = None
        else:
            return False
        return True

    def _deliver(self, row: Envelope[Any]) -> None:
        is_early = 0 < row.clock < self._start_clock
        if is_early or (self._skip_acks and row.flags == ACK_TXN):
            return
        # A sequencer may retain messages of an earlier iterator.
        maker = self._makers.get(row.origin) or self._makers[None]
        try:
            maker.decode(row)
        except Exception as error:  # noqa: BLE001 - raised in its turn.
            refusal = Refusal(error, row.begin, row.end, "decode")
            self._stopped = next(iter(self.bad.errors(row.journal, refusal)), None)
        else:
            self.ready.append(row)

    def replay(self, content: JournalOutputs[list[Envelope[T]]]) -> Any:
        """Return the replay of a journal that is next, or in progress."""
        if self._replay is None and self.sequencer.emitting:
            raw = EnvelopeMaker(content.format, BadMessages(explain=self.explain), is_raw=True)

            def content_at(offset: int) -> JournalOutputs[list[Envelope[Any]]]:
                return JournalOutputs(content.format, offset, raw, **self._limits)

            self._replay = SequencedReplay(self.sequencer, content_at)
        return self._replay

    def rewind(self, content: JournalOutputs[list[Envelope[T]]]) -> int:  # noqa: ARG002
        """Undo the commit that needs a replay, and return the offset to receive content from."""
        self._rows.clear()
        self._replay = None
        return self.sequencer.rewind()

    def drop(self) -> None:
        """Drop `ready`, which isn't delivered any more."""
        self._is_dropped = self._is_dropped or bool(self.ready or self._stopped)
        super().drop()

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of the sequencer as of the delivered messages."""
        is_delivered = not (self.ready or self._stopped or self._is_dropped)
        return self.sequencer.checkpoint(prune_horizon, include_dequeued=is_delivered)
