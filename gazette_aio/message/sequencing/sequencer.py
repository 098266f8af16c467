"""The order in which messages of journals commit.

A Sequencer is given the messages of journals in the order they're read, pending ones included, and
says which of them are committed, in what order, and which are duplicates. It does no reading of
its own: where a transaction outgrew the ring of retained messages, it asks for a replay.

Theory of operation. Each producer of a journal has an exclusive lower bound `min` (messages up to
that clock are done), an inclusive upper bound `max` of the pending clocks it has seen, and an
offset `begin` of its open span of pending messages, or -1. By its flags and clock, a message is

    OUTSIDE   clock <= min               dropped, a duplicate
              otherwise                  committed by itself; an open span is discarded
    CONTINUE  clock <= max               dropped, a duplicate
              otherwise                  begins or extends the open span
    ACK       clock <= min               rolls the open span back
              otherwise                  commits the open span up to its clock, and itself

and a message with a zero clock is always committed by itself, and not tracked.

Pending messages are retained in a ring which all producers share. Once messages of a span were
evicted from it, their acknowledgement commits by a replay of the journal from the span's begin up
to the first message which is still retained.

A commit is *dequeued* before anything else is queued, in one of two ways: message by message,
through `step()` and `dequeued`; or at once, through `take()` and `settle()`. In the latter way, as
many commits as are simple are dequeued together, if they were queued so.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from gazette_aio.message.sequencing.checkpoint import ProducerState, SequencerCheckpoint
from gazette_aio.message.sequencing.commit_queue import CommitQueue
from gazette_aio.message.sequencing.outcome import ReplayRange
from gazette_aio.message.sequencing.producer import (
    Producer,
    as_nanoseconds,
    check_replayed,
    stale_producers,
)
from gazette_aio.message.uuid import ProducerID
from gazette_aio.protocol.errors import SequencerStateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from gazette_aio.message.envelopes.envelope import Envelope


class Sequencer(CommitQueue):
    """Sequences messages of any number of journals into their committed order.

    Args:
        offsets: Offsets read through, by journal. Copied.
        producers: States of producers, as of a checkpoint.
        buffer: Number of messages which the ring retains, over all producers; at least one.
        buffer_bytes: Number of bytes of messages which the ring retains, if that's limited. It's
            heeded from batch to batch, not within one.
    """

    def step(self) -> bool:
        """Declare `dequeued` processed, and dequeue the next message of the commit.

        Returns:
            Whether there's another message, which is then `dequeued`.

        Raises:
            SequencerStateError: If a replay is required, or under way, or several commits are to be
                taken.
        """
        state = self._emit
        if state is None:
            return False
        if self._run is not None:
            raise SequencerStateError("commits were queued together: take them")
        self._refuse_replay()
        assert self._taken is None, "commit was taken"
        self._process_dequeued(state)
        rows = self._rows
        while self._cursor < len(rows):
            row = rows[self._cursor]
            self._cursor += 1
            if row.clock == 0 or state.min < row.clock <= state.max:
                self._deliver(state, row)
                return True
        self._finish_emit(state)
        return False

    def take(self) -> list[Envelope[Any]]:
        """Dequeue all remaining messages of the commit at once; may be empty.

        Report their processing through `settle()`.

        Raises:
            SequencerStateError: If there's no commit, or a replay is required or under way.
        """
        state = self._emit
        if state is None:
            raise SequencerStateError("emit == nil")
        if self._run is not None:
            return self._rows
        self._refuse_replay()
        self._process_dequeued(state)
        rows = self._rows
        taken: list[Envelope[Any]]
        # Retained clocks increase, but for the last: only the ends have to be looked at.
        increasing = len(rows) == 1 or rows[-2].clock < rows[-1].clock
        if self._cursor == 0 and increasing and rows[0].clock > state.min:
            taken = rows
        else:
            taken = []
            low = state.min
            for row in islice(rows, self._cursor, None):
                if row.clock == 0 or low < row.clock <= state.max:
                    low = row.clock
                    taken.append(row)
        self._cursor = len(rows)
        self._taken = taken
        self._settled = 0
        return taken

    def settle(self, count: int) -> None:
        """Declare the first `count` messages processed, of those last taken.

        Once all of `take()` are, the commit ends.
        """
        state, taken = self._emit, self._taken
        if state is None or taken is None:
            raise SequencerStateError("emit == nil")
        assert self._settled <= count <= len(taken), "messages are settled in order"
        if self._run is not None:
            self._settle_run(self._run, count)
            return
        self._settled = count
        if count:
            last = taken[count - 1]
            state.min = last.clock or 1
            state.begin = last.begin
        if count == len(taken):
            if self._replaying:
                self._taken = None
            else:
                self._finish_emit(state)

    def _deliver(self, state: Producer, row: Envelope[Any]) -> None:
        state.begin = row.begin
        self.dequeued = row
        # The application may stamp the message anew: what counts is the clock it had.
        self._dequeued_clock = row.clock or 1

    def _process_dequeued(self, state: Producer) -> None:
        if self.dequeued is not None:
            state.min = self._dequeued_clock
            self.dequeued = None

    def _finish_emit(self, state: Producer) -> None:
        self._offsets[state.journal] = self._rows[-1].end
        self._emit = None
        self._rows = []
        self._taken = None
        self._close(state)

    def _refuse_replay(self) -> None:
        if self._replay_required:
            raise SequencerStateError("caller was required to StartReplay, and didn't")
        if self._replaying:
            raise SequencerStateError("replay isn't finished")

    def replay_range(self) -> ReplayRange:
        """Return the content which must be read again.

        Raises:
            SequencerStateError: If no commit is being dequeued, or all of it was.
        """
        state = self._emit
        if state is None:
            raise SequencerStateError("emit == nil")
        if self._cursor >= len(self._rows):
            raise SequencerStateError("no message of the ring remains to dequeue")
        return ReplayRange(state.journal, state.begin, self._rows[self._cursor].begin)

    def start_replay(self) -> None:
        """Declare that messages of `replay_range()` follow through `offer_replay()`.

        Raises:
            SequencerStateError: If no commit is being dequeued.
        """
        if self._emit is None:
            raise SequencerStateError("emit == nil")
        self._replay_required = False
        self._replaying = True

    def offer_replay(self, envelope: Envelope[Any]) -> bool:
        """Take a message of the replay, after declaring `dequeued` processed.

        Returns:
            Whether the message belongs to the commit. It's `dequeued` then.

        Raises:
            ReplayError: If the message isn't of the replayed range.
            SequencerStateError: If no replay is under way.
        """
        state = self._emit
        if state is None or not self._replaying:
            raise SequencerStateError("no replay is under way")
        self._process_dequeued(state)
        check_replayed(envelope, state.journal, state.begin, self._rows[0].begin)
        if envelope.producer != state.producer:
            return False
        # Invariant: messages with a zero clock were delivered when they were first read.
        if not state.min < envelope.clock <= state.max:
            return False
        self._deliver(state, envelope)
        return True

    def take_replay(self, envelopes: Sequence[Envelope[Any]]) -> list[Envelope[Any]]:
        """Take messages of the replay, and return those of the commit; may be empty.

        Report their processing through `settle()`, before more of the replay is taken.

        Raises:
            ReplayError: If a message isn't of the replayed range. None of them was taken.
            SequencerStateError: If no replay is under way.
        """
        state = self._emit
        if state is None or not self._replaying:
            raise SequencerStateError("no replay is under way")
        assert self._taken is None, "messages taken before aren't settled"
        self._process_dequeued(state)
        taken: list[Envelope[Any]] = []
        low, high, begin, producer = state.min, state.max, state.begin, state.producer
        end = self._rows[0].begin
        for envelope in envelopes:
            check_replayed(envelope, state.journal, begin, end)
            clock = envelope.clock
            if low < clock <= high and envelope.producer == producer:
                low, begin = clock, envelope.begin
                taken.append(envelope)
        self._taken = taken or None
        self._settled = 0
        return taken

    def finish_replay(self) -> None:
        """Declare the end of the replay: the retained messages of the commit are next."""
        if not self._replaying:
            raise SequencerStateError("no replay is under way")
        self._replaying = False

    def abort_replay(self) -> None:
        """Require a new replay, of the range which delivered messages have tightened."""
        if not self._replaying:
            raise SequencerStateError("no replay is under way")
        self._replaying = False
        self._replay_required = True
        self._taken = None

    def checkpoint(
        self,
        prune_horizon: timedelta | int = 0,
        *,
        include_dequeued: bool = False,
        prune_dequeued: bool = False,
    ) -> SequencerCheckpoint:
        """Return offsets and producer states as of now; nothing is pending thereafter.

        Args:
            prune_horizon: Forget producers whose largest clock is older by this than the newest
                acknowledgement of their journal: nanoseconds, or a timedelta. Zero keeps all.
            include_dequeued: Count the message which is `dequeued` as processed. By default it's
                read again by a Sequencer which goes on from the checkpoint.
            prune_dequeued: Also forget the producer whose commit is being dequeued, as Gazette
                does. A Sequencer which goes on from there misses the rest of the commit.
        """
        if include_dequeued:
            self._include_dequeued()
        horizon = as_nanoseconds(prune_horizon)
        states: list[ProducerState] = []
        for journal, producers in self._journals.items():
            if horizon > 0:
                for state in stale_producers(producers.values(), horizon):
                    # Invariant: what's found to commit relies on the states of its producers.
                    if self._run is not None and state.producer in self._run.states:
                        continue
                    if prune_dequeued or state is not self._emit:
                        del producers[state.producer]
                        self._pending.discard(state)
            for state in producers.values():
                pending_max = state.max if state.begin != -1 else None
                states.append(
                    ProducerState(journal, state.producer, state.min, state.begin, pending_max)
                )
        self._pending.clear()
        return SequencerCheckpoint(dict(self._offsets), tuple(states))

    def _include_dequeued(self) -> None:
        state = self._emit
        if state is None or self.dequeued is None:
            return
        self._process_dequeued(state)
        if self._replaying or self._replay_required:
            return
        remaining = islice(self._rows, self._cursor, None)
        if not any(state.min < row.clock <= state.max for row in remaining):
            self._finish_emit(state)

    def producer_state(self, journal: str, producer: bytes) -> ProducerState | None:
        """Return what is known of a producer, or None."""
        state = self._journals.get(journal, {}).get(ProducerID(bytes(producer)))
        if state is None:
            return None
        return ProducerState(journal, state.producer, state.min, state.begin, state.max)

    def retained(self, journal: str, producer: bytes) -> list[Envelope[Any]]:
        """Return the pending messages of a producer which the ring retains."""
        state = self._journals.get(journal, {}).get(ProducerID(bytes(producer)))
        if state is None:
            return []
        state.trim(self._low)
        return list(state.span)
