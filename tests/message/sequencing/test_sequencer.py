"""The Sequencer: numbered cases, and equivalences over random logs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gc
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import Envelope, Flags, ProducerState, Sequencer, SequencerCheckpoint
from gazette_aio.protocol.errors import ReplayError, SequencerStateError

A, B, C, Z = b"\x01AAAAA", b"\x01BBBBB", b"\x01CCCCC", b"\0" * 6
PRODUCERS = {"A": A, "B": B, "C": C, "Z": Z}
FLAGS = {"o": 0, "c": 1, "k": 2, "x": 3}
COMMITS = {1, 7, 8, 9}


def row(text, number, journal="test/journal", step=100, size=None, message=None):
    begin = number * step
    return Envelope(
        journal,
        begin,
        begin + (size or step),
        int(text[1:-1]),
        Flags(FLAGS[text[-1]]),
        PRODUCERS[text[0]],
        message,
    )


def name(envelope):
    kind = {0: "o", 1: "c", 2: "k"}.get(int(envelope.flags), "x")
    producer = next(k for k, v in PRODUCERS.items() if v == envelope.producer)
    return f"{producer}{envelope.clock}{kind}"


def drain(sequencer, log):
    got = []
    if sequencer.replay_required:
        replay = sequencer.replay_range()
        sequencer.start_replay()
        for envelope in log:
            if envelope.journal == replay.journal and replay.begin <= envelope.begin < replay.end:
                copied = Envelope(*(getattr(envelope, f) for f in Envelope.__struct_fields__))
                if sequencer.offer_replay(copied):
                    got.append(copied)
        sequencer.finish_replay()
    while sequencer.step():
        got.append(sequencer.dequeued)
    return got


def run(sequencer, log, start=0):
    """Queue row by row; return outcomes and what's delivered after each."""
    outcomes, delivered = [], []
    for envelope in log[start:]:
        outcomes.append(sequencer.queue_uncommitted(envelope))
        delivered.append([name(e) for e in drain(sequencer, log)])
        assert bool(delivered[-1]) <= (outcomes[-1] in COMMITS)
    return outcomes, delivered


TRACES = [
    (3, "A1c A2c A3k", [[], [], ["A1c", "A2c", "A3k"]], 300, {"A": (3, -1)}),
    (2, "A1c A2c A3c A4k", [[], [], [], ["A1c", "A2c", "A3c", "A4k"]], 400, {"A": (4, -1)}),
    (
        1,
        "A1c B1c A2k B2k",
        [[], [], ["A1c", "A2k"], ["B1c", "B2k"]],
        400,
        {"A": (2, -1), "B": (2, -1)},
    ),
    (3, "A1c A2c A3c A2c A4k", [[], [], [], [], ["A1c", "A2c", "A3c", "A4k"]], 500, {"A": (4, -1)}),
    (
        4,
        "A1c A2c A2c A3k A2k A4c A3k A5c A6k",
        [[], [], [], ["A1c", "A2c", "A3k"], [], [], ["A3k"], [], ["A5c", "A6k"]],
        900,
        {"A": (6, -1)},
    ),
    (4, "A5c A5k A6o", [[], ["A5c"], ["A6o"]], 300, {"A": (6, -1)}),
    (4, "A5c A9c A6k A7c A8k", [[], [], ["A5c", "A6k"], [], ["A7c", "A8k"]], 500, {"A": (8, -1)}),
    (4, "A5k A4k A5c A6k", [["A5k"], [], [], ["A5c", "A6k"]], 400, {"A": (6, -1)}),
    (4, "A1c A2o A3k", [[], ["A2o"], ["A3k"]], 300, {"A": (3, -1)}),
    (4, "A3c A2o A1c A3c A4k", [[], [], [], [], ["A3c", "A4k"]], 500, {"A": (4, -1)}),
    (4, "A1c A2x A2x A3k", [[], ["A2x"], [], ["A3k"]], 400, {"A": (3, -1)}),
    (4, "Z0o A0c A0k A1o A0o", [["Z0o"], ["A0c"], ["A0k"], ["A1o"], ["A0o"]], 500, {"A": (1, -1)}),
    (1, "A1c A0o A2c A3k", [[], ["A0o"], [], ["A1c", "A2c", "A3k"]], 400, {"A": (3, -1)}),
    (
        4,
        "A1k A2k A2k A1c A3c A4k",
        [["A1k"], ["A2k"], [], [], [], ["A3c", "A4k"]],
        600,
        {"A": (4, -1)},
    ),
    (
        4,
        "A10c A5c A11k A9k A10c A12k",
        [[], [], ["A10c", "A11k"], [], [], ["A10c", "A12k"]],
        600,
        {"A": (12, -1)},
    ),
    (
        2,
        "A1c B1c B2c B3c A2k B4k",
        [[], [], [], [], ["A1c", "A2k"], ["B1c", "B2c", "B3c", "B4k"]],
        600,
        {"A": (2, -1), "B": (4, -1)},
    ),
]


@pytest.mark.parametrize(("ring", "rows", "want", "offset", "states"), TRACES)
def test_traces(ring, rows, want, offset, states):
    log = [row(text, i) for i, text in enumerate(rows.split())]
    sequencer = Sequencer(buffer=ring)
    _, delivered = run(sequencer, log)
    assert delivered == want
    checkpoint = sequencer.checkpoint()
    assert checkpoint.offsets == {"test/journal": offset}
    assert {s.producer: (s.last_ack, s.begin) for s in checkpoint.producers} == {
        PRODUCERS[k]: v for k, v in states.items()
    }


def test_ring_adds_and_evicts():
    texts = [
        "A100c",
        "B200c",
        "A300c",
        "A400c",
        "B500c",
        "B600c",
        "B700c",
        "B800c",
        "B900c",
        "B1000c",
        "B1100c",
    ]
    log = [row(t, i, step=102, size=100) for i, t in enumerate(texts)]
    want = ["1|", "1|2", "13|2", "134|2", "134|25", "34|256", "4|5678"]
    sequencer = Sequencer(buffer=5)
    numbers = {id(e): str(i + 1) for i, e in enumerate(log)}
    seen = []
    for i, envelope in enumerate(log):
        outcome = sequencer.queue_uncommitted(envelope)
        assert outcome == (4 if i < 2 else 5)
        seen.append(
            "|".join(
                "".join(numbers[id(e)] for e in sequencer.retained("test/journal", p))
                for p in (A, B)
            )
        )
        assert sequencer.has_pending
    assert seen[:6] == want[:6]
    assert seen[7] == want[6]
    assert seen[8:] == ["|56789", "|678910", "|7891011"]
    assert sequencer.producer_state("test/journal", A) == ("test/journal", A, 99, 0, 400)
    assert sequencer.producer_state("test/journal", B) == ("test/journal", B, 199, 102, 1100)
    assert sequencer.offsets == {"test/journal": 1120}


def test_checkpoints_within_a_commit():
    log = [row(t, i) for i, t in enumerate(["A1c", "A2c", "A3k", "A4c", "A5c", "A6k"])]
    sequencer = Sequencer(buffer=12)
    for envelope in log[:3]:
        sequencer.queue_uncommitted(envelope)
    assert sequencer.step()
    checkpoint = sequencer.checkpoint()
    assert checkpoint.offsets == {"test/journal": 200}
    assert [(s.last_ack, s.begin) for s in checkpoint.producers] == [(0, 0)]
    restored = Sequencer.from_checkpoint(checkpoint)
    assert dataclasses.asdict(restored.checkpoint())["offsets"] == checkpoint.offsets
    restored.queue_uncommitted(log[2])
    assert restored.replay_range() == ("test/journal", 0, 200)
    assert [name(e) for e in drain(restored, log)] == ["A1c", "A2c", "A3k"]

    assert sequencer.step()
    assert sequencer.step()
    included = sequencer.checkpoint(include_dequeued=True)
    assert included.offsets == {"test/journal": 300}
    assert [(s.last_ack, s.begin) for s in included.producers] == [(3, -1)]
    assert not sequencer.step()
    for envelope in log[3:]:
        sequencer.queue_uncommitted(envelope)
    sequencer.step()
    sequencer.step()
    checkpoint = sequencer.checkpoint()
    assert (checkpoint.offsets["test/journal"], checkpoint.producers[0][2:4]) == (500, (4, 400))
    included = sequencer.checkpoint(include_dequeued=True)
    assert (included.offsets["test/journal"], included.producers[0][2:4]) == (500, (5, 400))
    restored = Sequencer.from_checkpoint(checkpoint)
    restored.queue_uncommitted(log[5])
    assert [name(e) for e in drain(restored, log)] == ["A5c", "A6k"]
    checkpoint.offsets.clear()
    assert sequencer.offsets


def test_duplicates_across_a_checkpoint():
    rows = ["A1c", "A2c", "A3c", "A1c", "A2c", "A3c", "A4k"]
    log = [row(t, i) for i, t in enumerate(rows)]
    first = Sequencer(buffer=12)
    for envelope in log[:3]:
        first.queue_uncommitted(envelope)
    stored = first.checkpoint()
    plain = Sequencer.from_checkpoint(SequencerCheckpoint.from_proto(stored.to_proto()), buffer=12)
    assert [int(o) for o in run(first, log, 3)[0]] == [3, 3, 3, 8]
    outcomes, delivered = run(plain, log, 3)
    assert [int(o) for o in outcomes] == [5, 5, 5, 9]
    assert delivered[-1] == ["A1c", "A2c", "A3c", "A4k"]
    # A checkpoint which wasn't stored remembers the largest pending clock as well.
    outcomes, delivered = run(Sequencer.from_checkpoint(stored, buffer=12), log, 3)
    assert [int(o) for o in outcomes] == [3, 3, 3, 9]
    assert delivered[-1] == ["A1c", "A2c", "A3c", "A4k"]


def test_pruning():
    def make():
        sequencer = Sequencer(buffer=12)
        texts = (f"A{10 << 4}c", f"B{19 << 4}c", f"B{20 << 4}k", f"C{30 << 4}c")
        run(sequencer, [row(t, i) for i, t in enumerate(texts)])
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
        texts = ["B1c", "A2c", "A3k"]
        log = [row(t, i, step=102, size=100) for i, t in enumerate(texts)]
        for envelope in log:
            sequencer.queue_uncommitted(envelope)
        assert sequencer.replay_range() == ("test/journal", 102, 204)
        sequencer.start_replay()
        replayed = row("A2c", 1, step=102, size=100)
        for field, value in changes.items():
            setattr(replayed, field, value)
        return sequencer, replayed

    for changes, text in [
        ({"journal": "other"}, "replay of wrong journal (other; expected test/journal)"),
        ({"begin": 101}, "replay has wrong Begin (101; expected >= 102)"),
        ({"end": 302}, "replay has wrong End (302; expected <= 204)"),
    ]:
        for call in ("offer_replay", "take_replay"):
            sequencer, replayed = start(**changes)
            with pytest.raises(ReplayError) as raised:
                getattr(sequencer, call)(replayed if call == "offer_replay" else [replayed])
            assert str(raised.value) == text
            sequencer.abort_replay()
            assert sequencer.replay_range() == ("test/journal", 102, 204)
    sequencer, replayed = start()
    assert sequencer.offer_replay(replayed)
    with pytest.raises(SequencerStateError):
        sequencer.step()
    sequencer.finish_replay()
    assert sequencer.step()
    assert name(sequencer.dequeued) == "A3k"


def test_a_failed_replay_resumes():
    log = [row(t, i) for i, t in enumerate(["A1c", "A9c", "A6k"])]
    sequencer = Sequencer(buffer=1)
    for envelope in log:
        sequencer.queue_uncommitted(envelope)
    sequencer.start_replay()
    assert sequencer.offer_replay(log[0])
    assert not sequencer.offer_replay(log[1])
    sequencer.abort_replay()
    assert [name(e) for e in drain(sequencer, log)] == ["A6k"]
    assert sequencer.producer_state("test/journal", A) == ("test/journal", A, 6, -1, 6)


def test_misuse():
    sequencer = Sequencer()
    for call in (
        sequencer.replay_range,
        sequencer.start_replay,
        sequencer.take,
        lambda: sequencer.settle(0),
        sequencer.finish_replay,
        sequencer.abort_replay,
        lambda: sequencer.offer_replay(row("A1c", 0)),
        lambda: sequencer.take_replay([]),
    ):
        with pytest.raises(SequencerStateError):
            call()
    sequencer.queue_uncommitted(row("A1o", 0))
    sequencer.step()
    with pytest.raises(SequencerStateError):
        sequencer.replay_range()


def test_messages_are_released():
    class Message:
        pass

    sequencer = Sequencer()
    references = []
    for i, text in enumerate(["A1c", "A2c", "A3k"]):
        message = Message()
        references.append(weakref.ref(message))
        sequencer.queue_uncommitted(row(text, i, message=message))
    del message
    while sequencer.step():
        pass
    gc.collect()
    assert [r() for r in references] == [None, None, None]


def test_restored_large_clocks():
    state = ProducerState("test/journal", A, 2**64 - 2, -1)
    sequencer = Sequencer({"test/journal": 5}, [state])
    assert sequencer.queue_uncommitted(row("A77o", 1)) == 0
    assert sequencer.offsets == {"test/journal": 200}


def test_bounded_bytes():
    sequencer = Sequencer(buffer=1000, buffer_bytes=350)
    for i in range(10):
        sequencer.queue_uncommitted(row(f"A{i + 1}c", i))
    assert len(sequencer.retained("test/journal", A)) == 3
    sequencer.queue_uncommitted(row("A20k", 10))
    assert sequencer.replay_required
    log = [row(f"A{i + 1}c", i) for i in range(10)]
    assert len(drain(sequencer, log)) == 11


def test_memory_is_bounded_with_many_producers():
    sequencer = Sequencer(buffer=10)
    log = []
    for i in range(2000):
        producer = i.to_bytes(6, "big")
        log.append(Envelope("j", i, i + 1, i + 1, Flags(1), producer, None))
    sequencer.queue_commits(log)
    held = sum(len(p.span) for p in sequencer._table.journals["j"].values())
    assert held <= 10 + 2000
    for i in range(2000, 9000):
        log.append(Envelope("j", i, i + 1, i + 1, Flags(1), A, None))  # noqa: PERF401
    sequencer.queue_commits(log, 2000)
    assert sum(len(p.span) for p in sequencer._table.journals["j"].values()) <= 10 + 2001 + 10


def test_commits_which_are_dequeued_together():
    texts = ["A1o", "B1c", "A2c", "B2k", "A3c", "A3c", "A4k", "C1c", "A5o", "C3o"]
    log = [row(t, i) for i, t in enumerate(texts)]
    wanted, states = deliver_by_rows(log, 10)
    for count in range(8):
        sequencer = Sequencer(buffer=10)
        # What discards a pending message isn't among them.
        assert sequencer.queue_commits(log) == 9
        with pytest.raises(SequencerStateError):
            sequencer.step()
        with pytest.raises(SequencerStateError):
            sequencer.queue_commits(log, 9)
        taken = sequencer.take()
        assert [(e.begin, e.clock) for e in taken] == wanted[:7]
        # Partly processed, the rest is read again.
        for processed in range(count):
            sequencer.settle(processed)
        checkpoint = sequencer.checkpoint()
        again = Sequencer.from_checkpoint(checkpoint, buffer=1)
        through = checkpoint.offsets.get("test/journal", 0)
        got = []
        for envelope in copies(log[:9]):
            if envelope.begin >= through:
                again.queue_uncommitted(envelope)
                got += [(e.begin, e.clock) for e in drain(again, log)]
        assert got == wanted[max(count - 1, 0) : 7]
        sequencer.settle(7)
        state = (sequencer.offsets, sorted(sequencer_states(sequencer)), sequencer.has_pending)
        assert state[:2] == states[8][:2]
        assert not sequencer.emitting
    assert wanted[7:] == [(900, 3)]


@pytest.mark.parametrize("ring", [1, 2, 3, 8, 100])
@given(seed=st.integers(0, 2**32))
def test_commits_settled_one_by_one(ring, seed):
    """At each message, what a checkpoint goes on with is what's missing."""
    rng = random.Random(seed)
    log = well_formed(rng, 60)
    want = deliver_by_rows(log, 1000)[0]
    sequencer, rows, got, at = Sequencer(buffer=ring), copies(log), [], 0
    while at < len(rows):
        index = sequencer.queue_commits(rows[: at + rng.randrange(1, 40)], at)
        if sequencer.emitting and not sequencer.replay_required:
            taken = sequencer.take()
            count = rng.randrange(len(taken) + 1)
            for part in range(rng.randrange(count + 1), count + 1):
                sequencer.settle(part)
            got += [(e.begin, e.clock) for e in taken[:count]]
            if count < len(taken):
                checkpoint = sequencer.checkpoint()
                sequencer = Sequencer.from_checkpoint(checkpoint, buffer=ring)
                through = checkpoint.offsets.get("j", 0)
                rows = copies(log)
                at = next((i for i, e in enumerate(log) if e.begin >= through), len(log))
                continue
        elif sequencer.emitting:
            got += [(e.begin, e.clock) for e in take_all(sequencer, log, rng)]
        at = index
    assert got == want


def test_forgotten_journals():
    log = [row("A1c", 0), row("A2c", 1), row("B1c", 2), row("A3k", 3), row("A4c", 4)]
    for queue in ("queue_commits",):
        for buffer in (1, 100):
            sequencer = Sequencer(buffer=buffer)
            getattr(sequencer, queue)(copies(log))
            assert sequencer.emitting
            sequencer.forget("test/journal")
            assert not sequencer.emitting
            assert not sequencer.replay_required
            assert not sequencer.has_pending
            assert sequencer.checkpoint() == SequencerCheckpoint()
            # It's sequenced as if nothing was known of it.
            assert [name(e) for e in drain(sequencer, [row("A1o", 0)])] == []
            sequencer.queue_uncommitted(row("A1o", 0))
            assert [name(e) for e in drain(sequencer, log)] == ["A1o"]


# --- Random logs.


def well_formed(rng, count):
    """Rows of producers which write transactions and others, with re-appended blocks."""
    log, history = [], {}
    clocks = {p: rng.randrange(1, 50) for p in (A, B, C)}
    open_txn = dict.fromkeys(clocks, 0)
    offset = 0

    def add(producer, clock, flags):
        nonlocal offset
        offset += rng.choice((0, 0, 7))
        size = rng.randrange(5, 30)
        log.append(Envelope("j", offset, offset + size, clock, Flags(flags), producer, None))
        offset += size

    while len(log) < count:
        producer = rng.choice((A, B, C))
        past = history.setdefault(producer, [])
        draw = rng.random()
        if draw < 0.08 and past:
            for clock, flags in past[-rng.randrange(1, 5) :]:
                add(producer, clock, flags)
            continue
        if draw < 0.12:
            add(Z, 0, rng.choice((0, 1, 2)))
            continue
        clocks[producer] += rng.randrange(1, 4)
        if draw < 0.3 and not open_txn[producer]:
            flags = 0
        elif draw < 0.5 and open_txn[producer]:
            flags = 2
        else:
            flags = 1
        open_txn[producer] = flags == 1
        add(producer, clocks[producer], flags)
        past.append((clocks[producer], flags))
    return log


def wild(rng, count):
    log, offset = [], 0
    clocks = dict.fromkeys((A, B, C), 20)
    for _ in range(count):
        producer = rng.choice((A, B, C))
        clocks[producer] = max(clocks[producer] + rng.randrange(-8, 4), 0)
        offset += rng.choice((0, 3))
        flags = rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 512))
        log.append(
            Envelope("j", offset, offset + 10, clocks[producer], Flags(flags), producer, None)
        )
        offset += 10
    return log


def copies(log):
    return [Envelope(*(getattr(e, f) for f in Envelope.__struct_fields__)) for e in log]


def deliver_by_rows(log, ring):
    sequencer = Sequencer(buffer=ring)
    got, states = [], []
    for envelope in copies(log):
        sequencer.queue_uncommitted(envelope)
        got += [(e.begin, e.clock) for e in drain(sequencer, log)]
        states.append(
            (sequencer.offsets, sorted(sequencer_states(sequencer)), sequencer.has_pending)
        )
    return got, states


def sequencer_states(sequencer):
    return [
        (p.producer, p.min, p.max, p.begin)
        for producers in sequencer._table.journals.values()
        for p in producers.values()
    ]


def take_all(sequencer, log, rng):
    """Dequeue through take() and settle(), in parts."""
    got = []
    if sequencer.replay_required:
        replay = sequencer.replay_range()
        sequencer.start_replay()
        feed = [e for e in copies(log) if replay.begin <= e.begin < replay.end]
        while feed:
            size = rng.randrange(1, 4)
            taken = sequencer.take_replay(feed[:size])
            feed = feed[size:]
            got += taken
            if taken:
                sequencer.settle(rng.randrange(len(taken) + 1))
                if sequencer._emission._taken is not None:
                    sequencer.settle(len(taken))
        sequencer.finish_replay()
    taken = sequencer.take()
    got += taken
    if taken and rng.random() < 0.5:
        sequencer.settle(rng.randrange(len(taken)))
    sequencer.settle(len(taken))
    return got


def deliver_by_batches(log, ring, rng, queue):
    sequencer = Sequencer(buffer=ring)
    got, states = [], []
    rows = copies(log)
    at = 0
    while at < len(rows):
        batch = rows[at : at + rng.randrange(1, 30)]
        index = 0
        while index < len(batch):
            index = queue(sequencer, batch, index)
            if sequencer.emitting:
                got += [(e.begin, e.clock) for e in take_all(sequencer, log, rng)]
            state = (sequencer.offsets, sorted(sequencer_states(sequencer)), sequencer.has_pending)
            states.append((at + index, state))
        at += len(batch)
    return got, states


def outside(rng, count):
    """Rows which are mostly outside of transactions."""
    log = wild(rng, count)
    for envelope in log:
        if rng.random() < 0.7:
            envelope.flags = Flags(0)
            envelope.clock += envelope.begin // 10
    return log


def queue_outside(sequencer, envelopes, start):
    return sequencer.queue_commits(envelopes, start, transactions=False)


@pytest.mark.parametrize("queue", [Sequencer.queue_commits, queue_outside])
@pytest.mark.parametrize("kind", [well_formed, wild, outside])
@given(seed=st.integers(0, 2**32), ring=st.sampled_from([0, 1, 2, 3, 5, 8, 100]))
def test_batches_equal_rows(kind, queue, seed, ring):
    rng = random.Random(seed)
    log = kind(rng, 80)
    got, states = deliver_by_rows(log, ring)
    batched, batched_states = deliver_by_batches(log, ring, rng, queue)
    assert batched == got
    for count, state in batched_states:
        assert state == states[count - 1]


@given(seed=st.integers(0, 2**32))
def test_output_is_independent_of_the_ring(seed):
    log = well_formed(random.Random(seed), 80)
    outputs = [deliver_by_rows(log, ring)[0] for ring in (0, 1, 2, 3, 8, 1000)]
    assert all(output == outputs[-1] for output in outputs)


@given(seed=st.integers(0, 2**32))
def test_committed_rows_are_those_of_a_naive_model(seed):
    log = well_formed(random.Random(seed), 100)
    pending, floor, want = {}, {}, []
    for e in log:
        if e.clock == 0:
            want.append((e.begin, 0))
            continue
        low = floor.setdefault(e.producer, e.clock - 1)
        span = pending.setdefault(e.producer, [])
        if e.flags == 1:
            if e.clock > max([low, *(c for _, c in span)]):
                span.append((e.begin, e.clock))
        elif e.clock > low:
            if e.flags == 2:
                want += span
            want.append((e.begin, e.clock))
            floor[e.producer] = e.clock
            span.clear()
        elif e.flags == 2:
            floor[e.producer] = e.clock
            span.clear()
    assert deliver_by_rows(log, 8)[0] == want


@given(seed=st.integers(0, 2**32), stored=st.booleans())
def test_restarts_repeat_and_lose_nothing(seed, stored):
    rng = random.Random(seed)
    log = well_formed(rng, 100)
    want = deliver_by_rows(log, 1000)[0]
    got = []
    sequencer = Sequencer(buffer=5)
    at = 0
    while at < len(log):
        envelope = copies(log[at : at + 1])[0]
        at += 1
        sequencer.queue_uncommitted(envelope)
        rows = drain_steps(sequencer, log)
        for delivered in rows:
            got.append((delivered.begin, delivered.clock))
            if rng.random() < 0.1:
                checkpoint = sequencer.checkpoint(include_dequeued=True)
                if stored:
                    checkpoint = SequencerCheckpoint.from_proto(checkpoint.to_proto())
                sequencer = Sequencer.from_checkpoint(checkpoint, buffer=rng.choice((1, 5, 50)))
                through = checkpoint.offsets.get("j", 0)
                at = next((i for i, e in enumerate(log) if e.begin >= through), len(log))
                break
    assert got == want


def drain_steps(sequencer, log):
    if sequencer.replay_required:
        replay = sequencer.replay_range()
        sequencer.start_replay()
        for envelope in log:
            if replay.begin <= envelope.begin < replay.end and sequencer.offer_replay(envelope):
                yield sequencer.dequeued
        sequencer.finish_replay()
    while sequencer.step():
        yield sequencer.dequeued
