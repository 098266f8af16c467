"""Summaries of splits: what they say, and which are remembered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.ranges.committed import (
    RangeState,
    RangeSummary,
    advance,
    plan_splits,
    summarize,
)
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, ProducerID
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning import summaries
from gazette_aio.spark.planning.journal_ranges import JournalRange, join_last, split_range
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.spark.planning.summaries import (
    SummaryCache,
    plan_ranges_of_splits,
    summarize_splits,
)
from gazette_aio.testing import create_journals, journal_spec
from tests.spark.journals import line

ONE, TWO = (ProducerID(bytes([5, 0, 0, 0, 0, number])) for number in (1, 2))
CLOCK = 0x1E51B8D5B8F00000
PARTS = [
    [(ONE, 1, CONTINUE_TXN), (TWO, 1, CONTINUE_TXN), (TWO, 2, OUTSIDE_TXN)],
    [(ONE, 2, CONTINUE_TXN), (TWO, 3, CONTINUE_TXN), (ONE, 3, ACK_TXN)],
    [(ONE, 4, CONTINUE_TXN), (TWO, 4, ACK_TXN)],
]


def options(**given):
    return SourceOptions.parse(
        {"brokers": "http://localhost:1", "prefix": "a/", "fetchTimeout": "1s", **given},
        streaming=False,
    )


@pytest.fixture(autouse=True)
def _forget():
    summaries.SUMMARIES.clear()
    yield
    summaries.SUMMARIES.clear()


@pytest.fixture
def scans(monkeypatch):
    """Counts the scans of each range."""
    counts = Counter()
    real = summaries.scan_uuids

    def scan_uuids(client, journal, content_type, begin, end, *args, **kwargs):
        counts[journal, begin, end] += 1
        return real(client, journal, content_type, begin, end, *args, **kwargs)

    monkeypatch.setattr(summaries, "scan_uuids", scan_uuids)
    return counts


class Written:
    """A journal of a part in each fragment, the last of which is local to the broker."""

    def __init__(self, broker, client):
        self.broker = broker
        self.client = client
        self.rows = []

    async def write(self, part):
        content = b""
        (listed,) = await self.journals()
        for producer, clock, flags in part:
            frame = line(producer, CLOCK + (clock << 4), clock, flags)
            begin = listed.head + len(content)
            content += frame
            self.rows.append(
                Envelope(
                    "a/journal",
                    begin,
                    begin + len(frame),
                    CLOCK + (clock << 4),
                    flags,
                    producer,
                    None,
                )
            )
        await self.client.append("a/journal", content)

    async def persist(self):
        await self.broker.flush("a/journal")
        await self.broker.refresh("a/journal")

    async def journals(self):
        return await list_journals(self.client, options(), fragments=True)

    async def splits(self):
        (info,) = await self.journals()
        return split_range(JournalRange(info, 0, info.head), 1)

    @property
    def columns(self):
        return UuidColumns.of(self.rows)


@pytest.fixture
async def written(gazette_broker, gazette_client):
    spec = journal_spec(
        "a/journal", stores=["file:///"], labels={"content-type": "application/x-ndjson"}
    )
    await create_journals(gazette_client, spec)
    written = Written(gazette_broker, gazette_client)
    for number, part in enumerate(PARTS):
        await written.write(part)
        if number < 2:
            await written.persist()
    return written


async def test_summaries_tell_what_the_content_does(written):
    splits = await written.splits()
    assert len(splits) == 3
    found = await summarize_splits(written.client, splits, options())
    at = 0
    for part, summary in zip(PARTS, found, strict=True):
        columns = written.columns.slice(at, at + len(part))
        assert summary == summarize(columns)
        at += len(part)
    assert plan_splits(RangeState(0), found).state == advance(RangeState(0), written.columns)


async def test_of_the_last_split_only_what_decides_is_scanned(written, monkeypatch):
    monkeypatch.setattr(summaries, "AHEAD_STEP_BYTES", 1)
    first, second, third = await written.splits()
    known, ahead = await summarize_splits(written.client, [first, second], options())
    seen = []
    real = summaries.summarize

    def counted(columns, before):
        seen.extend(columns.begin.tolist())
        return real(columns, before)

    monkeypatch.setattr(summaries, "summarize", counted)
    splits = join_last([first, second, third], first.size + second.size)
    assert [split.end for split in splits] == [first.end, third.end]
    (plan,) = await plan_ranges_of_splits(written.client, [splits], options())
    assert plan == plan_splits(RangeState(), [known], ahead)
    assert plan.is_decided(ahead)
    assert seen == [row.begin for row in written.rows if first.end <= row.begin < second.end]


async def test_a_last_split_which_was_scanned_to_its_end_is_remembered(written, scans):
    """As where a publisher died, whose transaction stays open."""
    await written.persist()
    await written.write([(ONE, 5, CONTINUE_TXN)])
    await written.persist()
    splits = (await written.splits())[2:]
    assert len(splits) == 2
    for _ in range(2):
        (plan,) = await plan_ranges_of_splits(written.client, [splits], options())
        assert not plan.is_decided(RangeSummary())
    assert list(scans.values()) == [1, 1]


async def test_where_nothing_is_pending_the_last_split_is_not_scanned(written, scans):
    first, second, _ = await written.splits()
    splits = [first._replace(begin=written.rows[2].begin), second]
    (plan,) = await plan_ranges_of_splits(written.client, [splits], options())
    assert [key[1] for key in scans] == [splits[0].begin]
    assert plan.is_decided(RangeSummary())


async def test_summaries_of_persisted_splits_are_remembered(written, scans):
    splits = await written.splits()
    keys = [("a/journal", split.begin, split.end) for split in splits]
    first = await summarize_splits(written.client, splits, options())
    assert scans == dict.fromkeys(keys, 1)
    assert await summarize_splits(written.client, splits, options()) == first
    # The last one is local to the broker, and lost if that is.
    assert scans == {keys[0]: 1, keys[1]: 1, keys[2]: 2}

    # The same content, read in another way or under another name, isn't the same.
    others = [
        options(uuid="/other"),
        options(failOnDataLoss="false"),
        options(token="secret"),
        replace(options(), connection=replace(options().connection, brokers=("http://other",))),
        options(fileRoot="/other"),
    ]
    for number, other in enumerate(others, 2):
        await summarize_splits(written.client, splits[:1], other)
        assert scans[keys[0]] == number
    # Content which was skipped as lost may be there the next time.
    await summarize_splits(written.client, splits[:1], others[1])
    assert scans[keys[0]] == number + 1


async def test_a_journal_which_was_created_again_is_another(written, scans):
    splits = await written.splits()
    await summarize_splits(written.client, splits[:1], options())
    again = [split._replace(journal=replace(split.journal, create_revision=99)) for split in splits]
    await summarize_splits(written.client, again[:1], options())
    assert scans["a/journal", splits[0].begin, splits[0].end] == 2


async def test_what_is_remembered_is_bounded(written, scans, monkeypatch):
    monkeypatch.setattr(summaries, "SUMMARIES", SummaryCache(3))
    splits = await written.splits()
    keys = [("a/journal", split.begin, split.end) for split in splits]
    for _ in range(2):
        for split in splits[:2]:
            await summarize_splits(written.client, [split], options())
    # Each has two producers.
    assert scans == {keys[0]: 2, keys[1]: 2}
    assert summaries.SUMMARIES.producers == 3
    await summarize_splits(written.client, splits[1:2], options())
    assert scans[keys[1]] == 2


async def test_lost_content_fails_or_is_left_out(written, tmp_path):
    splits = await written.splits()
    files = sorted((tmp_path / "fragments" / "a" / "journal").glob("*-*-*"))
    files[0].unlink()
    await written.broker.refresh("a/journal")
    with pytest.raises(pb.DataLossError) as raised:
        await summarize_splits(written.client, splits, options(fetchTimeout="100ms"))
    assert raised.value.missing == ((0, splits[0].end),)
    found = await summarize_splits(
        written.client, splits, options(failOnDataLoss="false", fetchTimeout="100ms")
    )
    assert found[0].transfers == {}
    assert found[1].transfers
