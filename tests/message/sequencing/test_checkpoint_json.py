"""Checkpoints as JSON: exact, stable, and refused by name if they're something else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import ProducerID, ProducerState, SequencerCheckpoint
from gazette_aio.protocol.errors import ValidationError

CLOCKS = st.integers(0, 2**64 - 1)
JOURNALS = st.text(st.characters(codec="utf-8"), min_size=1)
PRODUCERS = st.builds(
    ProducerState,
    JOURNALS,
    st.binary(min_size=6, max_size=6).map(ProducerID),
    CLOCKS,
    st.integers(-1, 2**63 - 1),
    st.none() | CLOCKS,
)
CHECKPOINTS = st.builds(
    SequencerCheckpoint,
    st.dictionaries(JOURNALS, st.integers(-1, 2**63 - 1)),
    st.lists(PRODUCERS).map(tuple),
)
EXAMPLE = SequencerCheckpoint(
    {"b/journal": 2**62 + 1, "a/journal;meta": 0},
    (
        ProducerState(
            "b/journal", ProducerID(b"\x01\x02\x03\x04\x05\xff"), 2**64 - 2, 7, 2**64 - 1
        ),
        ProducerState("a/journal;meta", ProducerID(bytes(6)), 0, -1),
    ),
)
TEXT = (
    '{"version":1,"offsets":{"a/journal;meta":"0","b/journal":"4611686018427387905"},"producers":['
    '{"journal":"b/journal","producer":"0102030405ff","last_ack":"18446744073709551614",'
    '"begin":"7","max_clock":"18446744073709551615"},'
    '{"journal":"a/journal;meta","producer":"000000000000","last_ack":"0","begin":"-1",'
    '"max_clock":null}]}'
)


@given(CHECKPOINTS)
def test_round_trips_are_exact(checkpoint: SequencerCheckpoint):
    text = checkpoint.to_json()
    assert SequencerCheckpoint.from_json(text) == checkpoint
    assert SequencerCheckpoint.from_json(text.encode()).to_json() == text
    # A database may store it in a form of its own.
    assert SequencerCheckpoint.from_json(json.dumps(json.loads(text), indent=2)) == checkpoint


def test_the_stored_form_stays():
    assert EXAMPLE.to_json() == TEXT
    assert SequencerCheckpoint.from_json(TEXT) == EXAMPLE
    turned = SequencerCheckpoint(dict(reversed(EXAMPLE.offsets.items())), EXAMPLE.producers)
    assert turned == EXAMPLE
    assert turned.to_json() == TEXT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "isn't that of a checkpoint: Input data was truncated"),
        ("[]", "isn't that of a checkpoint: Expected `object`"),
        ("{}", "missing required field `version`"),
        (b"\xff", "isn't that of a checkpoint"),
        (b'{"x":' + b"[" * 10_000, "isn't that of a checkpoint"),
        (TEXT[:-1], "truncated"),
        (TEXT.replace('"version":1', '"version":2'), "checkpoint has version 2, not 1"),
        (TEXT.replace('"begin":"7",', ""), "missing required field `begin`.*producers"),
        (TEXT.replace('"begin":"7"', '"begin":7'), r"Expected `str`, got `int`.*begin"),
        (TEXT.replace('"begin":"7"', '"begin":"-7"'), r"matching regex.*begin"),
        (TEXT.replace("0102030405ff", "0102030405"), r"matching regex.*producer"),
        (TEXT.replace('"begin"', '"more":1,"begin"'), "unknown field `more`"),
    ],
)
def test_other_texts_are_refused(text: str | bytes, reason: str):
    with pytest.raises(ValidationError, match=reason):
        SequencerCheckpoint.from_json(text)
