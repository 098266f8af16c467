"""Ranges and splits of random logs, which are cut anywhere, deliver what the table of rules says."""

from __future__ import annotations

import json
import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_aio.message.core.rules import ACK, OUTSIDE, unseen
from gazette_aio.message.ranges.committed import (
    RangeState,
    RangeSummary,
    advance,
    plan_splits,
    summarize,
)
from gazette_aio.message.ranges.transfer import transfer_of
from tests.message.ranges.readers import (
    cut,
    deliver_entering,
    deliver_range,
    deliver_split,
    plan_of,
    with_exact_begins,
)
from tests.message.sequencing.sequencing import columns
from tests.message.sequencing.test_differential import Expected, random_log


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what is logged of misbehaving producers: thousands of lines."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def limits(rng):
    """Return a limit of pending messages, or the default one."""
    return rng.choice(({}, {}, {"max_pending_bytes": 0}, {"max_pending_bytes": 300}))


def ranges_agree(rng, count):
    """Read consecutive ranges, each from the state behind the one before."""
    log = random_log(rng, count)
    want, limit = Expected(log), limits(rng)
    state, got, read = RangeState(), [], 0
    for part in cut(rng, columns(log), 5):
        rows, spans, end = deliver_range(rng, state, part, log, **limit)
        got += rows
        if not limit:
            # Nothing is read again but what's before the range, once for each producer.
            assert all(span.end == state.offset > span.begin for span in spans)
            assert len(spans) <= sum(bounds.begin != -1 for bounds in state.producers.values())
        state, read = advance(state, part), read + part.rows
        assert end == state == want.state(log, read)
        assert RangeState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert got == want.begins()


def splits_agree(rng, count):
    """Read the splits of a range, each on its own: the last one without a summary, or with it."""
    log = random_log(rng, count)
    want = Expected(log)
    start = rng.choice((0, 0, rng.randrange(count + 1)))
    state = want.state(log, start)
    parts = cut(rng, columns(log).slice(start), 6)
    plan = plan_of(rng, state, parts)
    assert with_exact_begins(plan.state, log) == want.state(log, len(log))
    got, read = deliver_entering(rng, state, plan, log), start
    for each, part in zip(plan.splits, parts, strict=True):
        rows = deliver_split(rng, each, part, log, **limits(rng))
        assert set(rows) <= set(part.begin.tolist())
        # What commits within the split comes first, in the order of commits.
        within = want.begins(read, read + part.rows, acks=False)
        within = [row for row in within if row in set(part.begin.tolist())]
        assert rows[: len(within)] == within
        got, read = got + rows, read + part.rows
    assert sorted(got) == sorted(want.begins(start, acks=False))
    last_split_agrees(rng, log, state, parts, want.begins(start, acks=False))


def last_split_agrees(rng, log, state, parts, want):
    *splits, last = parts
    summaries = [summarize(split) for split in splits]
    known = plan_splits(state, summaries)
    ahead, seen = RangeSummary(), 0
    while seen < last.rows and not known.is_decided(ahead):
        ahead = summarize(last.slice(seen, seen + 1), ahead)
        seen += 1
    plan = plan_splits(state, summaries, ahead)
    assert plan == plan_splits(state, summaries, summarize(last))
    assert plan.state == known.state
    got = deliver_entering(rng, state, plan, log)
    for each, part in zip(plan.splits, splits, strict=True):
        got += deliver_split(rng, each, part, log, **limits(rng))
    rows, spans, end = deliver_range(rng, plan.state, last, log, entering=False, **limits(rng))
    acks = {row.begin for row in log if row.flags == ACK}
    assert sorted(got + [row for row in rows if row not in acks]) == sorted(want)
    assert all(span.begin >= plan.state.offset for span in spans)
    assert end == advance(plan.state, last)


def summaries_agree(rng, count):
    """Decide what rows do to a producer by columns, and one after the other."""
    log = random_log(rng, count)
    by_producer = {}
    for row in log:
        if row.clock:
            kind = int(row.flags) if row.flags <= ACK else OUTSIDE
            rows = by_producer.setdefault(int.from_bytes(row.producer), [])
            rows.append((row.clock, kind, row.begin))
    want = {producer: transfer_of(rows) for producer, rows in by_producer.items()}
    assert summarize(columns(log)).transfers == want
    assert all(
        of.first == rows[0][0] == unseen(of.first).min + 1
        for of, rows in zip(want.values(), by_producer.values(), strict=True)
    )


@pytest.mark.parametrize("agree", [ranges_agree, splits_agree, summaries_agree])
@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 90))
def test_all_readers_agree_with_the_table(agree, seed, count):
    agree(random.Random(seed), count)
