"""Decisions of iterators, without an event loop."""

# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

from __future__ import annotations

import random
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import (
    NDJSONFraming,
    Sequencer,
    SequencerCheckpoint,
    json_adapter,
    raw_adapter,
)
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.reading.arrow import RecordEngine
from gazette_aio.message.reading.envelopes import LEAST_AT_ONCE, MOST_AT_ONCE, EnvelopeEngine
from gazette_aio.message.reading.flow import (
    Deliver,
    MessageFlow,
    NeedContent,
    NeedReplay,
    Stop,
    Work,
)
from gazette_aio.message.reading.journal_input import Arrival, ArrivalKind, JournalInput
from gazette_aio.message.reading.sequenced import SequencedEngine
from gazette_aio.protocol.errors import ReplayError, TransportError
from gazette_aio.protocol.status_errors import JournalNotFoundError
from tests.message.reading.test_arrow import line, row_of, rows_of
from tests.message.sequencing import sequencing

ADAPTER = raw_adapter("_meta.uuid")


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
        ADAPTER,
        None,
        checkpoint or SequencerCheckpoint(),
        options,
        acks=True,
        batch_bytes=batch_bytes,
        max_pending_bytes=pending,
        explain=as_it_is,
    )


class Reading:
    """A flow, and a journal whose content it's fed."""

    def __init__(self, engine, content, *, adapter=ADAPTER, begin=0, allow_replay_gaps=False):
        self.flow = MessageFlow(engine, allow_replay_gaps=allow_replay_gaps)
        self.content = content
        request = pb.ReadRequest(journal="a/j", offset=begin)
        origin = Origin(pb.JournalSpec(name="a/j"))
        journal_format = JournalFormat("a/j", origin, NDJSONFraming(), adapter)
        self.source = JournalInput(None, request, journal_format, engine.begin)

    def next(self) -> Any:
        """Return the next step, or the clocks which it delivers, and take them."""
        step = self.flow.next()
        if not isinstance(step, Deliver):
            return step
        clocks = [envelope.clock for envelope in step.output]
        step.output.clear()
        return clocks

    def take(self, count):
        """Return the clocks of the next messages, which may be delivered one by one."""
        clocks = []
        while len(clocks) < count:
            clocks += self.next()
        return clocks

    def feed_lines(self):
        """Feed line after line, each of which needs another one, but for the last."""
        at = 0
        for each in self.content.splitlines(keepends=True):
            if at:
                assert self.next() == NeedContent()
            self.feed(at, at + len(each))
            at += len(each)

    def arrive(self, kind, begin=0, chunk=b"", error=None):
        self.flow.receive(Arrival(self.source, kind, chunk, begin, error))

    def feed(self, begin=0, end=None):
        self.arrive(ArrivalKind.CHUNK, begin, self.content[begin:end])

    def feed_replay(self, begin, end):
        self.flow.feed_replay(self.content[begin:end], begin)


def test_content_is_needed_until_something_commits():
    parts = rows("A1c A2c A3k B9o")
    reading = Reading(committed(), b"".join(parts))
    assert reading.next() == reading.next() == NeedContent()
    reading.feed(0, len(parts[0]))
    assert reading.next() == NeedContent()
    reading.feed(len(parts[0]))
    assert reading.next() == [1, 2, 3, 9]
    assert reading.next() == NeedContent()


def test_uncommitted_messages_are_delivered_as_they_are():
    reading = Reading(envelopes(), b"".join(rows("A1c A2c B5c A1c A3k")))
    reading.feed()
    assert reading.next() == [1, 2, 5, 1, 3]
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


def test_what_was_not_taken_is_delivered_again():
    reading = Reading(envelopes(), b"".join(rows("A1o A2o")))
    reading.feed()
    reading.flow.next().output.popleft()
    assert reading.next() == [2]


def test_skipping_much_is_work_apart():
    reading = Reading(envelopes(on_error="skip"), b"\n" * 8000 + line(0, 1, 0))
    reading.feed()
    steps = 0
    while (step := reading.next()) == Work(0):
        reading.flow.work()
        steps += 1
    assert step == [1]
    assert steps > 1


def test_large_work_is_announced_and_done_once():
    content = b"".join(rows("A1c A2k A3o"))
    reading = Reading(records(), content)
    reading.feed()
    step = reading.flow.next()
    assert step == reading.flow.next() == Work(len(content))
    reading.flow.work()
    assert reading.flow.next().output.column("_clock").to_pylist() == [1, 2, 3]
    assert reading.flow.next() == NeedContent()


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
    reading.flow.end_replay(3 * size)
    assert reading.next() == [4]
    assert reading.next() == NeedContent()


@pytest.mark.parametrize("engine", [evicting, sequenced])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TransportError("UNAVAILABLE", "gone"), "replay reader: UNAVAILABLE: gone"),
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
    reading.flow.fail_replay(error)
    failed = reading.next().error
    assert str(failed) == f"reading committed message: {text}"
    assert (failed.journal, failed.offset) == ("a/j", size + 5)
    assert error in (failed.__cause__, failed.__cause__.__cause__)
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(0, 3 * size)
    assert reading.take(2) == [2, 3]
    assert isinstance(reading.next(), NeedReplay)
    reading.flow.fail_replay(error)
    assert isinstance(reading.next(), Stop)
    assert reading.next() == NeedReplay(2 * size, 3 * size)
    reading.feed_replay(2 * size, 3 * size)
    assert reading.next() == NeedReplay(2 * size, 3 * size)
    reading.flow.end_replay(3 * size)
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
    while not isinstance(step := reading.flow.next(), NeedReplay):
        reading.flow.work()
    assert step == NeedReplay(0, 3 * size)
    reading.flow.feed_replay(reading.content, 0)
    while not isinstance(step := reading.flow.next(), Stop):
        if isinstance(step, Deliver) and make is not records:
            step.output.clear()
        reading.flow.work()
    assert str(step.error).startswith("reading committed message: replay has wrong End")
    reading.flow.work()
    assert isinstance(reading.flow.next(), NeedReplay)


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
    reading.flow.end_replay(2 * size)
    assert f"closed at {2 * size}, ahead of {3 * size}" in str(reading.next().error)
    assert reading.next() == NeedReplay(0, 3 * size)
    reading.feed_replay(size, size + 7)
    reading.flow.end_replay(3 * size)
    if allowed:
        assert reading.next() == [4]
    else:
        assert f"no content from {size + 7} to {3 * size}" in str(reading.next().error)


@pytest.mark.parametrize("make", [evicting, sequenced])
def test_a_journal_which_is_abandoned_amid_a_replay(make):
    parts = rows("A1c A2c A3c A4k")
    engine = make()
    reading = Reading(engine, b"".join(parts))
    reading.feed_lines()
    assert isinstance(reading.next(), NeedReplay)
    reading.flow.fail_replay(JournalNotFoundError(journal="a/j"))
    reading.flow.abandon()
    assert isinstance(reading.next(), Stop)
    assert reading.next() == NeedContent()
    assert engine.checkpoint() == SequencerCheckpoint()


def test_errors_of_reading():
    parts = rows("A1o A2o")
    reading = Reading(committed(), b"".join(parts))
    reading.feed(0, len(parts[0]) + 3)
    assert reading.next() == [1]
    assert reading.next() == NeedContent()
    error = TransportError("UNKNOWN", "broken")
    reading.arrive(ArrivalKind.ERROR, error=error)
    failed = reading.next().error
    assert (failed.journal, failed.begin, failed.kind) == ("a/j", len(parts[0]), "read")
    assert failed.__cause__ is error
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
        return engine.checkpoint().producers[0].last_ack

    if skip:
        assert reading.take(3) == [1, 3, 4]
        assert engine.skipped == 1
        return
    assert reading.next() == [1]
    reading.flow.work()  # It makes nothing more before the error is told.
    assert last_ack() == 1
    failed = reading.next().error
    assert (failed.kind, failed.begin, failed.end) == (
        "decode",
        len(parts[0]),
        len(parts[0] + parts[1]),
    )
    assert last_ack() == 2
    assert reading.take(2) == [3, 4]


def test_jumps_and_ends():
    parts = rows("A1o A2o A3o")
    size = len(parts[0])
    reading = Reading(envelopes(), b"".join(parts))
    reading.feed(0, size + 9)
    assert reading.next() == [1]
    reading.arrive(ArrivalKind.JUMP, 2 * size)
    assert reading.next() == NeedContent()
    reading.feed(2 * size, 3 * size - 1)
    assert reading.next() == NeedContent()
    reading.arrive(ArrivalKind.END)
    for _ in range(2):
        assert reading.next().error.kind == "unexpected_eof"


@pytest.mark.parametrize("make", [committed, sequenced, records])
def test_a_journal_which_was_created_anew(make):
    """Nothing of its predecessor counts: neither clocks, nor offsets, nor what's pending."""
    engine = make()
    before, after = b"".join(rows("A7o A8c")), b"".join(rows("A1o A9k"))

    def read(reading):
        reading.feed()
        clocks = []
        while (step := reading.flow.next()) != NeedContent():
            if isinstance(step, Deliver):
                found = step.output
                clocks += [row.clock for row in found] if make is not records else clocks_of(found)
                if make is not records:
                    found.clear()
            else:
                reading.flow.work()
        return clocks

    reading = Reading(engine, before)
    assert read(reading) == [7]
    reading.arrive(ArrivalKind.LEFT)
    anew = Reading(engine, after)
    anew.flow = reading.flow
    anew.arrive(ArrivalKind.RESET)
    assert read(anew) == [1, 9]
    assert engine.checkpoint().offsets == {"a/j": len(after)}


def clocks_of(batch):
    return batch.column("_clock").to_pylist()


class Restarts:
    """Reads a journal by flows which replace each other, whose replays fail at random."""

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
        reading = Reading(engine, self.content, begin=at)
        flow, replayed = reading.flow, None
        for _ in range(rng.randrange(1, 60)):
            match flow.next():
                case Deliver(output) if form < 2:
                    self.found.append(row_of(output.popleft()))
                case Deliver(batch):
                    self.found += rows_of(batch)
                case Work():
                    flow.work()
                case NeedContent() if at == len(self.content):
                    return True
                case NeedContent():
                    end = min(at + rng.choice((1, 50, 400, 5000)), len(self.content))
                    reading.feed(at, end)
                    at = end
                case NeedReplay() if rng.random() < 0.2:
                    flow.fail_replay(TransportError("UNAVAILABLE", "gone"))
                    replayed = None
                case NeedReplay(begin, end) if (replayed or begin) < end:
                    begin = begin if replayed is None else replayed
                    replayed = min(begin + rng.choice((1, 50, 5000)), end)
                    reading.feed_replay(begin, replayed)
                case NeedReplay(_, end):
                    flow.end_replay(end)
                    replayed = None
                case Stop(error):
                    assert isinstance(error, ReplayError)
                    self.failures += 1
        self.checkpoint = engine.checkpoint()
        return False


def test_flows_of_either_engine_go_on_from_each_other():
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
        while (step := whole.flow.next()) != NeedContent():
            if isinstance(step, Deliver):
                expected += map(row_of, step.output)
                step.output.clear()
            else:
                assert step == Work(0)
                whole.flow.work()
        restarts = Restarts(rng, content)
        assert restarts.read() == expected
        failures += restarts.failures
    assert failures > 50
