"""Iterators of messages, over in-memory journals."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.message import (
    Clock,
    FixedFraming,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    SequencerCheckpoint,
    build_uuid,
    json_adapter,
    protobuf_adapter,
    raw_adapter,
)
from gazette_aio.protocol._generated.consumer_pb2 import Checkpoint
from gazette_aio.protocol.errors import (
    ConfigurationError,
    DesyncDetectedError,
    FragmentError,
    FramingError,
    ReplayError,
    UnexpectedEOFError,
    UnrecognizedContentTypeError,
)
from gazette_aio.protocol.status_errors import JournalNotFoundError, OffsetNotYetAvailableError
from tests import extent
from tests.message.fakes import FakeClient
from tests.waiting import turns

NDJSON = "application/x-ndjson"
A, B = b"\x01AAAAA", b"\x01BBBBB"
FLAGS = {"o": 0, "c": 1, "k": 2}
ADAPTER = json_adapter()


class Row(msgspec.Struct):
    v: str


def line(text, value=None):
    uuid = build_uuid({"A": A, "B": B}[text[0]], int(text[1:-1]), FLAGS[text[-1]])
    if text[-1] == "k":
        return ADAPTER.acknowledgement(uuid) + b"\n"
    return ADAPTER.encode({"v": value or text}, uuid) + b"\n"


def client_of(rows, *, chunk=1000, journal="a/j"):
    client = FakeClient({journal: NDJSON}, chunk=chunk)
    client.append(journal, b"".join(line(t) for t in rows.split()))
    return client


def name(envelope):
    kind = {v: k for k, v in FLAGS.items()}[int(envelope.flags)]
    return f"{ {A: 'A', B: 'B'}[envelope.producer] }{envelope.clock}{kind}"


async def collect(iterator):
    return [name(e) async for e in iterator]


ROWS = "A1c B1c A2c B2c B3k"


@pytest.mark.parametrize("chunk", [1, 7, 60, 1000])
async def test_uncommitted_and_committed(chunk):
    client = client_of(ROWS, chunk=chunk)
    assert await collect(ReadUncommittedIter("a/j", ADAPTER, client=client)) == ROWS.split()
    sequencer = Sequencer(buffer=0)
    iterator = ReadCommittedIter("a/j", ADAPTER, client=client, sequencer=sequencer)
    got = [e async for e in iterator]
    assert [name(e) for e in got] == ["B1c", "B2c", "B3k"]
    assert [e.message.get("v") for e in got] == ["B1c", "B2c", None]
    assert got[2].message["_meta"]["ack"] is True
    assert got[0].uuid == build_uuid(B, 1, 1)
    assert (got[0].begin, got[0].end) == (len(line("A1c")), 2 * len(line("A1c")))
    assert [r async for r in iterator] == []
    assert all(reader.closed for reader in client.readers)
    async for batch in ReadCommittedIter("a/j", ADAPTER, client=client).batches():
        assert [name(e) for e in batch] == ["B1c", "B2c", "B3k"]


async def test_readers_and_end_offsets():
    client = client_of(ROWS)
    end = len(client.journals["a/j"])
    reader = client.read(pb.ReadRequest(journal="a/j", end_offset=end))
    iterator = ReadUncommittedIter(reader, ADAPTER)
    assert await collect(iterator) == ROWS.split()
    assert await collect(iterator) == []
    reader = client.read(pb.ReadRequest(journal="a/j", end_offset=end - 3))
    iterator = ReadUncommittedIter(reader, ADAPTER)
    begin = end - len(line("B3k"))
    for _ in range(2):
        with pytest.raises(FramingError) as raised:
            await collect(iterator)
        assert str(raised.value) == f"a/j at offset {begin}: unexpected EOF"
        assert isinstance(raised.value.__cause__, UnexpectedEOFError)
    async with iterator:
        pass
    assert reader.closed
    assert await collect(iterator) == []


async def test_setup_errors_repeat():
    client = FakeClient({"a/j": "what/ever", "b/j": None})
    for journal, cls, text in [
        (
            "no/such;meta",
            JournalNotFoundError,
            "fetching journal spec: named journal does not exist (no/such;meta): JOURNAL_NOT_FOUND",
        ),
        (
            "a/j",
            UnrecognizedContentTypeError,
            "determining framing: unrecognized content-type (what/ever) of journal a/j: framings",
        ),
        (
            "b/j",
            UnrecognizedContentTypeError,
            "determining framing: unrecognized content-type () of journal b/j: the label is missing",
        ),
    ]:
        iterator = ReadUncommittedIter(journal, ADAPTER, client=client)
        for _ in range(2):
            with pytest.raises(cls) as raised:
                await anext(iterator)
            assert str(raised.value).startswith(text)
    client.content_types["a/j"] = NDJSON
    assert await collect(ReadUncommittedIter("a/j", ADAPTER, client=client)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": "a/j"},
        {"source": [], "client": 1},
        {"source": ["a/j", "a/j"], "client": 1},
        {"source": "a/j", "client": 1, "on_error": "ignore"},
        {
            "source": "a/j",
            "client": 1,
            "sequencer": Sequencer(),
            "checkpoint": SequencerCheckpoint(),
        },
    ],
)
def test_contradictions_are_refused(arguments):
    with pytest.raises(ConfigurationError):
        ReadCommittedIter(arguments.pop("source"), ADAPTER, **arguments)


async def test_metadata_suffix():
    client = client_of("A1c A2c A3k")
    iterator = ReadCommittedIter("a/j;meta", ADAPTER, client=client, sequencer=Sequencer(buffer=1))
    got = [e async for e in iterator]
    assert {e.journal for e in got} == {"a/j;meta"}
    assert [name(e) for e in got] == ["A1c", "A2c", "A3k"]
    assert {r.journal for r in client.reads} == {"a/j;meta"}
    assert len(client.reads) == 2
    assert [label.value for label in client.lists[0].include.labels] == ["a/j"]
    assert list(iterator.checkpoint().offsets) == ["a/j;meta"]


async def test_bad_frames_are_passed_over():
    client = FakeClient({"a/j": NDJSON})
    bad = [b"garbage\n", b'{"_meta":{"uuid":"nope"}}\n', b'{"_meta":{"uuid":7}}\n', b"\n", b"[1]\n"]
    bad_committed = line("A4o").replace(b"A4o", b"\xff")
    parts = [line("A1o"), *bad, line("A2o"), bad_committed, line("A5o")]
    client.append("a/j", b"".join(parts))
    for cls in (ReadCommittedIter, ReadUncommittedIter):
        iterator = cls("a/j", ADAPTER, client=client)
        got, errors = [], []
        while True:
            try:
                async for envelope in iterator:
                    got.append(name(envelope))
                    if cls is ReadCommittedIter:
                        assert iterator.checkpoint().offsets["a/j"] == envelope.end
                break
            except FramingError as error:
                errors.append(error)
        assert got == ["A1o", "A2o", "A5o"]
        assert [(e.begin, e.end, e.journal) for e in errors] == [
            (sum(map(len, parts[:i])), sum(map(len, parts[: i + 1])), "a/j")
            for i in (1, 2, 3, 4, 5, 7)
        ]
        prefix = "reading committed messages: " if cls is ReadCommittedIter else ""
        assert str(errors[1]) == f"{prefix}a/j at offset {errors[1].begin}: invalid UUID length: 4"
        assert [e.kind for e in errors[:3]] == ["decode", "uuid", "uuid"]
        lenient = cls("a/j", ADAPTER, client=client, on_error="skip")
        assert await collect(lenient) == got
        assert lenient.skipped == 6
        batched = cls("a/j", ADAPTER, client=client)
        got = []
        failures = 0
        while True:
            try:
                async for batch in batched.batches():
                    got += [name(e) for e in batch]
                break
            except FramingError:
                failures += 1
        assert (got, failures) == (["A1o", "A2o", "A5o"], 6)


async def test_desync_of_fixed_frames():
    client = FakeClient({"a/j": FixedFraming.content_type}, chunk=5)
    frame = FixedFraming().encode
    adapter = protobuf_adapter(Checkpoint.Source.ProducerEntry, "id")
    messages = [build_uuid(A, i, 0).bytes for i in (1, 2)]
    client.append(
        "a/j", frame(b"\x0a\x10" + messages[0]) + b"garbage!" + frame(b"\x0a\x10" + messages[1])
    )
    iterator = ReadCommittedIter("a/j", adapter, client=client)
    first = await anext(iterator)
    assert first.message.id == messages[0]
    got, skipped = [], 0
    while True:
        try:
            got += [e.clock async for e in iterator]
            break
        except DesyncDetectedError as error:
            assert "detected de-synchronization" in str(error)  # noqa: PT017
            skipped += error.end - error.begin
    assert got == [2]
    assert skipped == 8


async def test_frames_over_the_limit_are_passed_over():
    client = client_of("A1o A2o")
    client.append("a/j", b"x" * 500 + b"\n" + line("A3o"))
    iterator = ReadUncommittedIter(
        "a/j", ADAPTER, client=client, max_frame_bytes=200, on_error="skip"
    )
    assert await collect(iterator) == ["A1o", "A2o", "A3o"]
    assert iterator.skipped == 1


async def test_jumps_discard_partial_frames(caplog):
    client = client_of("A1o A2o A3o A4o")
    size = len(line("A1o"))
    client.holes["a/j"] = (size + 10, 2 * size)
    with caplog.at_level(logging.WARNING):
        iterator = ReadUncommittedIter("a/j", ADAPTER, client=client)
        got = [(name(e), e.begin) async for e in iterator]
    assert got == [("A1o", 0), ("A3o", 2 * size), ("A4o", 3 * size)]
    assert [r.message for r in caplog.records] == ["source journal offset jump"]
    assert (caplog.records[0].__dict__["from"], caplog.records[0].to) == (size, 2 * size)


async def test_replays_refuse_gaps():
    def start(**options):
        client = client_of("A1c A2c A3c A4c A5k")
        size = len(line("A1c"))
        read = client.read

        def lose(request):
            if request.end_offset:
                client.holes["a/j"] = (size, 2 * size)
            return read(request)

        client.read = lose
        return client, ReadCommittedIter(
            "a/j", ADAPTER, client=client, sequencer=Sequencer(buffer=1), **options
        )

    client, iterator = start()
    assert name(await anext(iterator)) == "A1c"
    with pytest.raises(ReplayError, match="replay reader: offset jump"):
        await anext(iterator)
    client.holes.clear()
    client.read = lambda request: FakeClient.read(client, request)
    # What was delivered before isn't repeated.
    assert await collect(iterator) == ["A2c", "A3c", "A4c", "A5k"]
    _, iterator = start(allow_replay_gaps=True)
    assert await collect(iterator) == ["A1c", "A3c", "A4c", "A5k"]


@pytest.mark.parametrize("allow_gaps", [False, True])
@pytest.mark.parametrize("into_a_frame", [0, 10])
async def test_replays_refuse_gaps_up_to_their_end(into_a_frame, allow_gaps):
    """Readers tell nothing of a hole which all the rest of their content lies in."""
    client = client_of("A1c A2c A3c A4c A5k")
    size = len(line("A1c"))
    read = client.read

    def lose(request):
        if request.end_offset:
            client.holes["a/j"] = (2 * size + into_a_frame, 4 * size)
        return read(request)

    client.read = lose
    iterator = ReadCommittedIter(
        "a/j",
        ADAPTER,
        client=client,
        sequencer=Sequencer(buffer=1),
        allow_replay_gaps=allow_gaps,
    )
    assert [name(await anext(iterator)) for _ in range(2)] == ["A1c", "A2c"]
    if allow_gaps:
        assert await collect(iterator) == ["A5k"]
        return
    for _ in range(2):
        with pytest.raises(ReplayError, match="replay reader: no content from"):
            await anext(iterator)
    client.read = read
    client.holes.clear()
    assert await collect(iterator) == ["A3c", "A4c", "A5k"]


async def test_failed_replays_resume():
    rows = "A1c A2c A3c A4c A5c A6k"
    for fail_at in range(5):
        client = client_of(rows, chunk=len(line("A1c")))
        read = client.read

        def failing(request, client=client, read=read, fail_at=fail_at):
            reader = read(request)
            if request.end_offset and not client.events:
                client.events["a/j"] = [(fail_at * len(line("A1c")), FragmentError("broken"))]
            return reader

        client.read = failing
        iterator = ReadCommittedIter("a/j", ADAPTER, client=client, sequencer=Sequencer(buffer=1))
        got = []
        with pytest.raises(ReplayError, match="reading committed message: replay reader: broken"):  # noqa: PT012
            async for envelope in iterator:
                got.append(name(envelope))  # noqa: PERF401
        got += await collect(iterator)
        assert got == rows.split()


async def test_reading_goes_on_after_its_errors():
    client = client_of("A1o A2o A3o")
    client.events["a/j"] = [(0, FragmentError("broken"))]
    reader = client.read(pb.ReadRequest(journal="a/j"))
    iterator = ReadCommittedIter(reader, ADAPTER)
    with pytest.raises(FragmentError, match="broken") as raised:
        await anext(iterator)
    assert raised.value.__notes__ == ["reading messages of a/j at offset 0"]
    assert name(await anext(iterator)) == "A1o"


async def test_the_write_head_of_a_reader():
    client = client_of("A1o A2o")
    partial = line("A3o")
    client.append("a/j", partial[:20])
    reader = client.read(pb.ReadRequest(journal="a/j"))
    iterator = ReadCommittedIter(reader, ADAPTER)
    got = [name(await anext(iterator)) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(OffsetNotYetAvailableError):
            await anext(iterator)
    client.append("a/j", partial[20:])
    got.append(name(await anext(iterator)))
    assert got == ["A1o", "A2o", "A3o"]


async def test_blocking_reads_wait_for_content():
    client = client_of("A1o")
    async with ReadCommittedIter("a/j", ADAPTER, client=client, block=True) as iterator:
        assert name(await anext(iterator)) == "A1o"
        waiting = asyncio.create_task(anext(iterator))
        await turns(50)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        client.append("a/j", line("A2o"))
        assert name(await anext(iterator)) == "A2o"


def many_journals(count=4, transactions=20, seed=1, chunk=300):
    rng = random.Random(seed)
    names = [f"j/{i}" for i in range(count)]
    client = FakeClient(dict.fromkeys(names, NDJSON), chunk=chunk)
    want = {}
    for i in range(transactions * count):
        journal = rng.choice(names)
        base = 1 + 10 * i
        size = rng.randrange(1, 9)
        rows = [f"A{base + k}c" for k in range(size)] + [f"A{base + 9}k"]
        if rng.random() < 0.3:
            rows = [f"A{base + k}o" for k in range(size)]
        client.append(journal, b"".join(map(line, rows)))
        want.setdefault(journal, []).extend(rows)
    return client, names, want


@pytest.mark.parametrize("buffer_bytes", [1, 4 << 20])
async def test_several_journals(buffer_bytes):
    client, names, want = many_journals()
    got = {}
    async with ReadCommittedIter(
        names, ADAPTER, client=client, sequencer=Sequencer(buffer=3), buffer_bytes=buffer_bytes
    ) as iterator:
        async for envelope in iterator:
            got.setdefault(envelope.journal, []).append(name(envelope))
    assert got == want
    assert all(reader.closed for reader in client.readers)
    assert len(client.lists) == 1


async def test_several_journals_are_read_fairly():
    client, names, _ = many_journals(transactions=100)
    seen = []
    async for envelope in ReadCommittedIter(names, ADAPTER, client=client, buffer_bytes=1):
        seen.append(envelope.journal)  # noqa: PERF401
    assert set(seen[: len(seen) // 4]) == set(names)


async def test_very_many_names_are_listed_in_parts():
    names = [f"a/{n:03}" for n in range(300)]
    client = FakeClient(dict.fromkeys(names, NDJSON))
    for journal in names:
        client.append(journal, line("A1o"))
    got = [e.journal async for e in ReadCommittedIter(names, ADAPTER, client=client)]
    assert sorted(got) == names
    listed = [len(selector.include.labels) for selector in client.lists]
    assert sum(listed) == 300
    assert max(listed) <= 256


async def test_one_failing_journal_of_several():
    client, names, want = many_journals()
    client.events["j/2"] = [(300, FragmentError("broken"))]
    got, errors = {}, []
    iterator = ReadCommittedIter(names, ADAPTER, client=client)
    while True:
        try:
            async for envelope in iterator:
                got.setdefault(envelope.journal, []).append(name(envelope))
            break
        except FragmentError as error:
            errors += error.__notes__
    assert len(errors) == 1
    assert errors[0].startswith("reading messages of j/2 at offset 2")
    assert got == want


async def test_closing_twice():
    client, names, _ = many_journals()
    iterator = ReadCommittedIter(names, ADAPTER, client=client, block=True)
    await anext(iterator)
    assert "j/0" in repr(iterator)
    await iterator.aclose()
    await iterator.aclose()
    assert "closed" in repr(iterator)


@pytest.mark.parametrize("batches", [False, True])
async def test_checkpoints_at_any_message(batches):
    client, names, want = many_journals(count=2, transactions=8)
    rng = random.Random(3)
    got = {}
    checkpoint = None
    restarts = 0
    while True:
        known = {"checkpoint": checkpoint}
        if rng.random() < 0.5:
            start = checkpoint or SequencerCheckpoint()
            known = {"sequencer": Sequencer.from_checkpoint(start, buffer=2)}
        iterator = ReadCommittedIter(names, ADAPTER, client=client, **known)
        count = 0
        async with iterator:
            if batches:
                async for batch in iterator.batches():
                    for e in batch:
                        got.setdefault(e.journal, []).append(name(e))
                    checkpoint = iterator.checkpoint()
                    count += 1
                    if count == 2:
                        break
            else:
                stop = rng.randrange(1, 12)
                async for e in iterator:
                    got.setdefault(e.journal, []).append(name(e))
                    count += 1
                    if count == stop:
                        break
                checkpoint = iterator.checkpoint()
        if count == 0:
            break
        restarts += 1
        if rng.random() < 0.5:
            checkpoint = SequencerCheckpoint.from_proto(checkpoint.to_proto())
    assert got == want
    assert restarts > 3


@pytest.mark.parametrize("skip_acks", [False, True])
async def test_checkpoints_among_interleaved_commits(skip_acks):
    rows = "A1c B1c A2c B2c A4k A5c B3k A6o B4c A7c A8k B5k B6o"
    options = {"skip_acks": skip_acks}
    want = await collect(ReadCommittedIter("a/j", ADAPTER, client=client_of(rows), **options))
    assert len(want) == (8 if skip_acks else 12)
    for stop in range(len(want)):
        client = client_of(rows)
        async with ReadCommittedIter("a/j", ADAPTER, client=client, **options) as iterator:
            got = [name(await anext(iterator)) for _ in range(stop)]
            checkpoint = iterator.checkpoint()
            # It goes on as if nothing was.
            assert await collect(iterator) == want[stop:]
        again = ReadCommittedIter("a/j", ADAPTER, client=client, checkpoint=checkpoint, **options)
        assert got + await collect(again) == want


async def test_checkpoints_don_t_disturb():
    rows = "A1c B1c A2c A3c B2c A4k B3k A5o B4c"
    for buffer in (1, 2, 100):
        client = client_of(rows)
        iterator = ReadCommittedIter(
            "a/j", ADAPTER, client=client, sequencer=Sequencer(buffer=buffer)
        )
        got = []
        async for envelope in iterator:
            got.append(name(envelope))
            assert iterator.checkpoint() == iterator.checkpoint()
        assert got == ["A1c", "A2c", "A3c", "A4k", "B1c", "B2c", "B3k", "A5o"]
        final = iterator.checkpoint()
        assert final.offsets == {"a/j": len(client.journals["a/j"])}
        assert {s.producer: (s.last_ack, s.begin != -1) for s in final.producers} == {
            A: (5, False),
            B: (3, True),
        }


async def test_checkpoints_after_closing():
    rows = "A1c A2c A3c A4k B5o"
    client = client_of(rows)
    async with ReadCommittedIter("a/j", ADAPTER, client=client) as iterator:
        got = [name(await anext(iterator)) for _ in range(2)]
    checkpoint = iterator.checkpoint()
    again = ReadCommittedIter("a/j", ADAPTER, client=client, checkpoint=checkpoint)
    assert got + await collect(again) == rows.split()


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="unknown option 'blocks'"):
        ReadCommittedIter("a/j", ADAPTER, client=1, blocks=True)


async def test_filters():
    client = client_of("A1c A2k A3o B9k")
    got = await collect(ReadCommittedIter("a/j", ADAPTER, client=client, skip_acks=True))
    assert got == ["A1c", "A3o"]
    iterator = ReadCommittedIter("a/j", json_adapter(Row), client=client)
    assert [None if e.message is None else e.message.v async for e in iterator] == [
        "A1c",
        None,
        "A3o",
        None,
    ]

    old, new = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    clocks = [Clock.from_time(when).value for when in (old, new)]
    rows = f"A{clocks[0]}o A{clocks[1]}o"
    client = client_of(rows)
    iterator = ReadCommittedIter("a/j", ADAPTER, client=client, start=new)
    assert await collect(iterator) == rows.split()[1:]
    assert client.reads[0].begin_mod_time == int(new.timestamp())
    assert (
        await collect(ReadUncommittedIter("a/j", ADAPTER, client=client, start=new))
        == rows.split()[1:]
    )

    size = len(client.journals["a/j"]) // 2
    assert (
        await collect(ReadUncommittedIter("a/j", ADAPTER, client=client, start={"a/j": size}))
        == rows.split()[1:]
    )


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("of", [ReadCommittedIter, ReadUncommittedIter])
async def test_older_messages_are_left_out_even_if_they_are_bad(of, on_error):
    old, new = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    clocks = [Clock.from_time(when).value for when in (old, new)]
    client = client_of(f"A{clocks[0]}o A{clocks[0] + 16}o A{clocks[1]}o")
    journal = client.journals["a/j"]
    journal[:] = journal.replace(b'"v":', b'"v":[],"w":', 1)
    iterator = of("a/j", json_adapter(Row), client=client, start=new, on_error=on_error)
    assert await collect(iterator) == [f"A{clocks[1]}o"]
    assert iterator.skipped == 0


async def test_strict_uuids():
    client = FakeClient({"a/j": NDJSON})
    client.append("a/j", b'{"_meta":{"uuid":"6fa5ad41-91b7-4dd3-a1c1-1f1d5a8ab3e9"}}\n{}\nnull\n')
    got = [e.clock async for e in ReadUncommittedIter("a/j", ADAPTER, client=client)]
    assert got[1:] == [0, 0]
    iterator = ReadUncommittedIter("a/j", ADAPTER, client=client, strict_uuid=True)
    with pytest.raises(FramingError) as raised:
        await anext(iterator)
    assert raised.value.kind == "uuid"
    rest = [e async for e in iterator]
    assert [e.uuid.int for e in rest] == [0, 0]
    assert [e.message for e in rest] == [{}, {}]


async def test_a_reader_behind_its_checkpoint():
    client = client_of("A1o A2o")
    reader = client.read(pb.ReadRequest(journal="a/j", offset=80))
    with pytest.raises(ConfigurationError):
        ReadCommittedIter(reader, ADAPTER, checkpoint=SequencerCheckpoint({"a/j": 10}))


class Cancelling:
    """Drives a coroutine, which is cancelled at its n-th suspension."""

    def __init__(self, coroutine, at):
        self.coroutine, self.at = coroutine, at

    def __await__(self):
        steps = self.coroutine.__await__()
        resume, value = steps.send, None
        while True:
            if self.at == 0:
                self.at = -1
                try:
                    steps.throw(asyncio.CancelledError())
                except StopIteration as stop:
                    return stop.value
                raise AssertionError("cancellation was swallowed")
            try:
                waited = resume(value)
            except StopIteration as stop:
                return stop.value
            self.at -= 1
            try:
                resume, value = steps.send, (yield waited)
            except BaseException as error:  # noqa: BLE001 - as when a time-out within it ends.
                resume, value = steps.throw, error


@pytest.mark.parametrize("names", [["a/j"], ["a/j", "b/j"]])
@pytest.mark.parametrize("buffer", [1, 100])
async def test_cancelled_at_every_suspension(names, buffer):
    rows = "A1c B1c A2c A3c B2c A4k B3k A5o"
    want = ["A1c", "A2c", "A3c", "A4k", "B1c", "B2c", "B3k", "A5o"]
    cancelled = 0
    for at in range(60):
        client = FakeClient(dict.fromkeys(names, NDJSON), chunk=70)
        for journal in names:
            client.append(journal, b"".join(map(line, rows.split())))
        iterator = ReadCommittedIter(
            names, ADAPTER, client=client, sequencer=Sequencer(buffer=buffer)
        )
        got = {}
        left = at
        while True:
            driven = Cancelling(anext(iterator), left)
            try:
                envelope = await driven
            except StopAsyncIteration:
                break
            except asyncio.CancelledError:
                cancelled += 1
                left = -1
                continue
            left = driven.at
            got.setdefault(envelope.journal, []).append(name(envelope))
        await iterator.aclose()
        assert got == dict.fromkeys(names, want)
        if left >= 0:
            break
    assert cancelled > 10


@extent.examples(30)
@given(seed=st.integers(0, 2**32), buffer=st.sampled_from([1, 3, 100]))
def test_chunking_makes_no_difference(seed, buffer):
    rng = random.Random(seed)
    log, clock = [], {"A": 5, "B": 5}
    for _ in range(40):
        producer = rng.choice("AB")
        clock[producer] = max(clock[producer] + rng.randrange(-2, 4), 1)
        log.append(f"{producer}{clock[producer]}{rng.choice('ccckko')}")

    async def read(chunk):
        client = client_of(" ".join(log), chunk=chunk)
        iterator = ReadCommittedIter(
            "a/j", ADAPTER, client=client, sequencer=Sequencer(buffer=buffer)
        )
        got = [(name(e), e.begin, e.end) async for e in iterator]
        return got, iterator.checkpoint()

    async def both():
        whole = await read(1 << 20)
        assert await read(lambda *_: rng.randrange(1, 200)) == whole

    asyncio.run(both())


async def test_custom_adapters():
    class Adapter:
        def decode(self, frame):
            return ADAPTER.decode(frame)

        def encode(self, message, uuid):
            return ADAPTER.encode(message, uuid)

        def uuid(self, message):
            return ADAPTER.uuid(message)

        def acknowledgement(self, uuid):
            return ADAPTER.acknowledgement(uuid)

    for adapter in (Adapter(), raw_adapter("_meta.uuid")):
        client = client_of(ROWS)
        assert await collect(ReadCommittedIter("a/j", adapter, client=client, skip_acks=True)) == [
            "B1c",
            "B2c",
        ]
        client = client_of(ROWS)
        assert await collect(ReadUncommittedIter("a/j", adapter, client=client)) == ROWS.split()
    client = client_of(ROWS)
    got = [e.message async for e in ReadCommittedIter("a/j", raw_adapter(), client=client)]
    assert got == [line(t)[:-1] for t in ROWS.split()]


@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
@pytest.mark.parametrize("text", ["kk=", "name:prefix=a/", "topic in (a, b)", "!old,tier=hot"])
def test_a_selector_as_text_is_refused(kind, text):
    client = client_of("")
    for source in (text, ["a/j", text]):
        with pytest.raises(ConfigurationError) as raised:
            kind(source, ADAPTER, client=client)
        assert str(raised.value) == (
            f"{text!r} is a selector, and text names a journal here: to read the journals that it "
            f"matches, pass parse_label_selector({text!r})"
        )
    kind(pb.parse_label_selector(text), ADAPTER, client=client)


async def test_text_that_may_be_a_selector_names_a_journal():
    client = client_of("A1o", journal="topic/tier=hot")
    async with ReadUncommittedIter("topic/tier=hot", ADAPTER, client=client) as envelopes:
        assert (await anext(envelopes)).journal == "topic/tier=hot"
    async with ReadUncommittedIter("tier=hot", ADAPTER, client=client) as envelopes:
        with pytest.raises(JournalNotFoundError) as raised:
            await anext(envelopes)
    assert (
        "named journal does not exist (tier=hot); if it's a selector, to read the journals that it "
        "matches, pass parse_label_selector('tier=hot'): "
    ) in str(raised.value)


FIXED = "application/x-protobuf-fixed"
BAD_CONTENT = [
    (NDJSON, b"{bad}\n", "JSON is malformed"),
    (NDJSON, b'{"_meta":{"uuid":"nope"}}\n', "invalid UUID"),
    (FIXED, b"garbage instead of a frame", "de-synchronization"),
    (FIXED, b"\x66\x33\x93\x36\xff\xff\xff\x7f", "longer than"),
]


async def _items(iterator):
    async for _ in iterator:
        pass


async def _batches(iterator):
    async for _ in iterator.batches():
        pass


async def _arrow(iterator):
    async for _ in iterator.arrow():
        pass


async def _columns(iterator):
    async for _ in iterator.arrow(schema=pa.schema([("v", pa.string())])):
        pass


@pytest.mark.parametrize("read", [_items, _batches, _arrow, _columns])
@pytest.mark.parametrize(("content_type", "content", "reason"), BAD_CONTENT)
@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
async def test_errors_name_journal_offset_and_reader(kind, content_type, content, reason, read):
    if content_type == FIXED and read is _columns:
        read = _arrow  # Columns are of JSON or of protobuf messages.
    client = FakeClient({"a/journal": content_type})
    before = b"" if content_type == FIXED else line("A1o")
    client.append("a/journal", before + content)
    adapter = raw_adapter() if content_type == FIXED else ADAPTER
    async with kind("a/journal", adapter, client=client) as iterator:
        with pytest.raises(FramingError, match=reason) as raised:
            await read(iterator)
    error, at = raised.value, len(before)
    assert (error.journal, error.begin) == ("a/journal", at)
    prefix = "reading committed messages: " if kind is ReadCommittedIter else ""
    assert str(error).startswith(f"{prefix}a/journal at offset {at}: ")
