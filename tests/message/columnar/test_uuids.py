"""UUIDs as columns: the same as the builder of envelopes reads, on every path."""

from __future__ import annotations

from unittest import mock
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.adapters import csv_adapter, json_adapter, raw_adapter
from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.columnar import uuids
from gazette_aio.message.columnar.uuids import UuidReader
from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
from gazette_aio.message.framing import CSVFraming, FixedFraming, Frames, NDJSONFraming
from gazette_aio.message.framing.regions import Region
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.message.uuid import ZERO_UUID, build_uuid, get_clock, uuid_from_bytes
from gazette_aio.protocol.errors import ValidationError
from tests import golden

ALL = 1 << 30
PATHS = [("place", "text"), ("place",), ("text",), ()]
PRODUCER = bytes.fromhex("0123456789ab")
A, B = build_uuid(PRODUCER, 2205855587517003792, 1), build_uuid(PRODUCER, (1 << 64) - 1, 1023)
V4 = UUID("9f0b6a2e-5f0c-4e6b-a7a1-3a5a6f1c2d3e")


class RawUUIDs:
    """Adapter of messages with 16 raw bytes behind a prefix, or else 16 zeros."""

    def __init__(self, prefix=b"\x0a\x10", suffix=b""):
        self.uuid_place = UUIDPlace(prefix, suffix, text=False)

    def decode(self, frame):
        return frame

    def encode(self, message, uuid):
        return self.uuid_place.prefix + uuid.bytes + self.uuid_place.suffix + message

    def uuid(self, message):
        return self.frame_uuid(message)

    def acknowledgement(self, uuid):
        return self.encode(b"", uuid)

    def frame_uuid(self, frame):
        if frame.startswith(b"bad"):
            raise ValidationError("bad")
        at = frame.find(self.uuid_place.prefix)
        raw = b"" if at == -1 else frame[at + len(self.uuid_place.prefix) :][:16]
        return uuid_from_bytes(raw) if raw else ZERO_UUID


def region_of(framing, content, begin=0):
    splitter = framing.splitter(begin)
    splitter.feed(content)
    return splitter.next_region(ALL)


def read_all(adapter, regions, *, strict=False, paths=PATHS[0]):
    """Return rows and errors, going on behind each error."""
    reader = UuidReader(adapter, strict=strict, paths=paths)
    got = []
    for region in regions:
        rest: Region | None = region
        while rest is not None:
            columns, bad = reader.read(rest)
            types = [column.dtype for column in columns]
            assert types == [np.uint64, np.uint64, np.uint16, np.int64, np.int64]
            got += zip(*(column.tolist() for column in columns), strict=True)
            if not bad:
                assert columns.rows == rest.rows
                break
            behind = columns.rows + len(bad)
            assert [frame.position for frame in bad] == [*range(columns.rows, behind)]
            got += [(type(error), str(error)) for _, error in bad]
            rest = rest.slice(behind)
    return got


def build_all(adapter, regions, *, strict=False):
    """Return the same, as the builder of envelopes has it."""
    builder = EnvelopeBuilder("", adapter, strict=strict)
    got = []
    for region in regions:
        payloads, ends, begin = region.payloads(), region.ends.tolist(), region.begin
        while True:
            envelopes, bad = builder.build(Frames(begin, payloads, ends))
            columns = UuidColumns.of(envelopes)
            got += zip(*(column.tolist() for column in columns), strict=True)
            if bad is None:
                break
            got.append((type(bad.error), str(bad.error)))
            begin, at = ends[bad.position], bad.position + 1
            payloads, ends = payloads[at:], ends[at:]
    return got


def assert_equal_reads(adapter, regions, *, strict=False):
    expected = build_all(adapter, regions, strict=strict)
    for paths in PATHS:
        assert read_all(adapter, regions, strict=strict, paths=paths) == expected, paths


UUIDS = st.one_of(
    st.builds(
        build_uuid,
        st.sampled_from([PRODUCER, b"\0" * 6, b"\xff" * 6]),
        st.integers(0, (1 << 64) - 1),
        st.integers(0, 1023),
    ),
    st.sampled_from([ZERO_UUID, V4, A, B, UUID(int=1), UUID(int=(1 << 128) - 1)]),
    st.uuids(),
)
TEXTS = st.one_of(
    UUIDS.map(str),
    UUIDS.map(lambda u: str(u).upper()),
    UUIDS.map(lambda u: u.hex),
    UUIDS.map(lambda u: f"urn:uuid:{u}"),
    UUIDS.map(lambda u: f"{{{u}}}"),
    UUIDS.map(lambda u: str(u)[:-1]),
    UUIDS.map(lambda u: str(u)[:-1] + "\N{LATIN SMALL LETTER E WITH ACUTE}"),
    UUIDS.map(lambda u: str(u)[:-1] + "g"),
    UUIDS.map(lambda u: str(u).replace("-", "_")),
    UUIDS.map(lambda u: u.hex[:8] + "-" + u.hex[8:12] + "--" + u.hex[13:16] + u.hex[15:30] + "--"),
    st.text(max_size=40),
)
REST = st.sampled_from([b"", b',"ack":true', b',"x":{"uuid":1}', b',"uuid":"x"', b',"uuid":null'])
TAIL = st.sampled_from([
    b"", b',"x":1', b',"x":NaN', b',"x":"\xff"', b',"_meta":null', b"}{", b"}", b',"_meta":{"a":2}',
    b',"_meta":{"uuid":"%s"}' % str(B).encode(), b',"x":"\t"', b" ", b',"x":[[[]]',
])  # fmt: skip


@st.composite
def documents(draw):
    text = msgspec.json.encode(draw(TEXTS))
    if draw(st.booleans()):
        text = draw(st.sampled_from([b"null", b"1", b"[]", text, text.replace(b"-", b"\\u002d")]))
    rest, tail = draw(REST), draw(TAIL)
    return draw(
        st.sampled_from(
            [
                b'{"_meta":{"uuid":%s%s}%s}' % (text, rest, tail),
                b'{"_meta":{"uuid":%s%s}%s}' % (text, rest, tail),
                b'{"id":1,"_meta":{"uuid":%s%s}%s}' % (text, rest, tail),
                b' { "_meta" : {"uuid": %s%s}%s}\r' % (text, rest, tail),
                b'{"_me\\u0074a":{"uuid":%s}}' % text,
            ]
        )
    ).replace(b"\n", b"")


FIXED_LINES = [
    b"", b" ", b"null", b"{}", b"[]", b"1", b'{"_meta":null}', b'{"_meta":1}', b'{"_meta":{}}',
    b'{"_meta":[]}', b"{}{}", b"\xef\xbb\xbf{}", b'{"_meta":{"uuid":"', b'{"_meta":{"uuid":"%s' %
    str(A).encode(), b'{"_meta":{"uuid":"%s"' % str(A).encode(), b"{" * 30, b"\0" * 60,
    b'{"_meta":{"uuid":"\\ud800"}}',
]  # fmt: skip
LINES = st.one_of(
    documents(),
    st.sampled_from(FIXED_LINES),
    st.binary(max_size=80).map(lambda line: line.replace(b"\n", b"")),
)
GOOD = UUIDS.map(lambda u: b'{"_meta":{"uuid":"%s"},"x":1}' % str(u).encode())
MIXES = st.one_of(
    st.lists(LINES, max_size=20),
    st.lists(st.one_of(GOOD, GOOD, GOOD, GOOD, LINES), max_size=25),
    st.lists(GOOD, max_size=20),
)


@st.composite
def regions_of(draw, framing, payloads):
    content = b"".join(map(framing.encode, payloads))
    cuts = sorted(draw(st.lists(st.integers(0, len(content)), max_size=4)))
    splitter = framing.splitter(1000)
    regions = []
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        splitter.feed(content[begin:end])
        if draw(st.booleans()) or end == len(content):
            while (region := splitter.next_region(draw(st.sampled_from([200, ALL])))) is not None:
                regions.append(region)
    return regions


# Blocks as they are, and such that little content reaches all of them.
SIZES = st.sampled_from([(8192, 8, 1024), (7, 1, 2), (8192, 1, 1)])


def sized(sizes):
    names = ("_BLOCK_ROWS", "_FEW_ROWS", "_SCALAR_ROWS")
    return mock.patch.multiple(uuids, **dict(zip(names, sizes, strict=True)))


@given(data=st.data(), lines=MIXES, strict=st.booleans(), sizes=SIZES)
def test_json_is_read_as_the_builder_does(data, lines, strict, sizes):
    regions = data.draw(regions_of(NDJSONFraming(), lines))
    with sized(sizes):
        assert_equal_reads(json_adapter(), regions, strict=strict)


@given(data=st.data(), texts=st.lists(TEXTS, max_size=12), strict=st.booleans(), sizes=SIZES)
def test_json_of_another_path_or_no_place_is_read_as_the_builder_does(data, texts, strict, sizes):
    lines = [b'{"a":1,"{}":%s}' % msgspec.json.encode(text) for text in texts]
    lines += [b'{"{}":%s}' % msgspec.json.encode(text) for text in texts]
    adapter = json_adapter(uuid_path="{}")
    if data.draw(st.booleans()):
        adapter.uuid_place = None
    regions = data.draw(regions_of(NDJSONFraming(), lines))
    with sized(sizes):
        assert_equal_reads(adapter, regions, strict=strict)


@given(
    data=st.data(),
    payloads=st.lists(
        st.one_of(
            UUIDS.map(lambda u: b"\x0a\x10" + u.bytes),
            UUIDS.map(lambda u: b"\x0a\x10" + u.bytes + b"more"),
            UUIDS.map(lambda u: b"x\x0a\x10" + u.bytes),
            st.sampled_from([b"", b"bad", b"\x0a\x10", b"\x0a\x10short"]),
            st.binary(max_size=30),
        ),
        max_size=25,
    ),
    place=st.sampled_from([(b"\x0a\x10", b""), (b"\x0a\x10", b"more"), (b"", b"")]),
    strict=st.booleans(),
    sizes=SIZES,
)
def test_raw_uuids_are_read_as_the_builder_does(data, payloads, place, strict, sizes):
    regions = data.draw(regions_of(FixedFraming(), payloads))
    with sized(sizes):
        assert_equal_reads(RawUUIDs(*place), regions, strict=strict)


@given(texts=st.lists(TEXTS, max_size=12), strict=st.booleans())
def test_records_are_read_as_the_builder_does(texts, strict):
    content = b"".join(b'"%s",x\n' % t.replace('"', "").encode() for t in texts)
    region = region_of(CSVFraming(), content)
    assert_equal_reads(csv_adapter(), [] if region is None else [region], strict=strict)


def test_an_adapter_may_read_uuids_in_its_own_way():
    class OwnWay(type(json_adapter())):
        def frame_uuid(self, frame):
            return B if frame.endswith(b"true}") else super().frame_uuid(frame)

    # As `json_adapter()` makes one.
    adapter = json_adapter()
    adapter.__class__ = OwnWay
    line = b'{"x":1,"_meta":{"uuid":"%s"}}' % str(A).encode()
    lines = [line, line[:-1] + b',"b":true}'] * 20
    region = region_of(NDJSONFraming(), b"".join(line + b"\n" for line in lines))
    assert_equal_reads(adapter, [region])
    columns, bad = UuidReader(adapter).read(region)
    assert not bad
    assert columns.clock.tolist() == [get_clock(A), get_clock(B)] * 20
    assert_equal_reads(raw_adapter("_meta.uuid"), [region])


@pytest.mark.parametrize("paths", PATHS)
def test_a_uuid_at_its_usual_place_counts_whatever_follows(paths):
    twice = b'{"_meta":{"uuid":"%s"},"_meta":{"uuid":"%s"}}\n' % (str(A).encode(), str(B).encode())
    elsewhere = b" " + twice
    region = region_of(NDJSONFraming(), (twice + elsewhere) * 20)
    columns, bad = UuidReader(json_adapter(), paths=paths).read(region)
    assert not bad
    assert columns.clock.tolist() == [2205855587517003792, (1 << 64) - 1] * 20


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("row", [0, 5, 99])
@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", msgspec.DecodeError),
        (b"[]", msgspec.ValidationError),
        (b'{"_meta":{"uuid":7}}', ValidationError),
        (b'{"_meta":{"uuid":"x"}}', ValidationError),
        (b'{"x":1,"_meta":{"uuid":"%s"}' % str(A).encode(), msgspec.DecodeError),
    ],
)
def test_the_first_bad_row_is_told(paths, row, line, error):
    good = b'{"_meta":{"uuid":"%s"}}' % str(A).encode()
    lines = [good] * 100
    lines[row] = line
    lines[min(row + 1, 99)] = line
    region = region_of(NDJSONFraming(), b"".join(x + b"\n" for x in lines), 10)
    columns, bad = UuidReader(json_adapter(), paths=paths).read(region)
    assert columns.rows == row
    assert [frame.position for frame in bad] == [*range(row, min(row + 2, 100))]
    assert all(isinstance(frame.error, error) for frame in bad)
    assert columns.begin.tolist() == [10 + i * (len(good) + 1) for i in range(row)]


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("head", [b"", b'"x":1,'])
def test_strict_readers_refuse_other_versions_but_zero(paths, head):
    rows = [A, ZERO_UUID, B] * 10 + [V4, A, V4]
    content = b"".join(b'{%s"_meta":{"uuid":"%s"}}\n' % (head, str(u).encode()) for u in rows)
    region = region_of(NDJSONFraming(), content)
    columns, bad = UuidReader(json_adapter(), strict=True, paths=paths).read(region)
    assert columns.rows == 30
    ((position, error),) = bad
    assert position == 30
    assert str(error) == f"UUID {V4} isn't of version 1"
    columns, bad = UuidReader(json_adapter(), paths=paths).read(region)
    assert not bad
    assert columns.rows == 33


def test_rows_which_end_the_buffer_are_read():
    for payload in (b"\x0a\x10" + A.bytes, b"\x0a\x10" + A.bytes[:15], b""):
        content = b"".join(map(FixedFraming().encode, [b"\x0a\x10" + A.bytes] * 20 + [payload]))
        assert_equal_reads(RawUUIDs(), [region_of(FixedFraming(), content)])


def test_a_uuid_is_never_taken_from_the_next_row():
    # The bytes at the place are complete only with the header behind.
    payload = b"\x0a\x10" + b"\1" * 10
    region = region_of(FixedFraming(), FixedFraming().encode(payload) * 30)
    _, bad = UuidReader(RawUUIDs()).read(region)
    assert {str(error) for _, error in bad} == {"invalid UUID (got 10 bytes)"}


def test_messages_without_uuids_are_zero():
    region = region_of(NDJSONFraming(), b"anything\n" * 5000)
    columns, bad = UuidReader(raw_adapter()).read(region)
    assert not bad
    assert columns.rows == 5000
    assert not np.concatenate([columns.producer, columns.clock, columns.flags]).any()


@pytest.mark.parametrize("at", [*range(36), None])
def test_texts_which_are_nearly_uuids_go_the_way_of_the_builder(at):
    text = str(A)
    if at is None:
        texts = [
            text[:9] + "-" + text[10:13] + text[9:10] + text[14:],
            text[1:19] + "-" + text[19:],
        ]
    else:
        texts = [text[:at] + other + text[at + 1 :] for other in "-0gG_ :/@`\x7f"]
    for text in texts:
        for head in (b"", b'"x":1,'):
            line = b'{%s"_meta":{"uuid":%s}}\n' % (head, msgspec.json.encode(text))
            good = b'{%s"_meta":{"uuid":"%s"}}\n' % (head, str(B).encode())
            for lines in (line * 10, good * 5 + line + good * 5):
                assert_equal_reads(json_adapter(), [region_of(NDJSONFraming(), lines)])


@pytest.mark.slow
def test_many_bad_rows_are_read_in_linear_time():
    good = b'{"_meta":{"uuid":"%s"}}\n' % str(A).encode()
    bad = b"?\n" * 4999
    region = region_of(NDJSONFraming(), b"".join([good * 4999, bad, (good + b"?\n") * 999]))
    # Private: nothing else counts the rows which are read again.
    with mock.patch.object(
        UuidReader, "_read_block", autospec=True, side_effect=UuidReader._read_block
    ) as read_block:
        got = read_all(json_adapter(), [region])
    assert len(got) == region.rows
    assert sum(len(row) == 5 for row in got) == 4999 + 999
    assert sum(call.args[1].rows for call in read_block.call_args_list) < 10 * region.rows


def test_an_empty_region_has_no_rows():
    region = region_of(NDJSONFraming(), b"{}\n").slice(1)
    columns, bad = UuidReader(json_adapter()).read(region)
    assert (columns.rows, bad) == (0, [])


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("head", [b"", b'"x":1,'])
def test_golden_uuids(paths, head):
    cases = golden.load("uuid.json")["build"]
    content = b"".join(
        b'{%s"_meta":{"uuid":"%s"}}\n' % (head, case["string"].encode()) for case in cases
    )
    columns, bad = UuidReader(json_adapter(), paths=paths).read(region_of(NDJSONFraming(), content))
    assert not bad
    assert [producer.to_bytes(6).hex() for producer in columns.producer.tolist()] == [
        case["got_producer"] for case in cases
    ]
    assert columns.clock.tolist() == [case["got_clock"] for case in cases]
    assert columns.flags.tolist() == [case["got_flags"] for case in cases]
