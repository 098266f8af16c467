"""Every way to sequence messages delivers what the table of rules says, over random logs.

`Reference` applies the table to one message after the other. Each way is given the same log, in
batches which are cut anywhere, and has to deliver the same messages in the same
order, and to come to the same states at each point where a checkpoint is taken.
"""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_aio.message import Envelope, Flags, Sequencer, SequencerCheckpoint
from gazette_aio.message.core.rules import ACK, OUTSIDE
from gazette_aio.message.ranges.committed import RangeState
from tests.message.sequencing.reference import Reference, states_in, states_of
from tests.message.sequencing.sequencing import (
    A,
    B,
    C,
    Z,
    copies,
    key,
)

JOURNAL = "test/journal"


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what is logged of misbehaving producers: thousands of lines."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


# --- Logs.


def random_log(rng, count, journal=JOURNAL, *, behaved=False):
    """Rows of one journal.

    Producers write transactions and messages outside of them. By chance, which differs from log to
    log, their clocks fall back, blocks of theirs are appended again, acknowledgements are sent
    again, and messages have no clock or unknown flags. Producers that are `behaved` do none of it.
    """
    names = [A, B, C][: rng.randrange(1, 4)]
    clocks = {name: rng.randrange(1, 50) for name in names}
    past = {name: [] for name in names}
    back = rng.choice((1, 1, 0, -2, -8))
    ends, outsiders, again, odd = (rng.choice((0, 0.05, 0.3)) for _ in range(4))
    if behaved:
        back, again, odd = 1, 0, 0
    rows = []
    while len(rows) < count:
        name, draw = rng.choice(names), rng.random()
        acks = [clock for clock, flags in past[name] if flags == ACK]
        if draw < odd / 3:
            rows.append((rng.choice((name, Z)), 0, rng.choice((0, 1, 2, 512))))
        elif draw < odd / 2:
            rows.append((name, clocks[name], rng.choice((3, 512, 1023))))
        elif draw < odd and acks:
            rows.append((name, rng.choice(acks[-2:]), ACK))
        elif rng.random() < again:
            rows += [(name, *row) for row in past[name][-rng.randrange(1, 5) :]]
        else:
            clocks[name] = max(clocks[name] + rng.randrange(back, 4), 1)
            draw = rng.random()
            flags = ACK if draw < ends else OUTSIDE if draw < ends + outsiders else 1
            rows.append((name, clocks[name], flags))
            past[name].append((clocks[name], flags))
    log, offset = [], 0
    for name, clock, flags in rows[:count]:
        offset += rng.choice((0, 0, 7))
        size = rng.randrange(5, 30)
        log.append(Envelope(journal, offset, offset + size, clock, Flags(flags), name, None))
        offset += size
    return log


def interleaved(rng, logs):
    """Return the rows of several journals in one order of reading."""
    logs, mixed = [list(log) for log in logs], []
    while any(logs):
        log = rng.choice([log for log in logs if log])
        size = rng.randrange(1, 20)
        mixed += log[:size]
        del log[:size]
    return mixed


# --- The Sequencer.


def process(sequencer, log, rng):
    """Yield what was processed so far, as of each message."""
    got = []
    while sequencer.replay_required:
        wanted = sequencer.replay_range()
        sequencer.start_replay()
        for row in copies(r for r in log if r.journal == wanted.journal):
            if rng.random() < 0.02:
                sequencer.abort_replay()
                break
            if wanted.begin <= row.begin < wanted.end and sequencer.offer_replay(row):
                got.append(row)
                yield got
        else:
            sequencer.finish_replay()
    while sequencer.step():
        got.append(sequencer.dequeued)
        yield got


def sequencer_agrees(rng, count):
    """Read several journals, with rings of any size, and checkpoints and restarts anywhere."""
    journals = ["a/journal", "b/journal"][: rng.randrange(1, 3)]
    log = interleaved(rng, [random_log(rng, count, journal) for journal in journals])
    ring = rng.choice((0, 1, 2, 3, 5, 8, 100))
    reference, sequencer = Reference(log, ring), Sequencer(buffer=ring)
    rest = log
    while rest:
        size = rng.randrange(1, 30)
        batch = [row for row in rest[:size] if row.journal == rest[0].journal]
        # Only journals are in an order, which are read in any.
        rest = [row for row in rest[:size] if row.journal != rest[0].journal] + rest[size:]
        checkpoint = read_batch(rng, sequencer, reference, batch)
        if isinstance(checkpoint, SequencerCheckpoint):
            ring = rng.choice((0, 1, 2, 3, 5, 8, 100))
            if rng.random() < 0.5:
                checkpoint = SequencerCheckpoint.from_proto(checkpoint.to_proto())
            sequencer = Sequencer.from_checkpoint(checkpoint, buffer=ring)
            reference = Reference(log, ring, checkpoint)
            rest = [r for r in log if r.begin >= checkpoint.offsets.get(r.journal, 0)]
        else:
            reference = checkpoint


def rewinding_agrees(rng, count):
    """Park the commits of journals that need a replay, and queue them again later, or restart."""
    journals = ["a/journal", "b/journal", "c/journal"][: rng.randrange(1, 4)]
    # Of others it depends on the ring which of several messages of one clock is delivered.
    logs = {journal: random_log(rng, count, journal, behaved=True) for journal in journals}
    want = {}
    for journal, log in logs.items():
        reference = Reference(log)
        want[journal] = [key(row) for each in log for row in reference.queue(each)[1]]
    got = {journal: [] for journal in journals}
    sequencer = Sequencer(buffer=rng.choice((0, 1, 2, 5)))
    at = dict.fromkeys(journals, 0)
    while any(at[journal] < count for journal in journals):
        journal = rng.choice([journal for journal in journals if at[journal] < count])
        log = logs[journal]
        batch = copies(log[at[journal] : at[journal] + rng.randrange(1, 20)])
        index = 0
        while index < len(batch):
            sequencer.queue_uncommitted(batch[index])
            index += 1
            rewound = sequencer.emitting and settle_or_rewind(rng, sequencer, log, got[journal])
            if rewound:
                # Other journals may be next, and so may be this one.
                assert sequencer.offsets.get(journal, 0) <= rewound.begin
                index = next(i for i, row in enumerate(batch) if row.begin == rewound.begin)
                break
        at[journal] += index
        if rng.random() < 0.1:
            checkpoint = SequencerCheckpoint.from_json(sequencer.checkpoint().to_json())
            sequencer = Sequencer.from_checkpoint(checkpoint, buffer=rng.choice((0, 1, 5)))
            for journal, log in logs.items():
                through = checkpoint.offsets.get(journal, 0)
                at[journal] = sum(row.begin < through for row in log)
    assert got == want


def settle_or_rewind(rng, sequencer, log, got):
    """Process a commit whole, or rewind it within its replay and return its last message."""

    if sequencer.replay_required:
        wanted = sequencer.replay_range()
        feed = copies(row for row in log if wanted.begin <= row.begin < wanted.end)
        fails_at = rng.randrange(len(feed) + 1) if rng.random() < 0.6 else -1
        begun = rng.random() < 0.8
        if begun:
            sequencer.start_replay()
            for fed, row in enumerate(feed):
                if fed == fails_at:
                    break
                if sequencer.offer_replay(row):
                    got.append(key(row))
        if fails_at >= 0 or not begun:
            if begun and rng.random() < 0.5:
                sequencer.abort_replay()
            offset = sequencer.rewind()
            assert not sequencer.emitting
            return next(row for row in log if row.begin == offset)
        sequencer.finish_replay()
    while sequencer.step():
        got.append(key(sequencer.dequeued))
    return None


def read_batch(rng, sequencer, reference, rows):
    """Return the reference behind rows, or a checkpoint among them."""
    batch, index = copies(rows), 0
    while index < len(rows):
        outcome = sequencer.queue_uncommitted(batch[index])
        part, index = rows[index : index + 1], index + 1
        rule, total = reference.copy().queue(part[0])
        assert outcome == rule.outcome
        assert sequencer.emitting == bool(total)
        chosen = rng.randrange(len(total) + 1) if rng.random() < 0.3 else len(total) + 1
        got = []
        for got in process(sequencer, reference.log, rng) if total else ():
            assert keys(got) == keys(total[: len(got)])
            if len(got) == chosen and sequencer.emitting:
                checkpoint = sequencer.checkpoint(include_dequeued=True)
                reference, part, expected = as_of(reference, part, chosen, checkpoint.offsets)
                assert states_in(checkpoint) in expected
                assert not sequencer.has_pending
                if rng.random() < 0.3:
                    return checkpoint
                reference.pending.clear()
                chosen = -1
        assert len(got) == len(total)
        for row in part:
            reference.queue(row)
        assert not sequencer.emitting
        assert sequencer.offsets == reference.offsets
        assert sequencer.has_pending == bool(reference.pending)
        assert f"producers={len(reference.bounds)} " in repr(sequencer)
        if rng.random() < 0.5:
            assert states_in(sequencer.checkpoint()) == reference.checkpoint()
            reference.pending.clear()
    return reference


def keys(rows):
    return [(row.journal, *key(row)) for row in rows]


def as_of(reference, rows, count, offsets):
    """Return when `count` messages are processed which rows commit, and nothing more.

    Returns:
        The reference as of before the row whose commit isn't finished, this and the rows behind
        it, and checkpoints: before anything is processed, one of rows which aren't queued yet is
        as good as one of the commit.
    """
    reference = reference.copy()
    for at, row in enumerate(rows):
        ahead = reference.copy()
        _, delivered = ahead.queue(row)
        if not count and reference.offsets.get(row.journal) == offsets.get(row.journal):
            within = [reference.within(row, 0)] if delivered else []
            return reference, rows[at:], [reference.checkpoint(), *within]
        if delivered and count < len(delivered):
            return reference, rows[at:], [reference.within(row, count)]
        processed, count = count, count - len(delivered)
        if delivered and not count:
            # In a replay, it isn't known yet that nothing of the commit follows.
            return ahead, rows[at + 1 :], [ahead.checkpoint(), reference.within(row, processed)]
        reference = ahead
    raise AssertionError("nothing is at these offsets")


# --- Columns of one journal.


class Expected:
    """What the table says of a log of one journal, of which everything is retained."""

    def __init__(self, log):
        reference = Reference(log)
        self.delivered = []  # By row, what it commits.
        self.checkpoints = []  # By message delivered, the offset and states as of then.
        self.bounds = [{}]  # By number of rows, the bounds of producers.
        for row in log:
            before = reference.copy()
            _, delivered = reference.queue(row)
            self.delivered.append(delivered)
            for count in range(1, len(delivered)):
                self.checkpoints.append(before.within(row, count))
            if delivered:
                self.checkpoints.append((dict(reference.offsets), states_of(reference.bounds)))
            self.bounds.append({int.from_bytes(p): b for (_, p), b in reference.bounds.items()})

    def state(self, log, rows):
        """Return the state behind so many rows."""
        return RangeState(log[rows - 1].end if rows else 0, self.bounds[rows])

    def begins(self, start=0, stop=None, *, acks=True):
        """Return begins of the messages which some rows commit."""
        rows = [row for delivered in self.delivered[start:stop] for row in delivered]
        return [row.begin for row in rows if acks or row.flags != ACK]


WAYS = {
    "rows": sequencer_agrees,
    "rewinding": rewinding_agrees,
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 90))
def test_all_ways_agree_with_the_table(way, seed, count):
    WAYS[way](random.Random(seed), count)
