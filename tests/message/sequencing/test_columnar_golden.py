"""The columnar sequencer against recorded traces."""

from __future__ import annotations

import pytest

from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
from gazette_aio.message.sequencing.plan import ReplayFilter
from gazette_aio.message.uuid import Flags
from gazette_aio.protocol.errors import ReplayError
from tests import golden, known_differences
from tests.message.sequencing.sequencing import columns


class DifferenceError(Exception):
    """Recorded rows hold zero clocks which were replayed."""


class IncomparableError(Exception):
    """The recording prunes the producer whose commit is being dequeued, or by its clock."""


class RecordedTrace:
    """Runs a recorded trace, row by row, with a sequencer of each journal."""

    def __init__(self, trace, *, evict):
        self.trace = trace
        self.evict = evict
        self.journals = trace["journals"]
        self.producers = trace["producers"]
        self.events = [self._envelope(*event) for event in trace["events"]]
        self.sequencers = {}
        self.carried = {}
        self.checkpoints = {}
        self.emitting = None  # A journal, and (position, checkpoint arguments) of what commits.
        self.stepped = 0

    def _envelope(self, journal, producer, clock, flags, begin, end):
        identity = bytes.fromhex(self.producers[producer])
        return Envelope(self.journals[journal], begin, end, clock, Flags(flags), identity, None)

    def run(self):
        for step in self.trace["steps"]:
            getattr(self, "_" + step[0])(step)

    def _queue(self, step):
        row = self.events[step[1]]
        journal = row.journal
        sequencer = self.sequencers.setdefault(journal, ColumnarSequencer(journal))
        carried = self.carried.setdefault(journal, [])
        if self.evict and step[2] == "ackCommitReplay":
            left = sequencer.evict(0)
            carried = carried if left is None else [carried[i] for i in left.tolist()]
        plan = sequencer.process(columns([row]))
        table = [*carried, step[1]]
        self.carried[journal] = [table[i] for i in plan.carry.tolist()]
        commit = [(table[i], {"delivered": n}) for n, i in enumerate(plan.rows.tolist(), 1)]
        if plan.replay is not None:
            replay = ReplayFilter(plan.replay, journal)
            commit = list(self._replayed(replay))
            commit += [(step[1], {}) for _ in replay.tail(columns([row]))]
        self.emitting = (journal, row.producer, commit) if commit else None
        self.stepped = 0

    def _replayed(self, replay):
        for i, row in enumerate(self.events):
            if row.journal == replay.journal and replay.begin <= row.begin < replay.end:
                for _ in replay.keep(columns([row])).tolist():
                    yield i, {"delivered": 0, "replayed": (row.clock, row.begin)}

    def _replay(self, step):
        """Look at nothing: the recorded range begins behind rows of a ring."""

    def _step(self, step):
        commit = self.emitting[2] if self.emitting else []
        got = [i for i, _ in commit[self.stepped : self.stepped + len(step[1])]]
        self._compare(got, step[1])
        self.stepped += len(got)

    def _drain(self, step):
        commit = self.emitting[2] if self.emitting else []
        self._compare([i for i, _ in commit[self.stepped :]], step[1])
        self.emitting = None
        assert any(s.has_pending for s in self.sequencers.values()) == step[2]

    def _compare(self, got, want):
        if got != want:
            if any(self.events[i].clock == 0 for i in want):
                raise DifferenceError
            raise AssertionError((got, want))

    def _checkpoint(self, step):
        _, horizon, offsets, states = step
        got_offsets, got_states, emitting = [], [], None
        for journal, sequencer in self.sequencers.items():
            number, arguments = self.journals.index(journal), {}
            if self.emitting is not None and self.emitting[0] == journal:
                # What was dequeued last isn't part of the recorded checkpoint.
                emitting = number, self.producers.index(self.emitting[1].hex())
                arguments = {"delivered": 0}
                if self.stepped > 1:
                    arguments = self.emitting[2][self.stepped - 2][1]
            offset, found = sequencer.checkpoint(horizon, **arguments)
            self.checkpoints[journal] = offset, found
            if offset:
                got_offsets.append([number, offset])
            for state in found:
                producer = self.producers.index(state.producer.hex())
                got_states.append([number, producer, state.last_ack, state.begin])
        assert sorted(got_offsets) == offsets
        told = {(j, p) for j, p, *_ in states}
        if horizon and emitting is not None and told != {(j, p) for j, p, *_ in got_states}:
            raise IncomparableError
        # Where a commit began is told otherwise while it's dequeued.
        got_states = sorted(s for s in got_states if (s[0], s[1]) != emitting)
        assert got_states == [s for s in states if (s[0], s[1]) != emitting]

    def _restart(self, step):
        self.emitting = None
        self.carried = {}
        self.sequencers = {
            journal: ColumnarSequencer(
                journal, offset=offset, producers=[s._replace(max_clock=None) for s in states]
            )
            for journal, (offset, states) in self.checkpoints.items()
        }


@pytest.mark.parametrize("evict", [False, True])
def test_recorded_traces(evict):
    different, incomparable, failures = set(), 0, {}
    for number, trace in enumerate(golden.load("sequencer.json")["traces"]):
        try:
            RecordedTrace(trace, evict=evict).run()
        except DifferenceError:
            different.add(number)
        except IncomparableError:
            incomparable += 1
        except AssertionError as error:
            failures[number] = (trace["name"], str(error)[:200])
    assert failures == {}
    assert different == set(known_differences.SEQUENCER_TRACES)
    assert incomparable <= 3


def test_recorded_replays():
    compared = 0
    for case in golden.load("sequencer.json")["replay_feeds"]:
        journal, begin, end = case["replay_range"]
        identities = [bytes.fromhex(p) for p in case["producers"]]

        def rows(messages, identities=identities):
            return columns(
                [
                    Envelope(j, b, e, c, Flags(f), identities[p], None)
                    for j, p, c, f, b, e in messages
                ]
            )

        sequencer = ColumnarSequencer(journal, max_pending_bytes=0)
        for message in case["messages"]:
            plan = sequencer.process(rows([message]))
        replay = ReplayFilter(plan.replay, journal)
        assert (replay.begin, replay.end) == (begin, end)
        if any(message[0] != journal for message in case["feed"]):
            continue  # Its columns don't tell of which journal they are.
        got = []
        try:
            for message in case["feed"]:
                fed = rows([message])
                got += [
                    {"begin": int(fed.begin[i]), "clock": int(fed.clock[i])}
                    for i in replay.keep(fed)
                ]
        except ReplayError as error:
            got.append({"error": str(error)})
        else:
            if case["feed_error"] is None:
                for i in replay.tail(plan.table.take(plan.replay.tail)):
                    row = plan.replay.tail[i]
                    got.append(
                        {"begin": int(plan.table.begin[row]), "clock": int(plan.table.clock[row])}
                    )
        want = [
            w
            for w in case["steps"]
            if "eof" not in w and not w.get("error", "").startswith("replay reader")
        ]
        assert got == want, case["note"]
        compared += 1
    assert compared > 10
