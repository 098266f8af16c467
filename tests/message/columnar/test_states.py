"""States of producers, and summaries of ranges: as JSON, and pruned."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from gazette_aio.message import ProducerID, ProducerState
from gazette_aio.message.ranges import ProducerBounds, RangeState, RangeSummary, prune
from gazette_aio.protocol.errors import ValidationError

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
    unknown = ProducerState("test/journal", A, 5, 10)
    assert RangeState.from_producers(20, [unknown]).producers[int.from_bytes(A)] == (5, 5, 10)


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
        {"offset": 0, "producers": {"014141414141": []}},
        {"offset": 0, "producers": {"014141414141": [5]}},
        {"offset": 0, "producers": {"014141414141": ["-5"]}},
        {"offset": 0, "producers": {"014141414141": ["5", 7]}},
        {"offset": 0, "producers": {"014141414141": ["5", -2, "6"]}},
        {"offset": 0, "producers": {"014141414141": ["5", 7, "4"]}},
        {"offset": 0, "producers": {"014141414141": ["5", "7", "6"]}},
        {"offset": 0, "producers": {"014141414141": ["10000000000000000"]}},
        {"offset": 0, "producers": {"14141414141": ["5"]}},
        {"offset": 0, "producers": {"0141414141410": ["5"]}},
        {"offset": 0, "producers": {"producer": ["5"]}},
    ],
)
def test_states_which_are_no_states(value):
    with pytest.raises(ValidationError, match="not a state of producers"):
        RangeState.from_json(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"begin": 0, "end": 1, "producers": {"014141414141": [1, 2]}},
        {"begin": 0, "end": 1, "producers": {"014141414141": [1, 0, 0, [1], None]}},
        {"begin": 0, "end": 1, "producers": {"014141414141": [1, 0, 1, None, None]}},
        {"begin": 0, "end": "x", "producers": {}},
        {"begin": 0, "end": 1, "producers": {"014141414141": [1, 0, 1 << 64, None, None]}},
        {"begin": 0, "end": 1, "producers": {"0141": [1, 0, 0, None, [1, 0, 1]]}},
    ],
)
def test_summaries_which_are_no_summaries(value):
    with pytest.raises(ValidationError, match="not a summary of a range"):
        RangeSummary.from_json(value)


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
