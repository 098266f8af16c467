"""The Sequencer: numbered cases, and properties over random logs."""

from __future__ import annotations

import datetime as dt
import gc
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import Envelope, Flags, ProducerState, Sequencer, SequencerCheckpoint
from gazette_aio.protocol.errors import ReplayError, SequencerStateError
from tests.message.sequencing.sequencing import (
    JOURNAL,
    PRODUCERS,
    A,
    copies,
    drain,
    envelope,
    key,
    naively_committed,
    name,
    parse,
    well_formed,
)


def run(sequencer, log, start=0):
    """Queue row by row; return the labels of outcomes, and what is delivered by each."""
    outcomes, delivered = [], []
    for row in log[start:]:
        outcomes.append(sequencer.queue_uncommitted(row).label)
        delivered.append([name(e) for e in drain(sequencer, log)])
    return outcomes, delivered


def states(sequencer):
    """Return what is known of each producer."""
    return list(sequencer.checkpoint().producers)


OUTCOMES = {
    "begin": "continueBeginSpan",
    "extend": "continueExtendSpan",
    "acked": "continueAlreadyAcked",
    "larger": "continueRingClockLarger",
    "outside": "outsideCommit",
    "repeated": "outsideAlreadyAcked",
    "rollback": "ackRollback",
    "empty": "ackEmpty",
    "ring": "ackCommitRing",
    "replay": "ackCommitReplay",
}

# By ring, each row with its outcome and what it delivers; offset and states at the end.
TRACES = [
    (3, "A1c begin; A2c extend; A3k ring A1c A2c A3k", 300, {"A": (3, -1)}),
    (2, "A1c begin; A2c extend; A3c extend; A4k replay A1c A2c A3c A4k", 400, {"A": (4, -1)}),
    (
        1,
        "A1c begin; B1c begin; A2k replay A1c A2k; B2k replay B1c B2k",
        400,
        {"A": (2, -1), "B": (2, -1)},
    ),
    (
        3,
        "A1c begin; A2c extend; A3c extend; A2c larger; A4k replay A1c A2c A3c A4k",
        500,
        {"A": (4, -1)},
    ),
    (
        4,
        (
            "A1c begin; A2c extend; A2c larger; A3k ring A1c A2c A3k; A2k rollback; A4c begin; "
            "A3k ring A3k; A5c begin; A6k ring A5c A6k"
        ),
        900,
        {"A": (6, -1)},
    ),
    (4, "A5c begin; A5k ring A5c; A6o outside A6o", 300, {"A": (6, -1)}),
    (
        4,
        "A5c begin; A9c extend; A6k ring A5c A6k; A7c begin; A8k ring A7c A8k",
        500,
        {"A": (8, -1)},
    ),
    (4, "A5k empty A5k; A4k rollback; A5c begin; A6k ring A5c A6k", 400, {"A": (6, -1)}),
    (4, "A1c begin; A2o outside A2o; A3k empty A3k", 300, {"A": (3, -1)}),
    (
        4,
        "A3c begin; A2o repeated; A1c acked; A3c larger; A4k ring A3c A4k",
        500,
        {"A": (4, -1)},
    ),
    (4, "A1c begin; A2x outside A2x; A2x repeated; A3k empty A3k", 400, {"A": (3, -1)}),
    (
        4,
        "Z0o outside Z0o; A0c outside A0c; A0k outside A0k; A1o outside A1o; A0o outside A0o",
        500,
        {"A": (1, -1)},
    ),
    (1, "A1c begin; A0o outside A0o; A2c extend; A3k replay A1c A2c A3k", 400, {"A": (3, -1)}),
    (
        4,
        "A1k empty A1k; A2k empty A2k; A2k rollback; A1c acked; A3c begin; A4k ring A3c A4k",
        600,
        {"A": (4, -1)},
    ),
    (
        4,
        "A10c begin; A5c acked; A11k ring A10c A11k; A9k rollback; A10c begin; A12k ring A10c A12k",
        600,
        {"A": (12, -1)},
    ),
    (
        2,
        (
            "A1c begin; B1c begin; B2c extend; B3c extend; A2k replay A1c A2k; "
            "B4k replay B1c B2c B3c B4k"
        ),
        600,
        {"A": (2, -1), "B": (4, -1)},
    ),
]


@pytest.mark.parametrize(("ring", "trace", "offset", "end"), TRACES)
def test_traces(ring, trace, offset, end):
    rows, outcomes, delivered = [], [], []
    for text in trace.split(";"):
        row, outcome, *messages = text.split()
        rows.append(row)
        outcomes.append(OUTCOMES[outcome])
        delivered.append(messages)
    sequencer = Sequencer(buffer=ring)
    assert run(sequencer, parse(" ".join(rows))) == (outcomes, delivered)
    checkpoint = sequencer.checkpoint()
    assert checkpoint.offsets == {JOURNAL: offset}
    found = {s.producer: (s.last_ack, s.begin) for s in checkpoint.producers}
    assert found == {PRODUCERS[producer]: state for producer, state in end.items()}


def test_checkpoints_within_a_commit():
    log = parse("A1c A2c A3k A4c A5c A6k")
    sequencer = Sequencer(buffer=12)
    for row in log[:3]:
        sequencer.queue_uncommitted(row)
    assert sequencer.step()
    checkpoint = sequencer.checkpoint()
    assert checkpoint.offsets == {JOURNAL: 200}
    assert [(s.last_ack, s.begin) for s in checkpoint.producers] == [(0, 0)]
    restored = Sequencer.from_checkpoint(checkpoint)
    assert restored.checkpoint().offsets == checkpoint.offsets
    restored.queue_uncommitted(log[2])
    assert restored.replay_range() == (JOURNAL, 0, 200)
    assert [name(e) for e in drain(restored, log)] == ["A1c", "A2c", "A3k"]

    assert sequencer.step()
    assert sequencer.step()
    included = sequencer.checkpoint(include_dequeued=True)
    assert included.offsets == {JOURNAL: 300}
    assert [(s.last_ack, s.begin) for s in included.producers] == [(3, -1)]
    assert not sequencer.step()
    for row in log[3:]:
        sequencer.queue_uncommitted(row)
    sequencer.step()
    sequencer.step()
    checkpoint = sequencer.checkpoint()
    assert (checkpoint.offsets[JOURNAL], checkpoint.producers[0][2:4]) == (500, (4, 400))
    included = sequencer.checkpoint(include_dequeued=True)
    assert (included.offsets[JOURNAL], included.producers[0][2:4]) == (500, (5, 400))
    restored = Sequencer.from_checkpoint(checkpoint)
    restored.queue_uncommitted(log[5])
    assert [name(e) for e in drain(restored, log)] == ["A5c", "A6k"]
    checkpoint.offsets.clear()
    assert sequencer.offsets


def test_duplicates_across_a_checkpoint():
    log = parse("A1c A2c A3c A1c A2c A3c A4k")
    first = Sequencer(buffer=12)
    for row in log[:3]:
        first.queue_uncommitted(row)
    stored = first.checkpoint()
    plain = Sequencer.from_checkpoint(SequencerCheckpoint.from_proto(stored.to_proto()), buffer=12)
    assert run(first, log, 3)[0] == [*3 * ["continueRingClockLarger"], "ackCommitRing"]
    outcomes, delivered = run(plain, log, 3)
    assert outcomes == [*3 * ["continueExtendSpan"], "ackCommitReplay"]
    assert delivered[-1] == ["A1c", "A2c", "A3c", "A4k"]
    # A checkpoint which wasn't stored remembers the largest pending clock as well.
    outcomes, delivered = run(Sequencer.from_checkpoint(stored, buffer=12), log, 3)
    assert outcomes == [*3 * ["continueRingClockLarger"], "ackCommitReplay"]
    assert delivered[-1] == ["A1c", "A2c", "A3c", "A4k"]


def test_pruning():
    def make():
        sequencer = Sequencer(buffer=12)
        run(sequencer, parse(f"A{10 << 4}c B{19 << 4}c B{20 << 4}k C{30 << 4}c"))
        return sequencer

    def kept(horizon):
        return sorted((s.last_ack, s.begin) for s in make().checkpoint(horizon).producers)

    assert kept(2000) == [(159, 0), (320, -1), (479, 300)]
    assert kept(1900) == [(320, -1), (479, 300)]
    assert kept(1) == [(479, 300)]
    assert kept(0) == kept(dt.timedelta(hours=24)) == kept(2000)


def test_replay_errors():
    def start(**changes):
        sequencer = Sequencer(buffer=0)
        for row in parse("B1c A2c A3k"):
            sequencer.queue_uncommitted(row)
        assert sequencer.replay_range() == (JOURNAL, 100, 200)
        sequencer.start_replay()
        replayed = envelope(100, 100, 2, 1, A)
        for field, value in changes.items():
            setattr(replayed, field, value)
        return sequencer, replayed

    for changes, text in [
        ({"journal": "other"}, "replay of wrong journal (other; expected test/journal)"),
        ({"begin": 99}, "replay has wrong Begin (99; expected >= 100)"),
        ({"end": 300}, "replay has wrong End (300; expected <= 200)"),
    ]:
        sequencer, replayed = start(**changes)
        with pytest.raises(ReplayError) as raised:
            sequencer.offer_replay(replayed)
        assert str(raised.value) == text
        sequencer.abort_replay()
        assert sequencer.replay_range() == (JOURNAL, 100, 200)
    sequencer, replayed = start()
    assert sequencer.offer_replay(replayed)
    with pytest.raises(SequencerStateError):
        sequencer.step()
    sequencer.finish_replay()
    assert sequencer.step()
    assert name(sequencer.dequeued) == "A3k"


def test_a_failed_replay_resumes():
    log = parse("A1c A9c A6k")
    sequencer = Sequencer(buffer=1)
    for row in log:
        sequencer.queue_uncommitted(row)
    sequencer.start_replay()
    assert sequencer.offer_replay(log[0])
    assert not sequencer.offer_replay(log[1])
    sequencer.abort_replay()
    assert [name(e) for e in drain(sequencer, log)] == ["A6k"]
    assert states(sequencer) == [(JOURNAL, A, 6, -1, None)]


def test_misuse():
    sequencer = Sequencer()
    for call in (
        sequencer.replay_range,
        sequencer.start_replay,
        sequencer.finish_replay,
        sequencer.abort_replay,
        lambda: sequencer.offer_replay(parse("A1c")[0]),
    ):
        with pytest.raises(SequencerStateError):
            call()
    sequencer.queue_uncommitted(parse("A1o")[0])
    sequencer.step()
    with pytest.raises(SequencerStateError):
        sequencer.replay_range()


def test_messages_are_released():
    class Message:
        pass

    sequencer = Sequencer()
    references = []
    for row in parse("A1c A2c A3k"):
        row.message = Message()
        references.append(weakref.ref(row.message))
        sequencer.queue_uncommitted(row)
    del row
    while sequencer.step():
        pass
    gc.collect()
    assert [r() for r in references] == [None, None, None]


def test_restored_large_clocks():
    state = ProducerState(JOURNAL, A, 2**64 - 2, -1)
    sequencer = Sequencer({JOURNAL: 5}, [state])
    assert sequencer.queue_uncommitted(envelope(100, 100, 77, 0, A)) == 0
    assert sequencer.offsets == {JOURNAL: 200}


def test_memory_is_bounded_with_many_producers():
    class Message:
        pass

    alive, sequencer = weakref.WeakSet(), Sequencer(buffer=10)

    def queue(numbers, producer_of):
        log = []
        for i in numbers:
            log.append(Envelope("j", i, i + 1, i + 1, Flags(1), producer_of(i), Message()))
            alive.add(log[-1].message)
        for each in log:
            sequencer.queue_uncommitted(each)

    queue(range(2000), lambda i: i.to_bytes(6))
    assert len(alive) <= 10 + 2000
    queue(range(2000, 9000), lambda i: A)
    assert len(alive) <= 10 + 2001 + 10


@pytest.mark.parametrize("ring", [1, 2, 3, 8, 100])
@given(seed=st.integers(0, 2**32))
def test_commits_processed_in_part(ring, seed):
    """At each message, what a checkpoint goes on with is what's missing."""
    rng = random.Random(seed)
    log = well_formed(rng, 60)
    want = deliver_by_rows(log, 1000)
    sequencer, rows, got, at = Sequencer(buffer=ring), copies(log), [], 0
    while at < len(rows):
        sequencer.queue_uncommitted(rows[at])
        if sequencer.emitting and not sequencer.replay_required:
            while sequencer.step() and rng.random() < 0.8:
                got.append(key(sequencer.dequeued))
            if sequencer.emitting:  # At a message that isn't processed.
                checkpoint = sequencer.checkpoint()
                sequencer = Sequencer.from_checkpoint(checkpoint, buffer=ring)
                through = checkpoint.offsets.get(JOURNAL, 0)
                rows = copies(log)
                at = next((i for i, e in enumerate(log) if e.begin >= through), len(log))
                continue
        elif sequencer.emitting:
            got += [key(e) for e in drain(sequencer, log)]
        at += 1
    assert got == want


@pytest.mark.parametrize("buffer", [1, 100])
def test_forgotten_journals(buffer):
    log = parse("A1c A2c B1c A3k A4c")
    sequencer = Sequencer(buffer=buffer)
    for each in copies(log[:4]):
        sequencer.queue_uncommitted(each)
    assert sequencer.emitting
    sequencer.forget(JOURNAL)
    assert not sequencer.emitting
    assert not sequencer.replay_required
    assert not sequencer.has_pending
    assert sequencer.checkpoint() == SequencerCheckpoint()
    # It's sequenced as if nothing was known of it.
    assert list(drain(sequencer, log)) == []
    assert run(sequencer, parse("A1o")) == (["outsideCommit"], [["A1o"]])


# --- Random logs.


def deliver_by_rows(log, ring):
    sequencer, got = Sequencer(buffer=ring), []
    for row in copies(log):
        sequencer.queue_uncommitted(row)
        got += [key(e) for e in drain(sequencer, log)]
    return got


@given(seed=st.integers(0, 2**32))
def test_output_is_independent_of_the_ring(seed):
    log = well_formed(random.Random(seed), 80)
    outputs = [deliver_by_rows(log, ring) for ring in (0, 1, 2, 3, 8, 1000)]
    assert all(output == outputs[-1] for output in outputs)


@given(seed=st.integers(0, 2**32))
def test_committed_rows_are_those_of_a_naive_model(seed):
    log = well_formed(random.Random(seed), 100)
    assert deliver_by_rows(log, 8) == naively_committed(log)


@given(seed=st.integers(0, 2**32), stored=st.booleans())
def test_restarts_repeat_and_lose_nothing(seed, stored):
    rng = random.Random(seed)
    log = well_formed(rng, 100)
    want = deliver_by_rows(log, 1000)
    got = []
    sequencer = Sequencer(buffer=5)
    at = 0
    while at < len(log):
        sequencer.queue_uncommitted(copies(log[at : at + 1])[0])
        at += 1
        for delivered in drain(sequencer, log):
            got.append(key(delivered))
            if rng.random() < 0.1:
                checkpoint = sequencer.checkpoint(include_dequeued=True)
                if stored:
                    checkpoint = SequencerCheckpoint.from_proto(checkpoint.to_proto())
                sequencer = Sequencer.from_checkpoint(checkpoint, buffer=rng.choice((1, 5, 50)))
                through = checkpoint.offsets.get(JOURNAL, 0)
                at = next((i for i, e in enumerate(log) if e.begin >= through), len(log))
                break
    assert got == want
