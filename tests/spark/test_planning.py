"""What a job reads: each record once, whichever way journals are cut and packed."""

from __future__ import annotations

import json
import logging
import pickle
import random
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.ranges.committed import (
    RangeState,
    plan_splits,
    summarize,
)
from gazette_aio.message.sequencing.sequencer import Sequencer
from gazette_aio.message.uuid import Flags, ProducerID
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.planning.journal_ranges import (
    FragmentInfo,
    JournalInfo,
    JournalRange,
    check_names,
    clip_fragments,
    cut_range,
    join_last,
    plan_ranges,
    skip_older,
    split_range,
)
from gazette_aio.spark.planning.tasks import (
    MIDDLE_BYTES,
    pack,
    plan_committed_tasks,
    plan_split_tasks,
    plan_tasks,
    size_partitions,
)
from gazette_aio.spark.reading.task import OPEN_BYTES, CommittedFrom, CommittedSplitOf
from tests.message.ranges.readers import deliver_range, deliver_split

NDJSON = "application/x-ndjson"
FIXED = "application/x-protobuf-fixed"


def fragments(*bounds):
    return tuple(FragmentInfo(*bound) for bound in bounds)


def journal(name="a/j", head=100, *bounds, content_type=NDJSON, **kwargs):
    return JournalInfo(name, head, content_type, fragments=fragments(*bounds), **kwargs)


def whole(info):
    return JournalRange(info, 0, info.head)


def spans(parts):
    return [(part.begin, part.end) for part in parts]


# --- Records, as a reader of newline delimited JSON finds them.


def journal_of_lines(rng, count):
    return b"".join(b"%d%s\n" % (at, b"x" * rng.randrange(6)) for at in range(count))


def read_lines(content, begin, end, *, head, is_aligned=False, first=0):
    """Deliver the records whose first bytes are in `[begin, end)`, touching no byte before `first`."""
    at = begin
    if begin and not is_aligned:
        assert begin - 1 >= first
        at = content.index(b"\n", begin - 1) + 1
    found = []
    while at < end:
        stop = content.index(b"\n", at, head) + 1
        found.append(content[at:stop])
        at = stop
    return found


def read_tasks(content, tasks, first=0):
    return [
        line
        for task in sorted(tasks, key=lambda task: task.begin)
        for line in read_lines(
            content,
            task.begin,
            task.end,
            head=task.head,
            is_aligned=task.is_aligned,
            first=first,
        )
    ]


def test_all_pairs_of_cuts():
    content = journal_of_lines(random.Random(1), 50)
    head, lines = len(content), content.splitlines(keepends=True)
    parts = {
        (begin, end): read_lines(content, begin, end, head=head)
        for begin in range(head + 1)
        for end in (*range(begin, min(begin + 12, head) + 1), head)
    }
    prefix = [read_lines(content, 0, cut, head=head) for cut in range(head + 1)]
    for (begin, end), middle in parts.items():
        assert prefix[begin] + middle + parts[end, head] == lines


@given(st.data())
def test_each_record_once(data):
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    content = journal_of_lines(rng, data.draw(st.integers(1, 60)))
    head = len(content)
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]
    first = data.draw(st.sampled_from([0, *ends[:3]]))
    rolls = data.draw(st.lists(st.sampled_from(ends), max_size=6))
    rolls = sorted({first, *(roll for roll in rolls if roll > first)})
    listed = [FragmentInfo(begin, end) for begin, end in pairwise(rolls)]
    if len(rolls) > 1:
        # Overlaps, and the last ones not listed.
        low, high = sorted(data.draw(st.lists(st.sampled_from(rolls), min_size=2, max_size=2)))
        listed += [FragmentInfo(low, high)] * (low < high)
        rng.shuffle(listed)
    elif first:
        listed = [FragmentInfo(first, head)]
    info = JournalInfo("a/j", head, NDJSON, fragments=tuple(listed))
    ranges = plan_ranges([info])
    tasks = plan_tasks(ranges, max_split_bytes=data.draw(st.integers(1, head + 1)))
    assert read_tasks(content, tasks, info.earliest) == content[info.earliest :].splitlines(True)
    assert {task for part in pack(tasks) for task in part} == set(tasks)


# --- Fragments.


def test_overlapping_fragments_are_clipped():
    listed = fragments((20, 40), (0, 10), (10, 30), (12, 14))
    assert spans(clip_fragments(listed)) == [(0, 10), (10, 30), (30, 40)]
    info = journal("a/j", 40, *listed, content_type=FIXED)
    assert spans(split_range(whole(info), 10)) == [(0, 10), (10, 30), (30, 40)]
    assert spans(split_range(whole(info), 30)) == [(0, 30), (30, 40)]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8),
    st.integers(0, 60),
    st.integers(1, 60),
    st.integers(1, 50),
    st.booleans(),
)
def test_splits_of_random_listings(listing, begin, length, limit, anywhere):
    listed = tuple(FragmentInfo(at, at + size) for at, size in listing)
    planned = JournalRange(JournalInfo("a/j", 100, FIXED, fragments=listed), begin, begin + length)
    splits = split_range(planned, limit, anywhere=anywhere)
    bounds = spans(splits)
    assert [bounds[0][0], bounds[-1][1]] == [begin, begin + length]
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    cuts = {0, *(offset for fragment in listed for offset in fragment[:2])}
    held = {byte for fragment in listed for byte in range(fragment.begin, fragment.end)}
    last = max((fragment.end for fragment in listed), default=0)
    held |= set(range(last, 200))
    for split in splits:
        assert split.size == len(held & set(range(split.begin, split.end)))
        assert split.begin in cuts or not split.is_aligned
    if anywhere:
        assert max(split.size for split in splits) <= limit
    else:
        assert {at for at, _ in bounds[1:]} <= cuts
        assert all(split.is_aligned for split in splits[1:])


def test_holes_stay_in_ranges_and_cost_nothing():
    info = journal("a/j", 5000, (100, 110), (4000, 4010), (4010, 4990))
    planned = whole(info)
    tasks = plan_tasks([planned], max_split_bytes=500)
    assert [(task.begin, task.end, task.size) for task in tasks] == [
        (0, 4010, 20),
        (4010, 4500, 490),
        (4500, 5000, 500),
    ]
    assert [task.weight - OPEN_BYTES for task in tasks] == [20, 490, 500]


def test_only_newlines_are_cut_within_fragments():
    bounds = ((0, 40), (40, 100))
    lines, frames = journal("a/j", 100, *bounds), journal("a/j", 100, *bounds, content_type=FIXED)
    assert spans(plan_tasks([whole(frames)], max_split_bytes=30)) == [(0, 40), (40, 100)]
    assert spans(plan_tasks([whole(lines)], max_split_bytes=30)) == [
        (0, 20),
        (20, 40),
        (40, 70),
        (70, 100),
    ]


def test_cuts_of_a_limited_range():
    frames = journal("a/j", 100, (0, 40), (40, 70), content_type=FIXED)
    assert [cut_range(whole(frames), at).end for at in (1, 40, 41, 70, 99, 100, 101)] == [
        *(40, 40, 40, 70, 70),
        *(100, 100),
    ]
    assert [cut_range(whole(journal("a/j", 100)), at).end for at in (0, 7, 200)] == [1, 7, 100]
    unlisted = JournalInfo("a/j", 100, FIXED)
    assert cut_range(whole(unlisted), 7).end == 100


def test_records_are_known_to_begin_only_where_fragments_do():
    def aligned(begin, *bounds):
        planned = JournalRange(journal("a/j", 200, *bounds), begin, 200)
        return [(split.begin, split.is_aligned) for split in split_range(planned, 50)]

    # Nothing of the first fragment has to be read for the second one.
    assert aligned(0, (0, 50), (50, 200)) == [(0, True), (50, True)]
    assert aligned(0, (0, 50), (60, 100)) == [(0, True), (60, True), (100, True)]
    # A hole may have content: it isn't listed yet, or is older than what was asked for.
    assert aligned(70, (0, 50), (100, 150)) == [(70, False), (150, True)]
    assert aligned(50, (0, 50), (100, 150)) == [(50, True), (150, True)]
    assert aligned(70) == [(70, False)]


# --- Begins and ends.


def test_positions():
    infos = [journal("a", 100, (10, 100)), journal("b", 50, (0, 50)), journal("c", 0)]
    assert [(r.journal.name, *r[1:]) for r in plan_ranges(infos)] == [("a", 10, 100), ("b", 0, 50)]
    assert plan_ranges(infos, "latest") == []
    ranges = plan_ranges(infos, {"a": -2, "b": 7}, {"a": 60, "b": -1})
    assert [r[1:] for r in ranges] == [(10, 60), (7, 50)]
    assert [r[1:] for r in plan_ranges(infos, {"a": 0, "b": -1})] == [(0, 100)]
    # What's to be read has expired, or isn't there yet.
    assert plan_ranges(infos, "earliest", {"a": 5, "b": 0}) == []
    assert plan_ranges([journal("a", 100)]) == [], "no fragment is left"
    assert spans(plan_ranges([JournalInfo("a", 100)])) == [(0, 100)]


@pytest.mark.parametrize(
    ("starting", "ending", "text"),
    [
        ({"a": 101}, "latest", "startingOffsets of journal a is 101, not within [0, 100]"),
        ({"a": -3}, "latest", "startingOffsets of journal a is -3"),
        ("earliest", {"a": 200}, "endingOffsets of journal a is 200"),
        ({"a": 50}, {"a": 40}, "endingOffsets of journal a is 40, before startingOffsets 50"),
    ],
)
def test_positions_out_of_bounds(starting, ending, text):
    with pytest.raises(ConfigurationError) as caught:
        plan_ranges([journal("a", 100)], starting, ending)
    assert str(caught.value).startswith(text)


def test_positions_of_journals_which_are_not_selected():
    check_names({"a": 1}, ["a", "b"], "startingOffsets")
    check_names("latest", [], "startingOffsets")
    with pytest.raises(ConfigurationError, match="names journal c, which isn't selected"):
        check_names({"d": 1, "c": 1, "a": 1}, ["a", "b"], "startingOffsets")


# --- Packing.


def tasks_of(sizes):
    return plan_tasks([whole(JournalInfo(f"j/{at}", size)) for at, size in enumerate(sizes)])


def test_largest_first():
    partitions = pack(tasks_of([5 << 20, 90 << 20, 100 << 20, 30 << 20, 1]))
    assert [[task.journal for task in part] for part in partitions] == [
        ["j/1", "j/3"],
        ["j/2", "j/0", "j/4"],
    ]
    weights = [sum(task.weight for task in part) for part in partitions]
    assert weights == sorted(weights, reverse=True)
    assert max(weights) <= 128 << 20


def test_what_is_huge_leaves_the_others_together():
    partitions = pack(tasks_of([10 << 30, *[1] * 500]))
    assert [len(part) for part in partitions] == [1, 125, 125, 125, 125]


@given(st.lists(st.integers(1, 400 << 20), max_size=40), st.integers(0, 12))
def test_packing(sizes, least):
    tasks = tasks_of(sizes)
    limit = 128 << 20
    partitions = pack(tasks, max_split_bytes=limit, min_partitions=least)
    assert sorted(task.journal for part in partitions for task in part) == sorted(
        task.journal for task in tasks
    )
    assert len(partitions) >= min(least, len(tasks))
    for part in partitions:
        assert part
        assert len(part) == 1 or sum(task.weight for task in part) <= limit
    weights = [sum(task.weight for task in part) for part in partitions]
    assert weights == sorted(weights, reverse=True)
    assert partitions == pack(reversed(tasks), max_split_bytes=limit, min_partitions=least)


def test_min_partitions():
    info = journal("a/j", 1000, (0, 1000))
    tasks = plan_tasks([whole(info)], max_split_bytes=125)
    assert len(tasks) == len(pack(tasks, min_partitions=8)) == 8
    small = [whole(journal(f"j/{at}", 10, (0, 10))) for at in range(100)]
    assert len(pack(plan_tasks(small), min_partitions=8)) == 8
    assert plan_tasks([]) == pack([]) == pack([], min_partitions=4) == []


def calls_of(function):
    """Return the result, and the number of calls which it took."""
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = function()
    finally:
        sys.setprofile(before)
    return result, calls


@pytest.mark.parametrize("committed", [False, True])
def test_many_journals(committed):
    def listing(count):
        labels = (("app.gazette.dev/region", ("eu",)), ("content-type", (NDJSON,)))
        return [
            journal(f"a/journal={at:05}", 1000, (0, 1000), labels=labels) for at in range(count)
        ]

    def plan(infos):
        plan_of = plan_committed_tasks if committed else plan_tasks
        return pack(plan_of(plan_ranges(infos), labels=("app.gazette.dev/region",)))

    infos = listing(2_000)
    few, few_calls = calls_of(lambda: plan(infos[:200]))
    partitions, calls = calls_of(lambda: plan(infos))
    assert len(few) == 2
    assert len(partitions) == 16, "10,000 of them take 79 tasks"
    assert calls < 70 * len(infos), "a call takes some 0.1 µs"
    assert calls < 11 * few_calls, "it's linear"
    assert len(pickle.dumps(partitions)) < 250 * len(infos)
    assert partitions[0][0].labels == (("app.gazette.dev/region", ("eu",)),)


# --- Committed messages.


def test_committed_tasks():
    info = journal("a/j", 100, (0, 40), (40, 100))
    planned = JournalRange(info, 10, 90)
    (task,) = plan_committed_tasks([planned])
    assert (task.begin, task.end, task.head, task.is_aligned) == (10, 90, 100, False)
    assert RangeState.from_json(json.loads(task.kind.state)) == RangeState(10)
    state = RangeState.from_json({"offset": 9, "producers": {"010203040506": ["a", 3, "b"]}})
    (task,) = plan_committed_tasks([planned], {"a/j": state})
    assert isinstance(task.kind, CommittedFrom)
    (task,) = plan_tasks([JournalRange(info, 90, 120)])
    assert task.head == 120, "the head was of a replica which is late"
    (task,) = plan_committed_tasks([planned], {"a/j": state})
    assert RangeState.from_json(json.loads(task.kind.state)) == state
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize("seed", range(25))
def test_committed_splits_deliver_what_a_sequencer_does(seed, caplog):
    caplog.set_level(logging.CRITICAL, "gazette_aio")
    rng = random.Random(seed)
    producers = [ProducerID(bytes([1, at, 0, 0, 0, 0])) for at in range(3)]
    log, at = [], 0
    for _ in range(rng.randrange(1, 120)):
        size = rng.randrange(1, 9)
        clock, flags = rng.randrange(1, 60), rng.choice((0, 1, 1, 1, 2))
        log.append(Envelope("a/j", at, at + size, clock, Flags(flags), rng.choice(producers), None))
        at += size
    sequencer, expected = Sequencer(buffer=1 << 30), []
    for row in log:
        sequencer.queue_uncommitted(row)
        while sequencer.step():
            if sequencer.dequeued.flags != Flags(2):
                expected.append(sequencer.dequeued.begin)
    rolls = sorted({0, at, *(rng.choice(log).begin for _ in range(6))})
    info = JournalInfo("a/j", at, FIXED, fragments=fragments(*pairwise(rolls)))
    splits = split_range(whole(info), rng.randrange(1, at + 1))

    def columns(part):
        return UuidColumns.of([row for row in log if part.begin <= row.begin < part.end])

    *summaries, ahead = (summarize(columns(split)) for split in splits)
    tasks = plan_split_tasks(splits, plan_splits(RangeState(), summaries, ahead))
    delivered = []
    for partition in pack(tasks):
        for task in pickle.loads(pickle.dumps(partition)):
            content = columns(task)
            if task.end == at:
                assert isinstance(task.kind, CommittedFrom)
                state = RangeState.from_json(json.loads(task.kind.state))
                delivered += deliver_range(
                    rng, state, content, log, entering=task.kind.entering, skip_acks=True
                )[0]
            else:
                assert isinstance(task.kind, CommittedSplitOf)
                delivered += deliver_split(rng, task.kind.plan, content, log)
    assert sorted(delivered) == sorted(expected)


def test_committed_splits_without_messages_are_read():
    splits = split_range(whole(journal("a/j", 30, (0, 10), (10, 20), (20, 30))), 10)
    row = Envelope("a/j", 2, 8, 5, Flags(0), ProducerID(b"\x01" * 6), None)
    last = Envelope("a/j", 21, 30, 7, Flags(0), ProducerID(b"\x01" * 6), None)
    summaries = [summarize(UuidColumns.of(rows)) for rows in ([row], [], [last])]
    plan = plan_splits(RangeState(), summaries[:-1], summaries[-1])
    tasks = plan_split_tasks(splits, plan)
    assert spans(tasks) == [(0, 10), (10, 20), (20, 30)], "there may be rows of bad records"
    assert deliver_split(random.Random(1), tasks[1].kind.plan, UuidColumns.of([])) == []


def test_last_splits_are_joined():
    splits = split_range(whole(journal("a/j", 40, (0, 10), (10, 20), (25, 30), (30, 40))), 10)
    assert [(split.begin, split.end, split.size) for split in join_last(splits, 10)] == [
        (0, 10, 10),
        (10, 25, 10),
        (25, 30, 5),
        (30, 40, 10),
    ]
    *rest, last = join_last(splits, 20)
    assert rest == splits[:2]
    assert last == splits[2]._replace(end=40, size=15)
    (only,) = join_last(splits, 99)
    assert (only.begin, only.end, only.is_aligned) == (0, 40, True)


def test_partitions_by_size():
    size = 10 * MIDDLE_BYTES
    large = whole(journal("a/j", size, (0, size, 1)))
    assert size_partitions([large]).least == 10
    assert size_partitions([large], min_partitions=7) == (7, size // 7)
    assert size_partitions([whole(journal("a/j", 5, (0, 5, 1)))]).least == 0


def test_times_skip_fragments():
    info = journal(
        *("a/j", 100, (0, 20, 1_000), (20, 40, 2_000), (30, 50, 3_000), (50, 60, 0), (60, 80, 500))
    )
    assert [skip_older(whole(info), at).begin for at in (0, 1_001, 2_001, 9_999)] == [0, 20, 40, 50]
    assert skip_older(JournalRange(info, 70, 75), 9_999).begin == 75


def test_a_fragment_which_ends_where_a_range_begins_is_no_part_of_it():
    fragments = (FragmentInfo(0, 50, 900), FragmentInfo(50, 100, 500), FragmentInfo(100, 150, 900))
    info = JournalInfo("a", 150, "application/x-ndjson", fragments=fragments)
    planned = JournalRange(info, 50, 150)
    assert skip_older(planned, 700).begin == 100
    assert skip_older(planned._replace(begin=49), 700).begin == 49
    assert skip_older(planned._replace(begin=51), 700).begin == 100
