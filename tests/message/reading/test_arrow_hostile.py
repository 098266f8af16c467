"""Hostile content as Arrow record batches: the same messages and errors as in item form."""

from __future__ import annotations

import random
from uuid import UUID

import pyarrow as pa
import pytest

from gazette_aio.message import (
    FixedFraming,
    NDJSONFraming,
    ReadCommittedIter,
    ReadUncommittedIter,
    build_uuid,
    json_adapter,
    raw_adapter,
    register_framing,
)
from gazette_aio.message.framing import registry
from gazette_aio.message.reading import arrow
from gazette_aio.protocol.errors import ConfigurationError, FramingError
from tests.message.fakes import FakeClient
from tests.message.reading.test_arrow import SCHEMA, line, row_of, rows_of
from tests.message.sequencing import sequencing

A, B, OTHER = b"\x01AAAAA", b"\x01BBBBB", b"\x01CCCCC"
JSON, FIXED, CSV = "application/x-ndjson", "application/x-protobuf-fixed", "text/csv"
CUSTOM = "text/x-lines"
MAGIC = b"\x66\x33\x93\x36"


@pytest.fixture(autouse=True)
def custom_framing(monkeypatch):
    # Private: framings can't be removed again.
    monkeypatch.setattr(registry, "_framings", dict(registry._framings))

    class CustomFraming(NDJSONFraming):
        content_type = CUSTOM

    register_framing(CustomFraming())


class DecodingAdapter:
    """An adapter which can't tell the UUID of a message but of a decoded one."""

    def decode(self, frame):
        return frame

    def uuid(self, message):
        if message[:1] == b"x":
            raise KeyError("x")
        return UUID(bytes=message[:16]) if len(message) >= 16 else UUID(int=0)


def uuid_of_bytes(message):
    if message[:1] == b"z":
        raise ZeroDivisionError("no such UUID")
    return UUID(bytes=message[:16])


HOSTILE_CSV = [
    b"\n", b"\r\n", b"a\n", b'a"b,1,2\n', b"x,y,z\n", b'"q\n\n"x,1,2\n', b",,\n", b"y" * 200 + b"\n",
    b"00000000-0000-0000-0000-000000000000,,\n",
]  # fmt: skip
HOSTILE_FIXED = [
    b"\n", b"abc", MAGIC + b"\xff\xff\xff\xff", MAGIC[:3], b"g" * 50, FixedFraming().encode(b""),
    FixedFraming().encode(b"short"), FixedFraming().encode(b"z" * 15),
    FixedFraming().encode(b"z" * 200),
]  # fmt: skip
HOSTILE_LINES = [
    b"", b"x", b"{}", b"null", b"[]", b"\0", b"\xef\xbb\xbf{}", b"x" * 300, b'{"_meta":{"uuid":7}}',
    b'{"_meta":null}', b'{"_meta":{"uuid":"x"}}\r', b'{"_meta":[]}', b'{"_meta":{"uuid":"\xff"}}',
    b'{"_meta":{"uuid":"00000000-0000-0000-0000-000000000000"}}',
    b'{"_meta":{"uuid":"6ba7b810-9dad-41d1-80b4-00c04fd430c8"}}',
    b'{"\xc3\xa9":1,"_meta":{"uuid":"\xc3\xa9"}}',
]  # fmt: skip


def hostile_line(rng):
    text = str(build_uuid(OTHER, rng.randrange(1, 99) << 4, 0)).encode()
    made = [
        b'{"_meta":{"uuid":"x"},"_meta":{"uuid":"%s"}}' % text,
        b'{"_m\\u0065ta":{"uuid":"%s"}}' % text.upper(),
        b'{"_meta":{"uuid":"%s","uuid":"x"}}' % text,
        b'{"_meta":{"uuid":"%s"' % text,
        b'{"_meta":{"uuid":"%s"}}{}' % text,
    ]
    return rng.choice(HOSTILE_LINES + made) + b"\n"


def hostile_content(rng, kind, log):
    parts = []
    for number, row in enumerate(log):
        uuid = build_uuid(row.producer, row.clock, row.flags)
        hostile = rng.random() < 0.25
        if kind == CSV:
            parts.append(b'%s,%d,"a\nb"\n' % (str(uuid).encode(), number))
            parts += [rng.choice(HOSTILE_CSV)] * hostile
        elif kind == FIXED:
            parts.append(FixedFraming().encode(uuid.bytes + b"%d" % number))
            parts += [rng.choice(HOSTILE_FIXED)] * hostile
        else:
            form = rng.choice([b'{"_meta":{"uuid":"%s"}}\n', b'{"n":1,"_meta":{"uuid":"%s"}}\r\n'])
            parts.append(form % str(uuid).encode())
            parts += [hostile_line(rng)] * (hostile * rng.choice((1, 1, 12)))
    parts += rng.choice([[], [], [rng.choice([b"x", b"\n", b'"', MAGIC[:2]])]])
    return b"".join(parts)


async def events(source, to_rows):
    """Return rows, and errors between them; up to one which is raised again and again."""
    found = []
    while True:
        try:
            found += to_rows(await anext(source))
        except StopAsyncIteration:
            return found
        except FramingError as error:
            place = error.journal, error.begin, error.end
            found.append((type(error), error.kind, *place, str(error), type(error.__cause__)))
            if error.kind == "unexpected_eof":
                return found


@pytest.mark.parametrize("seed", range(150))
async def test_rows_and_errors_are_those_of_items(seed, monkeypatch):
    rng = random.Random(seed)
    replayed = seed % 3 == 0
    kind = rng.choice([JSON, JSON, CSV, FIXED, CUSTOM])
    # Replays and rings differ in what they make of malformed logs.
    logs = (sequencing.well_formed, sequencing.wild, sequencing.outside)
    log = rng.choice(logs[:1] if replayed else logs)(rng, rng.randrange(1, 40))
    content = hostile_content(rng, kind, log)
    adapter = raw_adapter(lambda record: UUID(record.split(b",")[0].decode()))
    if kind == FIXED:
        adapter = rng.choice([raw_adapter(uuid_of_bytes), DecodingAdapter()])
    elif kind != CSV:
        adapter = raw_adapter("_meta.uuid")
    client = FakeClient({"a/j": kind}, chunk=rng.choice((1, 7, 40, 333, 5000)))
    client.journals["a/j"] += content
    form = ReadCommittedIter if replayed else rng.choice([ReadCommittedIter, ReadUncommittedIter])
    options = {
        "client": client,
        "on_error": rng.choice(("raise", "skip")),
        "strict_uuid": rng.random() < 0.3,
        "max_frame_bytes": rng.choice((1 << 30, 1 << 30, 120)),
    }
    async with form("a/j", adapter, **options) as iterator:
        expected = await events(iterator, lambda envelope: [row_of(envelope)])
        skipped = iterator.skipped
    monkeypatch.setattr(arrow, "INLINE_BYTES", rng.choice((0, 1 << 30)))
    batching = {"batch_bytes": rng.choice((1, 300, 1 << 20)), "acks": True}
    if replayed:
        batching["max_pending_bytes"] = rng.choice((0, 200, 1000))
    async with form("a/j", adapter, **options) as iterator:
        found = await events(iterator.arrow(**batching), rows_of)
        assert joined(found) == joined(expected)
        assert iterator.skipped == skipped or kind == FIXED


def joined(events):
    """Return events in which adjacent garbage is one: its parts depend on what's at hand."""
    found = []
    for event in events:
        if event[1] == "desync":
            cls, kind, journal, begin, end, *_ = event
            if found and found[-1][1] == "desync" and found[-1][4] == begin:
                begin = found.pop()[3]
            found.append((cls, kind, journal, begin, end))
        else:
            found.append(event)
    return found


@pytest.mark.parametrize("garbage", [b"g" * 10, b"g" * 3, MAGIC[:2], MAGIC + b"\xff" * 4])
async def test_a_replay_ends_with_the_garbage_before_the_acknowledgement(garbage):
    def frame(producer, clock, flags):
        return FixedFraming().encode(build_uuid(producer, clock, flags).bytes)

    client = FakeClient({"a/j": FIXED}, chunk=1000)
    client.journals["a/j"] += frame(A, 16, 1) + garbage + frame(A, 32, 2) + frame(B, 48, 0)
    adapter = raw_adapter(uuid_of_bytes)
    async with ReadCommittedIter("a/j", adapter, client=client, on_error="skip") as iterator:
        batches = iterator.arrow(max_pending_bytes=0)
        assert [row[3] async for batch in batches for row in rows_of(batch)] == [16, 48]


TYPES = [
    pa.int64(), pa.bool_(), pa.float32(), pa.string(), pa.large_string(), pa.binary(), pa.binary(3),
    pa.decimal128(10, 2), pa.decimal256(50, 2), pa.date32(), pa.date64(), pa.timestamp("ns"),
    pa.timestamp("us", "Europe/Zurich"), pa.dictionary(pa.int32(), pa.string()),
    pa.list_(pa.date32()), pa.struct([("x", pa.list_(pa.struct([("y", pa.string())])))]),
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("skip", [False, True])
async def test_acknowledgements_are_rows_of_nulls(kind, skip):
    lines = [line(n, n, 1) for n in range(1, 4)] + [line(0, 4, 2), line(0, 5, 2)]
    # Neither its own members nor others of an acknowledgement can be wrong.
    lines[4] = lines[4][:-2] + b',"n":[{"y":[]}]}\n'
    lines[1] = lines[1].replace(b'"n":2', b'"n":[7,{"z":7},[]]')
    client = FakeClient({"a/j": JSON})
    client.journals["a/j"] += b"".join(lines)
    schema = pa.schema([("gone", kind), ("n", pa.int8()), ("_meta", pa.struct([("ack", kind)]))])
    found, errors = [], []
    on_error = "skip" if skip else "raise"
    async with ReadCommittedIter("a/j", json_adapter(), client=client, on_error=on_error) as it:
        batches = it.arrow(schema, acks=True)
        while True:
            try:
                batch = await anext(batches)
            except FramingError as error:
                errors.append((error.begin, error.end))
                continue
            except StopAsyncIteration:
                break
            batch.validate(full=True)
            assert batch.schema == batches.schema
            found += batch.select(["_clock", "_flags", "n", "gone", "_meta"]).to_pylist()
        place = len(lines[0]), len(lines[0]) + len(lines[1])
        assert (errors, it.skipped) == (([], 1) if skip else ([place], 0))
    assert [tuple(row.values()) for row in found] == [
        (1, 1, 1, None, {"ack": None}),
        (3, 1, 3, None, {"ack": None}),
        (4, 2, None, None, None),
        (5, 2, None, None, None),
    ]


async def test_skipped_rows_dont_cut_batches():
    content = b"".join(line(n, n, 0) + b"?\n" * (n % 3) for n in range(1, 40))
    client = FakeClient({"a/j": JSON}, chunk=1 << 20)
    client.journals["a/j"] += content
    async with ReadCommittedIter("a/j", json_adapter(), client=client, on_error="skip") as it:
        (batch,) = [batch async for batch in it.arrow(SCHEMA)]
        assert it.skipped == sum(n % 3 for n in range(1, 40))
    assert batch.column("n").to_pylist() == [*range(1, 40)]
    begins, ends = batch.column("_begin").to_pylist(), batch.column("_end").to_pylist()
    assert [content[begin:end] for begin, end in zip(begins, ends, strict=True)] == [
        line(n, n, 0) for n in range(1, 40)
    ]


@pytest.mark.parametrize("option", ["batch_bytes", "max_frame_bytes"])
async def test_limits_beyond_what_arrays_can_hold(option):
    size = {option: (1 << 30) + 1}
    batching = size if option == "batch_bytes" else {}
    client = FakeClient({"a/j": JSON})
    reading = {} if batching else size
    async with ReadCommittedIter("a/j", json_adapter(), client=client, **reading) as iterator:
        with pytest.raises(ConfigurationError, match=f"{option} is 1073741825"):
            iterator.arrow(**batching)
