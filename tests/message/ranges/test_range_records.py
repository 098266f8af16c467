"""Ranges of a journal: from bytes, cut anywhere, to what one reader delivers."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from gazette_aio.message import build_uuid, framing_by_content_type, raw_adapter
from gazette_aio.message.columns.outputs import columns_of
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.ranges.committed import (
    CommittedRange,
    ProducerBounds,
    RangeState,
    advance,
)
from gazette_aio.protocol import JournalSpec
from gazette_aio.protocol.errors import ReplayError
from tests import extent
from tests.message.ranges.readers import FORMAT, deliver_range, frames
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL

ACK = 2
FRAMING = framing_by_content_type("application/x-ndjson")


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

    def __init__(self, rng, content, state, end, *, batch_bytes, framing=FRAMING, **settings):
        adapter = raw_adapter("_meta.uuid")
        journal_format = JournalFormat(JOURNAL, Origin(JournalSpec()), framing, adapter)
        self.reader = CommittedRange(journal_format, state, **settings)
        self.replays = []
        self._rng = rng
        self._content = content
        self._begin = state.offset
        self._end = end
        self._batch_bytes = batch_bytes

    def __iter__(self):
        """Yield begins and bytes of the messages of each batch, without acknowledgements."""
        for chunk, begin in self._chunks(self._begin, self._end):
            self.reader.feed(chunk, begin)
            yield from self._batches()
        self.reader.core.settle_all()

    def _batches(self):
        reader = self.reader
        while (found := reader.read(self._batch_bytes)) is not None or reader.replay is not None:
            if found is None:
                self._read_again(reader.replay)
            elif not isinstance(found, str):
                rows = list(self._rows(found))
                # As of the rows which are yielded.
                count = self._rng.randrange(1, len(rows) + 1)
                for part in (rows[:count], rows[count:]):
                    if part:
                        reader.core.settle(found, part[0][0], part[-1][0] + 1)
                        yield [row[1:3] for row in part if row[3] != ACK]

    def _rows(self, batch):
        columns = columns_of(batch)
        payloads = batch.payloads(0, len(batch))
        return zip(
            range(len(batch)), columns.begin.tolist(), payloads, columns.flags.tolist(), strict=True
        )

    def _read_again(self, replay):
        wanted = replay.open()
        if wanted is None:
            replay.end()
            return
        chunks = self._chunks(*wanted)
        if self._rng.random() < 0.2 and len(chunks) > 1:
            replay.feed(*chunks[0])  # Where reading fails, it starts over.
            replay.abort()
            wanted = replay.open()
            chunks = self._chunks(*wanted)
        self.replays.append(wanted)
        for chunk, begin in chunks:
            replay.feed(chunk, begin)

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
            limit = rng.choice(({}, {"max_pending_bytes": 300}))
            reader = RangeReader(
                rng, content, state, end, batch_bytes=rng.choice((1, 300)), **limit
            )
            got += [row for batch in reader for row in batch]
            if not limit:
                assert all(stop == state.offset for _, stop in reader.replays), seed
            read_again += len(reader.replays)
            state = RangeState.from_json(json.loads(json.dumps(reader.reader.state.to_json())))
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
                    state, stopped = reader.reader.state, True
                    break
        assert got == expected(content, log), seed


def test_what_was_a_duplicate_is_not_delivered():
    """The state tells of pending messages before the range, which a second reading has to heed."""
    log = sequencing.parse("A5c A7c A6c A6k")
    state = advance(RangeState(), sequencing.columns(log[:3]))
    assert state == RangeState(300, {int.from_bytes(sequencing.A): ProducerBounds(4, 7, 0)})
    delivered, spans, _ = deliver_range(random.Random(1), state, sequencing.columns(log[3:]), log)
    assert (delivered, spans) == ([0, 300], [(0, 300)])


def test_a_second_reading_which_fails_is_started_over():
    """Also behind a clock which is larger than the acknowledgement's."""
    rows = sequencing.columns(sequencing.parse("A5c A6c A9c A7k"))
    before, after = rows.slice(0, 3), rows.slice(3)
    reader = CommittedRange(FORMAT, advance(RangeState(), before))
    reader.core.feed_frames(frames(after))

    def read():
        found = reader.read(1 << 20)
        assert found is not None
        return columns_of(found).begin.tolist()

    assert reader.read(1 << 20) is None
    assert reader.replay.open() == (0, 300)
    reader.core.feed_replay_frames(frames(before))
    assert read() == [0, 100]
    reader.replay.abort()
    assert reader.replay.open() == (100, 300)  # From where it's at.
    reader.core.feed_replay_frames(frames(rows.slice(1)))
    with pytest.raises(ReplayError, match="wrong End"):
        reader.read(1 << 20)
    reader.replay.abort()
    assert reader.replay.open() == (100, 300)
    reader.core.feed_replay_frames(frames(before.slice(1)))
    assert reader.read(1 << 20) == "progress"
    reader.replay.end()
    assert read() == [300]
