"""Steps of readers, without an event loop."""

# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

from __future__ import annotations

import random
from collections import deque

import pytest

from gazette_aio.message import Sequencer, SequencerCheckpoint, json_adapter
from gazette_aio.message.reading.arrow import RecordEngine
from gazette_aio.message.reading.envelopes import LEAST_AT_ONCE, MOST_AT_ONCE, EnvelopeEngine
from gazette_aio.message.reading.journal_input import ArrivalKind
from gazette_aio.message.reading.sequenced import SequencedEngine
from gazette_aio.protocol.errors import ReplayError, TransportError
from tests.message.reading.stepwise import RAW, NeedContent, NeedReplay, Pause, Reading, Stop
from tests.message.reading.test_arrow import line, row_of, rows_of
from tests.message.sequencing import sequencing


def rows(text):
    """Lines of one size, but for acknowledgements."""
    return [line(0, row.clock, row.flags, row.producer) for row in sequencing.parse(text)]


def as_it_is(error):
    return error


def envelopes(checkpoint=None, *, pending=1 << 20, **options):
    return EnvelopeEngine(checkpoint, options, max_pending_bytes=pending, explain=as_it_is)


def committed(**options):
    return envelopes(SequencerCheckpoint(), **options)


def sequenced(**options):
    """An engine with a given sequencer, which retains a single message."""
    return SequencedEngine(Sequencer(buffer=1), options, explain=as_it_is)


def evicting(**options):
    """An engine that retains nothing from one step to the next."""
    return committed(pending=0, **options)


def records(checkpoint=None, *, pending=1 << 20, batch_bytes=1 << 20, **options):
    return RecordEngine(
        RAW,
        None,
        checkpoint or SequencerCheckpoint(),
        options,
        acks=True,
        batch_bytes=batch_bytes,
        max_pending_bytes=pending,
        explain=as_it_is,
    )


def test_content_is_needed_until_something_commits():
    parts = rows("A1c A2c A3k B9o")
    reading = Reading(committed(), b"".join(parts))
    assert reading.next() == reading.next() == NeedContent()
    reading.feed(0, len(parts[0]))
    assert reading.next() == NeedContent()
    reading.feed(len(parts[0]))
    assert reading.next() == [1, 2, 3, 9]
    assert reading.next() == NeedContent()


def test_what_is_at_hand_is_delivered_in_turns():
    content = b"".join(line(0, clock, 0) for clock in range(1, 2 * MOST_AT_ONCE + 6))
    reading = Reading(committed(), content)
    reading.feed()
    got = [reading.next() for _ in range(3)]
    assert [len(clocks) for clocks in got] == [MOST_AT_ONCE, MOST_AT_ONCE, 5]
    assert [clock for clocks in got for clock in clocks] == [*range(1, 2 * MOST_AT_ONCE + 6)]
    assert reading.next() == NeedContent()


def test_large_messages_are_decoded_in_smaller_numbers():
    lines = [line(10**4000, clock, 0) for clock in range(1, 100)]
    reading = Reading(committed(), b"".join(lines))
    reading.feed()
    assert len(reading.next()) == LEAST_AT_ONCE


@pytest.mark.parametrize("engine", [evicting, sequenced])
def test_a_replay(engine):
    parts = rows("A1c A2c A3c A4k")
    size = len(parts[0])
    reading = Reading(engine(), b"".join(parts))
    reading.feed_lines()
    step = NeedReplay(0, 3 * size)
    assert reading.next() == reading.next() == step
    reading.feed_replay(0, size + 5)
    assert reading.next() == [1]
    assert reading.next() == step
    reading.feed_replay(size + 5, 3 * size)
    assert reading.take(2) == [2, 3]
    assert reading.next() == step
    reading.end_replay(3 * size)
    assert reading.next() == [4]
    assert reading.next() == NeedContent()


@pytest.mark.parametrize("engine", [evicting, sequenced])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            TransportError("UNAVAILABLE", "gone", retryable=True),
            "replay reader: UNAVAILABLE: gone",
        ),
        (ReplayError("the journal isn't there"), "the journal isn't there"),
    ],
)
def test_a_failed_replay_begins_again_behind_what_was_delivered(error, text, engine):
    parts = rows("A1c A2c A3c A4k")
    size = len(parts[0])
    reading = Reading(engine(), b"".join(parts))
    reading.feed_lines()
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(0, size + 5)
    assert reading.next() == [1]
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.fail_replay(error)
    failed = reading.next().error
    assert str(failed) == f"reading committed message: {text}"
    assert (failed.journal, failed.offset) == ("a/j", size + 5)
    assert failed.retryable is error.retryable
    assert error in (failed.__cause__, failed.__cause__.__cause__)
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(0, 3 * size)
    assert reading.take(2) == [2, 3]
    assert isinstance(reading.next(), NeedReplay)
    reading.fail_replay(error)
    assert isinstance(reading.next(), Stop)
    assert reading.next() == NeedReplay(2 * size, 3 * size)
    reading.feed_replay(2 * size, 3 * size)
    assert reading.next() == NeedReplay(2 * size, 3 * size)
    reading.end_replay(3 * size)
    assert reading.next() == [4]


@pytest.mark.parametrize("make", [evicting, sequenced, records])
def test_replays_of_other_content_fail(make):
    parts = rows("A1c A2c A3c A4k")
    size = len(parts[0])
    reading = Reading(
        make(pending=0, batch_bytes=1) if make is records else make(), b"".join(parts)
    )
    if make is records:
        reading.feed()
    else:
        reading.feed_lines()
    while not isinstance(step := reading.next(), NeedReplay):
        pass
    assert step == NeedReplay(0, 3 * size)
    reading.feed_replay(0, len(reading.content))
    reading.end_replay(len(reading.content))
    while not isinstance(step := reading.next(), Stop):
        assert not isinstance(step, NeedReplay)
    assert str(step.error).startswith("reading committed message: replay has wrong End")
    assert isinstance(reading.next(), NeedReplay)


@pytest.mark.parametrize("engine", [evicting, sequenced])
@pytest.mark.parametrize("allowed", [False, True])
def test_replays_which_lack_content(allowed, engine):
    parts = rows("A1c A2c A3c A4k")
    size = len(parts[0])
    reading = Reading(engine(), b"".join(parts), allow_replay_gaps=allowed)
    reading.feed_lines()
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(0, size)
    assert reading.next() == [1]
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.end_replay(2 * size)
    assert f"closed at {2 * size}, ahead of {3 * size}" in str(reading.next().error)
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(size, size + 7)
    reading.end_replay(3 * size)
    if allowed:
        assert reading.next() == [4]
    else:
        assert f"no content from {size + 7} to {3 * size}" in str(reading.next().error)


def test_errors_of_reading():
    parts = rows("A1o A2o")
    reading = Reading(committed(), b"".join(parts))
    reading.feed(0, len(parts[0]) + 3)
    assert reading.next() == [1]
    assert reading.next() == NeedContent()
    error = TransportError("UNKNOWN", "broken")
    reading.arrive(ArrivalKind.ERROR, error=error)
    assert reading.next().error is error
    assert error.__notes__ == [f"reading messages of a/j at offset {len(parts[0])}"]
    assert reading.next() == NeedContent()
    reading.feed(len(parts[0]) + 3)
    assert reading.next() == [2]


@pytest.mark.parametrize("make", [committed, sequenced])
@pytest.mark.parametrize("skip", [False, True])
def test_bad_messages_are_passed_over_once_they_are_told(skip, make):
    parts = rows("A1c A2c A3c A4k")
    parts[1] = parts[1].replace(b'"n":0', b'"n":\xff')
    options = {"on_error": "skip"} if skip else {}

    engine = SequencedEngine(Sequencer(), options, explain=as_it_is)
    if make is committed:
        engine = committed(**options)
    reading = Reading(engine, b"".join(parts), adapter=json_adapter())
    reading.feed()

    def last_ack():
        return reading.checkpoint().producers[0].last_ack

    if skip:
        assert reading.take(3) == [1, 3, 4]
        assert engine.skipped == 1
        return
    assert reading.next() == [1]
    assert last_ack() == 1
    failed = reading.next().error
    assert (failed.kind, failed.begin, failed.end) == (
        "decode",
        len(parts[0]),
        len(parts[0] + parts[1]),
    )
    assert last_ack() == 2
    assert reading.take(2) == [3, 4]


class Restarts:
    """Reads a journal by readers which replace each other, whose replays fail at random."""

    def __init__(self, rng, content):
        self.rng = rng
        self.content = content
        self.found = []
        self.checkpoint = SequencerCheckpoint()
        self.failures = 0

    def read(self):
        while not self.read_some():
            pass
        return self.found

    def read_some(self):
        """Read up to a random step, and return whether that's the end."""
        rng, known = self.rng, self.checkpoint
        form, pending = rng.choice((0, 1, 2)), rng.choice((0, 300, 1 << 20))
        if form == 0:
            sequencer = Sequencer.from_checkpoint(known, buffer=rng.choice((1, 3, 1000)))
            engine = SequencedEngine(sequencer, {"on_error": "skip"}, explain=as_it_is)
        elif form == 1:
            engine = envelopes(known, pending=pending, on_error="skip")
        else:
            size = rng.choice((1, 200, 1 << 20))
            engine = records(known, pending=pending, batch_bytes=size, on_error="skip")
        at = known.offsets.get("a/j", 0)
        reading, replayed = Reading(engine, self.content, begin=at), None
        for _ in range(rng.randrange(1, 60)):
            if reading.ready:
                self.found.append(row_of(reading.ready.popleft()))
                continue
            match reading.step():
                case list(output):
                    reading.ready = deque(output)
                case Pause():
                    pass
                case NeedContent() if at == len(self.content):
                    return True
                case NeedContent():
                    end = min(at + rng.choice((1, 50, 400, 5000)), len(self.content))
                    reading.feed(at, end)
                    at = end
                case NeedReplay() if rng.random() < 0.2:
                    reading.fail_replay(TransportError("UNAVAILABLE", "gone"))
                    replayed = None
                case NeedReplay(begin, end) if (replayed or begin) < end:
                    begin = begin if replayed is None else replayed
                    replayed = min(begin + rng.choice((1, 50, 5000)), end)
                    reading.feed_replay(begin, replayed)
                case NeedReplay(_, end):
                    reading.end_replay(end)
                    replayed = None
                case Stop(error):
                    assert isinstance(error, ReplayError)
                    self.failures += 1
                case batch:
                    self.found += rows_of(batch)
        self.checkpoint = reading.checkpoint()
        return False


def test_readers_of_either_engine_go_on_from_each_other():
    """Whatever they're fed, wherever they end, they deliver what one sequencer does."""
    failures = 0
    for seed in range(150):
        rng = random.Random(seed)
        content = b""
        for number, row in enumerate(sequencing.well_formed(rng, rng.randrange(1, 60))):
            if rng.random() < 0.05:
                content += rng.choice((b"{garbage}\n", b"\n", b'{"_meta":{"uuid":7}}\n'))
            content += line(number, row.clock, row.flags, row.producer)
        whole = Reading(committed(on_error="skip"), content)
        whole.feed()
        expected = []
        while (step := whole.step()) != NeedContent():
            if not isinstance(step, Pause):
                expected += map(row_of, step)
        restarts = Restarts(rng, content)
        assert restarts.read() == expected
        failures += restarts.failures
    assert failures > 50
