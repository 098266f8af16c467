"""The rule by which messages commit, and the order in which they're delivered.

The rule is applied twice to each message: when it's read, and once what it commits was delivered.
The first states are ahead of the caller, the second are those of a checkpoint.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.core.plain.stamps import BEGIN, CLOCK, END, FLAGS, PAYLOAD, PRODUCER, Row
from gazette_aio.message.core.rules import ACK, CONTINUE, stale_below

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.message.core.rules import Bounds, State

ROW_BYTES = 96
"""What a pending row takes beside its content."""


class Producer:
    """State of a producer, and its pending messages."""

    __slots__ = ("begin", "max", "min", "missing", "size", "span")

    def __init__(self, low: int, high: int, begin: int) -> None:
        self.min: int = low
        """Clock up to which messages are done."""
        self.max: int = high
        """Largest clock of pending messages, or `min`."""
        self.begin: int = begin
        """Offset of the first pending message, or -1."""
        self.span: list[Row] = []
        """Pending messages that are at hand."""
        self.size: int = 0
        """Bytes that they count for."""
        self.missing: tuple[int, int] | None = None
        """Where the pending messages are that aren't at hand. The span follows."""

    def close(self, clock: int) -> None:
        """Mark messages up to `clock` done, and none pending."""
        self.min = self.max = clock
        self.begin = -1
        self.size = 0
        self.missing = None
        self.span = []


class Replay:
    """A commit of messages that have to be read again."""

    def __init__(self, missing: tuple[int, int], known: Producer, ack: Row) -> None:
        self.begin: int
        self.end: int
        self.begin, self.end = missing
        self.min: int = known.min
        """Clock of the message that was read again last."""
        self.has_ended: bool = False
        """Whether nothing more commits: a message was read again that's rolled back, so that the
        next ones are as well, or were duplicates."""
        self.span: list[Row] = known.span
        """Pending messages that follow them."""
        self.ack: Row = ack
        self.delivered: int = 0


class Remarks(NamedTuple):
    """Numbers of messages that indicate misbehaving producers."""

    unknown_flags: int = 0
    old_acks: int = 0
    """Acknowledgements that are older than the last one: the producer went back in time."""
    mixed: int = 0
    """Messages outside of transactions that discarded pending ones."""
    stale: int = 0
    """Producers that were forgotten with what they had pending."""


class Sequencer:
    """Order of commits of one journal.

    Args:
        offset: Offset to begin at.
        states: States of producers as of there.
        enters: Whether what's pending before it is to be delivered.
        skips_acks: Whether acknowledgements aren't delivered.
    """

    def __init__(
        self,
        offset: int,
        states: Iterable[State],
        *,
        enters: bool,
        skips_acks: bool,
    ) -> None:
        self.replay: Replay | None = None
        """What has to be read again before the next message may be added."""
        self.pending_bytes: int = 0
        self.pending_rows: int = 0
        self.passed: int = offset
        """Offset after the last duplicate, or acknowledgement that rolled back."""
        self.remarks: Remarks = Remarks()
        self._skips_acks = skips_acks
        self._producers: dict[bytes, Producer] = {}
        # Messages, until all that was delivered for them was settled; and numbers of those for
        # which any are delivered, and how many.
        self._steps: list[Row] = []
        self._commits: deque[tuple[int, int]] = deque()
        self._first = 0  # Number of the first of them.
        self._undelivered = 0
        # As of what was settled.
        self._settled: dict[bytes, Bounds] = {}
        self._offset = self._checked = offset
        self._delivered = 0  # Messages of the first steps.
        self._last: Row | None = None  # The last of them.
        for producer, low, high, begin in states:
            known = self._producers[producer] = Producer(low, high, begin)
            self._settled[producer] = low, high, begin
            if enters and -1 < begin < offset:
                known.missing = begin, offset

    def add(self, rows: list[Row], out: list[Row]) -> int:
        """Take messages up to the first that needs a replay, and add those that commit to `out`.

        Returns:
            The number of messages taken.
        """
        producers, commits = self._producers, self._commits
        count = before = len(out)
        first = self._first + len(self._steps) - 1
        taken = added_bytes = added_rows = 0
        # Hot: a call for each message would take longer than all else.
        for row in rows:
            taken += 1
            _, begin, end, clock, producer, flags, _ = row
            if clock:
                known = producers.get(producer)
                if known is None:
                    known = producers[producer] = Producer(clock - 1, clock - 1, -1)
                if flags == CONTINUE:
                    if clock > known.max:
                        known.max = clock
                        if known.begin == -1:
                            known.begin = begin
                        size = end - begin + ROW_BYTES
                        known.span.append(row)
                        known.size += size
                        added_bytes += size
                        added_rows += 1
                    else:
                        self.passed = end
                    continue
                self._close(known, row, out)
            elif flags != ACK or not self._skips_acks:
                out.append(row)
            if len(out) > count:
                commits.append((first + taken, len(out) - count))
                count = len(out)
            if self.replay is not None:
                break
        self._steps += rows if taken == len(rows) else rows[:taken]
        self.pending_bytes += added_bytes
        self.pending_rows += added_rows
        self._undelivered += count - before
        return taken

    def _close(self, known: Producer, row: Row, out: list[Row]) -> None:
        """Take an acknowledgement, or a message outside of transactions."""
        clock, flags = row[CLOCK], row[FLAGS]
        if flags != ACK or clock < known.min:
            self._remark(known, row)
        if clock <= known.min:
            self.passed = row[END]
            if flags != ACK:
                return
        self.pending_bytes -= known.size
        self.pending_rows -= len(known.span)
        if clock > known.min:
            if flags != ACK:
                out.append(row)
            elif known.missing is None:
                self._commit(known.span, known.min, row, out)
            else:
                self.replay = Replay(known.missing, known, row)
        known.close(clock)

    def _remark(self, known: Producer, row: Row) -> None:
        """Note what's wrong with a message that isn't pending, if anything is."""
        clock, flags = row[CLOCK], row[FLAGS]
        unknown, old, mixed, stale = self.remarks
        unknown += flags > ACK
        old += flags == ACK and clock < known.min and row[END] > row[BEGIN]
        mixed += flags != ACK and clock > known.min and known.begin != -1
        self.remarks = Remarks(unknown, old, mixed, stale)

    def _commit(self, span: list[Row], low: int, ack: Row, out: list[Row]) -> None:
        """Add pending rows above `low` that an acknowledgement commits, and the acknowledgement."""
        clock = ack[CLOCK]
        if not span or (span[0][CLOCK] > low and span[-1][CLOCK] <= clock):
            out += span
        else:
            span = [row for row in span if low < row[CLOCK] <= clock]
            out += span
        last = span[-1][CLOCK] if span else low
        # An acknowledgement isn't delivered after a message of its own clock, and a verdict never.
        if last != clock and not self._skips_acks and ack[END] > ack[BEGIN]:
            out.append(ack)

    def evict(self, limit_bytes: int, limit_rows: int | None = None) -> None:
        """Drop pending messages, the largest transactions first, until they're small and few."""
        if self._fits(limit_bytes, limit_rows):
            return
        pending = [(known.size, name, known) for name, known in self._producers.items()]
        pending.sort(key=lambda each: (-each[0], each[1]))
        for _, _, known in pending:
            if not known.span or self._fits(limit_bytes, limit_rows):
                break
            self.pending_bytes -= known.size
            self.pending_rows -= len(known.span)
            begin = known.span[0][BEGIN] if known.missing is None else known.missing[0]
            known.missing = begin, known.span[-1][END]
            known.span, known.size = [], 0

    def retained(self) -> list[bytes]:
        """Return the content of the pending messages that are at hand."""
        return [row[PAYLOAD] for known in self._producers.values() for row in known.span]

    def _fits(self, limit_bytes: int, limit_rows: int | None) -> bool:
        return self.pending_bytes <= limit_bytes and (
            limit_rows is None or self.pending_rows <= limit_rows
        )

    # Replays.

    def add_again(self, rows: list[Row], out: list[Row]) -> str | None:
        """Take messages that were read again; return what's wrong with them, if anything is."""
        replay = self.replay
        assert replay is not None
        producer, last = replay.ack[PRODUCER], replay.ack[CLOCK]
        before = len(out)
        changed = None
        for row in rows:
            if row[BEGIN] < replay.begin:
                changed = f"replay has wrong Begin ({row[BEGIN]}; expected >= {replay.begin})"
                break
            if row[END] > replay.end:
                changed = f"replay has wrong End ({row[END]}; expected <= {replay.end})"
                break
            if row[PRODUCER] != producer or row[CLOCK] <= replay.min:
                continue
            commits = row[CLOCK] <= last
            replay.has_ended |= not commits
            if commits and not replay.has_ended:
                replay.min, replay.begin = row[CLOCK], row[BEGIN]
                out.append(row)
        replay.delivered += len(out) - before
        self._undelivered += len(out) - before
        return changed

    def end_replay(self, out: list[Row]) -> None:
        """End a replay, and add what's left of its commit to `out`."""
        replay, self.replay = self.replay, None
        assert replay is not None
        self._commit(replay.span, replay.min, replay.ack, out)
        self._undelivered += len(out)
        if delivers := replay.delivered + len(out):
            self._commits.append((self._first + len(self._steps) - 1, delivers))

    # What was delivered.

    def settle(self, count: int, last: Row | None, *, is_all: bool) -> None:
        """Note that the next `count` messages were delivered, up to `last`."""
        if count > self._undelivered:
            raise ValueError("messages were settled before")
        self._undelivered -= count
        self._delivered += count
        self._last = last or self._last
        # Hot: the rest waits for a checkpoint, or for the last message of a batch.
        if is_all:
            self._apply_settled(is_all=True)

    def _apply_settled(self, *, is_all: bool = False) -> None:
        """Apply the rule to what was settled."""
        steps, settled = self._steps, self._settled
        if is_all and not self._undelivered and self.replay is None:
            # States are those of what was read.
            for name in {row[PRODUCER] for row in steps if row[CLOCK]}:
                known = self._producers[name]
                settled[name] = known.min, known.max, known.begin
            self._delivered, done = 0, len(steps)
            self._commits.clear()
        else:
            done = self._count_settled(is_all=is_all)
            for row in steps[:done]:
                if row[CLOCK]:
                    settled[row[PRODUCER]] = _bounds_after(self._settled_of(row), row)
        if done:
            self._offset = steps[done - 1][END]
            self._first += done
            del steps[:done]
        if steps and self._last is not None and self._delivered:
            # A part of a commit was delivered: its acknowledgement is read again after a restart.
            last = self._last
            settled[steps[0][PRODUCER]] = last[CLOCK], steps[0][CLOCK], last[BEGIN]

    def _count_settled(self, *, is_all: bool) -> int:
        """Return how many of the first steps are settled, and take their messages off."""
        done, commits = 0, self._commits
        # What a replay delivers is known once it ends.
        settled = len(self._steps) - (self.replay is not None)
        while done < settled:
            is_commit = bool(commits) and commits[0][0] == self._first + done
            if is_commit and commits[0][1] <= self._delivered:
                self._delivered -= commits.popleft()[1]
            elif is_commit or not (self._delivered or is_all):
                break
            done += 1
        return done

    def _settled_of(self, row: Row) -> Bounds:
        clock = row[CLOCK] - 1
        return self._settled.get(row[PRODUCER], (clock, clock, -1))

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint."""
        self._apply_settled()
        return any(begin >= self._checked for _, _, begin in self._settled.values())

    def checkpoint(self, horizon_ns: int) -> tuple[int, list[State]]:
        """Return the offset read through, and states of producers, as of what was delivered."""
        self._apply_settled()
        self._checked = self._offset
        if horizon_ns > 0:
            self._prune(horizon_ns)
        return self._offset, [(name, *bounds) for name, bounds in sorted(self._settled.items())]

    def _prune(self, horizon_ns: int) -> None:
        """Forget producers whose clocks are older than the newest acknowledgement by a horizon."""
        newest = max((low for low, _, _ in self._settled.values()), default=0)
        bound = stale_below(newest, horizon_ns)
        stale = {name for name, (_, high, _) in self._settled.items() if high < bound}
        for name in stale.difference([row[PRODUCER] for row in self._steps]):
            unknown, old, mixed, forgotten = self.remarks
            forgotten += self._settled.pop(name)[2] != -1
            self.remarks = Remarks(unknown, old, mixed, forgotten)
            known = self._producers.pop(name)
            self.pending_bytes -= known.size
            self.pending_rows -= len(known.span)


def _bounds_after(bounds: Bounds, row: Row) -> Bounds:
    """Return the bounds of a producer after one of its messages."""
    low, high, begin = bounds
    clock, flags = row[CLOCK], row[FLAGS]
    if flags == CONTINUE:
        return (low, clock, row[BEGIN] if begin == -1 else begin) if clock > high else bounds
    return (clock, clock, -1) if flags == ACK or clock > low else bounds
