"""Decisions of transactions, with a clock and a channel of the test."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gazette_aio.consumer.transactions.machine import (
    Action,
    Begin,
    BeginReplay,
    Commit,
    Consume,
    Drained,
    Durations,
    Phase,
    Publish,
    ReadReplay,
    Receive,
    TransactionMachine,
    Wait,
)
from gazette_aio.consumer.transactions.observer import report_of
from gazette_aio.message import Sequencer, SequencerCheckpoint
from gazette_aio.protocol.errors import ReplayError, TransactionError
from tests.consumer.transactions.journals import A, B, Content

MIN, MAX = 0.001, 0.010


class Bench:
    """Executes actions of a machine, whose time is that of the test."""

    def __init__(
        self,
        checkpoint: SequencerCheckpoint | None = None,
        durations: Durations | None = None,
        *,
        buffer: int = 100,
        is_recovered: bool = True,
    ) -> None:
        self.now = 2.0
        self.durations = durations or Durations(MIN, MAX)
        sequencer = Sequencer.from_checkpoint(checkpoint or SequencerCheckpoint(), buffer=buffer)
        self.machine = TransactionMachine(sequencer, self.durations, self.now)
        self.channel: deque[Any] = deque()
        self.consumed: list[Any] = []
        self.begun = 0
        self.progress: dict[str, int] = {}
        self.checkpoints: list[SequencerCheckpoint] = []
        self.limit = 1000
        self.defers_at: int | None = None
        self.seconds_each = 0.0
        self.content = Content()
        self.replays: deque[Any] = deque()
        if is_recovered:
            self.acknowledge()

    def send(self, *envelopes: Any) -> None:
        self.channel.append(list(envelopes))

    def end(self) -> None:
        self.channel.append(None)

    def next(self) -> Action:
        return self.machine.next(self.now, is_ready=bool(self.channel))

    def acknowledge(self) -> None:
        """Have the prior transaction commit, if it hasn't, and be acknowledged."""
        if self.machine.prior.phase is Phase.COMMITTING:
            self.machine.committed(self.now)
        self.progress.update(self.machine.acknowledged(self.now).offsets)

    def commit(self) -> SequencerCheckpoint:
        self.machine.preparing(self.now)
        checkpoint = self.machine.checkpoint()
        self.machine.prepared(self.durations, self.now)
        self.checkpoints.append(checkpoint)
        return checkpoint

    def run(self) -> Action:
        """Execute actions up to one which waits, commits or ends."""
        while True:
            action = self.next()
            match action:
                case Begin():
                    self.begun += 1
                    self.machine.begun(self.now)
                case Consume(rows, begin):
                    self._consume(rows[begin:])
                case Receive():
                    run = self.channel.popleft()
                    self.machine.ended() if run is None else self.machine.received(run)
                case Publish(offsets):
                    self.progress.update(offsets)
                case BeginReplay(span):
                    self.replays = deque(self.content.read(span.begin, span.end))
                    self.machine.replay_begun()
                case ReadReplay():
                    if self.replays:
                        self.machine.replayed([self.replays.popleft()])
                    else:
                        self.machine.replay_ended()
                case Wait() | Commit() | Drained():
                    return action

    def _consume(self, rows: Any) -> None:
        deadline, current = self.machine.deadline, self.machine.current
        assert deadline is None or self.now < deadline or not current.messages
        count = 0
        for row in rows[: self.limit]:
            if len(self.consumed) == self.defers_at:
                self.defers_at = None
                self.machine.consumed(count)
                self.machine.deferred()
                return
            self.consumed.append(row)
            count += 1
            self.now += self.seconds_each
            if deadline is not None and self.now >= deadline:
                break
        self.machine.consumed(count)


def test_prior_commits_then_acks_then_messages_arrive_and_stall():
    bench, content = Bench(), Content()
    machine = bench.machine
    # A first transaction commits at 2.5 s, and is acknowledged at 3 s.
    bench.send(content.outside())
    bench.now = 2.0
    assert isinstance(bench.run(), Wait)
    bench.now = 2.1
    assert isinstance(bench.run(), Commit)
    bench.commit()
    assert machine.deadline is None
    assert isinstance(bench.run(), Wait)
    bench.now = 2.5
    machine.committed(bench.now)
    assert bench.progress == {}
    bench.now = 3.0
    bench.acknowledge()
    assert bench.progress == {"source/A": 10}
    report = report_of(machine.prior)
    assert (report.committing, report.acknowledging) == pytest.approx((0.4, 0.5))
    assert (report.messages, report.size_bytes) == (1, 10)
    # The first message of the next arms the timer with the minimum.
    bench.now = 4.0
    assert isinstance(bench.run(), Wait)
    bench.send(content.outside())
    assert isinstance(bench.run(), Wait)
    assert bench.begun == 2
    assert machine.deadline == 4.0 + MIN
    # The tick of the minimum arms it for the rest of the maximum.
    bench.now = 4.0 + MIN
    bench.send(content.pending())
    bench.send(content.ack())
    assert isinstance(bench.run(), Commit)
    assert machine.deadline == 4.0 + MAX
    assert machine.current.messages == 3
    assert machine.current.is_min_elapsed
    assert not machine.current.is_max_elapsed
    bench.commit()
    assert machine.deadline is None
    assert machine.prior.stalled == machine.prior.prepare_began == bench.now
    assert machine.current.since == bench.now


def test_the_minimum_elapses_then_the_prior_commits_and_is_acknowledged():
    bench, content = Bench(), Content()
    bench.send(content.outside())
    bench.run()
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    bench.commit()
    bench.send(content.outside())
    assert isinstance(bench.run(), Wait)
    bench.now += MIN
    assert isinstance(bench.run(), Wait)
    bench.machine.committed(bench.now)
    assert isinstance(bench.run(), Wait)
    bench.acknowledge()
    assert isinstance(bench.run(), Commit)


def test_the_maximum_elapses_before_the_prior_is_acknowledged():
    bench, content = Bench(), Content()
    bench.send(content.outside())
    bench.run()
    bench.now += MIN
    bench.run()
    bench.commit()
    bench.send(content.outside(), content.outside())
    bench.run()
    began = bench.now
    bench.now = began + MAX
    bench.send(content.outside())
    assert isinstance(bench.run(), Wait)
    assert len(bench.consumed) == 3
    assert len(bench.channel) == 1
    assert bench.machine.current.stalled == bench.now
    bench.now += 1
    bench.acknowledge()
    assert isinstance(bench.run(), Commit)
    assert bench.machine.current.messages == 2
    bench.commit()
    prior = bench.machine.prior
    assert prior.prepare_began is not None
    assert prior.stalled is not None
    assert prior.prepare_began - prior.stalled == 1
    bench.acknowledge()
    assert report_of(prior).stalled == 1
    assert isinstance(bench.run(), Wait)
    assert len(bench.consumed) == 4


def test_pending_messages_dont_begin_and_are_awaited_up_to_the_maximum():
    bench, content = Bench(), Content()
    for _ in range(3):
        bench.send(content.pending())
    assert isinstance(bench.run(), Wait)
    assert bench.begun == 0
    assert bench.machine.deadline is None
    bench.send(content.ack())
    assert isinstance(bench.run(), Wait)
    assert bench.machine.current.messages == 4
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    bench.send(content.pending())
    assert isinstance(bench.run(), Wait)
    bench.send(content.ack())
    assert isinstance(bench.run(), Commit)
    assert bench.machine.current.messages == 6
    bench.send(content.pending())
    assert isinstance(bench.run(), Wait)
    bench.now += MAX
    assert isinstance(bench.run(), Commit)
    bench.commit()
    bench.acknowledge()
    # What was pending at the checkpoint before keeps no transaction open.
    bench.send(content.outside(B))
    bench.run()
    bench.now += MIN
    assert isinstance(bench.run(), Commit)


def test_acks_may_not_be_waited_for():
    bench, content = Bench(durations=Durations(MIN, MAX, waits_for_acks=False)), Content()
    bench.send(content.outside(), content.pending())
    bench.run()
    bench.now += MIN
    assert isinstance(bench.run(), Commit)


def test_the_channel_ends_after_a_message():
    bench, content = Bench(is_recovered=False), Content()
    bench.send(content.outside())
    bench.end()
    assert isinstance(bench.run(), Wait)
    assert bench.begun == 0
    bench.acknowledge()
    assert isinstance(bench.run(), Wait)
    assert not bench.machine.is_reading
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    bench.commit()
    assert isinstance(bench.run(), Wait)
    bench.acknowledge()
    assert isinstance(bench.run(), Drained)
    assert bench.begun == 1


def test_an_idle_shard_with_recovered_acks_reads_but_doesnt_begin():
    bench, content = Bench(is_recovered=False), Content()
    bench.send(content.pending())
    bench.send(content.ack())
    bench.send(content.outside())
    assert isinstance(bench.run(), Wait)
    assert (bench.begun, len(bench.channel)) == (0, 1)
    assert not bench.machine.is_idle
    bench.acknowledge()
    assert bench.machine.is_idle
    assert isinstance(bench.run(), Wait)
    assert (bench.begun, len(bench.consumed)) == (1, 3)


@pytest.mark.parametrize("is_dup", [True, False])
def test_duplicates_and_rollbacks_advance_progress(is_dup: bool):
    bench, content = Bench(), Content()
    bench.send(content.outside(clock=5))
    bench.run()
    bench.now += MIN
    bench.run()
    stored = bench.commit()
    # While the transaction before is open, they extend what it will report.
    if is_dup:
        bench.send(content.outside(clock=5), content.pending(clock=4))
    else:
        bench.send(content.pending(clock=6), content.ack(clock=5))
    assert isinstance(bench.run(), Wait)
    assert bench.progress == {}
    bench.acknowledge()
    assert bench.progress == {"source/A": 30}
    assert stored.offsets == {"source/A": 10}
    # While the shard is idle, they're reported at once.
    bench.send(content.outside(clock=3))
    assert isinstance(bench.run(), Wait)
    assert bench.progress == {"source/A": 40}
    # Pending messages aren't reported: their acknowledgement will be.
    bench.send(content.pending(clock=9))
    assert isinstance(bench.run(), Wait)
    assert bench.progress == {"source/A": 40}
    assert bench.machine.current.messages == 0
    assert bench.begun == 1


def test_a_duplicate_precedes_the_first_barrier_of_an_empty_checkpoint():
    bench, content = Bench(is_recovered=False), Content()
    bench.send(content.ack(clock=0))
    bench.send(content.outside(clock=7), content.outside(clock=7))
    bench.send(content.outside(clock=7))
    bench.run()
    bench.acknowledge()
    assert isinstance(bench.run(), Wait)
    assert len(bench.consumed) == 2


def test_progress_during_a_transaction_is_that_of_its_checkpoint():
    bench, content = Bench(), Content()
    bench.send(content.outside(clock=5))
    bench.run()
    bench.send(content.outside(clock=5))
    bench.run()
    assert bench.progress == {}
    bench.now += MIN
    bench.run()
    bench.commit()
    bench.acknowledge()
    assert bench.progress == {"source/A": 20}


def transaction(content: Content, size: int) -> list[Any]:
    return [*(content.pending() for _ in range(size - 1)), content.ack()]


@pytest.mark.parametrize("by_defer", [True, False])
@pytest.mark.parametrize("in_one_run", [True, False])
def test_a_transaction_ends_within_a_sequence(by_defer: bool, in_one_run: bool):
    bench, content = Bench(), Content()
    rows = transaction(content, 4)
    if in_one_run:
        bench.send(*rows)
    else:
        for row in rows:
            bench.send(row)
    if by_defer:
        bench.defers_at = 1
        assert isinstance(bench.run(), Wait)
        bench.now += MIN
    else:
        bench.seconds_each = MAX
    assert isinstance(bench.run(), Commit)
    bench.seconds_each = 0
    assert bench.consumed == rows[:1]
    checkpoint = bench.commit()
    assert checkpoint.offsets == {"source/A": 30}
    assert isinstance(bench.run(), Wait)
    assert bench.consumed == rows
    bench.acknowledge()
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    assert bench.commit().offsets == {"source/A": content.head}
    # A new assignment resumes at the second message.
    again = Bench(checkpoint)
    again.content = content
    again.send(*content.read(checkpoint.offsets["source/A"]))
    again.run()
    assert [row.begin for row in again.consumed] == [row.begin for row in rows[1:]]


def test_the_first_message_cant_be_deferred():
    bench, content = Bench(), Content()
    bench.send(content.outside())
    bench.defers_at = 0
    with pytest.raises(TransactionError, match="application deferred the first message"):
        bench.run()


def test_a_message_is_not_started_after_the_maximum():
    bench, content = Bench(durations=Durations(0, MAX)), Content()
    bench.send(*(content.outside() for _ in range(10)))
    bench.seconds_each = MAX / 4
    assert isinstance(bench.run(), Commit)
    assert len(bench.consumed) == 4


def test_a_transaction_that_began_late_consumes_its_first_message():
    bench, content = Bench(), Content()
    bench.send(content.outside(), content.outside())
    assert isinstance(bench.next(), Receive)
    bench.machine.received(bench.channel.popleft())
    assert isinstance(bench.next(), Begin)
    bench.machine.begun(bench.now)
    bench.now += MAX
    assert isinstance(bench.run(), Commit)
    assert len(bench.consumed) == 1


def test_a_minimum_beyond_the_maximum_elapses_with_it():
    bench, content = Bench(durations=Durations(MAX, MIN)), Content()
    bench.send(content.outside())
    bench.run()
    bench.now += MIN
    assert isinstance(bench.run(), Wait)
    bench.now += MAX
    assert isinstance(bench.run(), Commit)
    assert not bench.machine.is_reading


def test_a_large_sequence_is_replayed_over_two_transactions():
    bench = Bench(buffer=2)
    content = bench.content
    rows = transaction(content, 8)
    bench.send(*rows)
    bench.defers_at = 3
    assert isinstance(bench.run(), Wait)
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    checkpoint = bench.commit()
    bench.acknowledge()
    bench.run()
    assert [row.begin for row in bench.consumed] == [row.begin for row in rows]
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    assert bench.commit().offsets == {"source/A": content.head}
    again = Bench(checkpoint, buffer=2)
    again.content = content
    again.send(*content.read(checkpoint.offsets["source/A"]))
    again.run()
    assert [row.begin for row in again.consumed] == [row.begin for row in rows[3:]]


def test_a_replay_of_other_content_fails():
    bench = Bench(buffer=2)
    content = bench.content
    bench.send(*transaction(content, 8))
    assert isinstance(bench.machine.next(bench.now, is_ready=True), Receive)
    bench.machine.received(bench.channel.popleft())
    assert isinstance(bench.next(), BeginReplay)
    bench.machine.replay_begun()
    assert isinstance(bench.next(), ReadReplay)
    with pytest.raises(ReplayError, match="replay of wrong journal"):
        bench.machine.replayed([Content("other").pending(A)])


def test_durations_are_those_of_the_start_of_the_commit_before():
    bench, content = Bench(), Content()
    bench.send(content.outside())
    bench.run()
    bench.now += MIN
    bench.run()
    bench.durations = Durations(1, 2)
    bench.commit()
    bench.acknowledge()
    bench.durations = Durations(0, 2)
    bench.send(content.outside())
    bench.run()
    assert bench.machine.deadline == bench.now + 1


def test_checkpoints_forget_producers_of_the_day_before():
    day = (24 * 3600 * 10**7) << 4
    bench, content = Bench(), Content()
    bench.send(content.pending(A, clock=1))
    bench.send(content.outside(B, clock=2 * day))
    bench.run()
    bench.now += MIN
    bench.run()
    bench.now += MAX
    assert isinstance(bench.run(), Commit)
    assert [state.producer for state in bench.commit().producers] == [B]


def test_a_producer_whose_messages_are_being_consumed_isnt_forgotten():
    day = (24 * 3600 * 10**7) << 4
    bench, content = Bench(buffer=2), Content()
    bench.content = content
    bench.send(content.outside(B, clock=3 * day))
    rows = [content.pending(A, clock=clock) for clock in (1, 2, 3, 4)]
    rows.append(content.ack(A, clock=5))
    bench.send(*rows)
    bench.defers_at = 3
    assert isinstance(bench.run(), Wait)
    bench.now += MIN
    assert isinstance(bench.run(), Commit)
    checkpoint = bench.commit()
    assert {state.producer for state in checkpoint.producers} == {A, B}
    again = Bench(checkpoint, buffer=2)
    again.content = content
    again.send(*content.read(checkpoint.offsets["source/A"]))
    again.run()
    assert [row.begin for row in again.consumed] == [row.begin for row in rows[2:]]
