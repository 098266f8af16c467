"""Readers of ranges and splits, which get their content in chunks of any size."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import numpy as np

from gazette_aio.message.ranges.committed import (
    CommittedRange,
    CommittedSplit,
    ProducerBounds,
    RangeState,
    RangeSummary,
    ReplayFilter,
    plan_splits,
    summarize,
)
from gazette_aio.message.sequencing.columns import UuidColumns

JOURNAL = "test/journal"


def cut(rng, columns, parts):
    """Return the columns in up to so many parts, some of which may be empty."""
    at = sorted(rng.randrange(columns.rows + 1) for _ in range(rng.randrange(parts)))
    bounds = [0, *at, columns.rows]
    return [columns.slice(*pair) for pair in pairwise(bounds)]


def deliver_range(rng, state, columns, log, **settings):
    """Read a range; return begins of rows in the order of delivery, replays, and the end state."""
    reader = CommittedRange(JOURNAL, state, **settings)
    delivered, spans = [], []
    for chunk in cut(rng, columns, 4):
        rest = chunk
        while rest.rows:
            plan = reader.process(rest)
            rest = rest.slice(plan.consumed)
            delivered += plan.table.begin[plan.rows].tolist()
            if plan.replay is not None:
                spans.append(plan.replay)
                tail = plan.table.take(plan.replay.tail)
                delivered += deliver_replay(rng, plan.replay, log, tail)
    return delivered, spans, reader.state


def deliver_replay(rng, span, log, tail):
    replay = ReplayFilter(span, JOURNAL)
    content = UuidColumns.of([e for e in log if span.begin <= e.begin < span.end])
    delivered = []
    for chunk in cut(rng, content, 4):
        delivered += chunk.begin[replay.keep(chunk)].tolist()
    return delivered + tail.begin[replay.tail(tail)].tolist()


def deliver_entering(rng, plan, log):
    """Return begins of the rows before a range which its plan commits."""
    empty = UuidColumns.empty()
    return [begin for span in plan.entering for begin in deliver_replay(rng, span, log, empty)]


def plan_of(rng, state, splits):
    """Summarize splits chunk by chunk, and plan them."""
    summaries = []
    for split in splits:
        summary = RangeSummary()
        for chunk in cut(rng, split, 4):
            summary = summarize(chunk, summary)
        assert summary == summarize(split), "chunks matter"
        summaries.append(RangeSummary.from_json(json.loads(json.dumps(summary.to_json()))))
    plan = plan_splits(state, summaries)
    assert pickle.loads(pickle.dumps(plan)) == plan == plan_splits(state, summaries)
    return plan


def deliver_split(rng, plan, columns):
    split = CommittedSplit(pickle.loads(pickle.dumps(plan)))
    masks, chunks = [], cut(rng, columns, 5)
    for count, chunk in enumerate(chunks, 1):
        masks += split.decide(chunk)
        assert len(masks) + split.undecided == count
    split.finish()
    assert [len(mask) for mask in masks] == [chunk.rows for chunk in chunks]
    return columns.begin[np.concatenate(masks)].tolist()


def with_exact_begins(state, log):
    """Return the state with each `begin` as that of the first pending message of the log."""
    exact = {}
    for producer, (low, high, begin) in state.producers.items():
        if begin != -1:
            begins = [
                e.begin
                for e in log
                if int.from_bytes(e.producer) == producer
                and e.begin >= begin
                and e.flags == 1
                and e.clock > low
            ]
            begin = begins[0]
        exact[producer] = ProducerBounds(low, high, begin)
    return RangeState(state.offset, exact)
