"""The Sequencer against recorded traces."""

from __future__ import annotations

import pytest

from gazette_aio.message.core.rules import QueueOutcome
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import Sequencer
from gazette_aio.message.uuid import Flags
from gazette_aio.protocol.errors import ReplayError, SequencerStateError
from tests import golden, known_differences


class DifferenceError(Exception):
    """A replay whose recorded rows hold zero clocks."""


class Driven:
    """Drives a Sequencer message by message."""

    def __init__(self, sequencer):
        self.sequencer = sequencer
        self.feed = None

    def queue(self, row, label):
        assert self.sequencer.queue_uncommitted(row).label == label

    def next(self):
        """Return the next message of the commit, or None, once the last one is processed."""
        while self.feed:
            if self.sequencer.offer_replay(self.feed.pop(0)):
                return self.sequencer.dequeued
        if self.feed is not None:
            self.sequencer.finish_replay()
            self.feed = None
        return self.sequencer.dequeued if self.sequencer.step() else None


def make(journal, producer, clock, flags, begin, end):
    return Envelope(journal, begin, end, clock, Flags(flags), bytes.fromhex(producer), None)


def run_trace(trace):
    journals, producers = trace["journals"], trace["producers"]
    events = [make(journals[j], producers[p], c, f, b, e) for j, p, c, f, b, e in trace["events"]]
    index = {(e.journal, e.begin): i for i, e in enumerate(events)}
    driven = Driven(Sequencer(buffer=trace["ring"]))
    checkpoint = driven.sequencer.checkpoint()
    queued = None

    def advance(count):
        """Dequeue `count` rows, or all of them."""
        got = []
        while (count is None or len(got) < count) and (row := driven.next()) is not None:
            got.append(index[row.journal, row.begin])
        return got

    for step in trace["steps"]:
        kind, sequencer = step[0], driven.sequencer
        if kind == "queue":
            queued = events[step[1]]
            driven.queue(queued, step[2])
            assert sequencer.has_pending == step[3]
        elif kind == "replay":
            journal, begin, end = sequencer.replay_range()
            assert (journal, begin, end) == (queued.journal, step[1], step[2])
            sequencer.start_replay()
            driven.feed = [e for e in events if e.journal == journal and begin <= e.begin < end]
        elif kind in {"drain", "step"}:
            got = advance(None if kind == "drain" else len(step[1]))
            if got != step[1]:
                # Rows behind a zero clock were dequeued again as well.
                if any(events[i].clock == 0 for i in step[1]):
                    raise DifferenceError
                raise AssertionError((got, step))
            if kind == "drain":
                assert sequencer.dequeued is None
                assert not sequencer.emitting
                assert sequencer.has_pending == step[2]
        elif kind == "checkpoint":
            checkpoint = sequencer.checkpoint(step[1], prune_dequeued=True)
            offsets = [[journals.index(j), o] for j, o in checkpoint.offsets.items()]
            assert sorted(offsets) == step[2]
            states = [
                [journals.index(s.journal), producers.index(s.producer.hex()), s.last_ack, s.begin]
                for s in checkpoint.producers
            ]
            assert sorted(states) == step[3], step
            assert not sequencer.has_pending
        else:
            assert kind == "restart"
            stored = SequencerCheckpoint.from_proto(checkpoint.to_proto())
            driven = Driven(Sequencer.from_checkpoint(stored, buffer=step[1]))


def test_outcomes():
    assert {o.label: int(o) for o in QueueOutcome} == golden.load("sequencer.json")["outcomes"]


def test_traces():
    different, failures = set(), {}
    for number, trace in enumerate(golden.load("sequencer.json")["traces"]):
        try:
            run_trace(trace)
        except DifferenceError:
            different.add(number)
        except AssertionError as error:
            failures[number] = (trace["name"], error.args and str(error.args[0])[:200])
    assert failures == {}
    assert different == set(known_differences.SEQUENCER_TRACES)


def test_replay_feeds():
    for case in golden.load("sequencer.json")["replay_feeds"]:
        sequencer = Sequencer(buffer=case["ring"])
        rows = [make(j, case["producers"][p], *rest) for j, p, *rest in case["messages"]]
        outcomes = [sequencer.queue_uncommitted(row) for row in rows]
        assert [o.label for o in outcomes] == case["outcomes"]
        assert list(sequencer.replay_range()) == case["replay_range"]
        sequencer.start_replay()
        feed = [make(j, case["producers"][p], *rest) for j, p, *rest in case["feed"]]
        got = []
        try:
            for row in feed:
                if sequencer.offer_replay(row):
                    got.append({"begin": row.begin, "clock": row.clock})  # noqa: PERF401
            if case["feed_error"] is not None:
                got.append({"error": f"replay reader: {case['feed_error']}"})
            else:
                sequencer.finish_replay()
                while sequencer.step():
                    row = sequencer.dequeued
                    got.append({"begin": row.begin, "clock": row.clock})
                got.append({"eof": True})
        except ReplayError as error:
            got.append({"error": str(error)})
        want = [w if "eof" not in w else {"eof": True} for w in case["steps"]]
        assert got == want, case["note"]


def test_misuse():
    texts = {case["note"]: case["error"] for case in golden.load("sequencer.json")["misuse"]}
    assert len(texts) == 5
    sequencer = Sequencer(buffer=1)
    for call in (sequencer.replay_range, sequencer.start_replay):
        with pytest.raises(SequencerStateError) as raised:
            call()
        assert str(raised.value) == texts["replay range with nothing to dequeue"]
    assert sequencer.step() is False
    row = make("a/journal", "0123456789ab", 5, 0, 0, 10)
    sequencer.queue_uncommitted(row)
    with pytest.raises(SequencerStateError) as raised:
        sequencer.queue_uncommitted(row)
    assert str(raised.value) in texts.values()
    assert sequencer.step()
    assert not sequencer.step()
    for clock, flags in ((6, 1), (7, 1), (8, 2)):
        sequencer.queue_uncommitted(
            make("a/journal", "0123456789ab", clock, flags, clock * 10, clock * 10 + 10)
        )
    with pytest.raises(SequencerStateError) as raised:
        sequencer.step()
    assert str(raised.value) in texts.values()
