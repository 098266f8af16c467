"""Random logs, and a driver of a sequencer over them."""

from __future__ import annotations

from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
from gazette_aio.message.sequencing.sequencer import Sequencer
from gazette_aio.message.uuid import Flags

JOURNAL = "test/journal"
MANY = 1 << 60
A, B, C, Z = b"\x01AAAAA", b"\x01BBBBB", b"\x01CCCCC", b"\0" * 6
PRODUCERS = {"A": A, "B": B, "C": C, "Z": Z}
FLAGS = {"o": 0, "c": 1, "k": 2, "x": 3}


def envelope(offset, size, clock, flags, producer):
    return Envelope(JOURNAL, offset, offset + size, clock, Flags(flags), producer, None)


def parse(text):
    """Rows of a text as `A1c A2k`, each of 100 bytes."""
    return [
        envelope(100 * i, 100, int(word[1:-1]), FLAGS[word[-1]], PRODUCERS[word[0]])
        for i, word in enumerate(text.split())
    ]


def name(row):
    kind = {0: "o", 1: "c", 2: "k"}.get(int(row.flags), "x")
    return f"{next(k for k, v in PRODUCERS.items() if v == row.producer)}{row.clock}{kind}"


def well_formed(rng, count):
    """Rows of producers which write transactions and others, with re-appended blocks."""
    log, history = [], {}
    producers = [A, B, C][: rng.randrange(1, 4)]
    clocks = {p: rng.randrange(1, 50) for p in producers}
    is_open = dict.fromkeys(clocks, False)
    longer = rng.choice((0.5, 0.9))
    duplicates = rng.choice((0, 0.08))
    offset = 0

    def add(producer, clock, flags):
        nonlocal offset
        offset += rng.choice((0, 0, 7))
        size = rng.randrange(5, 30)
        log.append(envelope(offset, size, clock, flags, producer))
        offset += size

    while len(log) < count:
        producer = rng.choice(producers)
        past = history.setdefault(producer, [])
        draw = rng.random()
        if draw < duplicates and past:
            for clock, flags in past[-rng.randrange(1, 5) :]:
                add(producer, clock, flags)
            continue
        if draw > 0.97:
            add(rng.choice((Z, A)), 0, rng.choice((0, 1, 2)))
            continue
        clocks[producer] += rng.randrange(1, 4)
        if not is_open[producer] and rng.random() < 0.3:
            flags = 0
        else:
            flags = 2 if is_open[producer] and rng.random() > longer else 1
        is_open[producer] = flags == 1
        add(producer, clocks[producer], flags)
        past.append((clocks[producer], flags))
    return log


def wild(rng, count):
    """Rows of arbitrary flags, whose clocks often fall back."""
    log, offset = [], 0
    clocks = dict.fromkeys((A, B, C), 20)
    back = rng.choice((-8, -2, 0))
    for _ in range(count):
        producer = rng.choice((A, B, C))
        clocks[producer] = max(clocks[producer] + rng.randrange(back, 4), 0)
        offset += rng.choice((0, 3))
        flags = rng.choice((0, 1, 1, 1, 1, 1, 2, 2, 3, 512))
        log.append(envelope(offset, 10, clocks[producer], flags, producer))
        offset += 10
    return log


def outside(rng, count):
    """Rows which are mostly outside of transactions."""
    log = wild(rng, count)
    for row in log:
        if rng.random() < 0.7:
            row.flags = Flags(0)
            row.clock += row.begin // 10
    return log


def columns(rows):
    return UuidColumns.of(rows)


def key(row):
    return row.begin, row.clock, row.producer


def naively_committed(log):
    """Return the keys of the committed rows of a log: a model without a ring, and in few lines."""
    pending, floor, committed = {}, {}, []
    for row in log:
        if row.clock == 0:
            committed.append(key(row))
            continue
        low = floor.setdefault(row.producer, row.clock - 1)
        span = pending.setdefault(row.producer, [])
        if row.flags == 1:
            if row.clock > max([low, *(each.clock for each in span)]):
                span.append(row)
        elif row.clock > low:
            committed += [key(each) for each in (span if row.flags == 2 else ())] + [key(row)]
            floor[row.producer] = row.clock
            span.clear()
        elif row.flags == 2:
            floor[row.producer] = row.clock
            span.clear()
    return committed


def state_set(states):
    """Comparable states: a set, so that order doesn't matter."""
    found = {(s.producer, s.last_ack, s.begin, s.max_clock) for s in states}
    assert len(found) == len({s[0] for s in found})
    return found


def copies(log):
    return [Envelope(*(getattr(e, f) for f in Envelope.__struct_fields__)) for e in log]


def drain(sequencer, log):
    """Yield what a scalar sequencer delivers, row by row."""
    if sequencer.replay_required:
        wanted = sequencer.replay_range()
        sequencer.start_replay()
        for row in log:
            if wanted.begin <= row.begin < wanted.end and sequencer.offer_replay(row):
                yield row
        sequencer.finish_replay()
    while sequencer.step():
        yield sequencer.dequeued


class Scalar:
    """What the scalar sequencer delivers of a log, and its state at each point."""

    def __init__(self, log, *, ring=MANY, checkpoint=None, checkpoint_at=None, horizon=0):
        sequencer = Sequencer.from_checkpoint(checkpoint or SequencerCheckpoint(), buffer=ring)
        self.delivered = []
        self.checkpoints = []  # By number of rows delivered, if `checkpoint_at` says so.
        self.behind = []  # Number delivered, and whether rows are pending, by rows read.
        self.states = []  # By rows read.
        start = sequencer.offsets.get(JOURNAL, 0)
        for row in copies(log):
            if row.begin < start:
                continue
            sequencer.queue_uncommitted(row)
            for got in drain(sequencer, log):
                self.delivered.append(key(got))
                taken = None
                if checkpoint_at is None or len(self.delivered) in checkpoint_at:
                    point = sequencer.checkpoint(horizon, include_dequeued=True)
                    taken = point.offsets.get(JOURNAL, 0), state_set(point.producers)
                self.checkpoints.append(taken)
            self.behind.append((len(self.delivered), sequencer.has_pending))
        end = sequencer.checkpoint()
        self.end = end.offsets.get(JOURNAL, 0), state_set(end.producers)
