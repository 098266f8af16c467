"""Misuse, hostile input, and what golden data has no case of."""

from __future__ import annotations

import json

import pytest

from gazette_aio.consumer.recoverylog import (
    FSM,
    MAX_AUTHOR,
    Author,
    Outcome,
    Segment,
    SegmentSet,
    decode_hints,
    encode_hints,
    encode_operation,
)
from gazette_aio.protocol import ValidationError
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp

LOG = "recovery/log"


def test_authors() -> None:
    drawn = {Author.random() for _ in range(100)}
    assert len(drawn) > 90
    assert all(1 <= author < MAX_AUTHOR for author in drawn)
    assert Author(MAX_AUTHOR) == MAX_AUTHOR
    for number in (0, -1, MAX_AUTHOR + 1):
        with pytest.raises(ValueError, match="invalid author"):
            Author(number)


def test_misuse_of_segment_sets() -> None:
    segments = SegmentSet([Segment(1, 2, 20, 3, 4, 40, LOG)])
    with pytest.raises(ValidationError, match="Author is zero"):
        segments.add(Segment(0, 2, 20, 3, 4, 40, LOG))
    assert len(segments) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"log": 5}',
        b'{"log": "a/log", "live_nodes": {}}',
        b'{"log": "a/log", "live_nodes": [[]]}',
        b'{"log": "a/log", "live_nodes": [{"fnode": "1"}]}',
        b'{"log": "a/log", "live_nodes": [{"fnode": true}]}',
        b'{"log": "a/log", "live_nodes": [{"fnode": 1.0}]}',
        b'{"log": "a/log", "live_nodes": [{"fnode": 9223372036854775808}]}',
        b'{"log": "a/log", "live_nodes": [{"segments": [{"author": -1}]}]}',
        b'{"log": "\xff"}',
        b'{"log":' + b"[" * 100_000,
        b"\xff\xff",
    ],
)
def test_hints_which_are_no_hints(data: bytes) -> None:
    with pytest.raises(ValidationError, match="hints"):
        decode_hints(data)


def test_lenient_hints() -> None:
    hints = FSMHints(log=LOG)
    for document in (
        {"log": LOG},
        {"log": LOG, "live_nodes": [], "properties": None},
        {"log": LOG, "unknown": {"a": [1]}},
    ):
        assert decode_hints(json.dumps(document).encode()) == hints


def test_escapes_of_hints() -> None:
    hints = FSMHints(log=LOG, properties=[{"path": "/IDENTITY", "content": "<&>\u2028\u2029é"}])
    data = encode_hints(hints)
    assert b"\\u003c\\u0026\\u003e\\u2028\\u2029\xc3\xa9" in data
    assert decode_hints(data) == hints


def test_a_refused_operation_changes_nothing() -> None:
    fsm = FSM(FSMHints(log=LOG))

    def apply(**fields: object) -> Outcome:
        op = RecordedOp(seq_no=fsm.next_seq_no, checksum=fsm.next_checksum, author=1, **fields)
        payload, _ = encode_operation(op)
        op.log = LOG
        return fsm.apply(op, payload)

    assert fsm.is_fresh
    assert apply(create={"path": "/a"}) is Outcome.APPLIED
    assert apply(property={"path": "/IDENTITY", "content": "one"}) is Outcome.APPLIED
    before = (fsm.next_seq_no, fsm.next_checksum, fsm.build_hints(LOG), dict(fsm.links))
    for fields, outcome in (
        ({"create": {"path": "/a"}}, Outcome.LINK_EXISTS),
        ({"create": {"path": "/IDENTITY"}}, Outcome.PROPERTY_EXISTS),
        ({"link": {"fnode": 1, "path": "/a"}}, Outcome.LINK_EXISTS),
        ({"link": {"fnode": 9, "path": "/IDENTITY"}}, Outcome.PROPERTY_EXISTS),
        ({"unlink": {"fnode": 1, "path": "/b"}}, Outcome.NO_SUCH_LINK),
        ({"property": {"path": "/a"}}, Outcome.LINK_EXISTS),
    ):
        assert apply(**fields) is outcome
        assert not outcome.is_step
    assert (fsm.next_seq_no, fsm.next_checksum, fsm.build_hints(LOG), fsm.links) == before
    for fields in (
        {"unlink": {"fnode": 9, "path": "/a"}},
        {"write": {"fnode": 9}},
        {"link": {"fnode": 9, "path": "/new"}},
    ):
        assert apply(**fields) is Outcome.FNODE_NOT_TRACKED
    assert fsm.next_seq_no == before[0] + 3
    assert apply(property={"path": "/IDENTITY", "content": "two"}) is Outcome.APPLIED
    assert fsm.properties == {"/IDENTITY": "two"}
    assert "1 live files" in repr(fsm)
