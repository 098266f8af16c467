"""Checkpoints and their stored form."""

from __future__ import annotations

import base64

import pytest

from gazette_aio.message import ProducerID, ProducerState, SequencerCheckpoint
from gazette_aio.protocol._generated.consumer_pb2 import Checkpoint
from tests import golden


def flatten(proto):
    checkpoint = SequencerCheckpoint.from_proto(proto)
    states = [
        {
            "journal": s.journal,
            "producer": s.producer.hex(),
            "last_ack": s.last_ack,
            "begin": s.begin,
        }
        for s in checkpoint.producers
    ]
    return sorted(states, key=lambda s: (s["journal"], s["producer"])), checkpoint.offsets


def test_golden_cases():
    for case in golden.load("checkpoint.json")["cases"]:
        args = case["args"]
        checkpoint = SequencerCheckpoint(
            dict(args["read_through"]),
            tuple(
                ProducerState(
                    s["journal"],
                    ProducerID(bytes.fromhex(s["producer"])),
                    s["last_ack"],
                    s["begin"],
                )
                for s in args["producer_states"]
            ),
        )
        intents = {i["journal"]: bytes.fromhex(i["intent"]) for i in args["ack_intents"]}
        built = checkpoint.to_proto(intents)
        want = Checkpoint.FromString(base64.b64decode(case["proto"]))
        for proto in (built, want):
            for source in proto.sources.values():
                source.producers.sort(key=lambda entry: entry.id)
        assert built == want
        assert flatten(want) == (case["producer_states"], case["read_through"])


@pytest.mark.parametrize("index", range(4))
def test_golden_flatten_only(index):
    case = golden.load("checkpoint.json")["flatten_only"][index]
    proto = Checkpoint.FromString(base64.b64decode(case["proto"]))
    assert flatten(proto) == (case["producer_states"], case["read_through"])
