"""Framings of users: the same messages by every reader, whatever a built-in framing has of its own."""

from __future__ import annotations

import itertools
import random

import pytest

from gazette_aio.message import (
    ACK_TXN,
    CSVFraming,
    FixedFraming,
    NDJSONFraming,
    Publisher,
    ReadCommittedIter,
    framing_by_content_type,
    json_adapter,
    raw_adapter,
    register_framing,
)
from gazette_aio.message.ranges.states import RangeState
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo, JournalRange
from gazette_aio.spark.planning.tasks import plan_tasks
from tests.message.fakes import FakeClient
from tests.message.framing.own_framings import (
    NDJSON,
    OWN_FRAMINGS,
    CommentFraming,
    SameFraming,
    SemicolonFraming,
)
from tests.message.publishing.batch_fakes import BatchAppends
from tests.message.ranges.test_range_records import RangeReader
from tests.message.reading.test_arrow import rows_of
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL
from tests.spark.histories import History, Run, options

RAW = raw_adapter("_meta.uuid")


@pytest.fixture(params=OWN_FRAMINGS, ids=lambda framing: type(framing).__name__)
def framing(request):
    before = framing_by_content_type(NDJSON)
    register_framing(request.param)
    yield request.param
    register_framing(before)


@pytest.fixture
def history(framing):
    rng = random.Random(1)
    return History(rng, "ndjson", sequencing.well_formed(rng, 120), encode=framing.encode)


@pytest.fixture
def client(history):
    client = FakeClient({JOURNAL: NDJSON}, chunk=100)
    client.journals[JOURNAL] += history.content
    return client


async def test_envelopes_and_arrow_batches(history, client):
    async with ReadCommittedIter(JOURNAL, RAW, client=client) as reader:
        items = [envelope async for envelope in reader if envelope.flags != ACK_TXN]
    assert [(item.begin, item.message) for item in items] == history.committed()
    async with ReadCommittedIter(JOURNAL, RAW, client=client) as reader:
        lists = [envelope async for batch in reader.batches() for envelope in batch]
    assert [envelope for envelope in lists if envelope.flags != ACK_TXN] == items
    async with ReadCommittedIter(JOURNAL, RAW, client=client) as reader:
        rows = [
            row async for batch in reader.arrow(max_pending_bytes=500) for row in rows_of(batch)
        ]
    assert [row[1:3] + row[6:] for row in rows] == [(e.begin, e.end, e.message) for e in items]


def test_ranges(framing, history):
    rng, size = random.Random(2), len(history.content)
    state, rows = RangeState(), []
    for end in (size // 3, size // 2, size):
        reader = RangeReader(rng, history.content, state, end, batch_bytes=300, framing=framing)
        rows += [row for batch in reader for row in batch]
        state = reader.reader.state
    assert rows == history.committed()


def test_tasks_of_spark(framing, history):
    rng, size = random.Random(3), len(history.content)
    edges = [0, *(row.end for row in history.log[30::30])]
    fragments = tuple(itertools.starmap(FragmentInfo, itertools.pairwise([*edges, size])))
    journal = JournalInfo(JOURNAL, size, NDJSON, fragments=fragments)
    assert journal.is_divisible is framing.is_lines
    planned = plan_tasks([JournalRange(journal, 0, size)], max_split_bytes=500)
    assert (len(planned) > len(fragments)) is framing.is_lines
    cuts = history.cuts(rng, 3)
    for tasks, expected in (
        (planned, history.all()),
        (history.committed_tasks(cuts), history.committed()),
        (history.split_tasks(cuts), history.committed()),
    ):
        runs = [Run(rng, history.content, task, options(), step_bytes=300) for task in tasks]
        assert sorted(row for run in runs for row in run.rows) == sorted(expected)


@pytest.mark.parametrize("batch", [False, True])
async def test_publishing(framing, batch):
    appends = BatchAppends()
    publisher = Publisher(appends, json_adapter(dict))
    messages = [{"n": number} for number in range(3)]
    if batch:
        await publisher.publish_committed_batch((JOURNAL, NDJSON), messages)
    else:
        for message in messages:
            await publisher.publish_committed(lambda _: (JOURNAL, NDJSON), message)
    decoder = framing.decoder()
    decoder.feed(bytes(appends.journals[JOURNAL]))
    documents = map(json_adapter(dict).decode, decoder.frames().payloads)
    assert [document["n"] for document in documents] == [0, 1, 2]
    assert framing.encode(b"x") == b"x" + framing.suffix or not framing.suffix


def declared(framing):
    return framing.suffix, framing.is_lines, framing.encodes_any, framing.splits


NOTHING = (b"", False, False, "frames")
LINES = (b"\n", True, False, "lines")


def test_what_built_in_framings_declare():
    assert declared(NDJSONFraming()) == LINES
    assert declared(FixedFraming()) == (b"", False, True, "fixed")
    assert declared(CSVFraming()) == (b"\n", False, True, "frames")


def test_a_framing_which_changes_frames_declares_them_anew():
    class Mixin:
        def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
            raise NotImplementedError

    class Mixed(Mixin, NDJSONFraming):
        pass

    class Decoding(FixedFraming):
        decoder = Mixin.decoder
        splits = "lines"

    class Encoding(FixedFraming):
        suffix = b"!"

        def encode(self, message):
            return super().encode(message) + b"!"

    class Named(Encoding):
        content_type = "text/named"

    assert declared(SameFraming()) == LINES
    assert declared(CommentFraming()) == NOTHING
    assert declared(SemicolonFraming()) == (b";", False, False, "frames")
    assert Mixed.is_lines is False
    assert declared(Decoding()) == (b"", False, False, "lines")
    assert declared(Encoding()) == declared(Named()) == (b"!", False, False, "frames")


def test_records_of_csv_in_ranges_may_have_any_width():
    class Same(CSVFraming):
        pass

    class Other(CSVFraming):
        decoder = SemicolonFraming.decoder

    strict = Same(lenient_eof=True)
    loose = strict.for_ranges()
    assert (type(loose), loose.lenient_eof, loose.same_width) == (Same, True, False)
    assert strict.same_width
    other = Other()
    assert other.for_ranges() is other


def test_only_framings_are_registered():
    with pytest.raises(ConfigurationError, match="expected a Framing, and not <class"):
        register_framing(NDJSONFraming)
