"""Readers of ranges and splits, which get their messages in chunks of any size."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from gazette_aio.message import build_uuid
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.columns.outputs import columns_of
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.framing import Framing
from gazette_aio.message.framing.base import QueueingDecoder
from gazette_aio.message.ranges.committed import (
    CommittedRange,
    CommittedSplit,
    ProducerBounds,
    RangeState,
    RangeSummary,
    plan_splits,
    summarize,
)
from gazette_aio.protocol import JournalSpec

JOURNAL = "test/journal"


class _GivenFraming(Framing):
    """Framing of messages which are given as frames."""

    content_type = "test/given"

    def encode(self, message):
        return message

    def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
        return _NoDecoder(offset, max_frame_bytes)


class _NoDecoder(QueueingDecoder):
    buffered = 0

    def _check_end(self):
        pass


class _UUIDAdapter:
    """Adapter of messages which are UUIDs."""

    uuid_place = UUIDPlace(b"", b"", text=False)

    def decode(self, frame):
        return frame

    def encode(self, message, uuid):
        raise NotImplementedError

    def uuid(self, message):
        return UUID(bytes=message)

    def frame_uuid(self, frame):
        return UUID(bytes=frame)

    def acknowledgement(self, uuid):
        return uuid.bytes


FORMAT = JournalFormat(JOURNAL, Origin(JournalSpec(name=JOURNAL)), _GivenFraming(), _UUIDAdapter())
"""Format of messages which are given as frames, each of which is its UUID."""


class Span(NamedTuple):
    """What is read again."""

    begin: int
    end: int


def frames(columns):
    """Return messages as frames."""
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (build_uuid(producer.to_bytes(6), clock, flags).bytes, begin, end)
        for producer, clock, flags, begin, end in rows
    ]


def cut(rng, columns, parts):
    """Return the columns in up to so many parts, some of which may be empty."""
    at = sorted(rng.randrange(columns.rows + 1) for _ in range(rng.randrange(parts)))
    bounds = [0, *at, columns.rows]
    return [columns.slice(*pair) for pair in pairwise(bounds)]


def read_all(rng, reader, log, found=None):
    """Return begins of the messages which a reader delivers of what it has, and its replays."""
    delivered, spans = [], []
    while True:
        if found is not None and not isinstance(found, str):
            delivered += columns_of(found).begin.tolist()
            reader.core.settle(found, 0, len(found))
        found = reader.read(rng.choice((1, 50, 1 << 40)))
        if found is not None:
            continue
        if reader.replay is None:
            return delivered, spans
        span = reader.replay.open()
        if span is None:
            reader.replay.end()
            continue
        spans.append(Span(*span))
        content = UuidColumns.of([e for e in log if span[0] <= e.begin < span[1]])
        for chunk in cut(rng, content, 4):
            reader.core.feed_replay_frames(frames(chunk))


def deliver(rng, reader, columns, log, parts=4):
    """Give messages to a reader; return begins of what it delivers, and its replays."""
    delivered, spans = [], []
    for chunk in cut(rng, columns, parts):
        reader.core.feed_frames(frames(chunk))
        more, again = read_all(rng, reader, log)
        delivered += more
        spans += again
    return delivered, spans


def deliver_range(rng, state, columns, log, **settings):
    """Read a range; return begins of rows in the order of delivery, replays, and the end state."""
    reader = CommittedRange(FORMAT, state, **settings)
    delivered, spans = deliver(rng, reader, columns, log)
    reader.core.settle_all()
    return delivered, spans, reader.state


def deliver_entering(rng, state, plan, log):
    """Return begins of the rows before a range which its plan commits."""
    reader = CommittedRange(FORMAT, state, skip_acks=True)
    return read_all(rng, reader, log, reader.commit(plan.entering))[0]


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


def deliver_split(rng, plan, columns, log=(), **settings):
    """Read a split; return begins of rows in the order of delivery, without acknowledgements."""
    begin = int(columns.begin[0]) if columns.rows else 0
    reader = CommittedSplit(
        FORMAT, pickle.loads(pickle.dumps(plan)), begin, skip_acks=True, **settings
    )
    delivered, _ = deliver(rng, reader, columns, log, 5)
    reader.end()
    return delivered + read_all(rng, reader, log)[0]


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
