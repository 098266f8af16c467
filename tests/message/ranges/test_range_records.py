"""Ranges of a journal as record batches: from bytes, cut anywhere, to what one reader delivers."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from gazette_aio.message import build_uuid, framing_by_content_type, raw_adapter
from gazette_aio.message.columnar.journal import JournalRecords
from gazette_aio.message.columnar.outputs import RecordOptions
from gazette_aio.message.ranges.committed import (
    CommittedRange,
    ProducerBounds,
    RangeState,
    ReplayFilter,
    advance,
)
from gazette_aio.protocol.errors import ReplayError
from tests import extent
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL

ACK = 2


def content_of(log):
    """Return lines of a log's messages, and the log with the offsets which these have."""
    content, placed = b"", []
    for number, row in enumerate(log):
        uuid = build_uuid(row.producer, row.clock, row.flags)
        line = f'{{"_meta":{{"uuid":"{uuid}"}},"n":{number}}}\n'.encode()
        placed.append(
            sequencing.envelope(len(content), len(line), row.clock, row.flags, row.producer)
        )
        content += line
    return content, placed


def expected(content, log):
    """Return begin and bytes of the messages which a Sequencer delivers, without their framing."""
    ends = {row.begin: row.end for row in log if row.flags != ACK}
    delivered = [begin for begin, _, _ in sequencing.Scalar(log).delivered if begin in ends]
    return [(begin, content[begin : ends[begin] - 1]) for begin in delivered]


class RangeReader:
    """Reads `[state.offset, end)` of the content, in chunks of any size."""

    def __init__(self, rng, content, state, end, *, batch_bytes, max_pending_bytes=None):
        self.sequencer = CommittedRange(JOURNAL, state, max_pending_bytes=max_pending_bytes)
        self.replays = []
        self._rng = rng
        self._content = content
        self._begin = state.offset
        self._end = end
        options = RecordOptions(
            adapter=raw_adapter("_meta.uuid"),
            documents=None,
            acks=False,
            skip_errors=False,
            strict_uuid=False,
            max_frame_bytes=1 << 20,
            batch_bytes=batch_bytes,
        )
        self.records = JournalRecords(
            JOURNAL,
            framing_by_content_type("application/x-ndjson"),
            state.offset,
            options,
            sequencer=self.sequencer,
            explain=lambda error: error,
        )

    def __iter__(self):
        """Yield begins and bytes of the messages of each batch."""
        for chunk, begin in self._chunks(self._begin, self._end):
            self.records.feed(chunk, begin)
            yield from self._batches()

    def checkpoint(self):
        """Return the state as of the batches which were yielded."""
        return RangeState.from_producers(*self.records.checkpoint())

    def _batches(self):
        records = self.records
        while True:
            batch = records.take()
            if batch is not None:
                columns = (batch.column("_begin"), batch.column("_value"))
                yield list(zip(*(column.to_pylist() for column in columns), strict=True))
                continue
            replay = records.replay
            if replay is None:
                if not records.work():
                    return
                continue
            wanted = replay.open()
            if wanted is not None:
                self._read_again(replay, wanted)
            records.work()

    def _read_again(self, replay, wanted):
        self.replays.append((wanted.begin, wanted.end))
        chunks = self._chunks(wanted.begin, wanted.end)
        if self._rng.random() < 0.2 and len(chunks) > 1:
            replay.feed(*chunks[0])  # Where reading fails, it starts over.
            replay.abort()
            replay.open()
        for chunk, begin in chunks:
            replay.feed(chunk, begin)
        replay.end()

    def _chunks(self, begin, end):
        cuts = sorted({begin, end, *(self._rng.randrange(begin, end + 1) for _ in range(3))})
        return [(self._content[a:b], a) for a, b in pairwise(cuts)]


def random_log(rng):
    kind = rng.choice((sequencing.well_formed, sequencing.wild))
    return content_of(kind(rng, rng.randrange(1, 40)))


def test_ranges_of_bytes():
    read_again = 0
    for seed in extent.seeds(40):
        rng = random.Random(seed)
        content, log = random_log(rng)
        ends = sorted({len(content), *(rng.randrange(len(content)) for _ in range(3))})
        state, got = RangeState(), []
        for end in ends:
            if end <= state.offset:
                continue
            limit = rng.choice((None, 100))
            reader = RangeReader(
                rng, content, state, end, batch_bytes=rng.choice((1, 300)), max_pending_bytes=limit
            )
            got += [row for batch in reader for row in batch]
            if limit is None:
                assert all(stop == state.offset for _, stop in reader.replays), seed
            read_again += len(reader.replays)
            state = RangeState.from_json(json.loads(json.dumps(reader.sequencer.state.to_json())))
            assert state == reader.checkpoint(), seed
            assert state.offset == max((r.end for r in log if r.end <= end), default=0), seed
        assert got == expected(content, log), seed
    assert read_again, "ranges begin within transactions"


def test_a_range_goes_on_from_a_checkpoint():
    """Wherever a reader stops, another one goes on with the next message."""
    for seed in extent.seeds(25):
        rng = random.Random(seed)
        content, log = random_log(rng)
        state, got, stopped = RangeState(), [], True
        while stopped:
            stopped = False
            reader = RangeReader(rng, content, state, len(content), batch_bytes=1)
            for batch in reader:
                got += batch
                if rng.random() < 0.2:
                    state, stopped = reader.checkpoint(), True
                    break
        assert got == expected(content, log), seed


def test_what_was_a_duplicate_is_not_delivered():
    """The state tells of pending messages before the range, which a second reading has to heed."""
    log = sequencing.parse("A5c A7c A6c A6k")
    state = RangeState(300, {int.from_bytes(sequencing.A): ProducerBounds(4, 7, 0)})
    sequencer = CommittedRange(JOURNAL, state)
    plan = sequencer.process(sequencing.columns(log[3:]))
    replay = ReplayFilter(plan.replay, JOURNAL)
    kept = [replay.keep(sequencing.columns([row])).tolist() for row in log[:3]]
    assert kept == [[0], [], []]
    assert replay.tail(plan.table.take(plan.replay.tail)).tolist() == [0]


def test_a_second_reading_which_fails_is_started_over():
    """Also behind a clock which is larger than the acknowledgement's."""
    rows = sequencing.columns(sequencing.parse("A5c A6c A9c A7k"))
    before, after = rows.slice(0, 3), rows.slice(3)
    reader = CommittedRange(JOURNAL, advance(RangeState(), before))
    plan = reader.process(after)
    replay = ReplayFilter(plan.replay, JOURNAL)
    with pytest.raises(ReplayError, match="wrong End"):
        replay.keep(before.concat(after))
    assert replay.begin == 0
    assert before.begin[replay.keep(before)].tolist() == [0, 100]
    again = before.slice(1)  # From where it's at.
    assert replay.keep(again).tolist() == []
    assert replay.tail(plan.table.take(plan.replay.tail)).tolist() == [0]
    assert repr(replay) == f"<ReplayFilter of {sequencing.A.hex()} in {JOURNAL} [300, 300)>"


def test_forgotten_producers_of_before_the_range():
    """Once a checkpoint forgot a producer, its messages before the range don't commit any more."""
    day = 24 * 3600 * 10**9
    now = (10 * day // 100) << 4
    a, b = sequencing.A, sequencing.B
    rows = [(0, 10, 5, 1, a), (10, 10, now, ACK, b), (20, 10, 6, ACK, a)]
    before, other, ack = (sequencing.columns([sequencing.envelope(*row)]) for row in rows)
    for horizon, committed in ((0, [0, 20]), (day, [20])):
        reader = CommittedRange(JOURNAL, advance(RangeState(), before))
        reader.process(other)
        reader.checkpoint(horizon)
        plan = reader.process(ack)
        got = plan.table.begin[plan.rows].tolist()
        if plan.replay is not None:
            got += before.begin[ReplayFilter(plan.replay, JOURNAL).keep(before)].tolist()
            got += plan.table.begin[plan.replay.tail].tolist()
        assert got == committed
