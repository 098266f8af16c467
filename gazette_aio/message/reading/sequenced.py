"""Engine of envelopes whose commits a given Sequencer decides, message by message."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from gazette_aio.message.core import Batch
from gazette_aio.message.envelopes.content import ContentReplay, JournalContent, Refusal
from gazette_aio.message.envelopes.outputs import JournalOutputs
from gazette_aio.message.reading.engine import STEP_BYTES
from gazette_aio.message.reading.envelopes import EnvelopeEngine, EnvelopeMaker
from gazette_aio.message.uuid import ACK_TXN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.origin import JournalFormat, Origin
    from gazette_aio.message.envelopes.outputs import Made
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
    from gazette_aio.message.sequencing.sequencer import Sequencer
    from gazette_aio.protocol.errors import FramingError

T = TypeVar("T")


class SequencedReplay(ContentReplay):
    """Replay of a transaction that outgrew the ring of a sequencer.

    Args:
        content: Content of the journal.
        sequencer: Requires the replay.
    """

    _content: SequencedContent[Any]
    has_ended: bool

    def __init__(self, content: SequencedContent[Any], sequencer: Sequencer) -> None:
        super().__init__(content)
        self._sequencer = sequencer
        self._again: JournalContent | None = None
        self._rows: deque[Envelope[Any]] = deque()

    def open(self) -> tuple[int, int] | None:
        """Begin, and return the range to read; or None if the replay has begun."""
        if self._again is not None:
            return None
        _, begin, end = self._sequencer.replay_range()
        self._again = self._content.again_at(begin)
        self._sequencer.start_replay()
        return begin, end

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, perhaps after a gap."""
        assert self._again is not None, "the replay was begun"
        self._again.feed(chunk, begin)

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""
        if self._again is not None:
            self._sequencer.abort_replay()
            self._again, self.has_ended = None, False
            self._rows.clear()

    def next_row(self) -> Envelope[Any] | None:
        """Return the next message, or None if more content is needed."""
        while self._again is not None and not self._rows:
            found = self._again.read(STEP_BYTES)
            if found is None:
                return None
            # Errors were raised when the frames were first read.
            if isinstance(found, Batch):
                self._rows.extend(self._content.rows_of(found))
                self._again.core.settle_all()
        return self._rows.popleft() if self._rows else None


class SequencedContent(JournalOutputs["list[Envelope[T]]"]):
    """Content of one journal, of which a given sequencer decides what commits.

    Each output is one envelope.

    Args:
        engine: Has the sequencer.
        journal_format: Format of the journal.
        offset: Offset to begin at.
        maker: Makes envelopes.
        options: As for JournalContent.
    """

    maker: EnvelopeMaker[T]
    replay: ContentReplay | None

    def __init__(
        self,
        engine: SequencedEngine[T],
        journal_format: JournalFormat[T],
        offset: int,
        maker: EnvelopeMaker[T],
        **options: Any,
    ) -> None:
        super().__init__(journal_format, offset, maker, **options)
        self._engine = engine
        self._options = options
        self._rows: deque[Envelope[Any]] = deque()  # Read, and not queued yet.

    def again_at(self, offset: int) -> JournalContent:
        """Return content of the same journal, at an offset."""
        return JournalContent(self.format, offset, **self._options)

    def rows_of(self, batch: Batch) -> list[Envelope[Any]]:
        """Return envelopes of messages that aren't decoded."""
        return self.maker.encoded(batch, 0, len(batch))

    def work(self, limit_bytes: int) -> bool:
        """Make an output. Returns False if more content, or content of `replay`, is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        sequencer = self._engine.sequencer
        while not self._made:
            if sequencer.emitting:
                if not self._dequeue():
                    return False
            elif self._rows:
                sequencer.queue_uncommitted(self._rows.popleft())
            else:
                return self._read_rows(limit_bytes)
        return True

    def _read_rows(self, limit_bytes: int) -> bool:
        found = self.read(limit_bytes)
        if isinstance(found, Refusal):
            self._made.extend((error, 0) for error in self.maker.refuse(found))
        elif isinstance(found, Batch):
            self._rows.extend(self.rows_of(found))
            self.core.settle_all()
        return found is not None

    def _dequeue(self) -> bool:
        """Dequeue a message of the commit; return False if content of a replay is needed."""
        sequencer, replay = self._engine.sequencer, self.replay
        row: Envelope[Any] | None
        if not isinstance(replay, SequencedReplay):
            if sequencer.replay_required:
                self.replay = SequencedReplay(self, sequencer)
                return False
            row = sequencer.dequeued if sequencer.step() else None
        else:
            row = replay.next_row()
            if row is None:
                if not replay.has_ended:
                    return False
                sequencer.finish_replay()
                self.replay = None
            elif not sequencer.offer_replay(row):
                row = None
        if row is not None:
            self._made.extend(self._engine.outputs_of(row))
        return True

    def settle_before(self, begin: int | None = None) -> None:
        """Declare what was taken delivered, unless it's a message that isn't."""
        if begin is None and not self._made:
            self._engine.is_delivered = True


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
        self.is_delivered: bool = True
        """Whether the message that was dequeued last is delivered."""
        self._skip_acks = options.get("skip_acks", False)
        self._makers: dict[Origin | None, EnvelopeMaker[T]] = {}  # By origin, and the latest.

    def offsets(self) -> Mapping[str, int]:
        """Return the known offsets by journal."""
        return self.sequencer.offsets

    def begin(self, journal_format: JournalFormat[Any], offset: int) -> SequencedContent[T]:
        """Begin the content of a journal."""
        maker = EnvelopeMaker(journal_format, self.bad)
        self._makers[journal_format.origin] = self._makers[None] = maker
        return SequencedContent(self, journal_format, offset, maker, **self._limits)

    def forget(self, journal: str) -> None:
        """Forget the state of a journal, and its undelivered messages."""
        self.sequencer.forget(journal)

    def outputs_of(self, row: Envelope[Any]) -> list[Made[list[Envelope[T]]]]:
        """Return the output of a message that commits, if any."""
        is_early = 0 < row.clock < self._start_clock
        if is_early or (self._skip_acks and row.flags == ACK_TXN):
            return []
        # A sequencer may retain messages of an earlier iterator.
        maker = self._makers.get(row.origin) or self._makers[None]
        outputs: list[Made[list[Envelope[T]]]] = [([row], 0)]
        try:
            maker.decode(row)
        except Exception as error:  # noqa: BLE001 - raised in its turn.
            refusal = Refusal(error, row.begin, row.end, "decode")
            outputs = [(bad, 0) for bad in self.bad.errors(row.journal, refusal)]
        self.is_delivered = not outputs
        return outputs

    def rewind(self, content: JournalOutputs[list[Envelope[T]]]) -> int:  # noqa: ARG002
        """Undo the commit that needs a replay, and return the offset to receive content from."""
        return self.sequencer.rewind()

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of the sequencer as of the delivered messages."""
        return self.sequencer.checkpoint(prune_horizon, include_dequeued=self.is_delivered)
