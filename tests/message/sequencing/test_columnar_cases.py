"""The columnar sequencer: numbered cases."""

from __future__ import annotations

import random
import time
from itertools import groupby
from operator import itemgetter

import numpy as np
import pytest

from gazette_aio.message.sequencing import segments
from gazette_aio.message.sequencing.checkpoint import ProducerState
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.columns import GrowingColumns, UuidColumns, by_producer
from gazette_aio.message.sequencing.plan import ReplayFilter
from gazette_aio.protocol.errors import ReplayError
from tests.message.sequencing.sequencing import (
    JOURNAL,
    PRODUCERS,
    TIERS,
    A,
    B,
    C,
    Columnar,
    columns,
    envelope,
    name,
    parse,
    state_set,
    tiers,
)

TRACES = [
    ("A1c A2c A3k", "A1c A2c A3k", 300, {"A": (3, -1)}),
    ("A1c A2c A3c A4k", "A1c A2c A3c A4k", 400, {"A": (4, -1)}),
    ("A1c B1c A2k B2k", "A1c A2k B1c B2k", 400, {"A": (2, -1), "B": (2, -1)}),
    ("A1c A2c A3c A2c A4k", "A1c A2c A3c A4k", 500, {"A": (4, -1)}),
    ("A1c A2c A2c A3k A2k A4c A3k A5c A6k", "A1c A2c A3k A3k A5c A6k", 900, {"A": (6, -1)}),
    ("A5c A5k A6o", "A5c A6o", 300, {"A": (6, -1)}),
    ("A5c A9c A6k A7c A8k", "A5c A6k A7c A8k", 500, {"A": (8, -1)}),
    ("A5k A4k A5c A6k", "A5k A5c A6k", 400, {"A": (6, -1)}),
    ("A1c A2o A3k", "A2o A3k", 300, {"A": (3, -1)}),
    ("A3c A2o A1c A3c A4k", "A3c A4k", 500, {"A": (4, -1)}),
    ("A1c A2x A2x A3k", "A2x A3k", 400, {"A": (3, -1)}),
    ("Z0o A0c A0k A1o A0o", "Z0o A0c A0k A1o A0o", 500, {"A": (1, -1)}),
    ("A1c A0o A2c A3k", "A0o A1c A2c A3k", 400, {"A": (3, -1)}),
    ("A1k A2k A2k A1c A3c A4k", "A1k A2k A3c A4k", 600, {"A": (4, -1)}),
    ("A10c A5c A11k A9k A10c A12k", "A10c A11k A10c A12k", 600, {"A": (12, -1)}),
    ("A1c B1c B2c B3c A2k B4k", "A1c A2k B1c B2c B3c B4k", 600, {"A": (2, -1), "B": (4, -1)}),
]


class ByRows(random.Random):
    """Makes batches, and parts of replays, of one row."""

    def randrange(self, *bounds):
        return 1


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("rows", "want", "offset", "states"), TRACES)
def test_traces(tier, rows, want, offset, states):
    log = parse(rows)
    names = {row.begin: name(row) for row in log}
    for rng, limit in ((None, None), (ByRows(), None), (ByRows(), 0)):
        columnar = Columnar(log, rng=rng, tier=tier, max_pending_bytes=limit)
        assert [names[begin] for begin, _, _ in columnar.deliver(1)] == want.split()
        assert limit == 0 or not columnar.replays
        through, found = columnar.sequencer.checkpoint()
        assert through == offset
        assert {(s.producer, s.last_ack, s.begin) for s in found} == {
            (PRODUCERS[p], *state) for p, state in states.items()
        }


def test_limits_of_numbers():
    top = 2**64 - 1
    last = (2**48 - 1).to_bytes(6, "big")
    log = [
        envelope(0, 10, top - 1, 1, last),
        envelope(10, 10, top, 1, last),
        envelope(20, 10, 0, 2, last),
        envelope(30, 10, 1, 1, b"\0" * 6),
        envelope(40, 10, top, 2, last),
        envelope(50, 10, top, 0, last),
        envelope(60, 10, top, 2, b"\0" * 6),
        envelope(2**62, 10, 3, 1, A),
    ]
    for tier in TIERS:
        with tiers(tier):
            sequencer = ColumnarSequencer(JOURNAL)
            plan = sequencer.process(columns(log))
            assert plan.rows.tolist() == [2, 0, 1, 3, 6]
            assert plan.terminators.tolist() == [2, 4, 4, 6, 6]
            assert plan.carry.tolist() == [7]
            offset, states = sequencer.checkpoint()
            assert offset == 2**62 + 10
            assert state_set(states) == {
                (last, top, -1, None),
                (b"\0" * 6, top, -1, None),
                (A, 2, 2**62, 3),
            }
            restored = ColumnarSequencer(JOURNAL, offset=offset, producers=states)
            assert not restored.process(columns([envelope(2**62 + 10, 1, top, 1, last)])).rows.size
            assert restored.producer_state(last) == (JOURNAL, last, top, -1, None)
            assert restored.producer_state(B) is None


def test_zero_uuids_commit_by_themselves():
    log = [envelope(10 * i, 10, 0, i % 3, bytes(6)) for i in range(400)]
    for tier in TIERS:
        with tiers(tier):
            sequencer = ColumnarSequencer(JOURNAL)
            plan = sequencer.process(columns(log))
            assert plan.rows.tolist() == plan.terminators.tolist() == list(range(400))
            assert not plan.carry.size
            assert sequencer.checkpoint() == (4000, [])
            assert sequencer.checkpoint(delivered=7) == (70, [])


@pytest.mark.parametrize("tier", TIERS)
def test_empty_batches(tier):
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL, offset=17)
        for _ in range(2):
            plan = sequencer.process(UuidColumns.empty())
            assert (plan.rows.size, plan.carry.size, plan.consumed, plan.replay) == (0, 0, 0, None)
            assert sequencer.checkpoint() == sequencer.checkpoint(delivered=0) == (17, [])
        sequencer.process(columns(parse("A1c B1c")))
        plan = sequencer.process(UuidColumns.empty())
        assert plan.carry.tolist() == [0, 1]
        assert plan.table.rows == 2
        assert "pending_rows=2" in repr(sequencer)


@pytest.mark.parametrize("tier", TIERS)
def test_effects_on_carried_rows_only(tier):
    log = parse("A1c A2c B1c C1c A1k B2o C0o C0k")
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL)
        assert sequencer.process(columns(log[:4])).carry.tolist() == [0, 1, 2, 3]
        assert sequencer.pending_bytes == 400
        # An acknowledgement of the first row, which isn't delivered as it has the row's clock.
        plan = sequencer.process(columns(log[4:5]))
        assert (plan.rows.tolist(), plan.carry.tolist()) == ([0], [2, 3])
        assert plan.terminators.tolist() == [4]
        # A message outside of transactions discards pending ones.
        plan = sequencer.process(columns(log[5:6]))
        assert (plan.rows.tolist(), plan.carry.tolist()) == ([2], [1])
        assert sequencer.has_pending
        # Rows with zero clocks touch nobody.
        plan = sequencer.process(columns(log[6:]))
        assert (plan.rows.tolist(), plan.carry.tolist()) == ([1, 2], [0])


@pytest.mark.parametrize("tier", TIERS)
def test_whole_spans_are_evicted_the_largest_first(tier):
    log = [
        envelope(0, 10, 1, 1, A),
        envelope(10, 50, 1, 1, B),
        envelope(60, 40, 2, 1, A),
        envelope(100, 20, 1, 1, C),
        envelope(120, 10, 2, 1, C),
    ]
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL, max_pending_bytes=100)
        plan = sequencer.process(columns(log))
        assert (plan.carry.tolist(), sequencer.pending_bytes) == ([1, 3, 4], 80)
        states = state_set(sequencer.checkpoint()[1])
        assert states == {(A, 0, 0, 2), (B, 0, 10, 1), (C, 0, 100, 2)}
        # Of a span which lacks rows, none are retained.
        plan = sequencer.process(columns([envelope(150, 5, 3, 1, A)]))
        assert plan.carry.tolist() == [0, 1, 2]
        assert sequencer.evict(80) is None
        assert sequencer.evict(79).tolist() == [1, 2]
        assert sequencer.pending_bytes == 30
        assert sequencer.evict(0).tolist() == []
        assert sequencer.pending_bytes == sequencer.pending_rows == 0
        assert state_set(sequencer.checkpoint()[1]) == {*states, (A, 0, 0, 3)} - {(A, 0, 0, 2)}
        batch = columns([envelope(155, 5, 4, 2, A), envelope(160, 5, 2, 2, B)])
        plan = sequencer.process(batch)
        span = plan.replay
        assert (span.begin, span.end, span.min, span.max) == (0, 155, 0, 4)
        assert (plan.consumed, span.tail.tolist()) == (1, [0])
        plan = sequencer.process(batch.slice(1))
        assert (plan.consumed, plan.replay.begin, plan.replay.end) == (1, 10, 160)
        # What came of the replays is retained again.
        assert sequencer.process(columns([envelope(165, 5, 5, 1, A)])).carry.tolist() == [0]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("rows", "consumed"),
    [
        ("A5o A6k", None),  # Discards the span, and is acknowledged.
        ("A0c B1o A2k A7k", None),  # Rolls the span back.
        ("A3o A0k B1c A4c A5k A6k", 5),
        ("A2o A9c A4k", 3),  # A row outside of transactions which is a duplicate.
    ],
)
def test_what_needs_a_replay(tier, rows, consumed):
    restored = ProducerState(JOURNAL, A, 3, 40)
    log = parse("Z0o " * 20 + rows + " Z0o" * 20)
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL, offset=100, producers=[restored])
        plan = sequencer.process(columns(log))
        if consumed is None:
            assert (plan.consumed, plan.replay) == (len(log), None)
        else:
            assert plan.consumed == 20 + consumed
            assert plan.replay.end == 100 * (19 + consumed)
            assert (plan.replay.begin, plan.replay.min) == (40, 3)
        assert sequencer.offset == 100 * plan.consumed


@pytest.mark.parametrize("tier", TIERS)
def test_an_acknowledgement_again_rolls_back_a_restored_span(tier):
    """The largest pending clock isn't known of it: it looks as if nothing was pending."""
    restored = ProducerState(JOURNAL, A, 3, 40)
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL, offset=100, producers=[restored])
        plan = sequencer.process(columns(parse("Z0o A3k A4c B1o A5k A6c")))
        assert plan.replay is None
        assert plan.rows.tolist() == [0, 3, 2, 4]
        assert state_set(sequencer.checkpoint(delivered=2)[1]) == {
            (A, 3, 200, 4),
            (B, 1, -1, None),
        }


def test_a_large_batch_of_many_replays():
    """Each takes about as long as what's before the next one, and not as long as the batch."""
    count = 4000
    producers = [i.to_bytes(6, "big") for i in range(count)]
    states = [ProducerState(JOURNAL, p, 1, i) for i, p in enumerate(producers)]
    rows = [envelope(count + 10 * i, 10, 5, 2, p) for i, p in enumerate(producers)]
    batch = columns(rows)
    sequencer = ColumnarSequencer(JOURNAL, offset=count, producers=states)
    replays = []
    while batch.rows:
        plan = sequencer.process(batch)
        replays.append(plan.replay.begin)
        batch = batch.slice(plan.consumed)
    assert replays == list(range(count))


def test_a_failed_replay_starts_over_behind_what_was_kept():
    log = parse("A1c B1c A2c A0o A2c A3c A9c A4k")
    columnar = Columnar(log, rng=ByRows(), max_pending_bytes=0)
    for row in log:
        plan, _ = columnar.plan([row])
    replay = ReplayFilter(plan.replay, JOURNAL)
    assert repr(replay) == f"<ReplayFilter of {A.hex()} in {JOURNAL} [0, 700)>"
    assert replay.keep(columns(log[:3])).tolist() == [0, 2]
    assert (replay.begin, replay.end) == (200, 700)
    # A later attempt begins there, and repeats nothing.
    for wrong, text in [
        (envelope(199, 10, 3, 1, A), "replay has wrong Begin (199; expected >= 200)"),
        (envelope(650, 60, 3, 1, B), "replay has wrong End (710; expected <= 700)"),
    ]:
        with pytest.raises(ReplayError) as raised:
            replay.keep(columns([log[5], wrong]) if wrong.end > 700 else columns([wrong]))
        assert str(raised.value) == text
        assert replay.begin == 200
    with pytest.raises(ReplayError, match=r"wrong Begin \(400; expected >= 500\)"):
        replay.keep(columns([log[5], log[6], log[4]]))
    assert replay.keep(columns(log[2:7])).tolist() == [3]
    assert replay.keep(UuidColumns.empty()).tolist() == []
    assert replay.tail(plan.table.take(plan.replay.tail)).tolist() == [0]


def test_checkpoints_within_a_replay():
    log = parse("A1c B1c A2c A3k")
    sequencer = ColumnarSequencer(JOURNAL, max_pending_bytes=0)
    sequencer.process(columns(log[:1]))
    plan = sequencer.process(columns([*log[1:], envelope(400, 100, 2, 1, B)]))
    assert (plan.consumed, plan.replay.begin) == (3, 0)

    def checkpoint(**arguments):
        offset, states = sequencer.checkpoint(**arguments)
        return offset, {(s.producer, *s[2:]) for s in states}

    b = (B, 0, 100, 1)
    assert checkpoint(delivered=0) == (100, {(A, 0, 0, 1)})
    assert checkpoint(delivered=0, replayed=(1, 0)) == (300, {(A, 1, 0, 3), b})
    assert checkpoint(delivered=0, replayed=(2, 200)) == (300, {(A, 2, 200, 3), b})
    assert sequencer.has_pending is False
    assert checkpoint() == (400, {(A, 3, -1, None), b})


class Unscanned(dict):
    """Bounds of many producers, none of which may be looked at in vain."""

    def __iter__(self):
        raise AssertionError("all producers were looked at")

    keys = values = items = copy = __iter__


def of_many_producers(count, size):
    """States of many producers, and batches which begin and end spans of some."""
    states = [
        ProducerState(JOURNAL, i.to_bytes(6), 1000 + i, i if i % 2 else -1, 2000 + i)
        for i in range(count)
    ]
    producer = np.random.default_rng(3).permutation(count)[:size].astype(np.uint64)
    clock = np.full(size, 500_000, np.uint64)
    begin = count + 10 * np.arange(size)
    spans = UuidColumns(producer, clock, np.ones(size, np.uint16), begin, begin + 10)
    idle = np.flatnonzero(producer % np.uint64(2) == np.uint64(0))
    later = begin[idle] + 10 * size
    flags = np.full(idle.size, 2, np.uint16)
    acks = UuidColumns(producer[idle], clock[idle] + np.uint64(1), flags, later, later + 10)
    return states, spans, idle, acks


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_hundred_thousand_producers(size):
    count = 100_000
    states, spans, idle, acks = of_many_producers(count, size)
    known = Unscanned({int.from_bytes(s.producer): s.bounds for s in states})
    missing = {int.from_bytes(s.producer) for s in states if s.begin != -1}
    assert segments.decide(spans, known, missing).pending.size == idle.size
    sequencer = ColumnarSequencer(JOURNAL, offset=count, producers=states)
    assert sequencer.process(spans).carry.tolist() == idle.tolist()
    plan = sequencer.process(acks)
    order = np.stack((np.arange(idle.size), idle.size + np.arange(idle.size)), axis=1).ravel()
    assert plan.rows.tolist() == order.tolist()
    assert plan.replay is None
    _, found = sequencer.checkpoint(delivered=3)
    assert len(found) == count
    assert sum(s.last_ack == 500_001 for s in found) == 1
    assert len(sequencer.checkpoint()[1]) == count


def test_a_small_batch_costs_as_much_whatever_number_of_producers_is_known():
    def cost(count):
        states, spans, _, _ = of_many_producers(count, 10)
        sequencer, spent = ColumnarSequencer(JOURNAL, offset=count, producers=states), []
        for _ in range(20):
            begun = time.thread_time_ns()
            for _ in range(10):
                sequencer.process(spans)
            spent.append(time.thread_time_ns() - begun)
        return min(spent)

    # To look at all of them would cost a hundred times as much.
    assert cost(100_000) < 10 * cost(10)


def test_stale_producers_are_forgotten_with_what_they_have_pending(caplog):
    texts = (f"A{10 << 4}c", f"B{19 << 4}c", f"B{20 << 4}k", f"C{30 << 4}c")
    sequencer = ColumnarSequencer(JOURNAL)
    sequencer.process(columns(parse(" ".join(texts))))
    assert sequencer.has_pending
    _, states = sequencer.checkpoint(1900)
    assert {s.producer for s in states} == {B, C}
    assert [r.message for r in caplog.records] == ["producer with pending messages is stale"]
    assert sequencer.producer_state(A) is None
    # A new span of it isn't mixed up with rows which are forgotten.
    plan = sequencer.process(columns([envelope(400, 10, 700, 1, A), envelope(410, 10, 701, 2, A)]))
    assert plan.rows.tolist() == [2, 3]
    assert plan.carry.tolist() == [1]


def test_a_producer_which_goes_on_isnt_forgotten_within_a_batch():
    clocks = [10 << 4, 30 << 4, 31 << 4, 32 << 4]
    log = [
        envelope(100 * i, 100, clock, flags, producer)
        for i, (clock, flags, producer) in enumerate(
            zip(clocks, (1, 2, 2, 1), (A, B, A, A), strict=True)
        )
    ]
    sequencer = ColumnarSequencer(JOURNAL)
    plan = sequencer.process(columns(log))
    assert plan.rows.tolist() == [1, 0, 2]
    assert [s.producer for s in sequencer.checkpoint(100, delivered=1)[1]] == [B]
    # It was stale as of then, and isn't any more.
    assert {s.producer for s in sequencer.checkpoint(100, delivered=3)[1]} == {A, B}
    plan = sequencer.process(columns([envelope(400, 100, 33 << 4, 2, A)]))
    assert plan.rows.tolist() == [0, 1]


@pytest.mark.parametrize("tier", TIERS)
def test_remarks_are_made_once_for_a_batch(tier, caplog):
    log = parse("A1x A2x A1x A3c A4o A5c A5k A4k B1k B2c B2k B2k B3c B4o Z0x")
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL)
        plan = sequencer.process(columns(log))
        for delivered in range(len(plan.rows) + 1):
            sequencer.checkpoint(delivered=delivered)
    assert [(r.message, r.journal, r.rows) for r in caplog.records] == [
        ("messages have unexpected flags", JOURNAL, 3),
        (
            "acknowledgements are older than the last ones: exactly-once semantics are lost",
            JOURNAL,
            1,
        ),
        (
            "messages outside of transactions discard pending ones of their producers",
            JOURNAL,
            2,
        ),
    ]


@pytest.mark.parametrize("tier", TIERS)
def test_a_remark_of_carried_rows(tier, caplog):
    with tiers(tier):
        sequencer = ColumnarSequencer(JOURNAL)
        for row in parse("A1c A2o A3o A4c A5k"):
            sequencer.process(columns([row]))
    assert [r.begin for r in caplog.records] == [100]


def test_rows_by_producer():
    rng = np.random.default_rng(5)
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    # Producers whose hashes hardly differ, at all bits that are sorted by.
    apart = next(d for k in range(1, 2**20) if 0 < (d := k * inverse % 2**64) < 2**47)
    equal_hashes = np.array([5, 5 + apart], np.uint64)
    for producers in (
        np.array([7], np.uint64),
        rng.integers(0, 2**48, 3, np.uint64),
        rng.integers(0, 2**48, 3000, np.uint64),
        equal_hashes,
        np.arange(100, dtype=np.uint64),
    ):
        for count in (0, 1, 5000):
            column = rng.choice(producers, count)
            order = by_producer(column)
            assert sorted(order.tolist()) == list(range(count))
            groups = [
                (producer, [row for _, row in group])
                for producer, group in groupby(
                    zip(column[order].tolist(), order.tolist(), strict=True), itemgetter(0)
                )
            ]
            assert len({p for p, _ in groups}) == len(groups)
            assert all(rows == sorted(rows) for _, rows in groups)


def test_rows_which_are_appended_leave_earlier_ones_alone():
    growing = GrowingColumns()
    log = parse("A1c A2c A3c A4c A5c A6c A7c")
    seen = [growing.append(columns(log[at : at + 1])) for at in range(5)]
    growing.replace(seen[-1].slice(0, 2))
    seen.append(growing.append(columns(log[5:])))
    assert [s.clock.tolist() for s in seen] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 6, 7]
    ]  # fmt: skip
    assert growing.columns.begin.tolist() == [0, 100, 500, 600]
