"""Messages are the same whatever reads them: the core, or a given sequencer message by message."""

# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

from __future__ import annotations

import logging
import random
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    Sequencer,
    SequencerCheckpoint,
)
from gazette_aio.message.reading.envelopes import EnvelopeEngine
from gazette_aio.message.reading.sequenced import SequencedEngine
from tests.message.random_lines import ADAPTER, START, line, random_lines
from tests.message.reading.stepwise import NeedContent, NeedReplay, Pause, Reading, Stop
from tests.message.reading.test_reader import as_it_is


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what is logged of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def read(
    content, adapter, checkpoint=None, *, rng=None, ring=0, pending=1 << 20, stop=-1, **options
):
    """Return outcomes: messages and errors; and a checkpoint as of `stop` of them."""
    known = checkpoint or SequencerCheckpoint()
    if ring:
        sequencer = Sequencer.from_checkpoint(known, buffer=ring)
        engine = SequencedEngine(sequencer, options, explain=as_it_is)
    else:
        engine = EnvelopeEngine(known, options, max_pending_bytes=pending, explain=as_it_is)
    at = known.offsets.get("a/j", 0)
    reading = Reading(engine, content, adapter=adapter, begin=at)
    outcomes = []
    while True:
        while reading.ready:
            if stop == 0:
                return outcomes, reading.checkpoint()
            each = reading.ready.popleft()
            message = None if each.message is None else each.message.n
            stamp = each.clock, each.flags, each.producer
            outcomes.append((each.begin, each.end, *stamp, message))
            assert each.spec.name == each.journal == "a/j"
            stop -= 1
            if rng is not None and rng.random() < 0.3:
                reading.checkpoint()
        match reading.step():
            case list(ready):
                reading.ready = deque(ready)
            case Stop(error):
                outcomes.append((error.begin, error.end, error.kind, str(error)))
            case Pause():
                pass
            case NeedReplay(begin, end):
                reading.feed_replay(begin, end)
                reading.end_replay(end)
            case NeedContent():
                if at == len(content):
                    return outcomes, reading.checkpoint()
                size = len(content) if rng is None else rng.choice((1, 100, 5000, 50_000))
                reading.feed(at, at + size)
                at = min(at + size, len(content))


@settings(max_examples=150)
@example(seed=1116)  # What was a duplicate at first is evicted, and comes again in a replay.
@given(seed=st.integers(0, 2**32))
def test_committed_messages_are_the_same(seed):
    rng = random.Random(seed)
    content = b"".join(random_lines(rng))
    options = {
        "skip_acks": rng.random() < 0.5,
        "strict_uuid": rng.random() < 0.3,
        "on_error": rng.choice(("raise", "skip")),
    }
    want, end = read(content, ADAPTER, ring=8192, **options)
    got, same_end = read(
        content, ADAPTER, rng=rng, pending=rng.choice((0, 1000, 1 << 20)), **options
    )
    assert messages(got) == messages(want)
    # Errors are raised in this order of reading and of commits, which depends on what's at hand.
    assert sorted(map(str, got)) == sorted(map(str, want))
    assert same_end.offsets == end.offsets
    assert same_end.producers == tuple(sorted(end.producers))


def messages(outcomes):
    return [each for each in outcomes if len(each) == 6]


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_checkpoints_at_each_message_are_exact(seed):
    rng = random.Random(seed)
    content = b"".join(random_lines(rng))
    options = {"skip_acks": rng.random() < 0.5}
    want = messages(read(content, ADAPTER, ring=8192, **options)[0])
    stop = rng.randrange(len(want) + 1)
    ring = rng.choice((0, 0, 100, 8192))
    got, checkpoint = read(content, ADAPTER, rng=rng, stop=stop, ring=ring, **options)
    assert messages(got) == want[:stop]
    if rng.random() < 0.5:
        checkpoint = SequencerCheckpoint.from_json(checkpoint.to_json())
    later, _ = read(content, ADAPTER, checkpoint, rng=rng, **options)
    assert messages(later) == want[stop:]


class Refusing:
    """An adapter that raises an error of its own for one message."""

    uuid_place, frame_uuid, uuid = ADAPTER.uuid_place, ADAPTER.frame_uuid, ADAPTER.uuid
    encode, acknowledgement = ADAPTER.encode, ADAPTER.acknowledgement

    def __init__(self, error):
        self._error = error

    def decode(self, frame):
        message = ADAPTER.decode(frame)
        if message.n == 40:
            raise self._error
        return message


@pytest.mark.parametrize("error", [ValueError("odd"), StopIteration("odd"), KeyError("odd")])
@pytest.mark.parametrize("ack_at", [(), range(3, 60, 4)])
def test_any_error_of_an_adapter_is_told_with_its_place(error, ack_at):
    lines = [
        line(index, START + 160 * index, ACK_TXN if index in ack_at else CONTINUE_TXN)
        for index in range(100)
    ]
    content = b"".join([*lines, line(0, START + 160 * 100, ACK_TXN)])
    outcomes, _ = read(content, Refusing(error), skip_acks=True)
    want = [index for index in range(100) if index not in ack_at and index != 40]
    assert [each[-1] for each in messages(outcomes)] == want
    begin, end, kind, text = next(each for each in outcomes if len(each) == 4)
    assert (begin, end, kind) == (len(b"".join(lines[:40])), len(b"".join(lines[:41])), "decode")
    assert text == f"a/j at offset {begin}: {error}"
