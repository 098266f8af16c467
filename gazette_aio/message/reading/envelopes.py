"""Engine of envelopes: messages of journals in commit order, or in journal order."""

from __future__ import annotations

import logging
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gazette_aio.message.envelopes.splitter import RUN_LIMIT, JournalSplitter, framing_error
from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
from gazette_aio.message.envelopes.uniform_run import offset_at
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.decoding import EnvelopeDecoder, number_at_once
from gazette_aio.message.reading.options import start_clock
from gazette_aio.protocol.errors import FramingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.origin import JournalFormat, Origin
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.sequencing.outcome import ReplayRange
    from gazette_aio.message.sequencing.sequencer import Sequencer

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class EnvelopeReplay:
    """Replay of a transaction that outgrew the ring of a sequencer.

    Args:
        sequencer: Requires the replay.
        splitter_at: Returns a splitter of content at an offset.
    """

    def __init__(self, sequencer: Sequencer, splitter_at: Callable[[int], JournalSplitter]) -> None:
        self._sequencer = sequencer
        self._splitter_at = splitter_at
        self._splitter: JournalSplitter | None = None
        self._ended = False
        self.finished: bool = False
        """Whether the ring's retained messages are next."""

    def open(self) -> ReplayRange | None:
        """Begin, and return the range to read; or None if the replay has begun."""
        if self._splitter is not None:
            return None
        wanted = self._sequencer.replay_range()
        self._splitter = self._splitter_at(wanted.begin)
        self._sequencer.start_replay()
        return wanted

    def feed(self, chunk: bytes, begin: int) -> None:
        """Take content, perhaps after a gap."""
        assert self._splitter is not None
        self._splitter.feed(chunk, begin)

    def end(self) -> None:
        """Declare the end of content, even if it isn't the end of the range."""
        self._ended = True

    def abort(self) -> None:
        """Drop the content fed. The next `open()` begins after what was delivered. Idempotent."""
        if self._splitter is not None:
            self._sequencer.abort_replay()
            self._splitter, self._ended = None, False

    def take(self) -> Sequence[Envelope[Any]] | None:
        """Return messages of the commit, maybe none; or None if more content is needed.

        Raises:
            ReplayError: A message isn't in the range.
        """
        run = self._next_run()
        if run:
            return self._sequencer.take_replay(run)
        if not self._ended:
            return None
        self._sequencer.finish_replay()
        self.finished = True
        return ()

    def _next_run(self) -> Sequence[Envelope[Any]]:
        while self._splitter is not None:
            try:
                return self._splitter.next_run()
            except FramingError:
                # The error was raised when the frame was first read, and reading continued.
                continue
        return ()


class EnvelopeEngine(Generic[T]):
    """Makes envelopes of the content of journals, and queues them in `ready`.

    Args:
        sequencer: Decides which messages commit; None to deliver all of them in journal order.
        options: Options of reading.
        transactions: Whether to dequeue several transactions at once.
        explain: Returns the error to raise for an error.
    """

    replay_bytes = 1

    def __init__(
        self,
        sequencer: Sequencer | None,
        options: ReadOptions,
        *,
        transactions: bool = True,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        self.ready: deque[Envelope[T]] = deque()
        """Decoded envelopes that aren't delivered yet."""
        self.explain = explain
        """Returns the error to raise for an error."""
        self.skipped: int = 0
        """Number of frames that were skipped because they can't be decoded."""
        self._sequencer = sequencer
        self._transactions = transactions
        self._skips_errors = options.get("on_error") == "skip"
        self._strict_uuid = options.get("strict_uuid", False)
        self._max_frame_bytes = options.get("max_frame_bytes", DEFAULT_MAX_FRAME_BYTES)
        self._skip_acks = options.get("skip_acks", False)
        self._start_clock = start_clock(options)
        self._formats: dict[str, JournalFormat[T]] = {}  # By journal.
        self._decoders: dict[Origin, EnvelopeDecoder[T]] = {}
        self._decoder: EnvelopeDecoder[T] | None = None  # The latest one.
        self._is_mixed = False  # Whether messages of a journal may differ in their decoders.
        self._run: Sequence[Envelope[Any]] = ()  # Read, and queued up to an index.
        self._queued = 0
        self._taken: Sequence[Envelope[Any]] | None = None  # Committed, decoded up to an index.
        self._decoded = self._settled = 0
        self._replay: EnvelopeReplay | None = None
        self._stopped: FramingError | None = None  # Raised after `ready` is delivered.

    def offsets(self) -> Mapping[str, int]:
        """Return the known offsets by journal."""
        return {} if self._sequencer is None else self._sequencer.offsets

    def begin(self, journal_format: JournalFormat[T], offset: int) -> JournalSplitter:
        """Begin the content of a journal."""
        journal, origin, adapter = (
            journal_format.journal,
            journal_format.origin,
            journal_format.adapter,
        )
        if self._formats.get(journal, journal_format) is not journal_format:
            self._is_mixed = True
        self._formats[journal] = journal_format
        if origin not in self._decoders:
            if self._decoder is None or self._decoder.adapter is not adapter:
                self._decoder = EnvelopeDecoder(
                    adapter, skip_acks=self._skip_acks, start_clock=self._start_clock
                )
            self._decoders[origin] = self._decoder
        decoder = journal_format.framing.decoder(offset, max_frame_bytes=self._max_frame_bytes)
        builder = EnvelopeBuilder(journal, adapter, strict=self._strict_uuid, origin=origin)
        return JournalSplitter(decoder, builder)

    def leave(self, content: JournalSplitter) -> None:
        """Do nothing: the state of journals is retained."""

    def forget(self, journal: str) -> None:
        """Forget the state of a journal, and its undelivered messages."""
        if self._sequencer is not None:
            self._sequencer.forget(journal)
        self._run, self._queued = (), 0
        self._taken = self._replay = None

    def take(self, content: JournalSplitter) -> deque[Envelope[T]] | None:  # noqa: ARG002
        """Return the envelopes that are ready, or None if there are none.

        Raises:
            FramingError: The next output is this error.
        """
        if self.ready:
            return self.ready
        stopped, self._stopped = self._stopped, None
        if stopped is not None:
            if self._taken is not None:
                self._decoded += 1
            raise stopped
        return None

    def step(self, content: JournalSplitter) -> bool:
        """Make envelopes ready, about as many as one turn of the event loop permits.

        Returns:
            False if more content or a replay is needed.

        Raises:
            ReplayError: The content of the replay has changed.
        """
        sequencer, ready = self._sequencer, self.ready
        pause_at = self.skipped + RUN_LIMIT
        while not ready and self._stopped is None and self.skipped < pause_at:
            taken = self._taken
            if taken is not None:
                if self._decoded < len(taken):
                    self._decode(taken)
                else:
                    if sequencer is not None:
                        sequencer.settle(len(taken))
                    self._taken = None
            elif sequencer is not None and sequencer.emitting:
                if sequencer.replay_required or not self._take_commit(sequencer):
                    return False
            elif self._queued == len(self._run):
                if not self._read_run(content):
                    return False
            elif sequencer is None:
                self._taken, self._decoded, self._queued = self._run, 0, len(self._run)
            else:
                self._queued = sequencer.queue_commits(
                    self._run, self._queued, transactions=self._transactions
                )
        return True

    def bytes_of_step(self, content: JournalSplitter) -> int:  # noqa: ARG002
        """Return 0: no step takes long."""
        return 0

    def room(self, content: JournalSplitter) -> None:
        """Return None: no step runs ahead."""

    def replay(self, content: JournalSplitter) -> EnvelopeReplay | None:
        """Return the replay that is next, or in progress."""
        sequencer = self._sequencer
        if self._replay is None and sequencer is not None and sequencer.emitting:
            journal_format = self._formats[content.journal]
            self._replay = EnvelopeReplay(
                sequencer, lambda offset: self.begin(journal_format, offset)
            )
        return self._replay

    def rewind(self, content: JournalSplitter) -> int:  # noqa: ARG002
        """Undo the commit that needs a replay, and return the offset to receive content from."""
        assert self._sequencer is not None, "only committed reading has replays"
        self._run, self._queued = (), 0
        self._replay = None
        return self._sequencer.rewind()

    def settle(self) -> None:
        """Declare the delivered messages of a commit processed."""
        taken, sequencer = self._taken, self._sequencer
        if taken is not None and sequencer is not None:
            self._settled = self._delivered(taken)
            sequencer.settle(self._settled)
            if self._settled == len(taken):
                self._taken = None

    def drop(self) -> None:
        """Drop `ready`, as if its envelopes weren't decoded yet."""
        if self._taken is not None:
            self._decoded = self._delivered(self._taken)
        self.ready.clear()
        self._stopped = None

    def _delivered(self, taken: Sequence[Envelope[Any]]) -> int:
        """Return how many of the taken messages were delivered or left out."""
        if not self.ready:
            return self._decoded
        following = self.ready[0].begin
        # It's one of these, and the last unless later messages were left out. It's near the first
        # if each delivered message is settled at once.
        indices = range(self._settled, self._decoded - len(self.ready) + 1)
        both_ends = chain.from_iterable(zip(reversed(indices), indices, strict=True))
        return next(at for at in both_ends if offset_at(taken, at) == following)

    def _take_commit(self, sequencer: Sequencer) -> bool:
        """Take committed messages, maybe none; return False if replayed content is needed."""
        self._decoded = self._settled = 0
        replay = self._replay
        if replay is None:
            self._taken = sequencer.take()
            return True
        committed = replay.take()
        self._taken = committed or None
        if replay.finished:
            self._replay = None
        return committed is not None

    def _read_run(self, content: JournalSplitter) -> bool:
        """Read the next envelopes of the content at hand, and return False if there are none."""
        self._run, self._queued = (), 0
        try:
            run = content.next_run()
        except FramingError as error:
            if not self._skips_errors:
                self._stop(error, error.__cause__)
            else:
                self._skip(error)
                return error.kind != "unexpected_eof"
            return True
        sequencer = self._sequencer
        if sequencer is not None:
            self._run = sequencer.queue_run(run, transactions=self._transactions)
        else:
            self._run = run
        return bool(run)

    def _decode(self, taken: Sequence[Envelope[Any]]) -> None:
        """Make committed messages ready, up to the first that can't be decoded."""
        begin = self._decoded
        first = taken[begin]
        end = min(begin + number_at_once(first), len(taken))
        origin = first.origin
        if origin is None or (decoder := self._decoders.get(origin)) is None:
            # A given sequencer retained messages of an earlier iterator.
            decoder = self._decoders[self._formats[first.journal].origin]
        if self._is_mixed:
            others = (at for at in range(begin, end) if taken[at].origin is not origin)
            end = next(others, end)
        while (bad := decoder.decode(taken, begin, end, self.ready)) is not None:
            index, cause = bad
            envelope = taken[index]
            error = framing_error(cause, envelope.journal, envelope.begin, envelope.end, "decode")
            if not self._skips_errors:
                self._decoded = index
                self._stop(error, cause)
                return
            self._skip(error)
            begin = index + 1
        self._decoded = end

    def _stop(self, error: FramingError, cause: BaseException | None) -> None:
        self._stopped = self.explain(error)
        self._stopped.__cause__ = cause

    def _skip(self, error: FramingError) -> None:
        self.skipped += 1
        extra = {"journal": error.journal, "begin": error.begin, "end": error.end}
        _logger.debug("skipped a frame: %s", error, extra=extra)
