"""Records of ranges which are cut anywhere, and their UUIDs."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import get_clock, get_flags, parse_uuid
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.spark.reading import scanning
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.reading.scanning import scan_uuids
from gazette_aio.testing import create_journals, journal_spec, no_leaks
from tests import extent
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL
from tests.spark.histories import TYPES, History, options, random_log

FORMS = ["ndjson", "csv", "protobuf-fixed"]


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield


def clipped(bounds, content, cuts=()):
    """Return begin and bytes of what bounds leave of the content."""
    edges = [bounds.begin, *(cut for cut in cuts if bounds.begin < cut < bounds.limit)]
    found, begin = b"", None
    for start, stop in zip(edges, [*edges[1:], bounds.limit], strict=True):
        if bounds.is_done:
            break
        offset, chunk = bounds.clip(start, content[start:stop])
        if chunk:
            begin = offset if begin is None else begin
            assert offset == begin + len(found)
            found += chunk
    return begin, found


def test_every_pair_of_cuts():
    """Each line is of the range which holds its first byte, whatever the cuts are."""
    rng = random.Random(1)
    lines = [b"x" * rng.randrange(8) + b"\n" for _ in range(50)]
    content = b"".join(lines)
    size = len(content)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    for begin in range(size):
        first = next(at for at in begins if at >= begin)
        for end in range(begin + 1, size + 1):
            last = next(at for at in begins if at >= end)
            bounds = RecordBounds(begin, end, size, lines=True, is_aligned=False)
            cuts = range(size) if (begin + end) % 97 == 0 else ()
            expected = (first, content[first:last]) if first < end else (None, b"")
            assert clipped(bounds, content, cuts) == expected
            assert bounds.is_done


@pytest.mark.parametrize("lines", [True, False])
def test_aligned_ranges(lines):
    content = b"aa\nbb\ncc\n"
    bounds = RecordBounds(3, 6, 9, lines=lines, is_aligned=True)
    assert bounds.begin == 3
    assert clipped(bounds, content) == (3, b"bb\n")
    assert bounds.is_done
    assert RecordBounds(3, 3, 9, lines=lines, is_aligned=True).is_done


def test_content_behind_a_gap_begins_with_a_record():
    content = b"aaaa\nbbbb\ncccc\n"
    # Of (where content goes on, end of the range): what's left of it.
    for at, end, expected in ((5, 6, b"bbbb\n"), (5, 11, b"bbbb\ncccc\n"), (10, 10, b"")):
        bounds = RecordBounds(1, end, 15, lines=True, is_aligned=False)
        assert bounds.clip(at, content[at:])[1] == expected
        assert bounds.is_done
    # The rest of the last record is lost.
    bounds = RecordBounds(0, 7, 15, lines=True, is_aligned=True)
    assert bounds.clip(0, content[:8]) == (0, content[:8])
    assert not bounds.is_done
    assert bounds.clip(10, content[10:])[1] == b""
    assert bounds.is_done


async def create(client, history, **fragment):
    spec = journal_spec(JOURNAL, labels={"content-type": TYPES[history.form]})
    for name, value in fragment.items():
        setattr(spec.fragment, name, value)
    await create_journals(client, spec)
    await client.append(JOURNAL, history.content)


async def scan(client, history, begin, end, **given):
    """Return the UUIDs of a range as one."""
    found = []
    head = len(history.content)
    content_type = TYPES[history.form]
    scanned = scan_uuids(
        client,
        JOURNAL,
        content_type,
        begin,
        end,
        options(**given),
        is_aligned=begin == 0,
        head=head,
    )
    async with aclosing(scanned) as parts:
        async for columns in parts:
            assert columns.rows
            found.append(columns)
    return UuidColumns._make(map(np.concatenate, zip(UuidColumns.of([]), *found, strict=True)))


@pytest.mark.parametrize("form", FORMS)
async def test_uuids_of_ranges(gazette_client, form, monkeypatch):
    monkeypatch.setattr(scanning, "STEP_BYTES", 100)
    seed = extent.seed()
    rng = random.Random(seed)
    history = History(rng, form, random_log(rng, 200), bad=0.1)
    await create(gazette_client, history)
    for _ in range(5):
        cuts = history.cuts(rng, 4)
        for begin, end in itertools.pairwise(cuts):
            found = await scan(gazette_client, history, begin, end)
            for name, column in history.rows_within(begin, end)._asdict().items():
                assert getattr(found, name).tolist() == column.tolist(), seed


async def test_uuids_of_messages_longer_than_what_is_asked_for_with_a_range(gazette_client):
    """The last one is read up to its end, wherever that is."""
    rng = random.Random(1)
    history = History(rng, "ndjson", sequencing.parse("A1o A2o"))
    at = history.log[1].begin
    history.content = history.content[:-2] + b',"x":"' + b"y" * 200_000 + b'"}\n'
    await create(gazette_client, history)
    found = await scan(gazette_client, history, 0, at + 1)
    assert found.begin.tolist() == [0, at]
    assert found.end.tolist() == [at, len(history.content)]
    assert (await scan(gazette_client, history, at + 1, at + 100)).rows == 0
    history.content = history.content[:-1]  # As if it weren't complete yet.
    assert (await scan(gazette_client, history, 0, at + 1)).begin.tolist() == [0]


async def test_uuids_between_bad_records_come_together(gazette_client):
    rng = random.Random(1)
    history = History(rng, "ndjson", sequencing.well_formed(rng, 200), bad=0.5)
    await create(gazette_client, history)
    size = len(history.content)
    scanned = scan_uuids(
        gazette_client, JOURNAL, TYPES["ndjson"], 0, size, options(), is_aligned=True, head=size
    )
    assert [columns.rows async for columns in scanned] == [len(history.log)]


async def test_raw_messages_without_uuids(gazette_client):
    rng = random.Random(1)
    history = History(rng, "ndjson", sequencing.parse("A1c A2k"), bad=1.0)
    await create(gazette_client, history)
    found = await scan(gazette_client, history, 0, len(history.content), format="raw")
    uuid = parse_uuid(history.payloads[0].decode().split('"')[5])
    assert found.clock.tolist()[:2] == [get_clock(uuid), 0]
    assert found.flags.tolist() == [get_flags(uuid), 0, 2]


async def test_content_which_is_not_made_of_messages(gazette_client):
    scanned = scan_uuids(
        gazette_client, JOURNAL, "a/type", 0, 9, options(), is_aligned=True, head=9
    )
    with pytest.raises(
        pb.ConfigurationError, match=r"test/journal: there is no framing for content type 'a/type'"
    ):
        await anext(scanned)


async def test_an_early_end(gazette_client):
    rng = random.Random(1)
    history = History(rng, "ndjson", sequencing.well_formed(rng, 500))
    await create(gazette_client, history)
    size = len(history.content)
    bounds = RecordBounds(0, size, size, lines=True, is_aligned=True)
    content = RangeContent(gazette_client, JOURNAL, bounds, options(), step_bytes=100)
    assert repr(content) == f"<RangeContent of {JOURNAL} up to {size}, at 0>"
    async with content:
        pieces = await content.take()
        assert pieces[0][0] == 0
    await content.aclose()
    assert repr(content) == f"<RangeContent of {JOURNAL} up to {size}, closed>"
    assert gazette_client.status().streams == ()
