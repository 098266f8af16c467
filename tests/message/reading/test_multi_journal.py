"""Reading the journals which a selector matches, as they join and leave."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import re
import sys

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    SequencerCheckpoint,
    build_uuid,
    json_adapter,
)
from gazette_aio.message.reading.pump import JournalPump
from gazette_aio.protocol.errors import (
    ConfigurationError,
    ReplayError,
    TransportError,
    UnrecognizedContentTypeError,
    ValidationError,
)
from gazette_aio.protocol.status_errors import JournalNotFoundError, NotAllowedError, SuspendedError
from gazette_aio.testing import BrokerProcess, journal_spec
from tests.cancellation import cancel_at
from tests.message.fakes import FakeClient, FakeReader
from tests.waiting import eventually, turns

NDJSON = "application/x-ndjson"
ADAPTER = json_adapter()
PRODUCER = b"\x01abcde"
TOPIC = pb.parse_label_selector("topic=t")


pytestmark = pytest.mark.usefixtures("nothing_leaks", "quick_leaving")


def line(clock, flags=OUTSIDE_TXN):
    return ADAPTER.encode({"v": clock}, build_uuid(PRODUCER, clock, flags)) + b"\n"


def outside(*clocks):
    return b"".join(map(line, clocks))


def transaction(begin, size):
    rows = [line(begin + n, CONTINUE_TXN) for n in range(size)]
    return b"".join(rows) + line(begin + size, ACK_TXN)


def client_of(**contents):
    client = FakeClient({f"j/{name}": NDJSON for name in contents}, chunk=100)
    for name, content in contents.items():
        client.append(f"j/{name}", content)
    return client


def reading(client, source=TOPIC, kind=ReadCommittedIter, **options):
    return kind(source, ADAPTER, client=client, **{"block": True, **options})


async def take(iterator, count):
    async with asyncio.timeout(30):
        return [await take_one(iterator) for _ in range(count)]


async def take_one(iterator):
    envelope = await anext(iterator)
    return envelope.journal[2:], envelope.clock


async def settle(iterator):
    """Let the iterator come to wait, and return its waiting task."""
    task = asyncio.create_task(anext(iterator))
    await turns(200)
    assert not task.done()
    return task


async def finish(task):
    async with asyncio.timeout(30):
        envelope = await task
        return envelope.journal[2:], envelope.clock


async def until(condition):
    async with asyncio.timeout(30):
        await eventually(condition)


async def cancel(task):
    task.cancel()
    await asyncio.wait([task])


def open_journals(iterator):
    """Number of journals which are read at present."""
    return int(re.search(r" open=(\d+)", repr(iterator))[1])


@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
async def test_a_selection_is_read_to_its_write_heads(kind):
    client = client_of(a=outside(1, 2), b=outside(3), c=b"", d=outside(4))
    client.move("j/d", "other")
    iterator = reading(client, kind=kind, block=False)
    got = {(e.journal, e.clock) async for e in iterator}
    assert got == {("j/a", 1), ("j/a", 2), ("j/b", 3)}
    assert client.lists == [TOPIC]
    assert all(reader.closed for reader in client.readers)
    assert not client.watches


async def test_journals_join_and_leave():
    client = client_of(a=outside(1))
    async with reading(client) as iterator:
        assert await take(iterator, 1) == [("a", 1)]
        waiting = await settle(iterator)
        client.create("j/b", NDJSON, outside(2))
        assert await finish(waiting) == ("b", 2)
        waiting = await settle(iterator)
        client.append("j/a", outside(3))
        assert await finish(waiting) == ("a", 3)

        # What's there by the time it leaves is still read; what comes later isn't.
        client.append("j/b", outside(4))
        client.move("j/b", "other")
        assert await take(iterator, 1) == [("b", 4)]
        waiting = await settle(iterator)
        await until(lambda: open_journals(iterator) == 1)
        client.append("j/b", outside(5))
        client.append("j/a", outside(6))
        assert await finish(waiting) == ("a", 6)

        # It joins again where it left.
        waiting = await settle(iterator)
        client.move("j/b", "t")
        assert await finish(waiting) == ("b", 5)
        assert iterator.checkpoint().offsets == {
            "j/a": len(client.journals["j/a"]),
            "j/b": len(client.journals["j/b"]),
        }
    assert not client.lists
    assert all(reader.closed for reader in client.readers)


async def test_who_joins_again_repeats_nothing():
    client = client_of(a=outside(1, 1, 2))
    async with reading(client, kind=ReadUncommittedIter) as iterator:
        assert await take(iterator, 3) == [("a", 1), ("a", 1), ("a", 2)]
        waiting = await settle(iterator)
        client.move("j/a", "other")
        await until(lambda: open_journals(iterator) == 0)
        client.append("j/a", outside(2))
        client.move("j/a", "t")
        assert await finish(waiting) == ("a", 2)
        assert client.reads[-1].offset == 3 * len(line(1))


async def test_journals_take_turns():
    client = client_of(a=outside(*range(1, 31)), b=outside(*range(1, 31)), c=outside(1, 2, 3))
    client.chunk = lambda *_: 3 * len(line(1))
    async with reading(client) as iterator:
        got = await take(iterator, 1)
        await turns(200)  # Until all of it is at hand.
        got += await take(iterator, 62)
    order = [name for name, clock in got if clock % 3 == 1]
    assert sorted(order[:3]) == ["a", "b", "c"]
    rest = order[3:]
    assert all(one != other for one, other in itertools.pairwise(rest[:-1]))


async def test_leaving_and_joining_within_transactions():
    client = client_of(a=outside(1), b=transaction(10, 8)[:-1])
    async with reading(client, skip_acks=True) as iterator:
        assert await take(iterator, 1) == [("a", 1)]
        waiting = await settle(iterator)
        client.move("j/b", "other")
        await until(lambda: open_journals(iterator) == 1)
        client.append("j/b", b"\n" + outside(30))
        client.move("j/b", "t")
        got = [await finish(waiting), *await take(iterator, 8)]
        assert got == [("b", clock) for clock in [*range(10, 18), 30]]


async def test_a_journal_which_stays_after_all():
    client = client_of(a=outside(1), b=outside(2), c=outside(2))
    async with reading(client) as iterator:
        assert set(await take(iterator, 3)) == {("a", 1), ("b", 2), ("c", 2)}
        waiting = await settle(iterator)
        client.move("j/b", "other")
        await turns(20)
        client.move("j/b", "t")
        # Another journal, which is about to leave later, has left.
        client.move("j/c", "other")
        await until(lambda: open_journals(iterator) < 3)
        assert open_journals(iterator) == 2
        client.append("j/b", outside(3))
        assert await finish(waiting) == ("b", 3)


async def test_a_journal_which_leaves_is_read_no_longer_though_content_keeps_coming():
    client = client_of(a=outside(1), b=outside(2))
    async with reading(client) as iterator:
        assert set(await take(iterator, 2)) == {("a", 1), ("b", 2)}
        waiting = await settle(iterator)
        client.move("j/b", "other")
        async with asyncio.timeout(30):
            clock = 10
            while open_journals(iterator) == 2:
                client.append("j/b", outside(clock))
                clock += 1
                if waiting.done():
                    assert (await finish(waiting))[0] == "b"
                    waiting = asyncio.create_task(anext(iterator))
                await asyncio.sleep(0)
        client.append("j/a", outside(3))
        assert await finish(waiting) == ("a", 3)


async def test_a_journal_which_left_unread_joins_at_its_start():
    """It wasn't read, and so the start isn't forgotten."""
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    client = client_of(a=outside(3 << 60), b=b"")
    async with reading(client, start=start) as iterator:
        await take(iterator, 1)
        waiting = await settle(iterator)
        client.move("j/b", "other")
        await until(lambda: open_journals(iterator) == 1)
        client.append("j/b", outside(1, 3 << 60))
        client.move("j/b", "t")
        assert await finish(waiting) == ("b", 3 << 60)
        assert client.reads[-1].journal == "j/b"
        assert client.reads[-1].begin_mod_time == int(start.timestamp())


async def test_a_journal_created_anew_is_read_from_its_start():
    client = client_of(a=outside(1), b=outside(500) + transaction(600, 3)[:-1])
    async with reading(client) as iterator:
        assert set(await take(iterator, 2)) == {("a", 1), ("b", 500)}
        waiting = await settle(iterator)
        states = {state.journal: state for state in iterator.checkpoint().producers}
        assert states["j/b"].last_ack == 500
        client.delete("j/b", tell=False)
        # Its clocks are smaller than those before: they'd be duplicates of the former journal.
        client.create("j/b", NDJSON, outside(2, 3))
        assert [await finish(waiting), *await take(iterator, 1)] == [("b", 2), ("b", 3)]
        assert iterator.checkpoint().offsets["j/b"] == len(client.journals["j/b"])

        # The same, with a listing in between.
        waiting = await settle(iterator)
        client.delete("j/b")
        await turns(200)
        client.create("j/b", NDJSON, outside(1))
        assert await finish(waiting) == ("b", 1)
        assert [s.begin for s in iterator.checkpoint().producers] == [-1, -1]


async def test_start_offsets():
    size = len(line(1))
    client = client_of(a=outside(1, 2, 3), b=outside(1, 2, 3), c=outside(1, 2, 3))
    checkpoint = SequencerCheckpoint({"j/a": 2 * size})
    start = {"j/a": 0, "j/b": size}
    iterator = reading(client, block=False, checkpoint=checkpoint, start=start)
    got = {(e.journal[2:], e.clock) async for e in iterator}
    assert got == {("a", 3), ("b", 2), ("b", 3), ("c", 1), ("c", 2), ("c", 3)}


async def test_an_empty_selection_waits():
    client = FakeClient({})
    async with reading(client) as iterator:
        waiting = await settle(iterator)
        client.create("j/a", NDJSON, outside(1))
        assert await finish(waiting) == ("a", 1)
    assert [e async for e in reading(FakeClient({}), block=False)] == []


@pytest.mark.parametrize("block", [False, True])
async def test_unrecognized_content_types_are_told_once(block):
    client = client_of(a=outside(1), b=outside(2))
    client.content_types["j/b"] = "what/ever"
    async with reading(client, block=block) as iterator:
        with pytest.raises(UnrecognizedContentTypeError) as raised:
            await take(iterator, 1)
        assert raised.value.journal == "j/b"
        assert await take(iterator, 1) == [("a", 1)]
        if block:
            waiting = await settle(iterator)
            client.create("j/b", NDJSON)
            assert await finish(waiting) == ("b", 2)
        else:
            assert [e async for e in iterator] == []


@pytest.mark.parametrize("block", [False, True])
async def test_a_deletion_which_is_about_to_be_listed(block):
    client = client_of(a=outside(1), b=outside(2))
    client.delete("j/b", tell=False)
    async with reading(client, block=block) as iterator:
        assert await take(iterator, 1) == [("a", 1)]
        if not block:
            assert [e async for e in iterator] == []
            return
        waiting = await settle(iterator)
        client.forget("j/b")
        client.append("j/a", outside(3))
        assert await finish(waiting) == ("a", 3)


@pytest.mark.parametrize("block", [False, True])
async def test_journals_which_refuse_to_be_read(block):
    client = client_of(a=outside(1), b=outside(2), c=outside(3))
    client.refusals = {
        "j/b": NotAllowedError(journal="j/b"),
        "j/c": SuspendedError(journal="j/c"),
    }
    got, errors = [], []
    async with reading(client, block=block) as iterator:
        while not (got and errors):
            try:
                got.append(await take_one(iterator))
            except NotAllowedError as error:
                errors.append(error)
        if block:
            await cancel(await settle(iterator))
        else:
            assert [e async for e in iterator] == []
        assert got == [("a", 1)]
        assert [error.journal for error in errors] == ["j/b"]
        if block:
            client.refusals.clear()
            client.create("j/b", NDJSON)  # Applied anew.
            assert set(await take(iterator, 2)) == {("b", 2), ("c", 3)}


async def test_failures_of_journals_are_told_and_reading_goes_on():
    client = client_of(a=outside(1), b=outside(2, 3))
    client.events["j/b"] = [(0, TransportError("UNKNOWN", "broken"))]
    async with reading(client) as iterator:
        got, errors = [], []
        while len(got) < 3:
            try:
                got += await take(iterator, 1)
            except TransportError as error:
                errors += error.__notes__
        assert set(got) == {("a", 1), ("b", 2), ("b", 3)}
        assert errors == ["reading messages of j/b at offset 0"]


async def test_watches_which_fail_begin_anew():
    client = client_of(a=outside(1))
    client.watch_failure = TransportError("PERMISSION_DENIED", "who are you")
    async with reading(client) as iterator:
        for _ in range(2):
            with pytest.raises(TransportError, match="who are you"):
                await take(iterator, 1)
        client.watch_failure = None
        assert await take(iterator, 1) == [("a", 1)]


@pytest.mark.parametrize("entered", [False, True])
async def test_lists_which_are_handed_in(entered):
    client = client_of(a=outside(1))
    watched = client.watch(TOPIC)
    if entered:
        await watched.__aenter__()
    async with reading(client, source=watched) as iterator:
        assert await take(iterator, 1) == [("a", 1)]
        waiting = await settle(iterator)
        client.create("j/b", NDJSON, outside(2))
        assert await finish(waiting) == ("b", 2)
    assert watched.is_live is entered
    # It serves another one, which ends once the list is closed.
    if entered:
        async with reading(client, source=watched) as iterator:
            await take(iterator, 2)
            waiting = await settle(iterator)
            await watched.aclose()
            async with asyncio.timeout(30):
                with pytest.raises(StopAsyncIteration):
                    await waiting
    unentered = client.watch(TOPIC)
    got = [e.clock async for e in reading(client, source=unentered, block=False)]
    assert sorted(got) == [1, 2]
    assert not unentered.is_live


async def test_direct_reads():
    client = client_of(a=transaction(1, 9), b=b"")
    async with reading(client, direct=True, sequencer=Sequencer(buffer=1)) as iterator:
        await take(iterator, 10)
    assert len(client.reads) > 2
    assert all(read.do_not_proxy for read in client.reads)
    client = client_of(a=outside(1))
    assert [e.clock async for e in reading(client, "j/a", block=False)] == [1]
    assert not client.reads[0].do_not_proxy


def test_contradictions_are_refused():
    with pytest.raises(ConfigurationError, match="takes a client"):
        ReadCommittedIter(TOPIC, ADAPTER)
    client = client_of(a=b"")
    with pytest.raises(ValidationError):
        ReadCommittedIter(bad_selector(), ADAPTER, client=client)
    with pytest.raises(ConfigurationError):
        ReadCommittedIter(client.read(pb.ReadRequest(journal="j/a")), ADAPTER, direct=True)


def bad_selector():
    selector = pb.LabelSelector()
    selector.include.labels.add(name="no spaces please", value="x")
    return selector


async def test_replays_of_journals_which_have_left():
    client = client_of(a=b"", b=transaction(10, 9))
    async with reading(client, sequencer=Sequencer(buffer=1)) as iterator:
        assert await take(iterator, 1) == [("b", 10)]
        client.move("j/b", "other")
        tailing = [reader for reader in client.readers if not reader.request.end_offset]
        await until(lambda: any(reader.closed for reader in tailing))
        assert await take(iterator, 9) == [("b", clock) for clock in range(11, 20)]


async def test_replays_of_journals_which_are_deleted():
    client = client_of(a=b"", b=transaction(10, 9))
    async with reading(client, sequencer=Sequencer(buffer=1)) as iterator:
        assert await take(iterator, 1) == [("b", 10)]
        client.delete("j/b")
        with pytest.raises(ReplayError) as raised:
            await take(iterator, 9)
        assert isinstance(raised.value.__cause__.__cause__, JournalNotFoundError)
        # Others are read on, and so is one of the same name.
        waiting = await settle(iterator)
        client.append("j/a", outside(1))
        assert await finish(waiting) == ("a", 1)
        waiting = await settle(iterator)
        client.create("j/b", NDJSON, outside(2))
        assert await finish(waiting) == ("b", 2)


@pytest.mark.parametrize("under_way", [False, True])
async def test_replays_of_journals_which_are_created_anew(under_way):
    """What has their name isn't taken for them, nor waited for."""
    client = client_of(a=b"", b=transaction(10, 9))
    async with reading(client, sequencer=Sequencer(buffer=1)) as iterator:
        assert await take(iterator, 1) == [("b", 10)]
        client.delete("j/b", tell=False)
        client.create("j/b", NDJSON, outside(2) if under_way else b"")
        waiting = asyncio.create_task(anext(iterator))
        if not under_way:
            await cancel(waiting)
            await turns(200)  # Until the listing is known.
            # It would do for the same offsets.
            client.append("j/b", transaction(10, 9))
            waiting = asyncio.create_task(anext(iterator))
        with pytest.raises(ReplayError):
            await finish(waiting)
        client.append("j/a", outside(1))
        got = await take(iterator, 2 if under_way else 11)
        clocks = [2] if under_way else list(range(10, 20))
        assert sorted(got) == [("a", 1), *(("b", clock) for clock in clocks)]


async def test_many_journals_are_read_within_bounds():
    count, buffer_bytes, chunk = 300, 40_000, 2_000
    client = FakeClient({f"j/{n:03}": NDJSON for n in range(count)}, chunk=chunk)
    content = outside(*range(1, 101))
    for name in client.journals:
        client.append(name, content)
    most_open = most_held = 0
    read, delivered = dict.fromkeys(client.journals, 0), 0
    async with reading(client, block=False, buffer_bytes=buffer_bytes) as iterator:
        seen = 0
        async for envelope in iterator:
            seen += 1
            delivered += envelope.end - envelope.begin
            if seen % 50 == 0:
                opened = [r for r in client.readers if not r.closed]
                most_open = max(most_open, len(opened))
                read |= {reader.journal: reader.offset for reader in client.readers}
                most_held = max(most_held, sum(read.values()) - delivered)
    assert seen == 100 * count
    assert 8 <= most_open <= 16
    # One chunk is being delivered, and another one may have come beyond the limit.
    assert chunk < most_held <= buffer_bytes + 2 * chunk


async def test_no_journal_starves(monkeypatch):
    """Those of little content come through, however much there is of others."""
    monkeypatch.setattr("gazette_aio.message.reading.pump.TURN_BYTES", 5_000)
    client = FakeClient({f"j/{n:03}": NDJSON for n in range(60)}, chunk=1_000)
    for number, name in enumerate(client.journals):
        client.append(name, outside(*range(1, 1001 if number < 40 else 3)))
    async with reading(client, buffer_bytes=20_000) as iterator:
        seen = []
        while sum(e >= "j/040" for e in seen) < 40:
            seen.append((await anext(iterator)).journal)
        # Each of the others had a few turns meanwhile.
        assert len(seen) < 12_000
        assert len(set(seen)) == 60
        client.append("j/050", outside(5))
        count = 0
        while (await anext(iterator)).journal != "j/050":
            count += 1
        assert count < 2_000


@pytest.mark.parametrize("codec", ["NONE", "GZIP"])
async def test_turns_end_where_it_costs_little(monkeypatch, codec):
    """Whoever reads a compressed file again begins at its start."""
    monkeypatch.setattr("gazette_aio.message.reading.pump.TURN_BYTES", 1_000)
    client = FakeClient({f"j/{n:02}": NDJSON for n in range(40)}, chunk=500)
    for name in client.journals:
        client.append(name, outside(*range(1, 101)))
    head = len(client.journals["j/00"])
    client.fragment = pb.Fragment(
        begin=0, end=head // 2, backing_store="s3://bucket/", compression_codec=codec
    )
    async with reading(client, block=False) as iterator:
        assert len([e async for e in iterator]) == 4_000
    reads = len(client.reads) / len(client.journals)
    assert (reads > 4) is (codec == "NONE")


async def test_stalled_journals_hold_nobody_up(monkeypatch):
    """One whose broker says nothing for long waits apart, and then catches up as others do."""
    monkeypatch.setattr("gazette_aio.message.reading.pump.STALLED_SECONDS", 0.01)
    client = FakeClient({f"j/{n:02}": NDJSON for n in range(60)}, chunk=300)
    for name in client.journals:
        client.append(name, outside(*range(1, 31)))
    head = len(client.journals["j/00"])
    stuck = asyncio.Event()

    class Mute(FakeReader):
        async def __anext__(self):
            await stuck.wait()
            return await super().__anext__()

    read = client.read

    def mute(request):
        reader = read(request)
        if request.journal < "j/40":
            reader.__class__ = Mute
        return reader

    client.read = mute
    async with reading(client, buffer_bytes=10_000) as iterator:
        got = await take(iterator, 20 * 30)
        assert {name for name, _ in got} == {f"{n}" for n in range(40, 60)}
        waiting = await settle(iterator)
        # All have stalled, and wait at what may be their write heads.
        await until(lambda: sum(r.request.block for r in client.readers if type(r) is Mute) == 40)
        # From here on a machine which is busy must not make any of them stall.
        monkeypatch.setattr("gazette_aio.message.reading.pump.STALLED_SECONDS", 60.0)
        stuck.set()
        got, most = [await finish(waiting)], 0
        while len(got) < 40 * 30:
            got += await take(iterator, 1)
            behind = [r for r in client.readers if not r.closed and 0 < r.offset < head]
            most = max(most, len(behind))
        assert {name for name, _ in got} == {f"{n:02}" for n in range(40)}
        assert 4 < most <= 16


def first_are(client, number, reader_type):
    """Have the first journals be read by another type of reader."""
    read = client.read

    def replaced(request):
        reader = read(request)
        if int(request.journal[2:]) < number:
            reader.__class__ = reader_type
        return reader

    client.read = replaced


async def test_journals_which_trickle_hand_their_slots_on(monkeypatch):
    """However slowly their content comes, without ever stalling."""
    monkeypatch.setattr("gazette_aio.message.reading.pump.TURN_SECONDS", 0.02)
    client = FakeClient({f"j/{n:02}": NDJSON for n in range(20)}, chunk=100)
    for name in client.journals:
        client.append(name, outside(*range(1, 2001)))

    class Slow(FakeReader):
        async def __anext__(self):
            await asyncio.sleep(0.005)  # Time is the subject: turns are limited in it.
            return await super().__anext__()

    first_are(client, 18, Slow)
    async with reading(client) as iterator:
        seen = set()
        async with asyncio.timeout(30):
            while len(seen) < 20:
                seen.add((await anext(iterator)).journal)
        # Those which trickle aren't through by then.
        assert all(reader.offset < 50_000 for reader in client.readers if type(reader) is Slow)


async def test_those_who_nearly_left_hold_no_slots(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.reading.pump.STALLED_SECONDS", 2.0)
    client = FakeClient({f"j/{n:02}": NDJSON for n in range(17)}, chunk=100)
    for name in client.journals:
        client.append(name, outside(1))

    class Mute(FakeReader):
        async def __anext__(self):
            await asyncio.Event().wait()

    first_are(client, 16, Mute)
    async with reading(client) as iterator:
        waiting = await settle(iterator)
        for topic in ("other", "t"):
            for name in [*client.journals][:16]:
                client.topics[name] = topic
            client.move("j/16", "t")
            await turns(60)
        assert await finish(waiting) == ("16", 1)


async def test_very_many_journals_leave_and_close_in_slices(monkeypatch):
    client = FakeClient({f"j/{n:03}": NDJSON for n in range(400)})
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def note(pump):
        left.append(turns)
        leave(pump)

    leave, left = JournalPump.leave, []
    monkeypatch.setattr(JournalPump, "leave", note)
    counting = asyncio.create_task(count())
    async with reading(client) as iterator:
        waiting = asyncio.create_task(anext(iterator))
        await until(lambda: open_journals(iterator) == 400)
        client.topics = dict.fromkeys(client.journals, "other")
        client.move("j/000", "t")
        await until(lambda: len(left) == 399)
        assert left[-1] - left[0] >= 399 // 16
        await cancel(waiting)
        still_open = open_journals(iterator)
        before = turns
    assert turns - before > still_open // 16
    await cancel(counting)


async def test_closing_while_a_list_is_awaited():
    client = client_of(a=outside(1))
    listing = client.listing
    client.listing = lambda _selector: None  # Which the follower takes for an old one.
    watched = client.watch(TOPIC)
    iterator = reading(client, source=watched, block=False)
    waiting = await settle(iterator)
    await iterator.aclose()
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await waiting
    client.listing = listing
    assert not watched.is_live


async def test_closing_while_journals_are_listed():
    client = client_of(a=outside(1), b=outside(2))
    listed = asyncio.Event()
    whole = client.list

    async def slow(selector):
        await listed.wait()
        return await whole(selector)

    client.list = slow
    for source in (TOPIC, ["j/a", "j/b"], "j/a"):
        listed.clear()
        iterator = reading(client, source=source, block=False)
        waiting = asyncio.create_task(anext(iterator))
        await asyncio.sleep(0)
        await iterator.aclose()
        listed.set()
        with pytest.raises(StopAsyncIteration):
            await waiting
    assert not client.readers


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("buffer", [1, 100])
async def test_cancelled_at_every_suspension(block, buffer):
    want = {name: [*range(1, 5), 10, 11, 12] for name in ("j/a", "j/b")}
    number = cancelled = 0
    while True:
        client = client_of(a=transaction(1, 3), b=transaction(1, 3))
        for name in client.journals:
            client.append(name, outside(10, 11, 12))
        got = {}
        left = number

        async def all_of_them(iterator, got=got):
            async with asyncio.timeout(30):
                while sum(map(len, got.values())) < 14:
                    envelope = await anext(iterator)
                    got.setdefault(envelope.journal, []).append(envelope.clock)

        async with reading(client, block=block, sequencer=Sequencer(buffer=buffer)) as iterator:
            hit = await cancel_at(all_of_them(iterator), left)
            if hit:
                cancelled += 1
                await all_of_them(iterator)
        assert got == want
        if not hit:
            break
        number += 1
    assert cancelled > 10


async def test_cancelled_closing():
    client = client_of(a=outside(1), b=outside(2))
    number = 0
    while True:
        iterator = reading(client)
        await take(iterator, 2)
        hit = await cancel_at(iterator.aclose(), number)
        await iterator.aclose()
        assert all(reader.closed for reader in client.readers)
        assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("gazette-read")]
        number += 1
        if not hit:
            break
    assert number > 1


async def test_batches():
    client = client_of(a=transaction(1, 3), b=outside(7, 8))
    client.chunk = lambda *_: 1000
    got = {}
    async with reading(client, block=False) as iterator:
        async for batch in iterator.batches():
            (journal,) = {e.journal for e in batch}
            got[journal] = batch
            assert batch.messages == [e.message for e in batch]
    columns = got["j/a"].columns
    assert columns.rows == 4
    assert columns.clock.tolist() == [1, 2, 3, 4]
    assert columns.flags.tolist() == [1, 1, 1, 2]
    assert columns.begin[1:].tolist() == columns.end[:-1].tolist()
    assert got["j/b"].messages == [ADAPTER.decode(part) for part in outside(7, 8).splitlines()]


async def test_columns_take_numpy(monkeypatch):
    client = client_of(a=outside(1))
    async with reading(client, block=False) as iterator:
        batch = await iterator.next_batch()
    monkeypatch.setitem(sys.modules, "gazette_aio.message.columns.uuids", None)
    with pytest.raises(ConfigurationError, match=r"gazette-aio\[arrow\]"):
        _ = batch.columns


# --- With a broker.


@pytest.fixture
async def broker_client(tmp_path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            yield client


def specification(name, topic="t"):
    spec = journal_spec(name, labels={"content-type": NDJSON, "topic": topic})
    return pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)


async def test_a_watched_topic_of_a_broker(broker_client):
    client = broker_client
    await client.apply([specification("j/aa"), specification("j/other", "other")])
    await client.append("j/aa", transaction(10, 3))
    await client.append("j/other", outside(1))
    async with reading(client, sequencer=Sequencer(buffer=2)) as iterator:
        assert await take(iterator, 4) == [("aa", clock) for clock in range(10, 14)]
        waiting = asyncio.create_task(anext(iterator))
        await client.apply([specification("j/bb")])
        await client.append("j/bb", outside(20))
        assert await finish(waiting) == ("bb", 20)

        # Moved elsewhere and back, it goes on; created anew it's read from its start.
        waiting = asyncio.create_task(anext(iterator))
        await client.apply([specification("j/bb", "other")])
        await client.append("j/bb", outside(21))
        await client.apply([specification("j/bb")])
        assert await finish(waiting) == ("bb", 21)
        waiting = asyncio.create_task(anext(iterator))
        await client.apply([pb.ApplyRequest.Change(delete="j/bb", expect_mod_revision=-1)])
        await client.apply([specification("j/bb")])
        await client.append("j/bb", outside(5))
        assert await finish(waiting) == ("bb", 5)
        head = (await client.append("j/bb")).commit.end
        assert iterator.checkpoint().offsets["j/bb"] == head


@pytest.mark.slow
@pytest.mark.parametrize("direct", [None, True])
async def test_a_topic_of_many_journals_of_a_broker(broker_client, direct):
    client, count = broker_client, 120
    names = [f"j/{n:03}" for n in range(count)]
    await client.apply([specification(name) for name in names[:60]])
    content = outside(*range(1, 51))

    async def fill(some):
        await asyncio.gather(*[client.append(name, content) for name in some])

    await fill(names[:60])
    async with reading(client, direct=direct, buffer_bytes=1 << 20) as iterator:
        got = await take(iterator, 60 * 20)
        await client.apply([specification(name) for name in names[60:]])
        await fill(names[60:])
        checkpoint_at = len(got) + 60 * 20
        got += await take(iterator, 60 * 20)
        checkpoint = iterator.checkpoint()
    assert len(got) == checkpoint_at
    async with reading(client, block=False, direct=direct, checkpoint=checkpoint) as iterator:
        got += [(e.journal[2:], e.clock) async for e in iterator]
    by_journal = {}
    for name, clock in got:
        by_journal.setdefault(name, []).append(clock)
    assert by_journal == {name[2:]: list(range(1, 51)) for name in names}


@pytest.mark.crash
@pytest.mark.slow  # Three starts of a process.
@pytest.mark.parametrize("form", ["items", "arrow"])
async def test_a_topic_of_a_broker_which_is_killed(tmp_path, unused_tcp_port, form):
    """Nothing is lost, nor repeated, by the reader nor by one which goes on from it."""
    names = [f"j/{n:03}" for n in range(8)]
    process = BrokerProcess(
        tmp_path / "broker", port=unused_tcp_port, options=["--min-append-rate=0"]
    )
    got, want = {}, {}

    async def read(stream, count):
        async with asyncio.timeout(30):
            while sum(map(len, got.values())) < count:
                batch = await anext(stream)
                if form == "arrow":
                    clocks = batch["_clock"].to_pylist()
                    got.setdefault(str(batch["_journal"][0]), []).extend(clocks)
                else:
                    clocks = [e.clock for e in batch]
                    got.setdefault(batch[0].journal, []).extend(clocks)

    async def write(client, begin):
        for name in names:
            await client.append(name, transaction(begin, 20))
            want.setdefault(name, []).extend(range(begin, begin + 20))
        return sum(map(len, want.values()))

    checkpoint = None
    async with process, connect(f"http://127.0.0.1:{unused_tcp_port}") as client:
        await client.apply([specification(name) for name in names])
        for begin in (100, 200):
            async with reading(client, checkpoint=checkpoint, skip_acks=True) as iterator:
                count = await write(client, begin)
                stream = iterator.arrow() if form == "arrow" else iterator.batches()
                await read(stream, count)
                task = asyncio.create_task(read(stream, count + 160))
                await asyncio.sleep(0)
                await process.kill()
                await process.start()
                await write(client, begin + 50)
                await task
                checkpoint = iterator.checkpoint()
    assert got == want


async def test_unclosed_iterators_warn():
    async def leave_behind():
        iterator = reading(client_of(a=outside(1)))
        await take(iterator, 1)
        assert "topic=t" in repr(iterator)

    before = asyncio.all_tasks()
    with pytest.warns(ResourceWarning, match="<ReadCommittedIter of .* was not closed"):
        await leave_behind()
    await eventually(lambda: asyncio.all_tasks() <= before)  # Its tasks are ended nevertheless.
