"""Content of `state.json`, as Gazette writes and reads it."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gazette_aio.consumer.stores.state_file import decode_state_file, encode_state_file
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import StoreError


def example() -> Checkpoint:
    checkpoint = Checkpoint()
    foo = checkpoint.sources["foo"]
    foo.read_through = 111
    entry = foo.producers.add(id=bytes.fromhex("010203040506"))
    entry.state.last_ack, entry.state.begin = 456, 789
    entry = checkpoint.sources["bar"].producers.add(id=bytes.fromhex("aabbccddeeff"))
    entry.state.last_ack, entry.state.begin = 2**64 - 1, -1
    checkpoint.sources["<a&b>\u2028"].read_through = 0
    checkpoint.ack_intents["baz"] = b"intent"
    return checkpoint


# As the JSON encoder of Go writes a map of offsets, a state, and a `pc.Checkpoint`.
CONTENT = (
    rb'{"\u003ca\u0026b\u003e\u2028":0,"bar":0,"foo":111}'
    b'\n{"count":3}\n'
    rb'{"sources":{"\u003ca\u0026b\u003e\u2028":{"producers":null},'
    rb'"bar":{"producers":[{"id":"qrvM3e7/","state":{"last_ack":18446744073709551615,"begin":-1}}]},'
    rb'"foo":{"read_through":111,"producers":[{"id":"AQIDBAUG","state":{"last_ack":456,"begin":789}}]}},'
    rb'"ack_intents":{"baz":"aW50ZW50"}}'
    b"\n"
)


def encode(state: Any, checkpoint: Checkpoint) -> bytes:
    return encode_state_file(msgspec.json.encode, state, checkpoint)


def test_bytes_are_those_of_go() -> None:
    assert encode({"count": 3}, example()) == CONTENT
    assert encode([], Checkpoint()) == b'{}\n[]\n{"sources":null}\n'
    stored = decode_state_file(CONTENT)
    assert (stored.state, stored.checkpoint) == (b'{"count":3}', example())
    assert decode_state_file(b'{}\n[]\n{"sources":null}\n').checkpoint == Checkpoint()


def test_checkpoints_of_go(vectors: Path) -> None:
    for case in json.loads((vectors / "checkpoint.json").read_text())["cases"]:
        checkpoint = Checkpoint.FromString(b64decode(case["proto"]))
        assert decode_state_file(encode(None, checkpoint)).checkpoint == checkpoint


def test_offsets_always_apply() -> None:
    content = (
        b'{"foo":222,"new":5}\n{}\n{"sources":{"foo":{"read_through":111,"producers":null}}}\n'
    )
    sources = decode_state_file(content).checkpoint.sources
    assert {name: source.read_through for name, source in sources.items()} == {"foo": 222, "new": 5}


@pytest.mark.parametrize("content", [b'{"foo":222}\n{"a":1}\n', b'{"foo":222}\n{"a":1}'])
def test_old_files_have_no_checkpoint(content: bytes) -> None:
    stored = decode_state_file(content)
    assert stored.state == b'{"a":1}'
    assert stored.checkpoint.sources["foo"].read_through == 222
    assert decode_state_file(b"null\n1\n").checkpoint == Checkpoint()


def test_states_may_have_several_lines() -> None:
    content = encode_state_file(lambda state: json.dumps(state, indent=1), {"a": [1]}, example())
    stored = decode_state_file(content)
    assert json.loads(stored.state) == {"a": [1]}
    assert stored.checkpoint == example()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", r"^decode\(offsets\): "),
        (b"[]\n{}\n{}\n", r"^decode\(offsets\): "),
        (b'{"foo":9999999999999999999}\n{}\n{}\n', r"^decode\(offsets\): "),
        (b"{}\n", r"^decode\(state\): "),
        (b'{}\n{}\n{"sources":{"a":{"read_thr', r"^decode\(checkpoint\): "),
        (b'{}\n{}\n{"sources":{"a":{"read_through":"1"}}}', r"^decode\(checkpoint\): "),
        (b'{}\n{}\n{"ack_intents":{"a":"?"}}', r"^decode\(checkpoint\): "),
        (b'{}\n{}\n{"x":' + b"[" * 10_000, r"^decode\(checkpoint\): "),
    ],
)
def test_damaged_files_are_refused(content: bytes, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        decode_state_file(content)


def test_states_that_cannot_be_encoded() -> None:
    with pytest.raises(StoreError, match=r"^encode\(state\): "):
        encode(object(), Checkpoint())
