"""The public names of the package."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from gazette_aio.message import Envelope, Flags, Sequencer, build_uuid

A = b"\x01AAAAA"


def test_importing_loads_no_transport_and_no_extra():
    code = (
        "import sys, gazette_aio.message as m; m.json_adapter(dict); "
        "print([n for n in ('grpc', 'pydantic', 'numpy', 'orjson') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_envelopes():
    envelope = Envelope("a/j", 5, 9, 160, Flags(2), A, {"v": 1})
    assert envelope.uuid == build_uuid(A, 160, 2)
    assert repr(envelope) == f"Envelope('a/j' [5, 9) {envelope.uuid} ACK_TXN {{'v': 1}})"
    assert pickle.loads(pickle.dumps(envelope)) == envelope
    assert envelope != Envelope("a/j", 5, 9, 160, Flags(2), A, {"v": 2})
    assert envelope != 5
    with pytest.raises(TypeError):
        hash(envelope)
    with pytest.raises(AttributeError):
        envelope.other = 1
    assert "journals=0" in repr(Sequencer())
