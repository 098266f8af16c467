"""States of producers at the ends of batches."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.ranges.committed import RangeState, advance
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN
from gazette_aio.protocol.errors import DataLossError
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo, JournalRange
from gazette_aio.spark.streaming import tail as tail_module
from gazette_aio.spark.streaming.tail import Move, QueryTail
from tests import extent

NDJSON = "application/x-ndjson"
FIXED = "application/x-protobuf-fixed"


class Content:
    """Messages of one journal, as scans of it tell: in chunks, with bad content in between."""

    def __init__(self, rng, messages, *, partial=0, bad=0.1, producers=3):
        self.rng = rng
        begins, ends = [], []
        offset = 0
        for _ in range(messages):
            while rng.random() < bad:
                offset += rng.randrange(1, 30)
            begins.append(offset)
            offset += rng.randrange(2, 40)
            ends.append(offset)
        self.head = offset + partial
        self.partial = partial
        clocks = 1000 + np.cumsum([rng.choice([1, 1, 2, 0]) for _ in range(messages)], dtype=int)
        self.columns = UuidColumns(
            np.array([rng.randrange(1, producers + 1) for _ in range(messages)], np.uint64),
            clocks.astype(np.uint64),
            np.array(
                [rng.choice([OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN]) for _ in range(messages)],
                np.uint16,
            ),
            np.array(begins, np.int64),
            np.array(ends, np.int64),
        )
        self.scanned = 0

    def journal(self, head=None, **kwargs):
        head = self.head if head is None else head
        return JournalInfo("a", head, kwargs.pop("content_type", NDJSON), **kwargs)

    def state(self, offset):
        rows = int(np.searchsorted(self.columns.end, offset, "right"))
        return advance(RangeState(), self.columns.slice(0, rows))

    async def scan(self, journal, begin, end, *, is_aligned):
        assert begin < end <= journal.head
        assert is_aligned or begin
        starts = np.searchsorted(self.columns.begin, [begin, end])
        row, stop = (int(start) for start in starts)
        while row < stop:
            chunk = self.columns.slice(row, min(row + self.rng.randrange(1, 20), stop))
            # What isn't complete at the head isn't told of.
            chunk = chunk.slice(0, int(np.searchsorted(chunk.end, journal.head, "right")))
            row += max(chunk.rows, 1)
            self.scanned += chunk.rows
            yield chunk

    async def ends_with_record(self, journal):
        if self.partial and journal.head > self.head - self.partial:
            return False
        begun = np.searchsorted(self.columns.begin, journal.head)
        return begun == np.searchsorted(self.columns.end, journal.head, "right")

    def tail(self):
        return QueryTail(self.scan, self.ends_with_record)


def move(journal, begin, end, state=None):
    state = RangeState(begin) if state is None else state
    return Move(JournalRange(journal, begin, end), state)


async def step(tail, *args, max_rows=None):
    (state,) = (await tail.advance([move(*args)], max_rows)).values()
    return state


@given(st.integers(), st.sampled_from([0, 5]), st.booleans(), st.booleans())
@extent.examples(50)
async def test_any_limits_give_the_states_of_one_scan(seed, partial, by_rows, forgetful):
    rng = random.Random(seed)
    content = Content(rng, rng.randrange(1, 120), partial=partial)
    tail, state, head = content.tail(), RangeState(), 0
    for _ in range(1000):
        head = min(head + rng.randrange(0, 2000), content.head)
        begin = state.offset
        if begin == head:
            if head == content.head:
                break
            continue
        if forgetful:
            tail = content.tail()
        journal = content.journal(head)
        if by_rows:
            state = await step(tail, journal, begin, head, state, max_rows=rng.randrange(1, 6))
        else:
            wanted = rng.randrange(begin, head) + 1
            state = await step(tail, journal, begin, wanted, state)
        assert begin <= state.offset <= head
        expected = content.state(state.offset)
        assert state.producers == expected.producers
        cut = np.searchsorted(content.columns.begin, state.offset)
        assert cut == np.searchsorted(content.columns.end, state.offset, "right"), (
            "a batch ends within no message"
        )
        if begin == state.offset and head == content.head:
            assert partial, "only a record which isn't complete holds a journal up"
            break
    assert state.offset == content.columns.end[-1] or state.offset == content.head or partial


@pytest.mark.parametrize("by_rows", [False, True])
async def test_limited_batches_scan_content_once(by_rows):
    content = Content(random.Random(1), 400, bad=0)
    tail, state, batches = content.tail(), RangeState(), []
    while state.offset < content.head:
        if by_rows:
            wanted, max_rows = content.head, 7
        else:
            wanted, max_rows = min(state.offset + 100, content.head), None
        end = await step(tail, content.journal(), state.offset, wanted, state, max_rows=max_rows)
        batches.append((state.offset, end.offset))
        state = end
    assert len(batches) > 50
    assert content.scanned == 400
    rows = np.searchsorted(content.columns.end, [end for _, end in batches], "right")
    counts = np.diff([0, *rows])
    if by_rows:
        assert set(counts[:-1]) == {7}
    else:
        lengths = [end - begin for begin, end in batches[:-1]]
        assert min(lengths) >= 100, "a record belongs to the batch which has its first byte"
        assert max(lengths) < 140
    assert state == content.state(content.head)


async def test_a_restart_goes_on_from_states():
    content = Content(random.Random(2), 300)
    text = RangeState().to_json()
    for cut in (0.2, 0.5, 1):
        state = RangeState.from_json(text)
        wanted = int(content.head * cut)
        state = await step(content.tail(), content.journal(), state.offset, wanted, state)
        text = state.to_json()
    assert content.scanned >= 300
    assert state == content.state(content.head)


async def test_a_journal_which_was_created_anew_is_scanned_anew():
    content = Content(random.Random(3), 100, bad=0)
    other = Content(random.Random(4), 100, bad=0)

    def scan(journal, *args, **kwargs):
        return (other if journal.create_revision else content).scan(journal, *args, **kwargs)

    tail = QueryTail(scan, content.ends_with_record)
    first = await step(tail, content.journal(), 0, content.head, max_rows=1)
    journal = other.journal(create_revision=7)
    again = await step(tail, journal, first.offset, other.head, max_rows=3)
    assert again.offset in other.columns.end
    assert other.scanned


async def test_bad_content_is_passed():
    content = Content(random.Random(5), 0)
    content.head = 1000
    state = await step(content.tail(), content.journal(), 0, 300)
    assert state == RangeState(300), "a limited batch goes on"
    state = await step(content.tail(), content.journal(), 300, 1000, state)
    assert state == RangeState(1000)


async def test_bad_content_is_passed_though_the_head_is_within_a_record():
    content = Content(random.Random(5), 1, partial=20, bad=0)
    content.columns.begin[0] += 100
    content.columns.end[0] += 100
    content.head += 100
    state = await step(content.tail(), content.journal(), 0, 30)
    assert state == RangeState(30), "there's a record behind it"


async def test_a_record_which_is_not_complete_is_waited_for():
    content = Content(random.Random(6), 10, partial=20, bad=0)
    tail = content.tail()
    whole = content.head - 20
    state = await step(tail, content.journal(), 0, content.head)
    assert state == content.state(whole)
    again = await step(tail, content.journal(), whole, content.head, state)
    assert again == state
    # The rest of it is appended.
    content.columns = content.columns.concat(
        UuidColumns(
            np.array([9], np.uint64),
            np.array([5000], np.uint64),
            np.array([OUTSIDE_TXN], np.uint16),
            np.array([whole], np.int64),
            np.array([whole + 50], np.int64),
        )
    )
    content.head, content.partial = whole + 50, 0
    state = await step(tail, content.journal(), whole, content.head, state)
    assert state == content.state(content.head)
    assert state.offset == content.head


async def test_other_framings_are_scanned_to_where_they_can_be_cut():
    content = Content(random.Random(7), 200, bad=0)
    ends = content.columns.end.tolist()
    cuts = [0, ends[50], ends[120], content.head]
    journal = content.journal(
        content_type=FIXED, fragments=tuple(FragmentInfo(*pair) for pair in pairwise(cuts))
    )
    tail, state = content.tail(), RangeState()
    for cut, rows in zip(cuts[1:], [51, 121, 200], strict=True):
        state = await step(tail, journal, state.offset, cut, state)
        assert state == content.state(cut)
        assert content.scanned == rows


async def test_rows_are_shared_by_journals():
    contents = {name: Content(random.Random(name), 100, bad=0) for name in "abc"}
    contents["a"] = Content(random.Random(8), 1000, bad=0)

    def scan(journal, begin, end, *, is_aligned):
        return contents[journal.name].scan(journal, begin, end, is_aligned=is_aligned)

    async def complete(journal):
        return True

    tail = QueryTail(scan, complete)
    states = {name: RangeState() for name in contents}
    counts = []
    for _ in range(1000):
        moves = [
            Move(
                JournalRange(
                    JournalInfo(name, contents[name].head, NDJSON),
                    state.offset,
                    contents[name].head,
                ),
                state,
            )
            for name, state in states.items()
            if state.offset < contents[name].head
        ]
        if not moves:
            break
        before = sum(c.state(states[n].offset).offset != 0 for n, c in contents.items())
        assert before in {0, 3}, "all of them go on"
        found = await tail.advance(moves, 60)
        counts.append(
            sum(
                int(
                    np.searchsorted(contents[name].columns.end, state.offset, "right")
                    - np.searchsorted(contents[name].columns.end, states[name].offset, "right")
                )
                for name, state in found.items()
            )
        )
        states |= found
    assert max(counts) <= 60
    assert sum(counts) == 1200
    assert states["a"] == contents["a"].state(contents["a"].head)


async def test_many_rows_are_sequenced_in_a_thread():
    rows = 50_000
    begins = np.arange(rows, dtype=np.int64) * 10
    columns = UuidColumns(
        np.ones(rows, np.uint64),
        np.arange(1, rows + 1).astype(np.uint64),
        np.full(rows, CONTINUE_TXN, np.uint16),
        begins,
        begins + 10,
    )

    async def scan(journal, begin, end, *, is_aligned):
        yield columns

    async def complete(journal):
        raise AssertionError

    state = await step(QueryTail(scan, complete), JournalInfo("a", rows * 10, NDJSON), 0, rows * 10)
    assert state == advance(RangeState(), columns)


async def test_losses_are_raised_and_nothing_is_kept():
    async def scan(journal, begin, end, *, is_aligned):
        raise DataLossError("gone", journal=journal.name, offset=begin, missing=((begin, end),))
        yield

    async def complete(journal):
        return True

    tail = QueryTail(scan, complete)
    with pytest.raises(DataLossError):
        await step(tail, JournalInfo("a", 10, NDJSON), 0, 10)
    assert repr(tail) == "<QueryTail, 0 messages of 0 journals ahead>"


async def test_what_was_read_ahead_of_vanished_journals_is_forgotten():
    content = Content(random.Random(9), 100, bad=0)
    tail = content.tail()
    await step(tail, content.journal(), 0, content.head, max_rows=1)
    assert "1 journals ahead" in repr(tail)
    tail.keep(["a"])
    assert "1 journals ahead" in repr(tail)
    tail.keep([])
    assert "0 journals ahead" in repr(tail)


@pytest.mark.parametrize("most", [1, 100, 10_000])
async def test_what_is_held_ahead_is_bounded(monkeypatch, most):
    monkeypatch.setattr(tail_module, "AHEAD_ROWS", most)
    contents = {name: Content(random.Random(name), 400, bad=0) for name in "ab"}

    def scan(journal, begin, end, *, is_aligned):
        return contents[journal.name].scan(journal, begin, end, is_aligned=is_aligned)

    def held():
        return int(repr(tail).split()[1])

    tail = QueryTail(scan, contents["a"].ends_with_record)
    states = {name: RangeState() for name in contents}
    for part in (0.1, 0.4, 0.45, 1):
        ranges = [
            JournalRange(
                JournalInfo(name, content.head, NDJSON),
                states[name].offset,
                int(content.head * part),
            )
            for name, content in contents.items()
        ]
        await tail.read_ahead(ranges)
        assert held() < most + 40, "a chunk more of each of them"
        before = [content.scanned for content in contents.values()]
        states = await tail.advance([Move(one, states[one.journal.name]) for one in ranges])
        assert held() <= max(most, 40)
        if most == 10_000:
            assert [content.scanned for content in contents.values()] == before, "all was there"
        for name, state in states.items():
            assert state == contents[name].state(state.offset)
    tail.keep([])
    assert tail.room == most


async def test_a_read_ahead_which_is_ended_keeps_what_it_has():
    content = Content(random.Random(11), 100, bad=0)
    reached, released = asyncio.Event(), asyncio.Event()

    async def scan(*args, **kwargs):
        async for columns in content.scan(*args, **kwargs):
            yield columns
            reached.set()
            await released.wait()

    tail = QueryTail(scan, content.ends_with_record)
    ranges = [JournalRange(content.journal(), 0, content.head)]
    task = asyncio.create_task(tail.read_ahead(ranges))
    await reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert content.scanned < 100
    released.set()
    assert await step(tail, content.journal(), 0, content.head) == content.state(content.head)
    assert content.scanned == 100
