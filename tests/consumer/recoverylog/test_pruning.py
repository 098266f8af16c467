"""Which fragments of recovery logs hints need."""

from __future__ import annotations

import pytest

from gazette_aio.consumer.recoverylog.pruning import PruningPlan, ShardHints, plan_pruning
from gazette_aio.consumer.recoverylog.segments import Segment
from gazette_aio.protocol.recoverylog import FnodeSegments, FSMHints


def segment(first, last, first_offset, last_offset, *, author=1, log="a/log"):
    return Segment(author, first, first_offset, 0, last, last_offset, log)


def hints(*nodes, log="a/log"):
    """Return hints that have a file for each list of segments."""
    live = [
        FnodeSegments(fnode=each[0].first_seq_no, segments=[part.to_proto(log) for part in each])
        for each in nodes
    ]
    return FSMHints(log=log, live_nodes=live)


OPEN = [(50, 60), (70, 80), (90, 99), (99, 0)]


@pytest.mark.parametrize(
    ("begin", "end", "needed", "needed_if_open"),
    [
        (0, 51, True, True),
        (0, 999, True, True),
        (98, 0, True, True),
        (59, 60, True, True),
        (65, 85, True, True),
        (60, 70, False, False),
        (0, 50, False, False),
        (100, 99999, False, True),
        (85, 99999, True, True),
    ],
)
def test_fragments_that_overlap_segments(begin, end, needed, needed_if_open):
    for count, expected in ((3, needed), (4, needed_if_open)):
        parts = [segment(1, 1, *offsets) for offsets in OPEN[:count]]
        plan = PruningPlan(["a/log"], {"a/log": parts}, {}, {})
        assert plan.needs("a/log", begin, end) is expected


def test_a_log_without_segments_is_needed():
    assert PruningPlan(["a/log"], {}, {}, {}).needs("a/log", 0, 100)


MIB = 1 << 20


def needed(plan, log, *parts):
    return [plan.needs(log, *part) for part in parts]


def test_what_follows_the_last_segment_is_needed():
    first = hints([segment(2, 7, 200, 700), segment(25, 27, 5 * MIB, 6 * MIB)])
    newer = hints([segment(30, 31, 9 * MIB, 10 * MIB)])
    plan = plan_pruning([ShardHints("one", "a/log", [newer, first])], {"one"})
    assert plan.logs == ["a/log"]
    assert not plan.incomplete
    parts = (0, 200), (700, MIB), (MIB, 5 * MIB), (6 * MIB, 7 * MIB), (1 << 40, 1 << 41)
    # Backups are older than the primary's hints, so what is between them is needed.
    assert needed(plan, "a/log", *parts) == [False, False, False, True, True]
    plan = plan_pruning([ShardHints("one", "a/log", [newer])], {"one"})
    assert needed(plan, "a/log", *parts) == [False, False, False, False, True]


def test_hints_of_the_primary_that_are_older_than_backups():
    """As of a shard that moved again and again before its primaries stored theirs."""
    oldest = hints([segment(2, 7, 129100, 0)])
    backups = [hints([segment(30, 31, at, at + 100)]) for at in (244100, 244000)]
    for found, expected in (([oldest, *backups], True), (backups, False)):
        plan = plan_pruning([ShardHints("one", "a/log", found)], {"one"})
        assert needed(plan, "a/log", (243993, 244000)) == [expected]
        assert needed(plan, "a/log", (129000, 129100), (244050, 244060)) == [False, True]


def test_what_is_read_between_segments_is_needed():
    near = hints([segment(2, 3, 0, 100), segment(8, 9, 100 + MIB, 200 + MIB)])
    far = hints([segment(2, 3, 0, 100), segment(8, 9, 101 + MIB, 200 + MIB)])
    for found, expected in ((near, True), (far, False)):
        plan = plan_pruning([ShardHints("one", "a/log", [found])], {"one"})
        assert needed(plan, "a/log", (100, 200)) == [expected]


def test_a_fork_needs_logs_of_others():
    forked = hints(
        [segment(2, 3, 200, 300), segment(8, 8, 0, 50, author=2, log="b/log")], log="b/log"
    )
    forked.live_nodes[0].segments[0].log = "a/log"
    own = hints([segment(20, 21, 2000, 2100)])
    shards = [ShardHints("one", "a/log", [own]), ShardHints("two", "b/log", [forked])]
    plan = plan_pruning(shards, {"one"})
    assert plan.logs == ["a/log"]
    assert needed(plan, "a/log", (0, 200), (250, 300), (300, 2000)) == [False, True, False]
    # The log of the fork has an end that's open, that of its ancestor hasn't.
    assert plan.needs("b/log", 1 << 40, 1 << 41)


OWN = hints([segment(20, 21, 2000, 2100)])
FORKED = hints([segment(2, 3, 200, 300, log="a/log")], log="b/log")
FORKED.live_nodes[0].segments.add(
    author=2, first_seq_no=8, first_offset=0, last_seq_no=8, last_offset=50
)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([FORKED, None], "hasn't stored all its hints, or has some that can't be read"),
        ([None, FORKED], "hasn't stored all its hints, or has some that can't be read"),
        ([FSMHints(log="b/log"), FORKED], "has hints without live files"),
        (
            [FORKED, hints([segment(3, 2, 200, 300)])],
            ("has hints that can't be played: LastSeqNo < segment.FirstSeqNo (2; expected >= 3)"),
        ),
    ],
)
def test_logs_that_incomplete_hints_name_are_skipped(found, reason):
    shards = [
        ShardHints("one", "a/log", [OWN]),
        ShardHints("two", "b/log", found),
        ShardHints("three", "c/log", [OWN]),
    ]
    plan = plan_pruning(shards, {"one", "three"})
    assert plan.logs == ["a/log", "c/log"]
    assert list(plan.incomplete) == ["two"]
    assert plan.incomplete["two"].startswith(reason[:40])
    assert set(plan.skipped) == {"a/log", "b/log"}
    assert "shard two" in plan.skipped["a/log"]
