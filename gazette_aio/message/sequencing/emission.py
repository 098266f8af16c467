"""Commit that is being dequeued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.outcome import ReplayRange
from gazette_aio.message.sequencing.producer import check_replayed
from gazette_aio.protocol.errors import SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.sequencing.producer import Producer


class Emission:
    """A commit of one producer, whose bounds advance as its messages are processed.

    Args:
        producer: The producer, whose `max` is the clock up to which it commits.
        rows: Its messages at hand. The last one is the committing message.
        replay_required: Whether earlier messages must be read again first.
    """

    def __init__(
        self, producer: Producer, rows: Sequence[Envelope[Any]], *, replay_required: bool
    ) -> None:
        self.producer = producer
        self.replay_required: bool = replay_required
        self.settled: int = 0
        """Number of messages processed, of those returned last."""
        self._rows = rows
        self._taken: Sequence[Envelope[Any]] | None = None
        self._is_replaying = False

    @property
    def journal(self) -> str:
        """Journal of the commit."""
        return self.producer.journal

    @property
    def end(self) -> int:
        """Offset read through after the commit is processed."""
        return self._rows[-1].end

    def relies_on(self, producer: Producer) -> bool:
        """Return whether the state of a producer is needed until the commit ends."""
        return producer is self.producer

    def replay_range(self) -> ReplayRange:
        """Return the content to read again."""
        if self._taken is not None and not self._is_replaying:
            raise SequencerStateError("no message of the ring remains to dequeue")
        return ReplayRange(self.journal, self.producer.begin, self._rows[0].begin)

    def start_replay(self) -> None:
        """Declare that messages of the replay follow."""
        self.replay_required = False
        self._is_replaying = True

    def take_replay(self, envelopes: Sequence[Envelope[Any]]) -> list[Envelope[Any]]:
        """Take messages of the replay, and return those of the commit; may be empty."""
        self._require_replay()
        assert self._taken is None, "messages taken before aren't settled"
        producer = self.producer
        low, high, begin, identity = producer.min, producer.max, producer.begin, producer.producer
        end = self._rows[0].begin
        taken: list[Envelope[Any]] = []
        for envelope in envelopes:
            check_replayed(envelope, producer.journal, begin, end)
            clock = envelope.clock
            # Invariant: no zero clock is above `low`: such messages were delivered when first read.
            if low < clock <= high and envelope.producer == identity:
                low, begin = clock, envelope.begin
                taken.append(envelope)
        self._taken = taken or None
        self.settled = 0
        return taken

    def finish_replay(self) -> None:
        """Declare the end of the replay."""
        self._require_replay()
        self._is_replaying = False

    def abort_replay(self) -> None:
        """Require a new replay, of the range that processed messages have narrowed."""
        self._require_replay()
        self._is_replaying, self.replay_required = False, True
        self._taken = None

    def rewind(self) -> int:
        """Return the offset of the committing message, to queue it again instead of a replay."""
        if not self.replay_required:
            self._require_replay()
        return self._rows[-1].begin

    def _require_replay(self) -> None:
        if not self._is_replaying:
            raise SequencerStateError("no replay is under way")

    def take(self) -> Sequence[Envelope[Any]]:
        """Return the messages at hand; may be empty."""
        if self.replay_required:
            raise SequencerStateError("caller was required to StartReplay, and didn't")
        if self._is_replaying:
            raise SequencerStateError("replay isn't finished")
        if self._taken is not None:
            return self._taken
        rows, low, high = self._rows, self.producer.min, self.producer.max
        # Retained clocks increase, except for the last: it suffices to check both ends.
        if rows[0].clock <= low or (len(rows) > 1 and rows[-2].clock >= rows[-1].clock):
            every, rows = rows, list["Envelope[Any]"]()
            for row in every:
                if row.clock == 0 or low < row.clock <= high:
                    low = row.clock
                    rows.append(row)
        self._taken = rows
        self.settled = 0
        return rows

    def settle(self, count: int) -> bool:
        """Declare the first `count` messages processed, and return whether the commit ends."""
        taken = self._taken
        if taken is None:
            raise SequencerStateError("no messages were taken")
        assert self.settled <= count <= len(taken), "messages are settled in order"
        self.settled = count
        if count:
            last = taken[count - 1]
            self.producer.min, self.producer.begin = last.clock, last.begin
        if count < len(taken):
            return False
        self._taken = None
        return not self._is_replaying
