"""Record batches of several journals, which join, leave, are created anew, and fail."""

from __future__ import annotations

import asyncio
import gc
import random
import threading

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.message import (
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    SequencerCheckpoint,
    raw_adapter,
)
from gazette_aio.message.columns.outputs import RecordMaker
from gazette_aio.message.envelopes.outputs import JournalOutputs
from gazette_aio.message.reading import arrow, inputs
from gazette_aio.message.reading.arrow import RecordEngine
from gazette_aio.message.reading.journal_input import JournalInput
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    ReplayError,
    TransportError,
)
from gazette_aio.protocol.status_errors import JournalNotFoundError
from gazette_aio.testing import create_journals, journal_spec
from tests.cancellation import cancel_at
from tests.message.fakes import FakeClient, FakeReader
from tests.message.reading.test_arrow import JSON, client_of, items, line, lines, row_of, rows_of
from tests.message.sequencing import sequencing
from tests.waiting import eventually, turns

TOPIC = pb.parse_label_selector("topic=t")
ADAPTER = raw_adapter("_meta.uuid")


pytestmark = pytest.mark.usefixtures("nothing_leaks", "quick_leaving")


def reading(client, source=TOPIC, **options):
    return ReadCommittedIter(source, ADAPTER, client=client, **{"block": True, **options})


def content(text):
    return b"".join(lines(text))


def clocks(batch):
    (journal,) = set(batch.column("_journal").to_pylist())
    return journal, batch.column("_clock").to_pylist()


async def take(batches):
    async with asyncio.timeout(30):
        return clocks(await anext(batches))


async def settle(batches):
    """Let batches come to be waited for, and return the waiting task."""
    task = asyncio.create_task(take(batches))
    await turns(200)
    assert not task.done()
    return task


async def take_within(source, count):
    """Return the next item, or None if it doesn't come in so many turns."""
    task = asyncio.create_task(anext(source))
    await turns(count)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


@pytest.mark.parametrize("listed", [False, True])
async def test_journals_which_are_created_anew(listed):
    client = client_of({"a/j": b"", "b/j": content("A1c A2k A3c")})
    async with reading(client) as iterator:
        batches = iterator.arrow()
        assert await take(batches) == ("b/j", [1])
        waiting = await settle(batches)
        client.delete("b/j")
        if listed:
            await turns(200)
        # Neither is the first one a duplicate, nor has it anything to do with A3c.
        again = content("A1c A4k A5c")
        client.create("b/j", JSON, again)
        assert await waiting == ("b/j", [1])
        waiting = await settle(batches)
        checkpoint = iterator.checkpoint()
        assert checkpoint.offsets["b/j"] == len(again)
        assert [s[2:] for s in checkpoint.producers] == [(4, again.index(line(2, 5, 1)), 5)]
        client.append("b/j", line(3, 6, 2))
        assert await waiting == ("b/j", [5])
    async with reading(client, checkpoint=checkpoint, block=False) as iterator:
        assert [clocks(batch) async for batch in iterator.arrow()] == [("b/j", [5])]


async def test_replays_of_journals_which_are_deleted(monkeypatch):
    client = client_of({"a/j": b"", "b/j": content("A1c A2c A3c A4k")}, chunk=100)
    async with reading(client) as iterator:
        batches = iterator.arrow(max_pending_bytes=0)
        monkeypatch.setattr(RecordEngine, "replay_bytes", 1)
        assert await take(batches) == ("b/j", [1])
        client.delete("b/j")
        with pytest.raises(ReplayError) as raised:
            await take(batches)
        assert isinstance(raised.value.__cause__.__cause__, JournalNotFoundError)
        # Others are read on, and so is one of the same name.
        waiting = await settle(batches)
        assert iterator.checkpoint() == SequencerCheckpoint()
        client.append("a/j", content("A1o"))
        assert await waiting == ("a/j", [1])
        waiting = await settle(batches)
        client.create("b/j", JSON, content("A1o"))
        assert await waiting == ("b/j", [1])
        assert iterator.checkpoint().offsets == {"a/j": 71, "b/j": 71}


@pytest.mark.parametrize("seed", range(8))
async def test_random_joins_leaves_and_restarts(seed, monkeypatch):
    """Checkpoints of either form lose and repeat nothing of the same selector in the other."""
    rng = random.Random(seed)
    monkeypatch.setattr("gazette_aio.message.reading.pump.LEAVING_SECONDS", rng.choice((0, 60)))
    client = FakeClient({}, chunk=lambda *_: rng.randrange(30, 400))
    want, got, open_rows = {}, {}, {}
    clock = 0
    checkpoint = SequencerCheckpoint()

    def step():
        nonlocal clock
        name = f"j/{rng.randrange(6)}"
        clock += 10
        if name not in client.journals:
            client.create(name, JSON)
        elif rng.random() < 0.15:
            client.move(name, rng.choice(["t", "other"]))
        elif rng.random() < 0.5:
            rows = list(range(clock, clock + rng.randrange(1, 7)))
            open_rows.setdefault(name, []).extend(rows)
            client.append(name, b"".join(line(row, row, 1) for row in rows))
        else:
            client.append(name, line(clock, clock, 2))
            want.setdefault(name, []).extend([*open_rows.pop(name, []), clock])

    for restart in range(12):
        last = restart == 11
        if last:
            for name in client.journals:
                client.move(name, "t")
        sequencer = Sequencer.from_checkpoint(checkpoint, buffer=rng.choice([2, 100]))
        in_items = rng.random() < 0.5
        options = {"sequencer": sequencer} if in_items else {"checkpoint": checkpoint}
        async with reading(client, block=not last, **options) as iterator:
            pending = rng.choice([0, 500, 1 << 20])
            source = iterator if in_items else iterator.arrow(acks=True, max_pending_bytes=pending)
            for _ in range(10**9 if last else rng.randrange(5, 40)):
                if not last and rng.random() < 0.8:
                    step()
                if last:
                    taken = await anext(source, None)
                    if taken is None:
                        break
                elif (taken := await take_within(source, rng.randrange(5, 300))) is None:
                    continue
                journal, found = (taken.journal, [taken.clock]) if in_items else clocks(taken)
                got.setdefault(journal, []).extend(found)
            checkpoint = iterator.checkpoint()
        if rng.random() < 0.3:
            checkpoint = SequencerCheckpoint.from_proto(checkpoint.to_proto())
    assert got == want
    assert sum(map(len, got.values())) > 30


def random_content(rng):
    content = b""
    for number, row in enumerate(sequencing.well_formed(rng, rng.randrange(1, 60))):
        if rng.random() < 0.05:
            content += rng.choice((b"{garbage}\n", b"\n", b'{"_meta":{"uuid":7}}\n'))
        content += line(number, row.clock, row.flags, row.producer)
    return content


@pytest.mark.parametrize("seed", range(20))
async def test_restarts_in_either_form_at_any_time(monkeypatch, seed):
    """Calls which are cancelled or fail, replays included, lose and repeat nothing."""
    rng = random.Random(seed)
    monkeypatch.setattr(arrow, "INLINE_BYTES", rng.choice((0, 1 << 30)))
    contents = {f"{name}/j": random_content(rng) for name in "abc"[: rng.randrange(1, 4)]}
    client = client_of(contents)
    client.chunk = lambda *_: rng.choice((30, 200, 5000))
    names = list(contents)
    expected = {name: [] for name in names}
    for row in await items(client, names, on_error="skip"):
        expected[row[0]].append(row)
    found = {name: [] for name in names}
    checkpoint, ended = SequencerCheckpoint(), False
    while not ended:
        in_items = rng.random() < 0.3
        if in_items:
            ring = rng.choice((1, 3, 1000))
            options = {"sequencer": Sequencer.from_checkpoint(checkpoint, buffer=ring)}
        else:
            options = {"checkpoint": checkpoint}
        async with reading(client, names, block=False, **options) as iterator:
            source = iterator
            if not in_items:
                pending, size = rng.choice((0, 300, 1 << 20)), rng.choice((1, 200, 1 << 20))
                source = iterator.arrow(acks=True, max_pending_bytes=pending, batch_bytes=size)

            async def take(source=source, in_items=in_items):
                taken = await anext(source)
                for row in [row_of(taken)] if in_items else rows_of(taken):
                    found[row[0]].append(row)

            for _ in range(rng.randrange(1, 30)):
                if rng.random() < 0.2:
                    name = rng.choice(names)
                    at = rng.randrange(len(contents[name]) + 1)
                    client.events[name] = [(at, TransportError("UNAVAILABLE", "gone"))]
                try:
                    if rng.random() < 0.5:
                        await cancel_at(take(), rng.randrange(10))
                    else:
                        await take()
                except StopAsyncIteration:
                    ended = True
                    break
                except (ReplayError, FramingError, TransportError):
                    pass
                if rng.random() < 0.2:
                    checkpoint = iterator.checkpoint()
            checkpoint = iterator.checkpoint()
    assert found == expected


@pytest.mark.parametrize("inline", [0, 1 << 30])
@pytest.mark.parametrize("pending", [0, 1 << 20])
async def test_what_is_not_expected_leaves_nothing_out(monkeypatch, inline, pending):
    """As that there's no memory: iteration goes on where it was, as from its checkpoints."""
    monkeypatch.setattr(arrow, "INLINE_BYTES", inline)
    client = client_of({"a/j": content("A1c B1c A2c A3c B2k A4k A5o")}, chunk=150)
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    make, failures = RecordMaker.make, 0

    def failing(self, *arguments):
        if rng.random() < 0.5:
            raise MemoryError("none is left")
        return make(self, *arguments)

    monkeypatch.setattr(RecordMaker, "make", failing)
    for seed in range(6):
        rng = random.Random(seed)
        found, checkpoint, ended = [], None, False
        while not ended:
            options = {"checkpoint": checkpoint, "block": False}
            async with reading(client, "a/j", **options) as iterator:
                batches = iterator.arrow(max_pending_bytes=pending, batch_bytes=200)
                while not ended and rng.random() < 0.8:
                    try:
                        async for batch in batches:
                            found += clocks(batch)[1]
                        ended = True
                    except MemoryError:
                        failures += 1
                checkpoint = iterator.checkpoint()
        assert found == [1, 1, 2, 3, 5]
    assert failures
    gc.collect()
    assert not reported


async def test_large_commits_dont_hold_up_the_loop(monkeypatch):
    """However little content it is which commits them."""
    monkeypatch.setattr(arrow, "INLINE_BYTES", 500)
    monkeypatch.setattr(inputs, "GATHER_SECONDS", 1000)
    client = client_of({"a/j": content("A1c A2c A3c A4c A5c A6c A7c A8c A9c A10k A11o")}, chunk=100)
    work, inline = JournalOutputs.work, []

    def noted(self, limit_bytes):
        before = self.core.pending_bytes
        worked = work(self, limit_bytes)
        if threading.current_thread() is threading.main_thread():
            inline.append(before)
        return worked

    monkeypatch.setattr(JournalOutputs, "work", noted)
    async with reading(client, "a/j", block=False) as iterator:
        batches = iterator.arrow()
        assert await take(batches) == ("a/j", [*range(1, 10), 11])
    assert 0 in inline
    assert max(inline) <= 500


async def test_checkpoints_dont_wait_for_threads(monkeypatch):
    monkeypatch.setattr(arrow, "INLINE_BYTES", 0)
    client = client_of({"a/j": content("A1o A2o A3c A4k")}, chunk=150)
    make, go, begun = RecordMaker.make, threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self, *arguments):
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(60)
        return make(self, *arguments)

    async with reading(client, "a/j", block=False) as iterator:
        batches = iterator.arrow(batch_bytes=150)
        assert await take(batches) == ("a/j", [1, 2])
        before = iterator.checkpoint()
        monkeypatch.setattr(RecordMaker, "make", slow)
        waiting = asyncio.create_task(take(batches))
        await begun.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert iterator.checkpoint() == before
        assert len(iterator.checkpoint(1).producers) == 1
        go.set()
        assert await take(batches) == ("a/j", [3])
        assert iterator.checkpoint().producers[0].last_ack == 4


async def test_a_lagging_journal_is_worked_on_in_whole_batches(monkeypatch):
    monkeypatch.setattr(arrow, "INLINE_BYTES", 0)
    text = " ".join(f"A{clock}o" for clock in range(1, 100))
    client = client_of({"a/j": content(text)}, chunk=100)
    async with reading(client, "a/j", block=False) as iterator:
        sizes = []
        async for batch in iterator.arrow(batch_bytes=2000):
            begins, ends = batch.column("_begin"), batch.column("_end")
            sizes.append(ends[-1].as_py() - begins[0].as_py())
    assert min(sizes[:-1]) > 1700
    assert max(sizes) <= 2000


class StuckReader(FakeReader):
    """A reader of one chunk of a journal that has more content."""

    async def __anext__(self):
        if self.request.offset and self.journal == "a/j":
            await self.client.go.wait()
        return await super().__anext__()


@pytest.fixture
def stuck(monkeypatch):
    """A client whose journal a/j lags behind its head, and has no more content for now."""
    monkeypatch.setattr(arrow, "INLINE_BYTES", 0)
    monkeypatch.setattr(inputs, "GATHER_SECONDS", 1000)
    client = client_of({"a/j": content("A1o A2o A3o"), "b/j": b""}, chunk=100)
    client.go = asyncio.Event()
    read = client.read

    def stuck_read(request):
        reader = read(request)
        reader.__class__ = StuckReader
        return reader

    monkeypatch.setattr(client, "read", stuck_read)
    return client


async def test_content_is_gathered_for_a_short_time(stuck, monkeypatch):
    monkeypatch.setattr(inputs, "GATHER_SECONDS", 0.01)
    async with reading(stuck, "a/j") as iterator:
        assert await take(iterator.arrow()) == ("a/j", [1])


async def test_content_is_gathered_until_another_journal_is_ready(stuck):
    async with reading(stuck, ["a/j", "b/j"]) as iterator:
        batches = iterator.arrow()
        waiting = await settle(batches)
        stuck.append("b/j", content("B1o"))
        assert await waiting == ("a/j", [1])
        assert await take(batches) == ("b/j", [1])


async def test_cancelling_while_content_is_gathered_loses_none(stuck):
    async with reading(stuck, "a/j") as iterator:
        batches = iterator.arrow()
        waiting = await settle(batches)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        waiting = await settle(batches)
        stuck.go.set()
        assert await waiting == ("a/j", [1, 2, 3])


async def test_closing_while_content_is_gathered(stuck):
    batches = reading(stuck, "a/j").arrow()
    waiting = await settle(batches)
    await batches.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_content_which_is_gone_up_to_the_end_of_a_replay(monkeypatch):
    good = lines("A1c A2c B1c A3k")
    client = client_of({"a/j": b"".join(good)}, chunk=150)
    replay = JournalInput.replay

    def punch(self, begin, end):
        client.holes["a/j"] = len(good[0]) + 10, end
        return replay(self, begin, end)

    monkeypatch.setattr(JournalInput, "replay", punch)
    for allowed in (False, True):
        client.holes.clear()
        async with reading(client, "a/j", block=False, allow_replay_gaps=allowed) as iterator:
            batches = iterator.arrow(max_pending_bytes=0, acks=True)
            if not allowed:
                for _ in range(2):
                    with pytest.raises(ReplayError):
                        await take(batches)
                continue
            assert await take(batches) == ("a/j", [1])
            assert await take(batches) == ("a/j", [3])


async def test_closing_within_a_replay():
    client = client_of({"a/j": content("A1c A2c A3k")}, chunk=100)
    stuck, closed = asyncio.Event(), asyncio.Event()

    class Stuck(FakeReader):
        async def __anext__(self):
            if not self.request.end_offset:
                return await super().__anext__()
            stuck.set()
            await closed.wait()
            raise TransportError("CANCELLED", "closed")

        async def aclose(self):
            await super().aclose()
            closed.set()

    read = client.read

    def stuck_read(request):
        reader = read(request)
        reader.__class__ = Stuck
        return reader

    client.read = stuck_read
    iterator = reading(client, "a/j")
    waiting = asyncio.create_task(anext(iterator.arrow(max_pending_bytes=0)))
    await stuck.wait()
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert all(reader.closed for reader in client.readers)


async def test_journals_which_have_left_hold_nothing():
    client = client_of({"a/j": content("A1c A2c"), "b/j": content("A1o B40c")})
    async with reading(client, block=False) as iterator:
        batches = iterator.arrow()
        assert await take(batches) == ("b/j", [1])
        with pytest.raises(StopAsyncIteration):
            await take(batches)
        assert "open=0" in repr(batches)
        assert batches.pending_bytes == 0
        checkpoint = iterator.checkpoint()
        assert [s[2:] for s in checkpoint.producers] == [(0, 0, 2), (1, -1, None), (39, 71, 40)]
        # They're pruned all the same, as they are before they're read.
        assert len(iterator.checkpoint(100).producers) == 2
    async with reading(client, checkpoint=checkpoint) as iterator:
        iterator.arrow()
        assert len(iterator.checkpoint(100).producers) == 2


async def test_uncommitted_messages_have_no_checkpoint():
    client = client_of({"a/j": content("A1c")})
    async with ReadUncommittedIter("a/j", ADAPTER, client=client) as iterator:
        batches = iterator.arrow()
        assert await take(batches) == ("a/j", [1])
        with pytest.raises(ConfigurationError, match="checkpoint"):
            batches.checkpoint()


async def test_batches_which_are_left_behind_are_noticed():
    async def leave_behind():
        iterator = reading(client_of({"a/j": content("A1o")}), "a/j")
        await take(iterator.arrow())

    before = asyncio.all_tasks()
    with pytest.warns(ResourceWarning, match="<ArrowBatches of .* was not closed"):
        await leave_behind()
    await eventually(lambda: asyncio.all_tasks() <= before)  # Its tasks are ended nevertheless.


async def test_many_journals_with_open_transactions_share_what_is_retained():
    count, limit = 200, 20_000
    names = [f"j/{n:03}" for n in range(count)]
    client = client_of({name: content("A1c A2c A3c") for name in names}, chunk=100)
    found = []
    async with reading(client, names) as iterator:
        batches = iterator.arrow(max_pending_bytes=limit)
        waiting = asyncio.create_task(take(batches))
        await turns(200 * count)
        assert not waiting.done()
        assert all(r.offset == len(client.journals[r.journal]) for r in client.readers)
        assert limit / 2 < batches.pending_bytes <= limit
        for name in names:
            client.append(name, line(3, 4, 2))
        found.append(await waiting)
        while sum(len(c) for _, c in found) < 3 * count:
            found.append(await take(batches))
    got = {}
    for name, some in found:
        got.setdefault(name, []).extend(some)
    assert got == {name: [1, 2, 3] for name in names}


@pytest.mark.parametrize("direct", [None, True])
@pytest.mark.parametrize("codec", [pb.CompressionCodec.NONE, pb.CompressionCodec.GZIP])
async def test_files_of_fragments(tmp_path, direct, codec):
    """Of several journals, and of replays, up to what's not in a file yet."""
    rng = random.Random(1)
    names = [f"topic/{number}" for number in range(3)]
    root = tmp_path / "fragments"
    root.mkdir()
    want = {name: [] for name in names}
    async with (
        EmbeddedBroker(file_root=root, fsync="off", persist_delay=0.0) as broker,
        connect(broker.endpoint, file_root=root) as client,
    ):
        labels = {"content-type": JSON}
        specs = [journal_spec(n, labels=labels, stores=["file:///"], codec=codec) for n in names]
        await create_journals(client, *specs)
        for name in names:
            for part in range(4):
                base = 1000 * (part + 1)
                rows = [(base + n, rng.choice((b"\x01AAAAA", b"\x01BBBBB"))) for n in range(300)]
                data = [line(clock, clock, 1, producer) for clock, producer in rows]
                data += [line(0, base + 999, 2, producer) for producer in {p for _, p in rows}]
                await client.append(name, b"".join(data))
                if part < 3:
                    await broker.flush(name)
        for row in await items(client, names):
            if row[5] != 2:
                want[row[0]].append(row[3])
        for pending in (0, 1 << 20):
            got = {name: [] for name in names}
            async with reading(client, names, direct=direct, block=False) as iterator:
                async for batch in iterator.arrow(max_pending_bytes=pending):
                    journal, found = clocks(batch)
                    got[journal] += found
            assert got == want
            assert sum(map(len, got.values())) == 3600
