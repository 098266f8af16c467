"""Documents which begin with a UUID are the same documents without it."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import build_uuid, json_adapter
from gazette_aio.message.columnar.documents.decoder import DocumentDecoder
from gazette_aio.message.columnar.documents.json_stamps import StampStripper
from gazette_aio.message.columnar.payloads import Lines, Payloads
from gazette_aio.message.framing import NDJSONFraming

UUID = str(build_uuid(b"\x01AAAAA", 1 << 60, 1)).encode()
STAMP = b'{"_meta":{"uuid":"' + UUID + b'"},'
PLAIN = [
    b'{"n":1}',
    b"{}",
    STAMP[:-1] + b"}",
    b'{"_meta":{"uuid":"short"},"n":2}',
    b'{"n":3,"_meta":{"uuid":"' + UUID + b'"}}',
    b'{"_meta":{"uuid":"' + UUID + b'","ack":true}}',
    # What ends where a UUID would is within another member, or a string which goes on.
    b'{"_meta":{"uuid":"a"},"o":{"t":"' + b"x" * 22 + b'"},"n":4}',
    b'{"_meta":{"uuid":"' + b"x" * 35 + b'\\"},"},"n":5}',
    b"",
    b"x",
]


def lines_of(*documents):
    data = b"".join(document + b"\n" for document in documents)
    offsets = np.cumsum([0, *(len(document) + 1 for document in documents)], dtype=np.int32)
    return Lines(pa.py_buffer(data), offsets)


def stripped(*documents):
    lines = StampStripper(b'{"_meta":{"uuid":"', b'"},').strip(lines_of(*documents))
    assert int(lines.offsets[0]) == 0
    assert int(lines.offsets[-1]) == lines.data.size
    return lines.data.to_pybytes().split(b"\n")[:-1]


def test_stripping():
    documents = [STAMP + b'"n":1}', *PLAIN, STAMP + b'"s":"{\\"_meta\\""}']
    assert stripped(*documents) == [b'{"n":1}', *PLAIN, b'{"s":"{\\"_meta\\""}']


@pytest.mark.parametrize("document", PLAIN)
def test_nothing_to_strip(document):
    lines = lines_of(document)
    assert StampStripper(b'{"_meta":{"uuid":"', b'"},').strip(lines) is lines


def test_within_a_larger_buffer():
    lines = lines_of(STAMP + b'"n":1}', b'{"n":2}', STAMP + b'"n":3}')
    part = Lines(lines.data, lines.offsets)
    assert stripped(STAMP + b'"n":1}') == [b'{"n":1}']
    assert StampStripper(b'{"_meta":{"uuid":"', b'"},').strip(part).rows == 3


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*(p for p in PLAIN if b"\n" not in p), b'{"n":"bad"}', b'{"n":1}{}']),
            st.integers(-5, 5).map(lambda n: STAMP + b'"n":%d}' % n),
            st.text(max_size=5).map(lambda s: STAMP + b'"s":' + json.dumps(s).encode() + b"}"),
            st.binary(max_size=4).map(lambda b: STAMP + b.replace(b"\n", b"") + b"}"),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_columns_are_the_same_with_and_without(documents):
    columns = [pa.field("n", pa.int64()), pa.field("s", pa.string())]
    splitter = NDJSONFraming().splitter(0)
    splitter.feed(b"".join(document + b"\n" for document in documents))
    payloads = Payloads()
    payloads.add(splitter.next_region(1 << 20))
    rows = np.arange(len(documents))
    found = []
    # UUIDs are left alone if they're a column, and by an adapter which has them elsewhere.
    for path in ("_meta.uuid", "elsewhere"):
        decoded = DocumentDecoder(json_adapter(uuid_path=path), pa.schema(columns)).decode(
            payloads, rows
        )
        found.append((decoded.batch.to_pylist(), [bad.position for bad in decoded.bad]))
    assert found[0] == found[1]


def test_a_column_of_the_member():
    schema = pa.schema([("_meta", pa.struct([("uuid", pa.string())])), ("n", pa.int64())])
    payloads = Payloads()
    splitter = NDJSONFraming().splitter(0)
    splitter.feed(STAMP + b'"n":1}\n')
    payloads.add(splitter.next_region(1 << 20))
    decoded = DocumentDecoder(json_adapter(), schema).decode(payloads, np.arange(1))
    assert decoded.batch.to_pylist() == [{"_meta": {"uuid": UUID.decode()}, "n": 1}]
