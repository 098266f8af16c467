"""Journals and batches of the core, in both forms: odd messages, misuse, bounds, memory and threads."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import time

import pytest

from gazette_aio.message import core
from gazette_aio.message.uuid import Flags, build_uuid
from tests.message.core.journals import (
    ACK,
    ALL,
    CONTINUE,
    OUTSIDE,
    PREFIX,
    A,
    B,
    Frames,
    delivered,
    fixed,
    is_batch,
    line,
    new,
    rows,
)
from tests.message.sequencing.sequencing import envelope, parse


def odd_journal(form, count, size=10, **options):
    journal = new(form, "frames", prefix=None, path=None, **options)
    journal.feed_frames([(b"%d" % i, i * size, (i + 1) * size) for i in range(count)])
    return journal


def uuids(text):
    return [build_uuid(e.producer, e.clock, e.flags).bytes for e in parse(text)]


def test_odd_messages_are_returned_in_runs(form):
    journal = new(form)
    content = line(A, 1, CONTINUE) + b"x\ny\n" + line(A, 2, ACK) + b"z\n"
    journal.feed(content)
    assert journal.work(ALL) == ("progress",)
    assert journal.work(ALL) == journal.work(1) == ("odd", [b"x", b"y"])
    at = len(line(A, 1, CONTINUE))
    assert journal.offset == at
    assert journal.buffered == len(content) - at
    # What's resolved is handled, up to there.
    assert journal.resolve(uuids("B1c")) == ("progress",)
    assert journal.work(ALL) == ("odd", [b"y"])
    assert journal.leave_out() == (at + 2, at + 4)
    assert [row[2] for row in rows(journal.work(ALL))] == [1, 2]
    assert journal.work(ALL) == ("odd", [b"z"])
    assert [row[4] for row in rows(journal.resolve(uuids("B2k")))] == [B, B]
    assert journal.work(ALL) is None


def test_runs_of_odd_messages_are_bounded(form):
    journal = odd_journal(form, 3000)
    sizes = []
    while (found := journal.work(ALL)) is not None:
        sizes.append(len(found[1]))
        for _ in found[1]:
            journal.leave_out()
    assert sizes == [1024, 1024, 952]
    journal = odd_journal(form, 10, 100 << 10)
    assert len(journal.work(ALL)[1]) == 3


def test_resolved_messages_wait_for_a_replay(form):
    journal = odd_journal(form, 5, max_pending_bytes=0)
    journal.work(ALL)
    assert journal.resolve(uuids("A1c")) == ("progress",)
    assert journal.resolve(uuids("A2k B1c")) == ("replay", 0, 10)
    assert journal.begin_replay() == (0, 10)
    journal.feed_replay_frames([(b"0", 0, 10)])
    assert journal.work(ALL) == ("odd", [b"0"])
    assert [row[2] for row in rows(journal.resolve(uuids("A1c")))] == [1]
    assert journal.offset == 20
    assert [row[2] for row in rows(journal.end_replay())] == [2]
    assert journal.work(ALL) == ("progress",)
    assert journal.work(ALL) == ("odd", [b"3", b"4"])


def test_messages_left_out_of_a_replay_are_not_delivered(form):
    journal = odd_journal(form, 3, max_pending_bytes=0)
    journal.work(ALL)
    journal.resolve(uuids("A1c A2c"))
    assert journal.resolve(uuids("A3k")) == ("replay", 0, 20)
    journal.begin_replay()
    journal.feed_replay_frames([(b"0", 0, 10), (b"1", 10, 20)])
    assert journal.work(ALL) == ("odd", [b"0", b"1"])
    with pytest.raises(ValueError, match="aren't handled"):
        journal.end_replay()
    assert journal.leave_out() == (0, 10)
    assert [row[2] for row in rows(journal.resolve(uuids("A2c")))] == [2]
    assert [row[2] for row in rows(journal.end_replay())] == [3]


@pytest.mark.parametrize("framing", ["lines", "fixed"])
def test_errors_come_in_their_turn(form, framing):
    good = line(A, 5, OUTSIDE) if framing == "lines" else fixed(line(A, 5, OUTSIDE)[:-1])
    bad = b"x" * 300 + b"\n" if framing == "lines" else b"garbage of some bytes"
    journal = new(form, framing, states=None, max_frame_bytes=200)
    journal.feed(good + bad + good + good[:-1])
    journal.end()
    end = len(good + bad)
    kind, size = ("too_large", len(bad)) if framing == "lines" else ("desync", 0)
    assert [row[:2] for row in rows(journal.work(ALL))] == [(0, len(good))]
    assert journal.offset == len(good)
    assert journal.work(ALL) == ("refused", kind, len(good), end, size)
    assert [row[:2] for row in rows(journal.work(ALL))] == [(end, end + len(good))]
    at = end + len(good)
    found = journal.work(ALL)
    assert found == ("refused", "unexpected_eof", at, at, found[4])
    # It's told once, for the content at hand.
    assert journal.work(ALL) is None
    journal.feed(good[-1:])
    assert [row[0] for row in rows(journal.work(ALL))] == [at]


def test_complete_frames_before_a_jump_are_returned(form):
    first, large = line(A, 5, OUTSIDE), b"x" * 300 + b"\n"
    journal = new(form, states=None, max_frame_bytes=200)
    journal.feed(first + large + first + b"partial")
    assert journal.jump(10_000) == 7
    journal.feed(first)
    assert journal.buffered == 3 * len(first) + len(large)
    got = delivered(journal)
    assert [each[1] if isinstance(each[0], str) else each[0] for each in got] == [
        *(0, "too_large", len(first) + len(large), 10_000)
    ]


@pytest.mark.parametrize("framing", ["lines", "fixed"])
def test_a_trickle_is_linear(form, framing):
    def cost(size):
        journal = new(form, framing, states=None, prefix=None, path=None)
        content = fixed(b"x" * size) if framing == "fixed" else b"x" * size + b"\n"
        start = time.process_time()
        for at in range(0, len(content), 50):
            journal.feed(content[at : at + 50])
            found = journal.work(ALL)
        assert found == ("odd", [b"x" * size])
        return time.process_time() - start

    # A quadratic one would take 400 times as long.
    assert min(cost(2_000_000) for _ in range(2)) < 100 * max(cost(100_000) for _ in range(3))


def test_alternating_garbage_is_linear(form):
    def cost(count):
        journal = new(form, "fixed", states=None, prefix=b"", path=None)
        journal.feed((b"garbage" + fixed(bytes(16))) * count)
        start = time.process_time()
        refused = 0
        while (found := journal.work(ALL)) is not None:
            refused += not is_batch(found)
        assert refused == count
        return time.process_time() - start

    assert min(cost(20_000) for _ in range(2)) < 100 * max(cost(1000) for _ in range(3))


def test_many_replays_of_one_block_are_linear(form):
    def cost(count):
        producers = [number.to_bytes(6) for number in range(count)]
        pending = b"".join(line(producer, 5, CONTINUE) for producer in producers)
        content = pending + b"".join(line(producer, 6, ACK) for producer in producers)
        journal = new(form, max_pending_bytes=0)
        journal.feed(content)
        start = time.process_time()
        assert len(delivered(journal, content)) == 2 * count
        return time.process_time() - start

    # A quadratic one would take 400 times as long.
    assert min(cost(6000) for _ in range(2)) < 100 * max(cost(300) for _ in range(3))


LAST_OFFSET = (1 << 63) - 1


@pytest.mark.parametrize(
    ("framing", "content"), [("lines", b"x" * 9 + b"\n"), ("fixed", fixed(b"xy"))]
)
def test_content_beyond_the_largest_offset_is_refused(form, framing, content):
    journal = new(form, framing, LAST_OFFSET - 10, states=None, prefix=None, path=None)
    journal.feed(content)
    with pytest.raises(OverflowError):
        journal.feed(b"x")
    assert journal.work(ALL)[0] == "odd"
    ((begin, end, *_),) = rows(journal.resolve([bytes(16)]))
    assert (begin, end) == (LAST_OFFSET - 10, LAST_OFFSET)
    assert (journal.offset, journal.buffered) == (LAST_OFFSET, 0)
    with pytest.raises(OverflowError):
        journal.jump(LAST_OFFSET + 1)
    with pytest.raises(OverflowError):
        new(form, framing, LAST_OFFSET + 1)


def test_frames_beyond_the_largest_offset_are_refused(form):
    journal = new(form, "frames", LAST_OFFSET - 10, prefix=None, path=None)
    with pytest.raises(OverflowError):
        journal.feed_frames([(b"x", LAST_OFFSET - 5, LAST_OFFSET), (b"x", LAST_OFFSET, 1 << 63)])
    journal.feed_frames([(b"x", LAST_OFFSET - 5, LAST_OFFSET)])
    assert journal.work(ALL) == ("odd", [b"x"])


MISUSE = {
    "resolve no UUIDs": lambda j: j.resolve([]),
    "resolve more than are odd": lambda j: j.resolve([bytes(16)] * 3),
    "leave out none": lambda j: (j.resolve([bytes(16)] * 2), j.leave_out()),
    "a replay that isn't needed": lambda j: j.begin_replay(),
    "end of no replay": lambda j: j.end_replay(),
    "content of no replay": lambda j: j.feed_replay_frames([]),
    "jump of no replay": lambda j: j.jump_replay(5),
    "bytes for frames": lambda j: j.feed(b"x"),
    "frames that fall back": lambda j: j.feed_frames([(b"x", 19, 25)]),
    "frames that overlap": lambda j: j.feed_frames([(b"x", 20, 25), (b"x", 24, 30)]),
    "frames without bytes": lambda j: j.feed_frames([(b"", 20, 20)]),
    "verdicts before their messages": lambda j: j.commit([(A, 5)]),
    "no limit": lambda j: j.work(0),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_refused_and_changes_nothing(form, name):
    journal = odd_journal(form, 2)
    journal.work(ALL)
    with pytest.raises(ValueError, match=r"\w"):
        MISUSE[name](journal)
    while (found := journal.work(ALL)) is not None:
        if found[0] == "odd":
            journal.resolve([bytes(16)] * len(found[1]))
        else:
            raise AssertionError(found)
    assert journal.offset == 20


def test_other_misuse(form):
    for make in (
        lambda: new(form, "columns"),
        lambda: form.Journal("lines", 0, prefix=PREFIX, path=[b"uuid"]),
        lambda: new(form, states=None).checkpoint(),
        lambda: new(form, states=None).commit([(A, 5)]),
        lambda: new(form).commit([(A, 0)]),
        lambda: new(form).feed_frames([]),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            make()
    journal = new(form)
    journal.feed(line(A, 5, OUTSIDE))
    batch = journal.work(ALL)
    journal.settle(batch, 0, 1)
    with pytest.raises(ValueError, match="settled before"):
        journal.settle(batch, 0, 1)
    assert journal.checkpoint()[0] == journal.offset
    # All is settled at once if messages have no states.
    journal = new(form, states=None)
    journal.feed(line(A, 5, OUTSIDE))
    journal.settle(journal.work(ALL), 0, 1)
    journal.evict(0)
    assert (journal.pending_bytes, journal.has_pending) == (0, False)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 4), (2, 1), (4, 4), (0, 1 << 40)])
def test_messages_out_of_bounds_are_refused(form, start, stop):
    journal = new(form, states=None)
    journal.feed(line(A, 5, OUTSIDE) * 3)
    batch = journal.work(ALL)
    assert len(batch) == 3
    for name, *more in (
        *(("payloads",), ("lines",), ("unusual",), ("values",), ("places", (0, 1, 2))),
    ):
        with pytest.raises(IndexError, match="aren't of the batch"):
            getattr(batch, name)(start, stop, *more)
    with pytest.raises(IndexError, match="aren't of the batch"):
        journal.settle(batch, start, stop)
    assert batch.payloads(3, 3) == []


def test_columns_of_a_batch(form):
    log = [envelope(10, 5, 7, 0, A), envelope(15, 9, 8, 2, A), envelope(24, 1, 9, 3, B)]
    driver = Frames(form, log, states=None)
    driver.journal.feed_frames(driver.frames)
    batch = driver.journal.work(ALL)
    flags = tuple(map(Flags, range(3)))
    assert batch.places(0, 3, flags)[3] == [0, 2, 3]
    assert {type(each) for each in batch.places(0, 3, flags)[3]} == {Flags}
    numbers = [each.tolist() for each in map(memoryview, batch.columns())]
    assert [bytes(column) for column in numbers] == list(batch.columns())
    assert memoryview(batch.columns()[1]).cast("Q").tolist() == [7, 8, 9]
    assert memoryview(batch.columns()[0]).cast("Q").tolist() == [
        int.from_bytes(each) for each in (A, A, B)
    ]
    offsets, data = batch.values(0, 3)
    assert memoryview(offsets).cast("i").tolist() == [0, 16, 32, 48]
    assert data == b"".join(frame[0] for frame in driver.frames)
    offsets, data = batch.values(1, 2)
    assert (memoryview(offsets).cast("i").tolist(), data) == ([0, 16], driver.frames[1][0])
    payloads = batch.payloads(0, 3)
    assert batch.lines(0, 3) == b"".join(each + b"\n" for each in payloads)
    assert batch.lines(0, 3, acks=False) == payloads[0] + b"\n" + payloads[2] + b"\n"
    assert batch.unusual(1, 3) == ([1], [])


def test_pending_messages_do_not_keep_their_chunks(form):
    """Chunks are released once what commits was delivered, whatever stays pending of them."""
    journal = new(form)
    chunks = []
    clock = 0
    for number in range(50):
        parts = [line(B, number + 1, CONTINUE)]
        for _ in range(100):
            clock += 2
            parts += [line(A, clock, CONTINUE), line(A, clock + 1, ACK)]
        chunks.append(b"".join(parts))
    held = [sys.getrefcount(chunk) for chunk in chunks]
    for chunk in chunks:
        journal.feed(chunk)
        assert len(delivered(journal)) == 200
    del chunk
    assert journal.pending_rows == 50
    gc.collect()
    journal.offset  # noqa: B018 - the core releases chunks while it holds the interpreter's lock.
    assert [sys.getrefcount(chunk) for chunk in chunks] == held
    journal.feed(line(B, 60, ACK))
    assert len(delivered(journal)) == 51


MEMORY = """
import resource, sys
from gazette_aio.message import core
from tests.message.core.journals import *

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

"""
LONG_TRANSACTION = """
journal = new(core, max_pending_bytes=8 << 20)
delivered(journal)
clock = 1
def feed(count):
    global clock
    for _ in range(count):
        parts = [line(B, clock, CONTINUE, b'"' * 0)]
        for _ in range(70):
            clock += 2
            parts += [line(A, clock, CONTINUE, b" " * 1800), line(A, clock + 1, ACK)]
        journal.feed(b"".join(parts))
        delivered(journal)

feed(20)
before = rss()
feed(2000)  # 270 MB, and of them 2000 pending messages.
print(core.FORM, rss() - before, journal.pending_bytes)
"""
MANY_PRODUCERS = """
journal = new(core)
def feed(producers):
    for producer in producers:
        flags = [CONTINUE] * 39 + [ACK]
        journal.feed(b"".join(line(producer.to_bytes(6), 9 + i, f) for i, f in enumerate(flags)))
        delivered(journal)

feed(range(100))
before = rss()
feed(range(100, 2000))
print(core.FORM, rss() - before, journal.pending_bytes)
"""


def memory_of(form, script):
    """Return by how much the memory grew while a script ran, and its pending bytes."""
    name = "plain" if form.__name__.endswith("plain") else "native"
    environment = {**os.environ, "GAZETTE_AIO_CORE": name}
    command = [sys.executable, "-c", MEMORY + script]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    used, grown, pending = out.stdout.split()
    assert used == name
    return int(grown), int(pending)


@pytest.mark.skipif(sys.platform != "linux", reason="it's told by /proc")
def test_a_long_transaction_on_top_of_small_ones_takes_little_memory(form):
    grown, pending = memory_of(form, LONG_TRANSACTION)
    assert pending > 300_000
    assert grown < 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="it's told by /proc")
def test_producers_without_pending_messages_take_little_memory(form):
    grown, pending = memory_of(form, MANY_PRODUCERS)
    assert pending == 0
    assert grown < 4 << 20


def test_the_budget_is_kept_by_each_step(form):
    journal = new(form, max_pending_bytes=50_000)
    for number in range(100):
        journal.feed(b"".join(line(A, 1000 * number + i + 1, CONTINUE) for i in range(100)))
        while journal.work(2000) is not None:
            assert journal.pending_bytes <= 50_000
            # What counts for a message is its frame, and as much as its row takes.
            assert journal.pending_bytes == journal.pending_rows * (len(line(A, 1, 1)) + 96)


def test_checkpoints_are_taken_while_another_thread_works(form):
    journal = new(form)
    log = [line(A, 2 * i + 1, CONTINUE) + line(A, 2 * i + 2, ACK) for i in range(2000)]
    size = len(log[0])
    found, done = [], threading.Event()

    def work():
        at = 0
        for number in range(20):
            journal.feed(b"".join(log[100 * number : 100 * (number + 1)]))
            while (batch := journal.work(ALL)) is not None:
                for start in range(0, len(batch), 2):
                    journal.settle(batch, start, start + 2)
                at += len(batch)
        assert at == 4000
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        found.append(journal.checkpoint())
        assert journal.buffered >= 0
    thread.join()
    found.append(journal.checkpoint())
    for offset, states in found:
        assert offset % size == 0
        clock = 2 * (offset // size)
        assert states == ([(A, clock, clock, -1)] if offset else [])
    assert found[-1][0] == 2000 * size


def test_threads_that_work_at_once_wait_for_each_other(form):
    """Callers don't do so, but neither is it a deadlock, nor does it lose messages."""
    journal = new(form)
    journal.feed(b"".join(line(A, i + 1, OUTSIDE) for i in range(20_000)))
    counts = []

    def work():
        count = 0
        while (batch := journal.work(1000)) is not None:
            journal.settle_all()
            count += len(batch)
        counts.append(count)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sum(counts) == 20_000


def test_the_forms_have_the_same_members(forms):
    native, plain = forms
    for name in ("Journal", "Batch"):
        members = [
            {each for each in dir(getattr(form, name)) if not each.startswith("_")}
            for form in (native, plain)
        ]
        assert members[0] - {"documents"} == members[1] - {"documents", "rows"}
        for member in members[0] & members[1]:
            method = getattr(getattr(plain, name), member)
            if callable(method):
                own = inspect.signature(getattr(getattr(native, name), member))
                wanted = inspect.signature(method)
                assert list(own.parameters) == list(wanted.parameters), member


@pytest.mark.parametrize("name", ["plain", "native", "other"])
def test_the_environment_names_the_form(name):
    code = "from gazette_aio.message import core; print(core.FORM)"
    environment = {**os.environ, "GAZETTE_AIO_CORE": name}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if name == "other":
        assert "GAZETTE_AIO_CORE is 'other' (expected native or plain)" in out.stderr
    elif name == "native" and core.FORM == "plain":
        assert "the compiled core of messages can't be loaded" in out.stderr or out.stdout
    else:
        assert out.stdout.strip() == name


def test_a_smaller_limit_refuses_no_message(form):
    journal = new(form, "lines", skip_errors=True, max_frame_bytes=100)
    pending = line(A, 5, CONTINUE)
    journal.feed(pending + b"x" * 100 + b"\n")
    assert journal.work(ALL)[:2] == ("refused", "too_large")
    journal.feed(line(A, 6, ACK))
    assert [row[2] for row in rows(journal.work(len(pending)))] == [5, 6]
