"""Envelopes of many frames at once are those of each frame alone."""

# pyright: basic

from __future__ import annotations

import random
from itertools import accumulate
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_aio.message import ACK_TXN, CONTINUE_TXN, ProducerID, build_uuid, json_adapter
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
from gazette_aio.message.framing import Frames
from tests.message.reading.test_uniform_runs import ADAPTER, START, line, random_lines

A, B = ProducerID(b"\x01AAAAA"), ProducerID(b"\x01BBBBB")


def frames_of(payloads):
    return Frames(7, payloads, [7 + end for end in accumulate(map(len, payloads))])


def built_alone(frames, *, strict):
    """Return envelopes, and the text of the error that ends them, by a new builder for each."""
    envelopes = []
    for index in range(len(frames.ends)):
        alone = frames.slice(index, index + 1)
        built, bad = EnvelopeBuilder("a/j", ADAPTER, strict=strict).build(alone)
        if bad is not None:
            return envelopes, str(bad.error)
        envelopes += built
    return envelopes, None


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), strict=st.booleans())
def test_frames_are_built_at_once(seed, strict):
    rng = random.Random(seed)
    builder = EnvelopeBuilder("a/j", ADAPTER, strict=strict)
    payloads = [each[:-1] for each in random_lines(rng)]
    while payloads:
        frames = frames_of(payloads[: rng.randrange(1, 60)])
        del payloads[: len(frames.ends)]
        want, error = built_alone(frames, strict=strict)
        for _ in range(2):  # The UUIDs are known when they're seen again.
            got, bad = builder.build(frames)
            assert got == want
            assert [row.end for row in got] == frames.ends[: len(got)]
            assert (bad and str(bad.error)) == error


def test_producers_take_turns():
    builder = EnvelopeBuilder("a/j", ADAPTER)
    clocks = [START + 160 * index for index in range(100)]
    lines = [
        line(index, clock, ACK_TXN if index % 5 == 4 else CONTINUE_TXN, (A, B)[index % 2])
        for index, clock in enumerate(clocks)
    ]
    frames = frames_of([each[:-1] for each in lines])
    for _ in range(2):
        built, bad = builder.build(frames)
        assert bad is None
        assert [row.clock for row in built] == clocks
        assert [row.producer for row in built] == [A, B] * 50
        assert [row.flags == ACK_TXN for row in built] == [index % 5 == 4 for index in range(100)]
        assert [row.message for row in built] == frames.payloads
        assert [row.begin for row in built] == [7, *frames.ends[:-1]]


@pytest.mark.parametrize("cut", [0, 17, 18, 20, 26, 40, 54])
def test_one_that_is_cut_short_is_bad(cut):
    builder = EnvelopeBuilder("a/j", json_adapter())
    payloads = [line(index, START + 160 * index)[:-1] for index in range(9)]
    assert builder.build(frames_of(payloads))[1] is None
    payloads[5:6] = [payloads[5][:cut], payloads[5][cut:]]
    built, bad = builder.build(frames_of(payloads))
    assert bad is not None
    assert len(built) == bad.position == 5


class BareAdapter:
    """Its messages are 16 bytes of a UUID, and some more."""

    uuid_place = UUIDPlace(b"", b"", text=False)

    def frame_uuid(self, frame):
        return UUID(bytes=frame[:16])

    uuid = frame_uuid

    def decode(self, frame):
        return frame

    def encode(self, message, uuid):
        return uuid.bytes + message

    def acknowledgement(self, uuid):
        return uuid.bytes


def test_uuids_at_the_very_front():
    builder, adapter = EnvelopeBuilder("a/j", BareAdapter()), BareAdapter()
    uuids = [build_uuid(A, START + 160 * index, CONTINUE_TXN) for index in range(50)]
    frames = frames_of([adapter.encode(b"more", uuid) for uuid in uuids])
    for _ in range(2):
        built, bad = builder.build(frames)
        assert bad is None
        assert [row.uuid for row in built] == uuids
    assert builder.build(frames_of([])) == ([], None)
    run = builder.uniform_run(frames)
    assert run is not None
    assert list(run) == built
