"""Order of commits, checkpoints and replays, in both forms."""

from __future__ import annotations

import random

import pytest

from gazette_aio.message.uuid import Flags
from tests import extent
from tests.message.core.journals import ALL, Frames, is_batch, rows
from tests.message.sequencing.sequencing import (
    PRODUCERS,
    A,
    B,
    C,
    Scalar,
    Z,
    envelope,
    naively_committed,
    outside,
    parse,
    well_formed,
    wild,
)

KINDS = {"well-formed": well_formed, "wild": wild, "outside": outside}

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
    ("A1c A2c A3k A4c B5c", "A1c A2c A3k", 500, {"A": (3, 300), "B": (4, 400)}),
]


def name(row):
    kind = {0: "o", 1: "c", 2: "k"}.get(row[3], "x")
    return f"{next(k for k, v in PRODUCERS.items() if v == row[4])}{row[2]}{kind}"


def names(found):
    return " ".join(map(name, found))


def key(row):
    return row[0], row[2], row[4]


def states_of(journal, horizon=0):
    offset, states = journal.checkpoint(horizon)
    return offset, {
        (p, low, begin, high if begin != -1 else None) for p, low, high, begin in states
    }


@pytest.mark.parametrize(("log", "want", "offset", "states"), TRACES)
@pytest.mark.parametrize("size", [0, 1, 2])
def test_traces(form, log, want, offset, states, size):
    driver = Frames(form, parse(log))
    assert names(driver.deliver(size)) == want
    got_offset, got_states = driver.journal.checkpoint()
    assert got_offset == offset
    assert {(p, low, begin) for p, low, _, begin in got_states} == {
        (PRODUCERS[p], low, begin) for p, (low, begin) in states.items()
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", extent.seeds(10))
def test_the_sequencer_delivers_the_same(form, kind, seed):
    for number in range(10):
        rng = random.Random(f"{kind} {seed} {number}")
        log = KINDS[kind](rng, rng.randrange(1, 60))
        scalar = Scalar(log)
        driver = Frames(form, log)
        size = rng.choice((0, 1, 1, 5))
        got = []
        for row in driver.deliver(size):
            if size == 1:
                assert states_of(driver.journal) == scalar.checkpoints[len(got)]
            got.append(key(row))
        assert got == scalar.delivered
        if kind == "well-formed":
            assert got == naively_committed(log)
        assert states_of(driver.journal) == scalar.end


@pytest.mark.parametrize("seed", extent.seeds(10))
@pytest.mark.parametrize("limit", [ALL, 0])
def test_a_restart_at_every_message(form, seed, limit):
    rng = random.Random(seed)
    log = well_formed(rng, 40)
    options = {"max_pending_bytes": limit, "skip_acks": rng.random() < 0.3}
    want = list(Frames(form, log, **options).deliver())
    driver = Frames(form, log, **options)
    before = driver.journal.checkpoint()
    for count, row in enumerate(driver.deliver(rng.choice((0, 1, 7)))):
        assert row == want[count]
        assert list(Frames(form, log, *before, **options).deliver()) == want[count:]
        before = driver.journal.checkpoint()
        if rng.random() < 0.3:
            # Checkpoints of Gazette lack the largest pending clocks.
            before = before[0], [(p, low, low, begin) for p, low, _, begin in before[1]]
    assert list(Frames(form, log, *driver.journal.checkpoint(), **options).deliver()) == []


@pytest.mark.parametrize("seed", extent.seeds(20))
def test_evictions_change_nothing_of_well_formed_logs(form, seed):
    rng = random.Random(seed)
    log = well_formed(rng, 60)
    want = list(Frames(form, log).deliver())
    driver = Frames(form, log, max_pending_bytes=rng.choice((0, 150, 400)))
    got = []
    while driver.rest:
        got += driver.deliver(rng.choice((1, 4)))
        driver.journal.evict(rng.choice((0, ALL)), rng.choice((None, 1, 3)))
    assert got == want


def test_only_what_is_missing_is_read_again(form):
    log = parse("A1c B1c A2c B2c A3c A4c A5k B3k")
    driver = Frames(form, log)
    list(driver.deliver(2))
    driver = Frames(form, log[:8])
    feed = driver.deliver(3)
    driver.journal.feed_frames(driver.frames[:3])
    driver.rest = driver.frames[3:]
    assert driver.journal.work(ALL) == ("progress",)
    driver.journal.evict(250)  # The larger one: A.
    assert (driver.journal.pending_rows, driver.journal.pending_bytes) == (1, 196)
    assert names(feed) == "A1c A2c A3c A4c A5k B1c B2c B3k"
    assert driver.replays == [(0, 300)]


def test_evictions_extend_what_is_missing(form):
    driver = Frames(form, parse("A1c A2c B1c A3c A4c A5k"))
    for frame in driver.frames[:4]:
        driver.journal.feed_frames([frame])
        driver.journal.work(ALL)
        if frame[1] != 100:
            driver.journal.evict(0)
    driver.rest = driver.frames[4:]
    assert names(driver.deliver()) == "A1c A2c A3c A4c A5k"
    assert driver.replays == [(0, 400)]


def test_the_largest_transactions_are_evicted_first(form):
    driver = Frames(form, parse("A1c B1c B2c C1c C2c A2k B3k C3k"))
    driver.journal.feed_frames(driver.frames[:5])
    driver.journal.work(ALL)
    driver.rest = driver.frames[5:]
    assert driver.journal.pending_bytes == 5 * 196
    driver.journal.evict(3 * 196)
    assert driver.journal.pending_rows == 3
    driver.journal.evict(ALL, 2)
    assert driver.journal.pending_rows == 1
    assert names(driver.deliver()) == "A1c A2k B1c B2c B3k C1c C2c C3k"
    assert driver.replays == [(100, 300), (300, 500)]


def test_entering_replays_what_was_pending(form):
    log = parse("A1c A2c A3c A4k")
    states = [(A, 0, 2, 0)]
    driver = Frames(form, log, 200, states)
    assert names(driver.deliver()) == "A1c A2c A3c A4k"
    assert driver.replays == [(0, 200)]
    assert names(Frames(form, log, 200, states, entering=False).deliver()) == "A3c A4k"


def test_an_aborted_replay_resumes_after_what_it_returned(form):
    driver = Frames(form, parse("A1c A2c A3c A4k"), max_pending_bytes=0)
    journal = driver.journal
    for frame in driver.frames:
        journal.feed_frames([frame])
        found = journal.work(ALL)
    assert found == ("replay", 0, 300)
    assert journal.work(ALL) == found
    assert journal.begin_replay() == (0, 300)
    journal.feed_replay_frames(driver.frames[:2])
    first = journal.work(150)
    assert names(rows(first)) == "A1c A2c"
    journal.settle(first, 0, 1)
    assert journal.checkpoint() == (300, [(A, 1, 4, 0)])
    assert journal.begin_replay() == (100, 300)
    journal.feed_replay_frames(driver.frames[1:3])
    assert names(rows(journal.work(ALL))) == "A3c"
    assert journal.work(ALL) is None
    assert names(rows(journal.end_replay())) == "A4k"
    journal.settle(first, 1, 2)
    assert journal.checkpoint() == (300, [(A, 2, 4, 100)])


@pytest.mark.parametrize(
    ("begin", "size", "text"),
    [
        (0, 100, None),
        (200, 101, "replay has wrong End (301; expected <= 300)"),
        (300, 1, "replay has wrong End (301; expected <= 300)"),
    ],
)
def test_other_content_is_noticed_by_a_replay(form, begin, size, text):
    driver = Frames(form, parse("A1c A2c A3c A4k"), max_pending_bytes=0)
    journal = driver.journal
    for frame in driver.frames:
        journal.feed_frames([frame])
        journal.work(ALL)
    journal.begin_replay()
    journal.jump_replay(begin)
    journal.feed_replay_frames([(driver.frames[0][0], begin, begin + size)])
    found = journal.work(ALL)
    if text is None:
        assert is_batch(found)
        return
    assert found == journal.work(ALL) == ("changed", text)
    with pytest.raises(ValueError, match="aren't handled"):
        journal.end_replay()
    assert journal.begin_replay() == (0, 300)
    assert journal.work(ALL) is None


def test_verdicts_commit_without_acknowledgements(form):
    driver = Frames(form, parse("A1c B1c A2c B2c A3c"))
    assert names(driver.deliver()) == ""
    batch = driver.journal.commit([(B, 9), (A, 2), (C, 5)])
    assert names(rows(batch)) == "B1c B2c A1c A2c"
    driver.journal.settle(batch, 0, 1)
    assert driver.journal.checkpoint() == (500, [(A, 0, 3, 0), (B, 1, 9, 100)])
    driver.journal.settle(batch, 1, 4)
    assert driver.journal.checkpoint() == (500, [(A, 2, 2, -1), (B, 9, 9, -1), (C, 5, 5, -1)])
    assert driver.journal.pending_rows == 0
    assert driver.journal.commit([(A, 2)]) == ("progress",)
    assert driver.journal.commit([]) is None


def test_verdicts_may_need_replays(form):
    driver = Frames(form, parse("A1c B1c A2c B2c"))
    assert names(driver.deliver()) == ""
    driver.journal.evict(0)
    assert driver.journal.commit([(B, 2), (A, 1)]) == ("replay", 100, 400)
    assert names(driver._work()) == "B1c B2c A1c"
    assert driver.replays == [(100, 400), (0, 300)]
    assert driver.journal.checkpoint() == (400, [(A, 1, 1, -1), (B, 2, 2, -1)])


def test_stale_producers_are_forgotten_with_what_they_have_pending(form):
    log = parse(f"A{10 << 4}c B{19 << 4}c B{20 << 4}k C{30 << 4}c")
    driver = Frames(form, log)
    list(driver.deliver())
    assert driver.journal.has_pending
    _, states = driver.journal.checkpoint(1900)
    assert [state[0] for state in states] == [B, C]
    assert driver.journal.remarks == (0, 0, 0, 1)
    assert driver.journal.pending_rows == 1
    # A new span of it isn't mixed up with messages which are forgotten.
    more = Frames(form, [envelope(400, 10, 700, 1, A), envelope(410, 10, 701, 2, A)])
    driver.journal.feed_frames(more.frames)
    assert names(rows(driver.journal.work(ALL))) == "A700c A701k"


def test_a_producer_that_goes_on_isnt_forgotten_within_a_batch(form):
    clocks = [10 << 4, 30 << 4, 31 << 4, 32 << 4]
    parts = zip(clocks, (1, 2, 2, 1), (A, B, A, A), strict=True)
    log = [envelope(100 * i, 100, *part) for i, part in enumerate(parts)]
    driver = Frames(form, log)
    feed = driver.deliver()
    next(feed)
    # It was stale as of then, and isn't any more.
    assert {s[0] for s in driver.journal.checkpoint(100)[1]} == {A, B}
    list(feed)
    driver.journal.feed_frames(Frames(form, [envelope(400, 10, 33 << 4, 2, A)]).frames)
    assert names(rows(driver.journal.work(ALL))) == f"A{32 << 4}c A{33 << 4}k"


def test_remarks_on_misbehaving_producers(form):
    driver = Frames(form, parse("A1x A2x A1x A3c A4o A5c A5k A4k B1k B2c B2k B2k B3c B4o Z0x"))
    list(driver.deliver())
    assert driver.journal.remarks == (3, 1, 2, 0)
    driver.journal.commit([(A, 1)])
    assert driver.journal.remarks == (3, 1, 2, 0)


def test_limits_of_numbers(form):
    top = (1 << 64) - 1
    end = (1 << 63) - 1
    log = [
        envelope(end - 30, 10, top - 1, 1, b"\xff" * 6),
        envelope(end - 20, 10, top, 2, b"\xff" * 6),
        envelope(end - 10, 10, 1, Flags(1023), Z),
    ]
    driver = Frames(form, log, end - 30)
    got = list(driver.deliver())
    assert [row[:4] for row in got] == [(e.begin, e.end, e.clock, e.flags) for e in log]
    states = [(Z, 1, 1, -1), (b"\xff" * 6, top, top, -1)]
    assert driver.journal.checkpoint() == (end, states)
    assert driver.journal.checkpoint((1 << 63) - 1)[0] == end


def test_a_message_costs_as_much_whatever_number_of_producers_is_known(form):
    """Works on each of 20,000 producers, with a budget that's exceeded by each of their messages."""
    count = 20_000
    log = [
        envelope(10 * i, 10, 5 + (i >= count), 1 + (i >= count), (i % count).to_bytes(6))
        for i in range(2 * count)
    ]
    driver = Frames(form, log)
    assert len(list(driver.deliver())) == 2 * count
    driver = Frames(form, log[:count])
    list(driver.deliver())
    driver.journal.evict(0)
    assert driver.journal.pending_rows == 0


def test_a_commit_is_settled_once_its_replay_ended(form):
    """Its acknowledgement isn't returned, so that nothing is left to settle."""
    driver = Frames(form, parse("A1c A2k"), max_pending_bytes=0, skip_acks=True)
    journal = driver.journal
    for frame in driver.frames:
        journal.feed_frames([frame])
        journal.work(ALL)
    journal.begin_replay()
    journal.feed_replay_frames(driver.frames[:1])
    batch = journal.work(ALL)
    journal.settle(batch, 0, 1)
    assert journal.checkpoint() == (100, [(A, 1, 2, 0)])
    assert len(journal.end_replay()) == 0
    assert journal.checkpoint() == (200, [(A, 2, 2, -1)])


def test_acknowledgements_without_a_clock_are_skipped_as_others(form):
    log = parse("Z0k A0k A0c A1k")
    assert names(Frames(form, log, skip_acks=True).deliver()) == "A0c"
    assert names(Frames(form, log).deliver()) == "Z0k A0k A0c A1k"
