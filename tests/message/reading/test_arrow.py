"""Messages as Arrow record batches: the same messages as in item form, in the same order."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import tracemalloc

import pyarrow as pa
import pytest

from gazette_aio.message import (
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    build_uuid,
    encode_fixed_frame,
    json_adapter,
    raw_adapter,
)
from gazette_aio.message.reading import arrow
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    ReplayError,
    TransportError,
)
from gazette_aio.protocol.status_errors import OffsetNotYetAvailableError
from tests.cancellation import cancel_at
from tests.message.fakes import FakeClient
from tests.message.sequencing import sequencing

JSON = "application/x-ndjson"
A, B = b"\x01AAAAA", b"\x01BBBBB"
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def line(number, clock, flags, producer=A):
    uuid = build_uuid(producer, clock, flags)
    if flags == 2:
        return f'{{"_meta":{{"uuid":"{uuid}","ack":true}}}}\n'.encode()
    return f'{{"_meta":{{"uuid":"{uuid}"}},"n":{number},"s":"{"x" * (number % 7)}"}}\n'.encode()


def lines(text):
    """Lines of a text as `A1c A2k`."""
    return [line(i, r.clock, r.flags, r.producer) for i, r in enumerate(sequencing.parse(text))]


def random_content(rng, count):
    log = rng.choice((sequencing.well_formed, sequencing.wild, sequencing.outside))(rng, count)
    return b"".join(line(i, row.clock, row.flags, row.producer) for i, row in enumerate(log))


def client_of(journals, chunk=300):
    client = FakeClient(dict.fromkeys(journals, JSON), chunk=chunk)
    for name, content in journals.items():
        client.journals[name] += content
    return client


def rows_of(batch):
    """Rows of a batch of raw messages, as items have them."""
    assert batch.num_rows
    columns = [batch.column(name).to_pylist() for name in batch.schema.names]
    found = []
    for journal, begin, end, _, clock, producer, flags, value in zip(*columns, strict=True):
        found.append((journal, begin, end, clock, producer, flags, value))
    return found


def row_of(envelope):
    e = envelope
    return e.journal, e.begin, e.end, e.clock, bytes(e.producer), int(e.flags), e.message


async def items(client, source="a/j", kind=ReadCommittedIter, **options):
    async with kind(source, raw_adapter("_meta.uuid"), client=client, **options) as iterator:
        return [row_of(envelope) async for envelope in iterator]


async def batches(client, source="a/j", kind=ReadCommittedIter, schema=None, arrow=(), **options):
    async with kind(source, raw_adapter("_meta.uuid"), client=client, **options) as iterator:
        return [batch async for batch in iterator.arrow(schema, **dict(arrow))]


async def rows(client, source="a/j", kind=ReadCommittedIter, arrow=(), **options):
    found = await batches(client, source, kind, arrow=arrow, **options)
    return [row for batch in found for row in rows_of(batch)]


async def test_columns():
    content = lines("A16c A32k")
    client = client_of({"a/j": b"".join(content)})
    (batch,) = await batches(client)
    assert dict(zip(batch.schema.names, batch.schema.types, strict=True)) == {
        "_journal": pa.dictionary(pa.int32(), pa.string()),
        "_begin": pa.int64(),
        "_end": pa.int64(),
        "_timestamp": pa.timestamp("us", "UTC"),
        "_clock": pa.uint64(),
        "_producer": pa.binary(6),
        "_flags": pa.uint16(),
        "_value": pa.binary(),
    }
    assert rows_of(batch) == [("a/j", 0, len(content[0]), 16, A, 1, content[0][:-1])]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("pending", [1 << 30, 2000, 0])
async def test_same_messages_and_checkpoints_as_in_item_form(seed, pending, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(arrow, "INLINE_BYTES", rng.choice((0, 1 << 13)))
    wild = pending == 1 << 30  # Replays and rings differ in what they make of malformed logs.
    log = rng.choice(
        (sequencing.well_formed, sequencing.wild) if wild else (sequencing.well_formed,)
    )
    content = b"".join(
        line(i, r.clock, r.flags, r.producer) for i, r in enumerate(log(rng, rng.randrange(1, 80)))
    )
    client = client_of({"a/j": content}, chunk=rng.choice((40, 333, 5000)))
    expected, checkpoints = [], {}
    adapter = raw_adapter("_meta.uuid")
    async with ReadCommittedIter("a/j", adapter, client=client) as iterator:
        async for envelope in iterator:
            expected.append(row_of(envelope))
            checkpoints[envelope.begin] = iterator.checkpoint()
    through = {}
    sequencer = Sequencer(buffer=1 << 30)
    async with ReadUncommittedIter("a/j", adapter, client=client) as iterator:
        async for envelope in iterator:
            sequencer.queue_uncommitted(envelope)
            while sequencer.step():
                pass
            through[envelope.end] = comparable(sequencer.checkpoint())
    found = []
    options = {
        "acks": True,
        "max_pending_bytes": pending,
        "batch_bytes": rng.choice((1, 500, 1 << 20)),
    }
    async with ReadCommittedIter("a/j", adapter, client=client) as iterator:
        async for batch in iterator.arrow(**options):
            found += rows_of(batch)
            # It may also tell of messages which were read since, but didn't commit any.
            checkpoint = comparable(iterator.checkpoint())
            at_row = comparable(checkpoints[found[-1][1]])
            assert checkpoint in (at_row, through[checkpoint[0]["a/j"]])
    assert found == expected


def comparable(checkpoint):
    return checkpoint.offsets, set(checkpoint.producers)


@pytest.mark.parametrize("seed", range(20))
async def test_going_on_from_a_checkpoint_of_any_batch(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(arrow, "INLINE_BYTES", rng.choice((0, 1 << 13)))
    log = sequencing.well_formed(rng, 60)
    content = bytearray()
    for i, r in enumerate(log):
        if rng.random() < 0.1:
            content += b"{garbage}\n"
        content += line(i, r.clock, r.flags, r.producer)
    client = client_of({"a/j": content, "b/j": content[:1000]}, chunk=rng.choice((100, 900)))
    adapter = raw_adapter("_meta.uuid")
    expected = await rows(client, ["a/j", "b/j"], on_error="skip")
    found, checkpoint = [], None
    options = {"max_pending_bytes": rng.choice((1 << 20, 500)), "batch_bytes": 200}
    while True:
        source = ReadCommittedIter(["a/j", "b/j"], adapter, client=client, checkpoint=checkpoint)
        async with source as iterator:
            batches = iterator.arrow(**options)
            for _ in range(rng.randrange(1, 4)):
                try:
                    found += rows_of(await anext(batches))
                except FramingError:
                    continue
                except StopAsyncIteration:
                    assert sorted(found) == sorted(expected)
                    return
            checkpoint = iterator.checkpoint()


async def test_uncommitted_messages_are_all_delivered():
    content = random_content(random.Random(1), 50)
    client = client_of({"a/j": content, "b/j": content[:2000]})
    found = await rows(client, ["a/j", "b/j"], ReadUncommittedIter, arrow={"acks": True})
    assert sorted(found) == sorted(await items(client, ["a/j", "b/j"], ReadUncommittedIter))


async def test_documents():
    client = client_of({"a/j": b"".join(lines("A1c B1o A2c A3k"))})
    found = await batches(client, schema=SCHEMA)
    table = pa.Table.from_batches(found)
    assert table.column_names[-2:] == ["n", "s"]
    assert table.column("n").to_pylist() == [1, 0, 2]
    assert table.column("s").to_pylist() == ["x", "", "xx"]


async def test_rows_before_a_bad_one_are_delivered():
    good = lines("A1c A2c A3c A4c A5k")
    good[2] = good[2].replace(b'"n":2', b'"n":"two"')
    client = client_of({"a/j": b"".join(good)}, chunk=10_000)
    begin = len(good[0]) + len(good[1])
    async with ReadCommittedIter("a/j", json_adapter(), client=client) as iterator:
        batches = iterator.arrow(SCHEMA)
        assert (await anext(batches)).column("n").to_pylist() == [0, 1]
        with pytest.raises(FramingError, match="reading committed messages") as raised:
            await anext(batches)
        assert (raised.value.journal, raised.value.begin) == ("a/j", begin)
        assert raised.value.end == begin + len(good[2])
        checkpoint = iterator.checkpoint()
        assert (await anext(batches)).column("n").to_pylist() == [3]
        with pytest.raises(StopAsyncIteration):
            await anext(batches)
        assert iterator.checkpoint().offsets == {"a/j": len(b"".join(good))}
    async with ReadCommittedIter(
        "a/j", json_adapter(), client=client, checkpoint=checkpoint
    ) as iterator:
        assert [b.column("n").to_pylist() async for b in iterator.arrow(SCHEMA)] == [[3]]


async def test_skipping_bad_rows():
    good = lines("A1c A2c A3c A4k")
    good[1] = good[1].replace(b'"n":1', b'"n":{}')
    good.insert(1, b"\n")
    good.insert(3, b'{"_meta":{"uuid":7}}\n')
    client = client_of({"a/j": b"".join(good)})
    async with ReadCommittedIter("a/j", json_adapter(), client=client, on_error="skip") as iterator:
        table = pa.Table.from_batches([batch async for batch in iterator.arrow(SCHEMA)])
        assert table.column("n").to_pylist() == [0, 2]
        assert iterator.skipped == 3


async def test_a_partial_message_at_the_end():
    content = b"".join(lines("A1o A2o"))
    client = client_of({"a/j": content})
    reader = client.read(client_request("a/j", end=len(content) - 3))
    async with ReadCommittedIter(reader, json_adapter()) as iterator:
        batches = iterator.arrow()
        assert (await anext(batches)).num_rows == 1
        with pytest.raises(FramingError, match="unexpected EOF") as raised:
            await anext(batches)
        assert raised.value.kind == "unexpected_eof"


def client_request(journal, end=0):
    import gazette_aio.protocol as pb

    return pb.ReadRequest(journal=journal, end_offset=end)


async def test_reading_on_behind_the_write_head():
    content = lines("A1c A2k A3c A4k")
    client = client_of({"a/j": content[0] + content[1] + content[2][:20]})
    reader = client.read(client_request("a/j"))
    async with ReadCommittedIter(reader, json_adapter()) as iterator:
        batches = iterator.arrow(acks=True)
        assert (await anext(batches)).num_rows == 2
        with pytest.raises(OffsetNotYetAvailableError):
            await anext(batches)
        client.append("a/j", content[2][20:] + content[3])
        assert (await anext(batches)).column("_clock").to_pylist() == [3, 4]


async def test_replays_which_fail_are_tried_again():
    content = b"".join(lines("A1c B1c A2c A3c B2k A4k"))
    client = client_of({"a/j": content}, chunk=100)
    expected = await rows(client)
    read = client.read

    def failing(request):
        if request.end_offset and not failures:
            client.events["a/j"] = [(0, TransportError("UNAVAILABLE", "gone"))]
        return read(request)

    async with ReadCommittedIter("a/j", raw_adapter("_meta.uuid"), client=client) as iterator:
        found, failures = [], []
        batches = iterator.arrow(max_pending_bytes=0)
        client.read = failing
        while True:
            try:
                found += rows_of(await anext(batches))
            except StopAsyncIteration:
                break
            except ReplayError as error:
                failures.append((str(error), error.journal, error.offset))
    assert found == expected
    text = "reading committed message: replay reader: UNAVAILABLE: gone"
    assert failures == [(text, "a/j", 0)]


async def test_a_replay_over_content_which_is_gone():
    content = b"".join(lines("A1c A2c A3k"))
    client = client_of({"a/j": content}, chunk=100)

    async def read(**options):
        async with ReadCommittedIter(
            "a/j", raw_adapter("_meta.uuid"), client=client, **options
        ) as iterator:
            batches = iterator.arrow(max_pending_bytes=0, acks=True)
            read = client.read

            def punch(request):
                if request.end_offset:
                    client.holes["a/j"] = (0, len(lines("A1c")[0]))
                return read(request)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client, "read", punch)
                table = pa.Table.from_batches([batch async for batch in batches])
                return table.column("_clock").to_pylist()

    with pytest.raises(ReplayError, match="replay reader"):
        await read()
    client.holes.clear()
    assert await read(allow_replay_gaps=True) == [2, 3]


@pytest.mark.parametrize("pending", [1 << 20, 0])
async def test_a_large_commit_is_given_in_batches_of_bounded_size(pending):
    pieces = lines(" ".join(f"A{clock}c" for clock in range(1, 200)) + " A200k")
    client = client_of({"a/j": b"".join(pieces)}, chunk=1000)
    async with ReadCommittedIter("a/j", raw_adapter("_meta.uuid"), client=client) as iterator:
        found = iterator.arrow(max_pending_bytes=pending, batch_bytes=500)
        batches = [batch async for batch in found]
    table = pa.Table.from_batches(batches)
    assert table.column("_clock").to_pylist() == list(range(1, 200))
    assert max(batch.column("_value").nbytes for batch in batches) < 5 * 500


@pytest.mark.parametrize("inline", [0, 1 << 30])
async def test_cancellation_at_each_await(monkeypatch, inline):
    monkeypatch.setattr(arrow, "INLINE_BYTES", inline)
    content = random_content(random.Random(3), 40)
    client = client_of({"a/j": content}, chunk=400)
    expected = await rows(client, arrow={"max_pending_bytes": 300})
    for number in range(12):
        found = []
        async with ReadCommittedIter("a/j", raw_adapter("_meta.uuid"), client=client) as iterator:
            batches = iterator.arrow(max_pending_bytes=300)

            async def take(batches=batches, found=found):
                batch = await anext(batches, None)
                found += [] if batch is None else rows_of(batch)

            while True:
                await cancel_at(take(), number)
                checkpoint = iterator.checkpoint()
                assert checkpoint.offsets.get("a/j", 0) <= len(content)
                batch = await anext(batches, None)
                if batch is None:
                    break
                found += rows_of(batch)
        assert found == expected


async def test_forms_of_iteration_dont_mix():
    client = client_of({"a/j": b"".join(lines("A1o A2o"))})
    async with ReadCommittedIter("a/j", json_adapter(), client=client) as iterator:
        await anext(iterator)
        with pytest.raises(RuntimeError, match="arrow"):
            iterator.arrow()
    async with ReadCommittedIter("a/j", json_adapter(), client=client) as iterator:
        batches = iterator.arrow()
        with pytest.raises(RuntimeError, match="arrow"):
            await anext(iterator)
        with pytest.raises(RuntimeError, match="arrow"):
            await iterator.next_batch()
        assert (await anext(batches)).num_rows


async def test_closing_an_iterator_closes_its_batches():
    client = client_of({"a/j": b"".join(lines("A1o A2o"))})
    iterator = ReadCommittedIter("a/j", json_adapter(), client=client, block=True)
    batches = iterator.arrow()
    await anext(batches)
    assert "open=1" in repr(batches)
    await iterator.aclose()
    assert "closed" in repr(batches)
    with pytest.raises(StopAsyncIteration):
        await anext(batches)


async def test_closing_while_batches_are_awaited():
    client = client_of({"a/j": b""})
    iterator = ReadCommittedIter("a/j", json_adapter(), client=client, block=True)
    waiting = asyncio.ensure_future(anext(iterator.arrow()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await iterator.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting


def test_without_the_extra():
    code = """
import sys
sys.modules["numpy"] = None
sys.modules["pyarrow"] = None
from gazette_aio import ReadCommittedIter, json_adapter
class Client: list = None
it = ReadCommittedIter("a/j", json_adapter(), client=Client())
try:
    it.arrow()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigurationError")
    assert "gazette-aio[arrow]" in done.stdout


async def test_bad_arguments():
    client = client_of({"a/j": b""})
    async with ReadCommittedIter("a/j", json_adapter(), client=client) as iterator:
        for options in (
            {"schema": pa.schema([("_begin", pa.int64())])},
            {"max_pending_bytes": -1},
            {"batch_bytes": 0},
        ):
            with pytest.raises(ConfigurationError):
                iterator.arrow(**options)


@pytest.mark.parametrize("form", ["items", "arrow"])
async def test_a_replay_up_to_garbage_before_an_acknowledgement(form):
    first, second, ack = (
        encode_fixed_frame(text[:-1], bytearray()) for text in lines("A1c A2c A3k")
    )
    client = FakeClient({"a/j": "application/x-protobuf-fixed"}, chunk=100)
    client.journals["a/j"] += bytes(first + second) + b"junk!" + bytes(ack)
    sequencer = Sequencer(buffer=1) if form == "items" else None
    async with ReadCommittedIter(
        "a/j",
        raw_adapter("_meta.uuid"),
        client=client,
        sequencer=sequencer,
        on_error="skip",
        skip_acks=True,
    ) as iterator:
        if form == "items":
            clocks = [envelope.clock async for envelope in iterator]
        else:
            found = [batch async for batch in iterator.arrow(max_pending_bytes=0)]
            clocks = pa.Table.from_batches(found).column("_clock").to_pylist()
    assert clocks == [1, 2]


@pytest.mark.parametrize("batch_bytes", [1 << 20, 4 << 20])
async def test_nothing_is_kept_of_what_was_delivered(batch_bytes):
    count, journals = 20_000, [f"a/{n}" for n in range(4)]
    content = b"".join(line(n, 16 * n + 16, 1) for n in range(count)) + line(0, 16 * count + 16, 2)
    client = client_of(dict.fromkeys(journals, content), chunk=1 << 20)
    async with ReadCommittedIter(journals, raw_adapter("_meta.uuid"), client=client) as it:
        batches = it.arrow(batch_bytes=batch_bytes)
        rows = (await anext(batches)).num_rows  # It imports what takes memory.
        tracemalloc.start()
        try:
            while rows < count * len(journals):
                rows += (await anext(batches)).num_rows
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 1 << 20
