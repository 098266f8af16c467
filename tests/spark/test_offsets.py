"""Positions of streaming queries: their texts, limits, targets, and what is lost."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.ranges.committed import ProducerBounds, RangeState
from gazette_aio.protocol.errors import ConfigurationError, DataLossError, ValidationError
from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo
from gazette_aio.spark.streaming.offsets import Offsets, batch_ranges, end_text
from gazette_aio.spark.streaming.progress import (
    Loss,
    RunTarget,
    available_now,
    check_batch,
    find_recreated,
    plan_batch,
    raise_losses,
    regressed,
    split_limit,
)

NDJSON = "application/x-ndjson"
FIXED = "application/x-protobuf-fixed"


def journal(name, head, *, content_type=NDJSON, revision=5, fragments=None):
    listed = None if fragments is None else tuple(FragmentInfo(*one) for one in fragments)
    return JournalInfo(name, head, content_type, create_revision=revision, fragments=listed)


def started(*journals, at="latest", committed=False):
    """Return the offsets behind an empty first batch."""
    initial = Offsets.initial(journals, at, committed=committed)
    return plan_batch(
        initial, [journal(j.name, initial.journals[j.name]) for j in journals]
    ).offsets


def spans(start, end):
    return {name: (begin, stop) for name, begin, stop, *_ in batch_ranges(start, end)}


def next_batch(start, journals, **kwargs):
    """Return the end of a batch which loses nothing, by way of Spark's checkpoint."""
    end, losses = plan_batch(start, journals, **kwargs)
    assert losses == []
    return Offsets.parse(end.to_text())


def state(offset, *, begin=-1, low=0x1ED0B7A5C3D40001, producer=0x010203040506):
    high = low if begin == -1 else low + 16
    return RangeState(offset, {producer: ProducerBounds(low, high, begin)})


# --- Texts.


def test_text():
    offsets = Offsets(
        {"b": 7, "a": 3},
        {"b": 2, "a": 1},
        {"b": state(7, begin=4), "a": RangeState(3)},
        base={"b": 5, "a": 3},
    )
    assert offsets.to_text() == (
        '{"base": {"a": 3, "b": 5}, "c": {"a": 1, "b": 2}, "j": {"a": 3, "b": 7}, '
        '"s": {"b": {"offset": 7, "producers": {"010203040506": '
        '["1ed0b7a5c3d40001", 4, "1ed0b7a5c3d40011"]}}}, "v": 1}'
    )
    initial = Offsets.initial([journal("a", 3)], "latest", committed=False)
    assert initial.to_text() == '{"c": {"a": 5}, "init": true, "j": {"a": 3}, "v": 1}'


@given(
    st.dictionaries(st.text(min_size=1), st.integers(0, (1 << 63) - 1), max_size=6),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_equal_positions_give_equal_texts(journals, rng, committed):
    states = {name: state(offset) for name, offset in journals.items()} if committed else None
    revisions = {name: rng.randrange(1, 9) for name in journals}
    first = Offsets(journals, revisions, states)

    def shuffled(items):
        return dict(rng.sample(list(items.items()), len(items)))

    second = Offsets(
        shuffled(journals), shuffled(revisions), None if states is None else shuffled(states)
    )
    assert first.to_text() == second.to_text()
    assert Offsets.parse(first.to_text()) == Offsets.parse(first.to_json()) == first
    assert Offsets.parse(first.to_text()).to_text() == first.to_text()


VALID = {"c": {"a": 1}, "j": {"a": 3}, "s": {"a": state(3).to_json()}, "v": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"v": None},
        {"x": 1},
        {"j": [3]},
        {"j": None},
        {"j": {"a": -1}},
        {"j": {"a": 1 << 63}},
        {"j": {"a": 3.0}},
        {"j": {"a": True}},
        {"j": {"": 3}},
        {"j": {}},
        {"c": {"b": 1}},
        {"c": 3},
        {"base": {"b": 1}},
        {"base": None},
        {"init": False},
        {"init": 1},
        {"init": True, "base": {}},
        {"s": []},
        {"s": {"b": state(0).to_json()}},
        {"s": {"a": state(4).to_json()}},
        {"s": {"a": {"offset": 3}}},
        {"s": {"a": None}},
    ],
)
def test_other_texts_are_refused(change):
    assert Offsets.parse(json.dumps(VALID)).journals == {"a": 3}
    with pytest.raises(ValidationError, match="not offsets of a query"):
        Offsets.parse(json.dumps(VALID | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nul", "3", '{"v": NaN}', "[" * 200_000])
def test_other_json_is_refused(text):
    with pytest.raises(ValidationError):
        Offsets.parse(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["v", "j", "c", "s", "base", "init", "a", "offset", "producers"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_untrusted_json_is_refused_or_parsed(value):
    try:
        offsets = Offsets.parse(json.dumps({"v": 1, **value} if isinstance(value, dict) else value))
    except ValidationError:
        return
    assert Offsets.parse(offsets.to_text()).to_text() == offsets.to_text()


# --- The first batch.


@pytest.mark.parametrize("position", ["earliest", "latest", {"a": 20, "b": -1, "c": -2}])
def test_initial_offsets_are_the_same_twice(position):
    journals = [
        journal(name, 50, fragments=[(10, 40), (30, 50)]) for name in random.sample("abc", 3)
    ]
    first, again = (
        Offsets.initial(order, position, committed=True) for order in (journals, journals[::-1])
    )
    assert first.to_text() == again.to_text()
    expected = {"earliest": (10, 10, 10), "latest": (50, 50, 50)}
    expected = expected[position] if isinstance(position, str) else (20, 50, 10)
    assert tuple(first.to_json()["j"].values()) == expected


def test_where_journals_end_is_no_position():
    start = Offsets({"a": 1, "b": 2}, heads={"a": 5, "b": 2})
    assert start.to_json()["h"] == {"a": 5}, "others are read up to there"
    assert Offsets.parse(start.to_text()).heads == {"a": 5}
    given = start.to_json()
    assert end_text(start, replace(start, heads={"a": 7, "b": 9}), given) is given
    further = replace(start, journals={"a": 7, "b": 2}, heads={"a": 7, "b": 9})
    assert end_text(start, further, given) == {"h": {"b": 9}, "j": {"a": 7, "b": 2}, "v": 1}


def test_a_planned_first_batch_is_read_again():
    initial = Offsets.initial([journal("a", 100)], "earliest", committed=True)
    end = next_batch(initial, [journal("a", 150), journal("b", 30)], max_bytes=90)
    assert end.base == {"a": 0}
    again = Offsets.initial([journal("a", 100), journal("b", 30)], "latest", committed=True)
    assert spans(initial, end) == spans(again, end) == {"a": (0, 75), "b": (0, 15)}
    assert [(one.is_new, one.state) for one in batch_ranges(again, end)] == [
        (False, RangeState(0)),
        (True, RangeState(0)),
    ]


def test_a_journal_created_anew_before_the_first_batch():
    initial = Offsets.initial([journal("a", 100)], "latest", committed=False)
    end, losses = plan_batch(initial, [journal("a", 120, revision=9)])
    assert [loss.reason for loss in losses] == ["was created anew"]
    assert (end.base, spans(initial, end)) == ({}, {"a": (0, 120)})


# --- Limits and targets.


@given(
    st.lists(st.integers(0, 1 << 62), max_size=30),
    st.one_of(st.none(), st.integers(1, 1 << 63), st.integers(1, 50)),
)
def test_split_limit(lags, limit):
    shares = split_limit(lags, limit)
    assert all(0 <= share <= lag for share, lag in zip(shares, lags, strict=True))
    assert all(share for share, lag in zip(shares, lags, strict=True) if lag), "each goes on"
    total = sum(lags)
    if limit is None or limit >= total:
        assert shares == lags
    else:
        assert sum(shares) <= limit + sum(share == 1 for share in shares)
        for share, lag in zip(shares, lags, strict=True):
            assert not lag or share == max(lag * limit // total, 1)


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 400), min_size=1),
    st.integers(1, 60),
    st.booleans(),
)
def test_all_is_read_in_the_end(heads, limit, divisible):
    rolls = {name: list(range(0, head, 37)) for name, head in heads.items()}
    journals = [
        journal(
            name,
            head,
            content_type=NDJSON if divisible else FIXED,
            fragments=[(at, min(at + 37, head)) for at in rolls[name]],
        )
        for name, head in heads.items()
    ]
    start = Offsets.initial(journals, "earliest", committed=False)
    covered = dict.fromkeys(heads, 0)
    while True:
        end = next_batch(start, journals, max_bytes=limit)
        text = start.to_text()
        if end_text(start, end, text) is text:
            break
        for name, (begin, stop) in spans(start, end).items():
            assert covered[name] == begin < stop
            assert divisible or stop in {*rolls[name], heads[name]}
            covered[name] = stop
        assert start.is_initial or start.journals != end.journals, "each batch goes on"
        start = end
    assert covered == heads


def test_available_now_stops_at_its_target():
    targets = available_now([journal("a", 100), journal("b", 10)])
    assert targets == {"a": RunTarget(100, 5), "b": RunTarget(10, 5)}
    # Spark asks for targets before it asks for the initial offset.
    start = Offsets.initial([journal("a", 0), journal("b", 12)], {"b": -1}, committed=False)
    ends = []
    for more in range(5):
        listing = [journal("a", 100 + more), journal("b", 12 + more), journal("c", 70)]
        end = next_batch(start, listing, max_bytes=40, targets=targets)
        ends.append(end.journals)
        if end_text(start, end, "given") == "given":
            break
        start = end
    assert ends == [{"a": at, "b": 12} for at in (40, 80, 100, 100)]


# --- Journals which come and go.


@pytest.mark.parametrize("content_type", [NDJSON, FIXED])
def test_limits_are_of_what_is_left(content_type):
    # Of 1000 bytes, the first 800 have expired: they're no content to be limited.
    start = started(journal("a", 10))
    listing = [
        journal("a", 110),
        journal("b", 1000, content_type=content_type, fragments=[(800, 900), (900, 1000)]),
    ]
    end = next_batch(start, listing, max_bytes=150)
    assert end.journals == {"a": 60, "b": 900}
    ranges, losses = check_batch(batch_ranges(start, end), {one.name: one for one in listing})
    assert ([one[1:] for one in ranges], losses) == ([(10, 60), (800, 900)], [])
    known = started(journal("b", 10))
    end = next_batch(known, listing[1:], max_bytes=100)
    _, losses = check_batch(batch_ranges(known, end), {"b": listing[1]})
    assert (end.journals, losses) == (
        {"b": 900},
        [Loss("b", "has lost its oldest fragments", 10, 800)],
    )
    end = next_batch(known, [journal("b", 1000, fragments=[])], max_bytes=1)
    assert end.journals == {"b": 1000}, "nothing is left to go on for"


def test_journals_created_anew_without_a_revision():
    start = started(journal("a", 100, revision=0))
    start = Offsets(start.journals)
    end, losses = plan_batch(start, [journal("a", 60, revision=0)])
    assert [loss.reason for loss in losses] == ["was created anew"]
    assert spans(start, end) == {"a": (0, 60)}


@pytest.mark.parametrize(("known", "listed"), [(0, 5), (5, 0)])
@pytest.mark.parametrize("head", [60, 100, 130])
def test_an_unknown_revision_tells_nothing(known, listed, head):
    """A head behind what was read tells of another journal only if no revision is remembered."""
    start = Offsets({"a": 100}, {"a": known} if known else {})
    end, losses = plan_batch(start, [journal("a", head, revision=listed)])
    reason = "fell behind" if known else "was created anew"
    assert [loss.reason for loss in losses] == ([reason] if head < 100 else [])
    begins = {60: {} if known else {"a": (0, 60)}, 100: {}, 130: {"a": (100, 130)}}
    assert spans(start, end) == begins[head]
    assert end.revisions == {"a": 5}
    # A batch which is run again has the same ranges.
    other = replace(end, revisions={"a": listed} if listed else {})
    if head >= 100:
        assert spans(start, other) == begins[head]
        assert find_recreated(start, other) == []


def test_write_heads_which_fall_behind():
    start = started(journal("a", 100), committed=True).end_at({"a": state(100, begin=70)}, 0)
    assert regressed(start, [journal("a", 60), journal("b", 0)]) == ["a"]
    assert regressed(start, [journal("a", 100)]) == []
    for revision in (5, 0):
        end, losses = plan_batch(start, [journal("a", 60, revision=revision)])
        assert losses == [Loss("a", "fell behind", 60, 100)]
        assert spans(start, end) == {}, "what was read isn't read again"
        assert end.states == {"a": state(60)}, "what's pending behind the head is gone"
        later = next_batch(Offsets.parse(end.to_text()), [journal("a", 130)])
        assert spans(end, later) == {"a": (60, 130)}


def test_journals_without_content():
    """All of it expired, or a broker lists the store for the first time: heads are 0."""
    start = started(journal("a", 100), committed=True)
    assert regressed(start, [journal("a", 0)]) == []
    assert next_batch(start, [journal("a", 0)]) == replace(start, base=None)
    waiting = plan_batch(start, [journal("a", 0)], seen={"a": 130})
    assert (waiting.offsets.journals, waiting.losses) == ({"a": 100}, [])
    behind = replace(start, heads={"a": 130})
    assert regressed(behind, [journal("a", 0)]) == ["a"], "it may be listed soon"
    end, losses = plan_batch(behind, [journal("a", 0)], seen=behind.heads)
    assert losses == [Loss("a", "has no content any more", 100, 130)]
    assert end.journals == {"a": 100}
    assert regressed(replace(start, revisions={}), [journal("a", 0)]) == ["a"]


def test_losses_of_a_batch_which_is_run_again():
    start = started(*(journal(name, 100) for name in "abcd"))
    end = next_batch(start, [journal(name, 200) for name in "abcd"])
    listing = {
        "b": journal("b", 300, revision=8),
        "c": journal("c", 300, fragments=[(150, 300)]),
        "d": journal("d", 300, fragments=[(400, 500)]),
    }
    ranges, losses = check_batch(batch_ranges(start, end), listing)
    assert [(one.journal.name, *one[1:]) for one in ranges] == [("c", 150, 200)]
    assert [(loss.journal, loss.begin, loss.end) for loss in losses] == [
        ("a", 100, 200),
        ("b", 100, 200),
        ("c", 100, 150),
        ("d", 100, 200),
    ]
    with pytest.raises(DataLossError, match=r"journal a is gone: .* \(3 more journals\)\. Set"):
        raise_losses(losses)
    raise_losses([])


# --- States of producers.


def test_pruning_keeps_pending_messages():
    hour = 3600 * 10**9
    ticks = (hour // 100) << 4
    now = 0x1ED0B7A5C3D40000
    known = {
        1: ProducerBounds(now, now, -1),
        2: ProducerBounds(now - 2 * ticks, now - 2 * ticks, -1),
        3: ProducerBounds(now - 3 * ticks, now - 2 * ticks, 50),
    }
    end = Offsets({"a": 90}, states={}).end_at({"a": RangeState(90, known)}, hour)
    assert end.states["a"].producers.keys() == {1, 3}
    assert Offsets.parse(end.to_text()) == end
    assert end.end_at(end.states, hour) == end


def test_isolation_of_a_checkpoint():
    plain, fresh = started(journal("a", 10)), started(journal("a", 0))
    initial = Offsets.initial([journal("a", 10)], "latest", committed=False)
    with pytest.raises(ConfigurationError, match="isolation can't be changed to read-committed"):
        plain.sequence(committed=True)
    assert fresh.sequence(committed=True).states == initial.sequence(committed=True).states == {}
    sequenced = started(journal("a", 10), committed=True)
    assert sequenced.sequence(committed=True) is sequenced
    assert sequenced.sequence(committed=False).states is None


def test_a_changed_isolation_begins_without_producers():
    start = started(journal("a", 10))
    end = Offsets({"a": 30}, start.revisions, {})
    (found,) = batch_ranges(start, end)
    assert (found.begin, found.end, found.state) == (10, 30, RangeState(10))
    (found,) = batch_ranges(end, Offsets({"a": 50}, start.revisions))
    assert (found.begin, found.end, found.state) == (30, 50, None)


def test_many_journals():
    listing = [journal(f"a/{at:05}", 1000 + at) for at in range(10_000)]
    start = Offsets.initial(listing, "earliest", committed=True)
    end = next_batch(start, listing, max_bytes=1 << 20)
    assert len(batch_ranges(start, end)) == len(listing)
    assert (1 << 20) - len(listing) <= sum(end.journals.values()) <= 1 << 20
    assert len(end.to_text()) < 70 * len(listing)
