"""The core against golden data."""

from __future__ import annotations

import pytest

from gazette_aio.message.framing import CSVFraming
from gazette_aio.message.uuid import build_uuid
from gazette_aio.protocol.errors import FramingError
from tests import golden, known_differences
from tests.message.core.journals import ALL, PREFIX, RAW, fixed, is_batch, new, rows


def only_row(journal, content):
    journal.feed(content)
    ((_, _, clock, flags, producer),) = rows(journal.work(ALL))
    return clock, flags, producer.hex()


def test_built_uuids(form):
    for case in golden.load("uuid.json")["build"]:
        content = PREFIX + case["string"].encode() + b'"}}\n'
        got = only_row(new(form, states=None), content)
        assert got == (case["got_clock"], case["got_flags"], case["got_producer"]), case


def test_decomposed_uuids(form):
    for case in golden.load("uuid.json")["decompose"]:
        want = case["clock"], case["flags"], case["producer"]
        for text in (case["string"].encode(), case["string"].upper().encode()):
            usual = PREFIX + text + b'"}}\n'
            unusual = b'{"a":[1,{"_meta":2}],"_meta" : {"x":"\\"","uuid": "%b"}, "b":null}\n' % text
            assert only_row(new(form, states=None), usual) == want, case
            assert only_row(new(form, states=None), unusual) == want, case
        journal = new(form, "fixed", states=None, prefix=RAW, path=None)
        assert only_row(journal, fixed(RAW + bytes.fromhex(case["bytes"]))) == want, case


def outcomes(journal):
    """Return kinds, begins and ends of frames and refusals, in their order."""
    got = []
    while (found := journal.work(ALL)) is not None:
        if not is_batch(found) and found[0] == "odd":
            found = journal.resolve([bytes(16)] * len(found[1]))
        if is_batch(found):
            got += [("frame", *row[:2]) for row in rows(found)]
        else:
            got.append(found[1:4])
    return got


@pytest.mark.parametrize(
    ("name", "framing", "results"),
    [("framing_fixed.json", "fixed", "results"), ("framing_ndjson.json", "lines", "lines")],
)
def test_framing(form, name, framing, results):
    for case in golden.load(name)["unpack"]:
        stream = bytes.fromhex(case["stream"])
        want = [
            (result["kind"] if "error" in result else "frame", result["offset"])
            for result in case[results]
        ]
        if want[-1:] and want[-1][0] in {"eof", "reader_error"}:
            del want[-1]
        # The source failed in place of its end. The partial frame stays buffered.
        if case.get("end") is not None and want[-1:] and want[-1][0] == "unexpected_eof":
            del want[-1]
        for size in (len(stream) or 1, 1000, 100, 7, 1):
            if len(stream) > 100 * size:
                continue
            journal = new(form, framing, states=None, prefix=None, path=None)
            got = []
            for at in range(0, len(stream), size):
                journal.feed(stream[at : at + size])
                got += outcomes(journal)
            if case.get("end") is None:
                journal.end()
                got += outcomes(journal)
            if size >= len(stream):
                assert [each[0] for each in got] == [kind for kind, _ in want], case.get("note")
            ends = [end for kind, _, end in got if kind == "frame"]
            assert ends == [offset for kind, offset in want if kind == "frame"], case.get("note")
            # There's no gap.
            at = 0
            for _, begin, end in got:
                assert begin == at
                at = end
            assert at == journal.offset == len(stream) - journal.buffered


def test_csv_frames(form):
    """Frames of another decoder are taken as they are."""
    for case in golden.load("framing_csv.json")["unmarshal"]:
        decoder = CSVFraming().decoder(offset=5)
        decoder.feed(case["stream"].encode())
        journal = new(form, "frames", 5, states=None, prefix=None, path=None)
        want = []
        while True:
            try:
                frame = decoder.next_frame()
            except FramingError:
                continue
            if frame is None:
                break
            journal.feed_frames([(frame.payload, frame.begin, frame.end)])
            want.append(("frame", frame.begin, frame.end))
        assert outcomes(journal) == want


class IncomparableError(Exception):
    """The recording prunes the producer whose commit is being dequeued, or by its clock."""


class Trace:
    """Runs a recorded trace, with a journal of frames for each of its journals."""

    def __init__(self, form, trace, *, evicts):
        self.form, self.trace, self.evicts = form, trace, evicts
        self.events = trace["events"]
        self.at = {(event[0], event[4]): number for number, event in enumerate(self.events)}
        self.producers = [bytes.fromhex(each) for each in trace["producers"]]
        self.journals, self.checkpoints = {}, {}
        self.batch, self.settled, self.stepped, self.current = [], 0, 0, None

    def run(self):
        for step in self.trace["steps"]:
            getattr(self, "_" + step[0])(step)

    def _new(self, offset=0, states=()):
        return new(self.form, "frames", offset, states=states, prefix=b"", path=None)

    def _frame(self, event):
        _, producer, clock, flags, begin, end = event
        return build_uuid(self.producers[producer], clock, flags).bytes, begin, end

    def _queue(self, step):
        event = self.events[step[1]]
        journal = self.journals.setdefault(event[0], self._new())
        if self.evicts and step[2] == "ackCommitReplay":
            journal.evict(0)
        journal.feed_frames([self._frame(event)])
        self.current = journal, event[0], event[1]
        self.batch, self.settled, self.stepped = [], 0, 0
        self._work(journal)
        if not self.batch:
            journal.settle_all()

    def _work(self, journal):
        while (found := journal.work(ALL)) is not None:
            if is_batch(found):
                self._add(found)
            elif found[0] == "replay":
                begin, end = journal.begin_replay()
                number = self.current[1]
                again = [e for e in self.events if e[0] == number and begin <= e[4] < end]
                journal.feed_replay_frames([self._frame(event) for event in again])
                self._work(journal)
                self._add(journal.end_replay())
            else:
                assert found == ("progress",)

    def _add(self, batch):
        self.batch += [(batch, at, row) for at, row in enumerate(rows(batch))]

    def _replay(self, step):
        """Look at nothing: the recorded range begins after rows of a ring."""

    def _next(self, stop):
        return [self.at[self.current[1], row[0]] for _, _, row in self.batch[self.stepped : stop]]

    def _settle(self, stop):
        for batch, at, _ in self.batch[self.settled : stop]:
            self.current[0].settle(batch, at, at + 1)
        self.settled = stop

    def _step(self, step):
        got = self._next(self.stepped + len(step[1]))
        assert got == step[1]
        self.stepped += len(got)
        # What was dequeued last isn't part of the recorded checkpoint.
        self._settle(max(self.stepped - 1, 0))

    def _drain(self, step):
        assert self._next(None) == step[1]
        self._settle(len(self.batch))
        self.batch, self.settled, self.stepped = [], 0, 0
        assert any(journal.has_pending for journal in self.journals.values()) == step[2]

    def _checkpoint(self, step):
        _, horizon, offsets, states = step
        got_offsets, got_states = [], []
        emitting = self.current[1:] if self.batch else None
        for number, journal in self.journals.items():
            offset, found = self.checkpoints[number] = journal.checkpoint(horizon)
            if offset:
                got_offsets.append([number, offset])
            for producer, low, _, begin in found:
                got_states.append([number, self.producers.index(producer), low, begin])
        assert sorted(got_offsets) == offsets
        told = {tuple(state[:2]) for state in states}
        if horizon and emitting is not None and told != {tuple(s[:2]) for s in got_states}:
            raise IncomparableError
        # Where a commit began is told otherwise while it's dequeued.
        got_states = sorted(state for state in got_states if tuple(state[:2]) != emitting)
        assert got_states == [state for state in states if tuple(state[:2]) != emitting]

    def _restart(self, step):
        self.batch, self.settled, self.stepped = [], 0, 0
        # Stored checkpoints lack the largest pending clocks.
        self.journals = {
            number: self._new(offset, [(p, low, low, begin) for p, low, _, begin in states])
            for number, (offset, states) in self.checkpoints.items()
        }


@pytest.mark.parametrize("evicts", [False, True])
def test_recorded_traces(form, evicts):
    different, incomparable, failures = set(), 0, {}
    for number, trace in enumerate(golden.load("sequencer.json")["traces"]):
        try:
            Trace(form, trace, evicts=evicts).run()
        except IncomparableError:
            incomparable += 1
        except AssertionError as error:
            if number in known_differences.SEQUENCER_TRACES:
                different.add(number)
            else:
                failures[number] = trace["name"], str(error)[:200]
    assert failures == {}
    assert len(different) >= 17
    assert incomparable <= 5


def test_recorded_replays(form):
    compared = 0
    for case in golden.load("sequencer.json")["replay_feeds"]:
        journal, begin, end = case["replay_range"]
        identities = [bytes.fromhex(each) for each in case["producers"]]

        def frames(messages, identities=identities):
            return [
                (build_uuid(identities[p], clock, flags).bytes, begin, end)
                for _, p, clock, flags, begin, end in messages
            ]

        core = new(form, "frames", prefix=b"", path=None, max_pending_bytes=0)
        for frame in frames(case["messages"]):
            core.feed_frames([frame])
            found = core.work(ALL)
        # Nothing of the transaction follows its last message.
        last = max(m[5] for m in case["messages"][:-1] if m[1] == case["messages"][-1][1])
        assert found == ("replay", begin, last)
        core.begin_replay()
        if any(message[0] != journal for message in case["feed"]):
            continue  # Frames don't tell of which journal they are.
        got = []
        for frame in frames(case["feed"]):
            if last <= frame[1] and frame[2] <= end:
                continue
            core.jump_replay(frame[1])
            core.feed_replay_frames([frame])
            found = core.work(ALL)
            if is_batch(found):
                got += [{"begin": row[0], "clock": row[2]} for row in rows(found)]
            elif found != ("progress",):
                got.append({"error": found[1].replace(f"<= {last}", f"<= {end}")})
                break
        else:
            if case["feed_error"] is None:
                got += [{"begin": r[0], "clock": r[2]} for r in rows(core.end_replay())]
        want = [
            step
            for step in case["steps"]
            if "eof" not in step and not step.get("error", "").startswith("replay reader")
        ]
        if case["note"] in known_differences.REPLAY_FEEDS:
            assert got != want, case["note"]
            continue
        assert got == want, case["note"]
        compared += 1
    assert compared > 10
