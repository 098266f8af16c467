"""Transactions of random messages, timers, commits and crashes, against a simple model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gazette_aio.consumer.transactions.machine import (
    Begin,
    BeginReplay,
    Commit,
    Consume,
    Durations,
    Phase,
    Publish,
    ReadReplay,
    Receive,
    TransactionMachine,
    Wait,
)
from gazette_aio.message import ACK_TXN, OUTSIDE_TXN, ProducerID, Sequencer, SequencerCheckpoint
from tests import extent
from tests.consumer.transactions.journals import SIZE, Content

PRODUCERS = [ProducerID(bytes([number] * 6)) for number in range(3)]


def make_content(rng: random.Random, name: str) -> tuple[Content, list[tuple[str, int]]]:
    """Return a journal, and places of its committed messages in order."""
    content, committed = Content(name), list[tuple[str, int]]()
    spans: dict[ProducerID, list[Any]] = {producer: [] for producer in PRODUCERS}
    acked = dict.fromkeys(PRODUCERS, 0)
    for _ in range(rng.randrange(10, 60)):
        producer = rng.choice(PRODUCERS)
        span = spans[producer]
        match rng.choice(["pending"] * 6 + ["ack", "ack", "outside", "duplicate", "rollback"]):
            case "pending":
                span.append(content.pending(producer))
            case "ack":
                ack = content.ack(producer)
                committed += [(name, each.begin) for each in (*span, ack)]
                span.clear()
                acked[producer] = ack.clock
            case "outside" if not span:
                message = content.outside(producer)
                committed.append((name, message.begin))
                acked[producer] = message.clock
            case "duplicate" if span:
                content.pending(producer, clock=rng.choice(span).clock)
            case "duplicate" if acked[producer]:
                content.add(rng.choice([OUTSIDE_TXN, ACK_TXN]), producer, clock=acked[producer])
            case "rollback" if acked[producer]:
                content.ack(producer, clock=acked[producer])
                span.clear()
            case _:
                pass
    for producer, span in spans.items():
        if span:
            ack = content.ack(producer)
            committed += [(name, each.begin) for each in (*span, ack)]
    return content, committed


class Life:
    """An assignment, from a committed checkpoint until a crash or the end of all messages."""

    def __init__(self, rng: random.Random, contents: dict[str, Content], disk: Any) -> None:
        self.rng = rng
        self.contents = contents
        self.now = 0.0
        self.disk = disk
        checkpoint, state = disk
        self.state: list[tuple[str, int]] = list(state)
        sequencer = Sequencer.from_checkpoint(checkpoint, buffer=rng.choice([1, 2, 5, 100]))
        self.machine = TransactionMachine(sequencer, self._durations(), self.now)
        self.offsets = {name: checkpoint.offsets.get(name, 0) for name in contents}
        self.pending: tuple[SequencerCheckpoint, list[Any]] | None = None
        self.progress = dict(self.offsets)
        self.replay: list[Any] = []
        self.deadline_missed = 0

    def _durations(self) -> Durations:
        rng = self.rng
        return Durations(
            rng.choice([0, 0.5, 2]), rng.choice([1, 3, 8]), waits_for_acks=rng.random() < 0.5
        )

    @property
    def is_done(self) -> bool:
        committed, _ = self.disk
        return all(committed.offsets.get(name) == c.head for name, c in self.contents.items())

    def next_run(self) -> list[Any] | None:
        names = [
            name for name, content in self.contents.items() if self.offsets[name] < content.head
        ]
        if not names:
            return None
        name = self.rng.choice(names)
        begin = self.offsets[name]
        end = min(begin + self.rng.randrange(1, 12) * SIZE, self.contents[name].head)
        self.offsets[name] = end
        return self.contents[name].read(begin, end)

    def event(self) -> None:
        """Let time pass, or the prior transaction come further."""
        rng, machine = self.rng, self.machine
        prior = machine.prior
        if rng.random() < 0.3:
            self.now += rng.choice([0.1, 1.0, 5.0])
        elif prior.phase is Phase.COMMITTING:
            assert self.pending is not None
            self.disk = self.pending
            machine.committed(self.now)
        elif prior.phase is Phase.ACKNOWLEDGING:
            self.publish(machine.acknowledged(self.now).offsets)

    def publish(self, offsets: Any) -> None:
        for name, offset in offsets.items():
            assert offset >= self.progress[name], "progress never goes back"
            self.progress[name] = offset

    def live(self, steps: int) -> Any:
        """Take steps, then crash, and return what's on disk."""
        rng, machine = self.rng, self.machine
        for _ in range(steps):
            if self.is_done:
                break
            if rng.random() < 0.2:
                self.event()
            has_more = any(self.offsets[n] < c.head for n, c in self.contents.items())
            match machine.next(self.now, is_ready=has_more and rng.random() < 0.7):
                case Begin():
                    machine.begun(self.now)
                case Consume(rows, begin):
                    self.consume(rows[begin:])
                case Receive():
                    run = self.next_run()
                    assert run is not None
                    machine.received(run)
                case BeginReplay(span):
                    self.replay = self.contents[span.journal].read(span.begin, span.end)
                    machine.replay_begun()
                case ReadReplay():
                    count = rng.randrange(1, 5)
                    some, self.replay = self.replay[:count], self.replay[count:]
                    machine.replayed(some) if some else machine.replay_ended()
                case Publish(offsets):
                    self.publish(offsets)
                case Commit():
                    machine.preparing(self.now)
                    self.pending = machine.checkpoint(), list(self.state)
                    machine.prepared(self._durations(), self.now)
                case Wait():
                    self.event()
                case _:
                    raise AssertionError("the channel doesn't end")
        return self.disk

    def consume(self, rows: Any) -> None:
        deadline, rng = self.machine.deadline, self.rng
        assert deadline is None or self.now < deadline or not self.machine.current.messages
        count = 0
        for row in rows:
            if rng.random() < 0.05 and (count or self.machine.current.messages):
                self.machine.consumed(count)
                self.machine.deferred()
                return
            self.state.append((row.journal, row.begin))
            count += 1
            self.now += rng.choice([0, 0, 0.2])
            if (deadline is not None and self.now >= deadline) or rng.random() < 0.2:
                break
        self.machine.consumed(count)


@pytest.mark.parametrize("seed", extent.seeds(150))
def test_each_committed_message_is_consumed_once_and_in_order(seed: int):
    rng = random.Random(seed)
    contents, expected = dict[str, Content](), dict[str, list[Any]]()
    for name in ("a", "b")[: rng.choice([1, 1, 2])]:
        contents[name], expected[name] = make_content(rng, name)
    disk: Any = (SequencerCheckpoint(), [])
    for _ in range(200):
        life = Life(rng, contents, disk)
        disk = life.live(rng.choice([5, 20, 100, 1000]))
        if life.is_done:
            break
    else:
        life = Life(rng, contents, disk)
        disk = life.live(100_000)
    assert life.is_done
    for name, places in expected.items():
        assert [place for place in disk[1] if place[0] == name] == places
    # A single life without a crash comes to the same.
    through = Life(rng, contents, (SequencerCheckpoint(), []))
    for name, places in expected.items():
        state = through.live(100_000)[1]
        assert [place for place in state if place[0] == name] == places
    while through.machine.prior.phase is not Phase.ACKNOWLEDGED:
        through.event()
    assert through.progress == {name: content.head for name, content in contents.items()}
