"""Ranges and splits of a journal deliver together what one Sequencer delivers of all of it.

Histories at random are in `test_random_ranges`.
"""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest

from gazette_aio.message import Envelope, Flags, ProducerID, Sequencer
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.ranges.committed import (
    ProducerBounds,
    RangeState,
    RangeSummary,
    advance,
    plan_splits,
    summarize,
)
from gazette_aio.protocol.errors import SequencerStateError, ValidationError
from tests.message.ranges.readers import (
    JOURNAL,
    deliver_entering,
    deliver_range,
    deliver_split,
    plan_of,
    with_exact_begins,
)

A, B, C = (ProducerID(b"\x01" + name * 5) for name in (b"A", b"B", b"C"))
Z = ProducerID(b"\0" * 6)
PRODUCERS = {"A": A, "B": B, "C": C, "Z": Z}
FLAGS = {"o": 0, "c": 1, "k": 2, "x": 3}
ACK = 2


# --- What a Sequencer does which reads all of a history.


def envelope(begin, size, producer, clock, flags):
    return Envelope(JOURNAL, begin, begin + size, clock, Flags(flags), producer, None)


def sequenced(log):
    """Return what's delivered by each row, and the state at the end."""
    sequencer = Sequencer(buffer=1 << 30)
    delivered = []
    for row in log:
        sequencer.queue_uncommitted(row)
        delivered.append([])
        while sequencer.step():
            delivered[-1].append(sequencer.dequeued)
    producers = sequencer.checkpoint().producers
    states = {int.from_bytes(state.producer): state.bounds for state in producers}
    return delivered, RangeState(log[-1].end, states)


def flatten(lists):
    return [row for rows in lists for row in rows]


def begins(envelopes, *, acks=False):
    return [e.begin for e in envelopes if acks or e.flags != ACK]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Keep what's logged of strange producers, thousands of lines, out of what a failure tells."""
    caplog.set_level(logging.CRITICAL, "gazette_aio")


# --- Numbered cases.


def history(text):
    """Return a log of rows of ten bytes, and its parts between bars."""
    log, parts = [], []
    for part in text.split("|"):
        first = len(log)
        for word in part.split():
            producer, clock, flags = PRODUCERS[word[0]], int(word[1:-1]), FLAGS[word[-1]]
            log.append(envelope(len(log) * 10, 10, producer, clock, flags))
        parts.append(UuidColumns.of(log[first:]))
    return log, parts


def names(text, offsets):
    words = text.replace("|", " ").split()
    return " ".join(words[begin // 10] for begin in offsets)


SPLITS = {
    "a transaction spans three splits": ("A1c A2c | A3c | A4c A5k", ["A1c A2c", "A3c", "A4c"]),
    "its acknowledgement is alone": ("A1c | B1o | A2k", ["A1c", "B1o", ""]),
    "it is rolled back later": ("A1k A2c | A3c | A1k A4c", ["", "", ""]),
    "what follows a rollback commits": ("A3k A5c | A3k A4c | A6k", ["", "A4c", ""]),
    "it is discarded later": ("A1c | A2c | A3o A4k", ["", "", "A3o"]),
    "a duplicate outside discards nothing": ("A5o A6c | A5o A4o | A7k", ["A5o A6c", "", ""]),
    "a block is repeated behind a seam": ("A1c A2c | A1c A2c A3c | A4k", ["A1c A2c", "A3c", ""]),
    "a transaction is repeated": ("A1c A2c A3k | A1c A2c A3k | A4o", ["A1c A2c", "", "A4o"]),
    "a repetition goes on": ("A1c A2k | A1c A3c | A4k", ["A1c", "A3c", ""]),
    "an acknowledgement commits a part": ("A1c A5c | A7c A9c | A6k A8o", ["A1c A5c", "", "A8o"]),
    "a producer is pending at the end": ("A1c B1c | A2c B2k | A3c B3c", ["B1c", "", ""]),
    "pending clocks go back": ("A5c A7c | A6c | A6k", ["A5c", "", ""]),
    "transactions begin and end within": ("A1c A2k A3c A4k A5c | A6k", ["A1c A3c A5c", ""]),
    "zero clocks are no one's": ("A1c Z0o | A0o Z0c | A2k", ["Z0o A1c", "A0o Z0c", ""]),
    "unknown flags are outside": ("A1c | A2x A3c | A4k", ["", "A2x A3c", ""]),
    "splits may be empty": ("| A1c || A2k |", ["", "A1c", "", "", ""]),
}


@pytest.mark.parametrize("case", SPLITS)
def test_splits(case):
    text, want = SPLITS[case]
    log, parts = history(text)
    plan = plan_splits(RangeState(), [summarize(part) for part in parts])
    got = []
    for split_plan, part in zip(plan.splits, parts, strict=True):
        rows = deliver_split(random.Random(1), split_plan, part)
        assert deliver_split(random.Random(2), split_plan, part, log, max_pending_bytes=0) == rows
        got.append(rows)
    assert [names(text, rows) for rows in got] == want
    delivered, final = sequenced(log)
    assert sorted(flatten(got)) == sorted(begins(flatten(delivered)))
    assert with_exact_begins(plan.state, log) == final


RANGES = {
    "a transaction spans three ranges": (
        "A1c A2c | B1c A3c B2k | A4c A5k",
        ["", "B1c B2k", "A1c A2c A3c A4c A5k"],
    ),
    "it is rolled back later": ("A1k A2c | A3c | A1k A2c A3k", ["A1k", "", "A2c A3k"]),
    "a part commits": ("A1c A5c | A9c | A4k A5c A6k", ["", "", "A1c A4k A5c A6k"]),
    "duplicates across a seam": ("A1c A2c | A1c A2c A3c | A4k", ["", "", "A1c A2c A3c A4k"]),
    "pending clocks go back": ("A5c A7c A6c | A6k", ["", "A5c A6k"]),
    "an acknowledgement repeats a clock": ("A5c | A5k A6o", ["", "A5c A6o"]),
    "two are pending": ("A1c B1c | A2k B2k", ["", "A1c A2k B1c B2k"]),
}


@pytest.mark.parametrize("case", RANGES)
def test_ranges(case):
    text, want = RANGES[case]
    log, parts = history(text)
    rng, state, got = random.Random(1), RangeState(), []
    for part in parts:
        rows, _, _ = deliver_range(rng, state, part, log)
        got.append(names(text, rows))
        state = advance(state, part)
    assert got == want
    delivered, _ = sequenced(log)
    assert " ".join(filter(None, got)) == names(text, begins(flatten(delivered), acks=True))


def test_starting_in_the_middle():
    """Without a state, messages behind the start are delivered, and none before it."""
    text = "A1c B1c A2k | B2c A3c A4k B3k A2c A5k"
    log, (_, later) = history(text)
    assert names(text, deliver_range(random, RangeState(30), later, log)[0]) == (
        "A3c A4k B2c B3k A5k"
    )
    plan = plan_splits(RangeState(30), [summarize(later)])
    assert names(text, deliver_split(random, plan.splits[0], later)) == "A3c B2c"
    assert not plan.entering
    # The first message of a producer is taken for a new one, even if it's a duplicate.
    log, (_, later) = history("A1o A2o | A1o A2o A3o")
    assert deliver_range(random, RangeState(20), later, log)[0] == [20, 30, 40]


def test_pending_messages_before_the_splits():
    text = "A1c B1c C1c | A2c | A3k B2o"
    log, (before, *parts) = history(text)
    state = advance(RangeState(), before)
    plan = plan_splits(state, [summarize(part) for part in parts])
    assert plan.entering == {int.from_bytes(A): 3}
    assert names(text, deliver_entering(random.Random(1), state, plan, log)) == "A1c"
    assert plan.state.producers[int.from_bytes(C)] == state.producers[int.from_bytes(C)]


def test_begins_which_a_summary_can_not_tell():
    """A range which begins with duplicates: a commit reads too much again, and leaves it out."""
    text = "A1c A2k | B1c A2c A3c A4c | B2c | A5k"
    log, (*parts, after) = history(text)
    plan = plan_splits(RangeState(), [summarize(part) for part in parts])
    assert plan.state.producers[int.from_bytes(A)] == ProducerBounds(2, 4, 30)
    delivered, (span,), _ = deliver_range(random.Random(1), plan.state, after, log)
    assert names(text, delivered) == "A3c A4c A5k"
    assert (span.begin, span.end) == (30, 70)


def test_plans_of_other_content_are_refused():
    _, parts = history("A1c A2k A3c A4k | A5o B1o")
    first, second = (summarize(part) for part in parts)
    with pytest.raises(ValidationError, match="split begins at 0, before 40"):
        plan_splits(RangeState(), [second, first])
    with pytest.raises(ValidationError, match="before 50"):
        plan_splits(RangeState(50), [first])
    with pytest.raises(ValidationError, match="the summary ahead begins at"):
        plan_splits(RangeState(), [second], first)
    plan = plan_splits(RangeState(), [first, second])
    # A torn record goes on into what follows, which begins before its end.
    torn = RangeSummary(first.begin, second.begin + 1, first.transfers)
    assert plan_splits(RangeState(), [torn, second]).state == plan.state
    assert plan_splits(RangeState(), [torn], second).state.offset == torn.end


REFUSED = "content of the split at 0 isn't what its plan was made of"


def test_plans_of_less_content_are_refused():
    """As of a summary which was made while its fragment still grew."""
    rng, (_, (whole, other)) = random.Random(1), history("A1c A2o A3o A4o | A5o")
    plan = plan_splits(RangeState(), [summarize(whole.slice(0, 3))]).splits[0]
    assert deliver_split(rng, plan, whole.slice(0, 3)) == [10, 20]
    empty = plan_splits(RangeState(), [RangeSummary()]).splits[0]
    assert deliver_split(rng, empty, whole.slice(0, 0)) == []
    for wrong, rows in (
        (plan, whole),  # More content.
        (plan, whole.slice(0, 2)),  # Less of it.
        (plan, whole.slice(0, 0)),
        (empty, whole),
        (plan, other._replace(begin=whole.begin[:1], end=whole.end[:1])),
    ):
        with pytest.raises(SequencerStateError, match=REFUSED):
            deliver_split(rng, wrong, rows)


def test_content_which_changed_within_a_split_is_refused():
    _, (part, others) = history("A1c A2k A3c A4o A5c | B1c B2k A3c B4o A5c")
    plan = plan_splits(RangeState(), [summarize(part)]).splits[0]
    moved = others._replace(begin=part.begin, end=part.end)
    pending = part._replace(flags=part.flags.copy())
    pending.flags[-1] = 0
    for rows in (moved, part.take(np.array([0, 2, 4])), pending):
        with pytest.raises(SequencerStateError, match=REFUSED):
            deliver_split(random.Random(1), plan, rows)


# --- Many rows.


def long_history(rng, rows, producers):
    """Columns of producers which write transactions of random sizes, and a few faults."""
    names = rng.integers(1 << 40, 1 << 48, producers, dtype=np.uint64)
    producer = names[rng.integers(0, producers, rows)]
    clock = np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(160) + np.uint64(1 << 60)
    flags = np.where(rng.random(rows) < 0.02, 2, 1).astype(np.uint16)
    for at in rng.integers(200, rows - 200, 20).tolist():
        # Blocks are appended twice, acknowledgements sent again, and messages mixed in.
        block = slice(at - 100, at)
        for column in (producer, clock, flags):
            column[at : at + 100] = column[block]
        flags[at + 150] = 0
    begin = np.arange(rows, dtype=np.int64) * 100
    return UuidColumns(producer, clock, flags, begin, begin + 100)


@pytest.mark.slow
def test_many_rows():
    """It takes some seconds, of which the Sequencer takes most."""
    columns = long_history(np.random.default_rng(7), 60_000, 12)
    log = [
        envelope(begin, 100, ProducerID(producer.to_bytes(6)), clock, flags)
        for producer, clock, flags, begin in zip(*(c.tolist() for c in columns[:4]), strict=True)
    ]
    delivered, final = sequenced(log)
    state, got = RangeState(), []
    for at in range(0, columns.rows, 20_000):
        part = columns.slice(at, at + 20_000)
        rows, _, end = deliver_range(random.Random(at), state, part, log)
        got += rows
        state = advance(state, part)
        assert state == end
    assert got == begins(flatten(delivered), acks=True)
    assert state == final
    splits = [columns.slice(at, at + 12_000) for at in range(0, columns.rows, 12_000)]
    plan = plan_of(random.Random(2), RangeState(), splits)
    assert with_exact_begins(plan.state, log) == state
    split_rows = [
        deliver_split(random.Random(3), *pair) for pair in zip(plan.splits, splits, strict=True)
    ]
    assert sorted(flatten(split_rows)) == sorted(begins(flatten(delivered)))
