"""Messages that are read in runs of a producer are the messages that are read one by one."""

# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

from __future__ import annotations

import logging
import random
import sys
from contextlib import contextmanager
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Clock,
    ProducerID,
    Sequencer,
    build_uuid,
    json_adapter,
)
from gazette_aio.message.envelopes import splitter
from gazette_aio.message.envelopes.stamps import UNIFORM_RUN, EnvelopeBuilder
from gazette_aio.message.envelopes.uniform_run import (
    JoinedRuns,
    bytes_between,
    offset_at,
)
from gazette_aio.message.framing import Frames

A, B = ProducerID(b"\x01AAAAA"), ProducerID(b"\x01BBBBB")
START = Clock.from_time(1_700_000_000 * 10**9).value


class Number(msgspec.Struct):
    n: int


ADAPTER = json_adapter(Number)


@contextmanager
def one_by_one():
    """No run is uniform meanwhile: messages are read as those of many producers are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitter, "UNIFORM_RUN", sys.maxsize)
        yield


@pytest.fixture(autouse=True)
def _quiet():
    """Leave out what is logged of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def line(number, clock, flags=CONTINUE_TXN, producer=A):
    uuid = build_uuid(producer, clock, flags)
    if flags == ACK_TXN:
        return ADAPTER.acknowledgement(uuid) + b"\n"
    return ADAPTER.encode(Number(number), uuid) + b"\n"


def random_lines(rng):
    """Lines of transactions of one producer or two, some of which misbehave."""
    clocks = {A: START, B: START + 16 * rng.randrange(-5000, 5000)}
    odd = rng.choice((0, 0, 0.02, 0.2))
    lines = []
    for _ in range(rng.randrange(1, 10)):
        producer = rng.choice((A, A, A, B))
        step = rng.choice((160, 160, 160, 16, 1))
        flags = rng.choice((CONTINUE_TXN, CONTINUE_TXN, CONTINUE_TXN, OUTSIDE_TXN))
        for _ in range(rng.choice((1, 3, UNIFORM_RUN - 1, UNIFORM_RUN, 50, 200))):
            clocks[producer] += step
            lines.append(line(len(lines), clocks[producer], flags, producer))
            if rng.random() < odd:
                lines.append(odd_line(rng, lines, clocks[producer] + step, producer))
        if rng.random() < 0.7:
            clocks[producer] += step
            lines.append(line(0, clocks[producer], ACK_TXN, producer))
        for _ in range(rng.choice((0, 0, 20, 60))):
            for flags in (*[CONTINUE_TXN] * rng.randrange(4), ACK_TXN):
                clocks[producer] += step
                lines.append(line(len(lines), clocks[producer], flags, producer))
            if rng.random() < odd / 3:
                lines.append(odd_line(rng, lines, clocks[producer] + step, producer))
    return lines


def odd_line(rng, lines, clock, producer):
    usual = line(len(lines), clock, CONTINUE_TXN, producer)
    head, uuid = usual[:18], usual[18:54]
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(lines)  # It's a duplicate, or is bad again.
    if kind == 1:
        return usual.replace(b'"n":', b'"n":"bad",')
    if kind == 2:
        return b'{"n":7,"_meta":{"uuid":"' + uuid + b'"}}\n'
    if kind == 3:
        return head + uuid.upper() + usual[54:]
    if kind == 4:
        return head + uuid.replace(b"-", b"_") + usual[54:]
    if kind == 5:
        return head + b"g" + usual[19:]
    if kind == 6:
        return usual[: rng.randrange(60)].rstrip() + b"\n"
    return line(0, clock - rng.choice((160, 1600)), ACK_TXN, producer)


def small_transactions(count, start=0, size=3):
    """Lines of transactions of `size` messages each."""
    clocks = [START + 160 * at for at in range(start, start + count * (size + 1))]
    return [
        line(at, clock, ACK_TXN if at % (size + 1) == size else CONTINUE_TXN)
        for at, clock in enumerate(clocks)
    ]


@pytest.mark.parametrize("is_pending", [False, True])
def test_runs_of_transactions_commit_at_once(is_pending):
    builder = EnvelopeBuilder("a/j", ADAPTER)
    lines = small_transactions(20)
    ends = list(accumulate(map(len, lines)))
    frames = Frames(0, [each[:-1] for each in lines], ends)
    rows, _ = builder.build(frames)
    sequencer = Sequencer(buffer=80)
    cut = 2 if is_pending else 0
    sequencer.queue_commits(rows[:cut])
    run = builder.transactions_run(frames.slice(cut))
    assert sequencer.queue_run(run) == ()
    taken = sequencer.take()
    assert list(taken) == rows
    assert [offset_at(taken, at) for at in range(80)] == [0, *ends[:-1]]
    assert [offset_at(rows, at) for at in range(80)] == [0, *ends[:-1]]
    sequencer.settle(32)
    partly = sequencer.checkpoint()
    sequencer.settle(80)
    assert sequencer.queue_run(run) == list(run)  # Each is a duplicate.
    resumed = Sequencer.from_checkpoint(partly)
    first = next(at for at, row in enumerate(rows) if row.end > partly.offsets["a/j"])
    got = []
    while first < len(rows):
        first = resumed.queue_commits(rows, first)
        if resumed.emitting:
            got += resumed.take()
            resumed.settle(len(resumed.take()))
    assert got == rows[32:]


@pytest.mark.parametrize("ring", [1, 79, 81])
def test_runs_of_transactions_that_outgrow_the_ring_do_not_commit_at_once(ring):
    builder = EnvelopeBuilder("a/j", ADAPTER)
    lines = small_transactions(20)
    frames = Frames(0, [each[:-1] for each in lines], list(accumulate(map(len, lines))))
    rows, _ = builder.build(frames)
    run = builder.transactions_run(frames.slice(2))
    sequencer = Sequencer(buffer=ring)
    sequencer.queue_commits(rows[:2])
    assert (sequencer.queue_run(run) == ()) == (ring == 81)
    assert sequencer.queue_run(run, transactions=False) == run[:] if ring < 81 else True


def test_runs_of_transactions_end_before_other_messages():
    builder = EnvelopeBuilder("a/j", ADAPTER)
    usual = [each[:55] for each in small_transactions(30)]
    frames = frames_of(usual)
    assert builder.transactions_run(frames) is None  # No UUID is known.
    builder.build(frames)
    assert len(builder.transactions_run(frames)) == 120
    assert len(builder.transactions_run(frames_of(usual[:-1]))) == 116
    assert len(builder.transactions_run(frames_of(usual[1:]))) == 119
    others = [line(0, START, CONTINUE_TXN, B)[:55], line(0, START, OUTSIDE_TXN)[:55]]
    builder.build(frames_of(others))
    unknown = line(0, START, CONTINUE_TXN, ProducerID(b"\x01CCCCC"))[:55]
    for odd in (*others, unknown, b"{}"):
        for at, end in ((50, 48), (52, 52), (UNIFORM_RUN, UNIFORM_RUN), (31, 0), (1, 0), (0, 0)):
            run = builder.transactions_run(frames_of([*usual[:at], odd, *usual[at:]]))
            assert (0 if run is None else len(run)) == end
            assert run is None or list(run) == builder.build(frames.slice(0, end))[0]
    bad_digit = usual[50][:20] + b"g" + usual[50][21:]
    assert builder.transactions_run(frames_of([*usual[:50], bad_digit, *usual[51:]])) is None
    bad_prefix = b"[" + usual[50][1:]
    assert builder.transactions_run(frames_of([*usual[:50], bad_prefix, *usual[51:]])) is None
    pending = [line(at, START + 160 * at)[:55] for at in range(100)]
    assert builder.transactions_run(frames_of(pending)) is None  # None is committed.


def frames_of(lines):
    return Frames(0, lines, list(accumulate(map(len, lines))))


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_runs_leave_the_ring_message_by_message(seed):
    rng = random.Random(seed)
    limits = {"buffer": rng.choice((1, 50, 100, 150)), "buffer_bytes": rng.choice((None, 8000))}
    by_run, singly = Sequencer(**limits), Sequencer(**limits)
    builder, at, offset = EnvelopeBuilder("a/j", ADAPTER), 0, 0
    for _ in range(rng.randrange(1, 6)):
        size = rng.randrange(UNIFORM_RUN, 120)
        lines = [line(at + index, START + 160 * (at + index)) for index in range(size)]
        ends = list(accumulate(map(len, lines), initial=offset))[1:]
        run = builder.uniform_run(Frames(offset, lines, ends))
        assert len(run) == size
        at, offset = at + size, ends[-1]
        rest = list(run) if rng.random() < 0.3 else by_run.queue_run(run)
        by_run.queue_commits(rest)
        singly.queue_commits(list(run))
        if rng.random() < 0.5:
            got, want = by_run.retained("a/j", A), singly.retained("a/j", A)
            assert got == want
            assert [row.slot for row in got] == [row.slot for row in want]
    ack = builder.build(Frames(offset, [line(0, START + 160 * at, ACK_TXN)], [offset + 100]))[0]
    by_run.queue_commits(ack)
    singly.queue_commits(ack)
    assert by_run.replay_required == singly.replay_required
    if by_run.replay_required:
        assert by_run.replay_range() == singly.replay_range()
    else:
        assert list(by_run.take()) == list(singly.take())


@pytest.mark.parametrize("begin", [0, 5, 33, 34])
@pytest.mark.parametrize("end", [34, 36, 70])
def test_bytes_are_counted_within_runs(begin, end):
    builder = EnvelopeBuilder("a/j", ADAPTER)
    lines = [line(index, START + 160 * index)[:-1] for index in range(70)]
    frames = Frames(7, lines, list(accumulate(range(100, 170), initial=7))[1:])
    run = builder.uniform_run(frames)
    want = sum(range(100 + begin, 100 + end))
    joined = JoinedRuns([builder.uniform_run(frames.slice(0, 33)), run[33:35], run[35:]])
    for rows in (run, joined, list(run)):
        assert bytes_between(rows, begin, end) == want
    with_gaps = [*run[:begin:2], *run[begin:end]]
    assert bytes_between(with_gaps, 0, (begin + 1) // 2) == sum(range(100, 100 + begin, 2))


def test_runs_join():
    builder = EnvelopeBuilder("a/j", ADAPTER)
    lines = [line(index, START + 160 * index)[:-1] for index in range(70)]
    ends = [100 * (index + 1) for index in range(70)]
    frames = Frames(0, lines, ends)
    want, _ = builder.build(frames)
    runs = [builder.uniform_run(frames.slice(0, 33)), want[33:34], want[34:]]
    joined = JoinedRuns(runs)
    assert list(joined) == [*joined] == joined[:] == want
    assert len(joined) == 70
    assert [joined[at] for at in range(-70, 70)] == want * 2
    for begin, end in [(0, 70), (32, 33), (33, 34), (32, 35), (34, 34), (60, 70), (70, 70)]:
        assert joined[begin:end] == want[begin:end]
        parts = [part[first:last] for part, first, last in joined.within(begin, end)]
        assert [row for part in parts for row in part] == want[begin:end]
        assert all(parts)
    with pytest.raises(IndexError):
        joined[70]


def test_what_only_looks_like_uniform_messages_is_not():
    """A line that was cut in two is as long as a line."""
    builder = EnvelopeBuilder("a/j", ADAPTER)
    usual = [line(index, START + 160 * index)[:55] for index in range(2 * UNIFORM_RUN)]
    assert read_run(builder, usual) == len(usual)
    for at in (UNIFORM_RUN, UNIFORM_RUN + 3, len(usual) - 1):
        for cut in (0, 1, 20, 54):
            split = [*usual[:at], usual[at][:cut], usual[at][cut:], *usual[at + 1 :]]
            assert read_run(builder, split) == at
        for place in (0, 17, 26, 30, 54):
            odd = usual[at][:place] + b"?" + usual[at][place + 1 :]
            ends = (at - 1, at) if place < 18 else (at,)
            assert read_run(builder, [*usual[:at], odd, *usual[at + 1 :]]) in ends
        for place in (18, 25):  # One of the bad digits spoils the run.
            odd = usual[at][:place] + b"-" + usual[at][place + 1 :]
            assert read_run(builder, [*usual[:at], odd, *usual[at + 1 :]]) == 0
    assert read_run(builder, [usual[0][1:], *usual]) == 0
    odd = [each.replace(b"_meta", b"meta_") for each in usual]
    assert read_run(builder, odd) == read_run(builder, [odd[0], *usual]) == 0
    others = [each.replace(b"AAAAA".hex().encode(), b"BBBBB".hex().encode()) for each in odd]
    assert read_run(builder, [odd[0], *others]) == 0
    assert read_run(builder, [*usual[: UNIFORM_RUN - 1], b"{}", *usual]) == 0


def read_run(builder, lines):
    """Return how many lines are read as a run, which must be those that are built one by one."""
    frames = frames_of(lines)
    run = builder.uniform_run(frames)
    if run is None:
        return 0
    assert list(run) == builder.build(frames.slice(0, len(run)))[0]
    return len(run)
