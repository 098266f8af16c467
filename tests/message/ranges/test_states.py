"""States of producers, and summaries of ranges: as JSON, and pruned."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random

import pytest

from gazette_aio.message import ProducerID
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.ranges.committed import (
    ProducerBounds,
    RangeState,
    RangeSummary,
    advance,
    plan_splits,
    prune,
    summarize,
)
from gazette_aio.protocol.errors import SequencerStateError, ValidationError
from tests.message.ranges.readers import deliver_range, deliver_split
from tests.message.sequencing.sequencing import envelope

A, B = ProducerID(b"\x01AAAAA"), ProducerID(b"\x01BBBBB")


def test_states_as_json():
    state = RangeState(
        90,
        {
            int.from_bytes(B): ProducerBounds(1 << 60, (1 << 64) - 1, 70),
            int.from_bytes(A): ProducerBounds(255, 255, -1),
        },
    )
    text = json.dumps(state.to_json(), separators=(",", ":"))
    assert text == (
        '{"offset":90,"producers":{"014141414141":["ff"],'
        '"014242424242":["1000000000000000",70,"ffffffffffffffff"]}}'
    )
    assert RangeState.from_json(json.loads(text)) == state
    reordered = RangeState(90, dict(reversed(state.producers.items())))
    assert json.dumps(reordered.to_json()) == json.dumps(state.to_json())


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"offset": 0},
        {"offset": -1, "producers": {}},
        {"offset": True, "producers": {}},
        {"offset": 1 << 63, "producers": {}},
        {"offset": 0, "producers": []},
        {"offset": 9, "producers": {"014141414141": []}},
        {"offset": 9, "producers": {"014141414141": "5"}},
        {"offset": 9, "producers": {"014141414141": ["5", -1, "5"]}},
        {"offset": 9, "producers": {"014141414141": ["5", 9, "6"]}},
        {"offset": 9, "producers": {"014141414141": ["5", 7, "6", "7"]}},
        {"offset": 9, "producers": {"014141414141": ["0x5"]}},
        {"offset": 9, "producers": {"014141414141": ["05"]}},
        {"offset": 0, "producers": {"014141414141": [5]}},
        {"offset": 0, "producers": {"014141414141": ["-5"]}},
        {"offset": 9, "producers": {"014141414141": ["5", 7]}},
        {"offset": 9, "producers": {"014141414141": ["5", -2, "6"]}},
        {"offset": 9, "producers": {"014141414141": ["5", 7, "4"]}},
        {"offset": 9, "producers": {"014141414141": ["5", "7", "6"]}},
        {"offset": 0, "producers": {"014141414141": ["10000000000000000"]}},
        {"offset": 0, "producers": {"14141414141": ["5"]}},
        {"offset": 0, "producers": {"0141414141410": ["5"]}},
        {"offset": 0, "producers": {"producer": ["5"]}},
    ],
)
def test_states_which_are_no_states(value):
    with pytest.raises(ValidationError, match="not a state of producers"):
        RangeState.from_json(value)


A_SUMMARY = [5, 5, 0, [5, 7, 3], [6, 3, 7]]


@pytest.mark.parametrize(
    "transfer",
    [
        [1, 2],
        [1, 0, 0, [1], None],
        [1, 0, 0, None, [1, 0, 1, 0]],
        [1, 0, 1, None, None],  # An acknowledgement leaves a state,
        [1, 0, 0, [1, 1, -1], None],  # and nothing else does.
        [1, 0, 1, [1, 1, -1], [1, 0, 1]],
        [0, 0, 1, [1, 1, -1], None],
        [-1, 0, 1, [1, 1, -1], None],
        [1, 0, 1 << 64, [1, 1, -1], None],
        [1, 0, 1, [0, 0, -1], None],
        [1, 0, 1, [2, 1, -1], None],
        [1, 0, 1, [1, 2, -1], None],
        [1, 0, 1, [1, 1, 5], None],
        [1, 0, 1, [1, 2, 10], None],
        [1, 0, 1, [1, 2, 1 << 63], None],
        [1, 0, 1, [1, 2, -2], None],
        [1, 0, 0, None, [2, 0, 1]],
        [1, 0, 0, None, [0, 0, 1]],
        [1, 0, 0, None, [1, -1, 1]],
        [1, 0, 0, None, [1, 0, 1 << 64]],
        [1.0, 0, 0, None, [1, 0, 1]],
        [True, 0, 0, None, [1, 0, 1]],
        [1, 0, 0, None, "abc"],
        "abcde",
        None,
        7,
    ],
)
def test_transfers_which_are_none(transfer):
    value = {"begin": 0, "end": 10, "producers": {"014141414141": transfer}}
    with pytest.raises(ValidationError, match="not a summary of a range"):
        RangeSummary.from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        {"begin": 0, "end": 10},
        {"begin": 0, "end": "x", "producers": {}},
        {"begin": 10, "end": 10, "producers": {}},
        {"begin": -1, "end": 10, "producers": {}},
        {"begin": 0, "end": 1 << 63, "producers": {}},
        {"begin": -1, "end": -1, "producers": {"014141414141": A_SUMMARY}},
        {"begin": 0, "end": 10, "producers": {"0141": A_SUMMARY}},
        {"begin": 0, "end": 10, "producers": {"-14141414141": A_SUMMARY}},
        {"begin": 0, "end": 10, "producers": [A_SUMMARY]},
    ],
)
def test_summaries_which_are_no_summaries(value):
    with pytest.raises(ValidationError, match="not a summary of a range"):
        RangeSummary.from_json(value)
    good = {"begin": 0, "end": 10, "producers": {"014141414141": A_SUMMARY}}
    assert RangeSummary.from_json(good).to_json() == good


def scalars_of(value, path=()):
    """Return the path of each scalar and key within JSON."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in parts:
        found.append((*path, key))
        if isinstance(part, dict | list):
            found += scalars_of(part, (*path, key))
    return found


def test_json_which_was_damaged():
    """It's refused; or is another state or summary, which is as good as any."""
    row = envelope(0, 10, 6, 1, A)
    columns = UuidColumns.of([row, envelope(10, 10, 7, 1, A), envelope(20, 10, 1, 2, B)])
    state, summary = advance(RangeState(), columns), summarize(columns)
    junk = [None, -2, -1, 0, 1, 5, 15, 25, 1 << 63, 1 << 64, 1.5, True, [], {}]
    junk += ["", "5", "0x5", "+5", "5_0", " 5", "\u0665", "FF", "f" * 17, "f" * 100_000, [1, 2, 3]]
    refused = []
    for good in (state, summary):
        text = json.dumps(good.to_json())
        for path in scalars_of(json.loads(text)):
            for value in junk:
                damaged = json.loads(text)
                parent = damaged
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = value
                try:
                    found = type(good).from_json(damaged)
                except ValidationError as error:
                    refused.append(str(error))
                    continue
                assert found.to_json() == damaged, "equal states give equal texts"
                use(found, columns)
    assert len(refused) > 300
    assert max(map(len, refused)) < 200


def use(found, columns):
    """Do with a state or summary all that's done with them."""
    if isinstance(found, RangeState):
        later = columns._replace(begin=columns.begin + 100, end=columns.end + 100)
        if found.offset > 100:
            return
        deliver_range(random.Random(1), found, later, [])
        assert advance(found, later).offset == 130
        found = summarize(later)
    plan = plan_splits(RangeState(), [found])
    with contextlib.suppress(SequencerStateError):
        deliver_split(random.Random(1), plan.splits[0], columns)


def test_states_are_small():
    clock = 1 << 60
    done = {(1 << 40) + p: ProducerBounds(clock + p, clock + p, -1) for p in range(1000)}
    pending = {p: ProducerBounds(low, low + 999, 1 << 50) for p, (low, _, _) in done.items()}
    sizes = [
        len(json.dumps(RangeState(0, producers).to_json(), separators=(",", ":"))) / 1000
        for producers in (done, pending)
    ]
    assert sizes[0] < 36.1
    assert sizes[1] < 72.1


def test_pruning():
    hour = 3600 * 10_000_000 << 4
    now = 1 << 62
    state = RangeState(
        5,
        {
            1: ProducerBounds(now, now, -1),
            2: ProducerBounds(now - hour, now - hour, -1),
            3: ProducerBounds(now - hour - 1, now - hour - 1, -1),
            4: ProducerBounds(now - 9 * hour, now - 8 * hour, 3),
        },
    )
    assert prune(state, 0) == state
    assert sorted(prune(state, dt.timedelta(hours=1)).producers) == [1, 2, 4]
    assert sorted(prune(state, 2 * 3600 * 10**9).producers) == [1, 2, 3, 4]
    assert prune(state, dt.timedelta(hours=1)).offset == 5
    small = RangeState(5, {1: ProducerBounds(7, 7, -1), 2: ProducerBounds(1, 1, -1)})
    assert prune(small, dt.timedelta(hours=1)) == small
    assert prune(RangeState(), 1) == RangeState()
