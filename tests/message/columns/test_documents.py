"""Columns of documents: of JSON, CSV and protobuf messages."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.message import csv_adapter, json_adapter, protobuf_adapter, raw_adapter
from gazette_aio.message.columns.documents.decoder import Decoded, DocumentDecoder
from gazette_aio.message.core import Batch, Journal
from gazette_aio.protocol.errors import ConfigurationError
from tests import extent
from tests.spark import messages as spark

UTC = dt.UTC


def time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def decode(decoder: DocumentDecoder, messages: list[bytes]) -> Decoded:
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    decoded.batch.validate(full=True)
    assert decoded.batch.schema.equals(decoder.schema, check_metadata=True)
    bad = [row for row, _ in decoded.bad]
    assert bad == sorted(set(bad))
    if decoded.good is None:
        assert not bad
        assert decoded.batch.num_rows == len(messages)
    else:
        assert decoded.good.tolist() == [row for row in range(len(messages)) if row not in bad]
        assert decoded.batch.num_rows == len(decoded.good)
    for _, error in decoded.bad:
        assert isinstance(error, Exception)
        assert str(error)
    return decoded


def json_decoder(*fields: object, **options: bool) -> DocumentDecoder:
    return DocumentDecoder(json_adapter(), pa.schema(fields), **options)


def csv_decoder(*fields: object, uuid_column: int = 0) -> DocumentDecoder:
    return DocumentDecoder(csv_adapter(uuid_column=uuid_column), pa.schema(fields))


def verdicts(decoded: Decoded, rows: int) -> list[dict | None]:
    """Return each row, or None where it's bad."""
    good = range(rows) if decoded.good is None else decoded.good.tolist()
    values = dict(zip(good, decoded.batch.to_pylist(), strict=True))
    return [values.get(row) for row in range(rows)]


def errors(decoded: Decoded) -> dict[int, str]:
    return {row: str(error) for row, error in decoded.bad}


# JSON: documents in general.

WIDE = (
    ("id", pa.int64()),
    ("small", pa.int8()),
    ("big", pa.uint64()),
    ("price", pa.float64()),
    ("ok", pa.bool_()),
    ("name", pa.string()),
    ("né", pa.large_string()),
    ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()),
    ("blob", pa.binary()),
    ("sum", pa.decimal128(10, 2)),
    ("tags", pa.list_(pa.string())),
    ("nest", pa.struct([("x", pa.int64()), ("days", pa.list_(pa.date32()))])),
)
WIDE_DECODER = json_decoder(*WIDE)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
days = st.dates(dt.date(1, 1, 1))
nullable = st.none
values = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-128, 127),
    "big": st.integers(0, 2**64 - 1),
    "price": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70),
    "ok": st.booleans(),
    "name": text,
    "né": text,
    "at": st.datetimes(time("0001-01-01")).map(lambda t: t.replace(tzinfo=UTC)),
    "day": days,
    "blob": st.binary(max_size=8),
    "sum": st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100),
    "tags": st.lists(st.none() | text, max_size=3),
    "nest": st.fixed_dictionaries(
        {"x": st.none() | st.integers(-5, 5), "days": st.none() | st.lists(st.none() | days)}
    ),
}
rows_of_wide = st.fixed_dictionaries({}, optional={k: st.none() | v for k, v in values.items()})


def encode(value: object) -> object:
    """Return a value as it's in JSON."""
    if isinstance(value, dict):
        return {name: encode(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [encode(inner) for inner in value]
    if isinstance(value, dt.date | dt.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return value


@st.composite
def wide_documents(draw: st.DrawFn) -> tuple[bytes, dict | None]:
    row = draw(rows_of_wide)
    others = draw(
        st.fixed_dictionaries(
            {}, optional={"zz": st.just({"a": [1, {"b": None}]}), "_meta": st.just({"ack": True})}
        )
    )
    document = json.dumps(
        encode(row) | others,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    ).encode()
    if draw(st.integers(0, 9)) == 0:
        document, row = b"null", {}
    spaces = st.sampled_from([b"", b"", b"", b" ", b"\t \r"])
    return draw(spaces) + document + draw(spaces), {n: row.get(n) for n, _ in WIDE}


# About two seconds: each example has several columns of many types.
@extent.examples(30)
@given(st.lists(wide_documents(), max_size=8))
def test_columns_are_the_values_of_documents(documents):
    decoded = decode(WIDE_DECODER, [line for line, _ in documents])
    assert decoded.bad == []
    for got, (_, want) in zip(decoded.batch.to_pylist(), documents, strict=True):
        price = want["price"]
        if isinstance(price, int):
            want = {**want, "price": float(price)}
        assert got == want


EVIL = [
    b"",
    b" ",
    b"\r",
    b"null",
    b"null null",
    b"{}{}",
    b'{"id":1}{"id":2}',
    b'{"id":1} {"id":2}\r',
    b"{}\r{}",
    b"[]",
    b"[{}]",
    b"7",
    b'"x"',
    b"{",
    b"}",
    b"{}}",
    b"{{}",
    b'{"id":{}',
    b'"a":1}',
    b'{"tags":[{}',
    b'{}],"id":1}',
    b'{"name":"}',
    b'{"name":"\x00"}',
    b'{"id":1}\x00{"id":2}',
    b"\x00",
    b"\xef\xbb\xbf{}",
    b'{"name":"\xff"}',
    b'{"zz":"\xc3"}',
    b'{"zz":"\xc3"',
    b'{"name":"\xed\xa0\x80"}',
    b'{"name":"\\ud800"}',
    b'{"zz":"\\ud800"}',
    b'{"name":"\\u0000"}',
    b'{"na\\u006de":"x"}',
    b'{"price":NaN}',
    b'{"price":-Infinity}',
    b'{"price":1e400}',
    b'{"zz":1e400}',
    b'{"zz":Infinity}',
    b'{"zz":NaN,}',
    b'{"id":NaN}',
    b'{"id":1.0}',
    b'{"id":1e2}',
    b'{"id":"1"}',
    b'{"id":true}',
    b'{"id":-0}',
    b'{"id":01}',
    b'{"id":9223372036854775808}',
    b'{"small":128}',
    b'{"big":-1}',
    b'{"big":18446744073709551616}',
    b'{"id":1,"id":2}',
    b'{"zz":1,"zz":2}',
    b'{"nest":{"x":1,"x":2}}',
    b'{"nest":[]}',
    b'{"nest":{"x":9223372036854775808}}',
    b'{"nest":{"days":["2024-02-30"]}}',
    b'{"tags":["a",1]}',
    b'{"tags":"a"}',
    b'{"at":"2024-01-01"}',
    b'{"at":"2024-13-01"}',
    b'{"at":"2024-02-30T00:00:00Z"}',
    b'{"at":"2024-01-01T10:11:12.1234567899+02:30"}',
    b'{"at":""}',
    b'{"at":1}',
    b'{"day":"2024-02-30"}',
    b'{"day":19000}',
    b'{"blob":"?"}',
    b'{"blob":"YQ"}',
    b'{"sum":"x"}',
    b'{"sum":1.005}',
    b'{"sum":"1e3"}',
    b'{"sum":99999999999}',
    b'{"sum":[]}',
    b'{"id":1,\r"small":2}',
    b"{'id':1}",
    b'{"id":1,}',
    b'{"id":/**/1}',
]


@st.composite
def mutated_documents(draw: st.DrawFn) -> bytes:
    document = bytearray(draw(wide_documents())[0])
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(document) - 1)) if document else 0
        document[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b"", b"{", b"}", b'"', b",", b"1", b"-", b"x", b"\\", b"[", b"e9", b" "]
            )
        )
    return bytes(document).replace(b"\n", b"")


evil_documents = st.sampled_from(EVIL) | mutated_documents()


# About three seconds: each row is decoded alone as well.
@extent.examples(30)
@given(st.lists(evil_documents, min_size=2, max_size=12))
@example(EVIL)
@example(EVIL[::-1] * 2)
def test_a_row_is_good_or_bad_whatever_is_around_it(lines):
    together = verdicts(decode(WIDE_DECODER, lines), len(lines))
    for line, verdict in zip(lines, together, strict=True):
        assert verdicts(decode(WIDE_DECODER, [line]), 1) == [verdict]
        if verdict is None:
            continue
        value = json.loads(line)
        assert value is None or isinstance(value, dict)
        for name in ("id", "small", "big", "ok", "name", "né", "tags"):
            assert verdict[name] == (value or {}).get(name)


def test_all_evil_documents_are_as_expected():
    good = {
        b"null",
        b'{"name":"\\u0000"}',
        b'{"na\\u006de":"x"}',
        b'{"zz":Infinity}',
        b'{"zz":1e400}',
        b'{"id":-0}',
        b'{"zz":1,"zz":2}',
        b'{"at":"2024-01-01"}',
        b'{"at":"2024-01-01T10:11:12.1234567899+02:30"}',
        b'{"sum":"1e3"}',
        b'{"id":1,\r"small":2}',
    }
    found = verdicts(decode(WIDE_DECODER, EVIL), len(EVIL))
    assert {line for line, row in zip(EVIL, found, strict=True) if row is not None} == good


HOSTILE = {
    "nulls": b"null\n" * 2000,
    "nulls and spaces": b" null \n" * 2000,
    "blank lines": b"\n" * 2000,
    "carriage returns": b"\r\n" * 2000,
    "zero bytes": b"\0\n" * 2000,
    "zero byte within": b'{"id":1}\n{"id":1}\0{"id":2}\n{"id":1}{"id":2}\n' * 50,
    "deep arrays": b'{"zz":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
    "deep objects": b'{"zz":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"}\n",
    "deep and open": b'{"zz":' + b"[" * 10**5 + b"}\n",
    "deep in a column": b'{"tags":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
    "deep and bad": b'{"id":"x","zz":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
    "many digits": b'{"id":' + b"1" * 10**5 + b"}\n",
    "many names": b"{" + b",".join(b'"%d":1' % n for n in range(10**4)) + b"}\n",
    "nulls in columns": b'{"nest":null,"tags":null,"id":null}\n' * 2000,
    "not text": bytes(range(256)).replace(b"\n", b"") * 20 + b"\n",
}
_CHILD = """
import sys
import pyarrow as pa
from tests.message.columns.test_documents import HOSTILE, WIDE_DECODER, decode
for name, content in HOSTILE.items():
    lines = content.split(b"\\n")[:-1]
    decoded = decode(WIDE_DECODER, lines)
    print(name, len(lines), len(decoded.bad), sep=":")
"""


def test_hostile_documents_crash_nothing():
    child = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    bad = {}
    for line in child.stdout.splitlines():
        name, rows, count = line.split(":")
        bad[name] = f"{count} of {rows}"
    assert bad == {
        "nulls": "0 of 2000",
        "nulls and spaces": "0 of 2000",
        "blank lines": "2000 of 2000",
        "carriage returns": "2000 of 2000",
        "zero bytes": "2000 of 2000",
        "zero byte within": "100 of 150",
        "deep arrays": "0 of 1",
        "deep objects": "0 of 1",
        "deep and open": "1 of 1",
        "deep in a column": "1 of 1",
        "deep and bad": "1 of 1",
        "many digits": "1 of 1",
        "many names": "0 of 1",
        "nulls in columns": "0 of 2000",
        "not text": "1 of 1",
    }


@pytest.mark.parametrize("use_threads", [False, True])
@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_bad_rows_among_many(count, use_threads):
    rows = 12_000  # Of them, threads parse several blocks.
    bad = {row * 37 % rows for row in range(count)}
    kinds = [b'{"id":"x"}', b'{"id":1,"id":2}', b'{"nest":{"x":1.5}}', b'{"day":"x"}', b"", b"{"]
    lines = [b'{"id":%d,"name":"%s"}' % (row, b"n" * (row % 90)) for row in range(rows)]
    for row in bad:
        lines[row] = kinds[row % len(kinds)]
    decoder = json_decoder(*WIDE, use_threads=use_threads)
    decoded = decode(decoder, lines)
    assert [row for row, _ in decoded.bad] == sorted(bad)
    assert decoded.batch["id"].to_pylist() == [row for row in range(rows) if row not in bad]


def test_repeated_members():
    lines = [b'{"id":1,"name":"\\"id\\":"}', b'{"zz":{"id":1},"id":2}'] * 500
    lines[::10] = [b'{"id":1,"zz":' + b"1" * 5000 + b',"id":null}'] * 100
    lines[7] = b'{"id":1,"i\\u0064":2}'
    lines[9] = b'{"id":1,"zz":' + b"[" * 5000 + b"]" * 5000 + b',"id":2}'
    decoded = decode(json_decoder(("id", pa.int64())), lines)
    assert [row for row, _ in decoded.bad] == sorted([*range(0, 1000, 10), 7, 9])
    assert errors(decoded)[0] == "column 'id': there are several values"
    assert errors(decoded)[7] == "column 'id': there are several values"


def test_threads_and_documents_of_several_lines():
    decoder = json_decoder(("a", pa.int64()), ("b", pa.int64()), use_threads=True)
    messages = [b'{"a":%d,\n"b":\n2}' % row for row in range(50_000)]
    decoded = decode(decoder, messages)
    assert decoded.batch["a"].to_pylist() == list(range(50_000))
    assert decoded.batch["b"].to_pylist() == [2] * 50_000


def test_threads_and_a_document_that_outgrows_their_blocks():
    decoder = json_decoder(("a", pa.int64()), ("text", pa.string()), use_threads=True)
    messages = [b'{"a":%d,"text":"%s"}' % (row, b"x" * (row % 7)) for row in range(30_000)]
    messages[11_111] = b'{"a":11111,"text":"%s"}' % (b"y" * 3_000_000)
    decoded = decode(decoder, messages)
    assert decoded.batch["a"].to_pylist() == list(range(30_000))
    assert [len(text) for text in decoded.batch["text"].to_pylist()[11_110:11_113]] == [
        1,
        3_000_000,
        3,
    ]


def test_a_slice_of_an_array():
    array = pa.array([b"x", b'{"id":1}', b'{"id":x}', b"null", b"{}{}"], pa.binary())
    decoded = json_decoder(("id", pa.int64())).decode(array.slice(1, 3))
    assert decoded.batch["id"].to_pylist() == [1, None]
    assert decoded.good is not None
    assert decoded.good.tolist() == [0, 2]
    assert [row for row, _ in decoded.bad] == [1]


def test_a_batch_of_messages():
    lines = [b'{"id":1}', b'{"id":x}', b"null", b"", b'{"id":"5"}', b'{"id":-7,"day":"2020-02-29"}']
    journal = Journal("lines", 0)
    journal.feed(b"\n".join([*lines, b""]))
    journal.end()
    batch = journal.work(1 << 20)
    while isinstance(batch, tuple) and batch[0] == "odd":
        batch = journal.resolve([bytes(16)] * len(batch[1]))
    assert isinstance(batch, Batch)
    decoder = json_decoder(("id", pa.int64()), ("day", pa.date32()))
    decoded, array = decoder.decode(batch), decode(decoder, batch.payloads(0, len(batch)))
    assert decoded.batch.equals(array.batch)
    assert errors(decoded) == errors(array)
    assert list(errors(decoded))
    csv = csv_decoder(("a", pa.string()))
    assert csv.decode(batch).batch.equals(decode(csv, batch.payloads(0, len(batch))).batch)


def test_no_rows_and_no_good_rows():
    decoder = json_decoder(("id", pa.int64()), ("at", pa.timestamp("us")))
    assert decode(decoder, []).batch.num_rows == 0
    decoded = decode(decoder, [b"", b"[]"])
    assert decoded.batch.num_rows == 0
    assert [row for row, _ in decoded.bad] == [0, 1]
    assert decode(decoder, [b'{"id":"x"}', b'{"id":"y"}']).batch.num_rows == 0


def test_errors_tell_what_is_wrong():
    lines = [
        b"",
        b"[1]",
        b'{"id":"x"}',
        b'{"id":300}',
        b'{"at":"yesterday"}',
        b'{"at":"2024-02-30T00:00:00"}',
        b'{"blob":"?"}',
        b'{"id":1,"id":2}',
        b"{}{}",
        b'{"f":1e39}',
        b'{"zz":"\xff"}',
        b'{"zz":\x00}',
        b'{"zz":}',
    ]
    decoder = json_decoder(
        ("id", pa.int8()), ("at", pa.timestamp("us")), ("blob", pa.binary()), ("f", pa.float32())
    )
    assert errors(decode(decoder, lines)) == {
        0: "blank line",
        1: "document is not an object but list",
        2: "Expected `int | null`, got `str` - at `$.id`",
        3: "column 'id': 300 is out of the range of int8",
        4: "column 'at': not of type timestamp[us]: 'yesterday'",
        5: "column 'at': Failed to parse string: '2024-02-30T00:00:00' as a scalar of type "
        "timestamp[us]",
        6: "column 'blob': Only base64 data is allowed",
        7: "column 'id': there are several values",
        8: "JSON is malformed: trailing characters (byte 3)",
        9: "column 'f': number is not finite",
        10: "text isn't UTF-8",
        11: "there's a zero byte",
        12: "JSON is malformed: invalid character (byte 6)",
    }


# JSON: types.


@pytest.mark.parametrize(
    ("kind", "texts", "want"),
    [
        (
            pa.timestamp("s"),
            ["2020-01-02T03:04:05.999Z", "2020-01-02"],
            [time("2020-01-02T03:04:05"), time("2020-01-02")],
        ),
        (
            pa.timestamp("ms"),
            ["2020-01-02 03:04:05.9999", "0001-01-01T00:00:00Z"],
            [time("2020-01-02T03:04:05.999"), time("0001-01-01")],
        ),
        (
            pa.timestamp("us"),
            ["2020-01-02T03:04:05.123456789Z", "2020-01-02T03+02"],
            [time("2020-01-02T03:04:05.123456"), time("2020-01-02T01:00:00")],
        ),
        (
            pa.timestamp("us", "Europe/Vienna"),
            ["2020-01-02T03:04:05", "2020-01-02T03:04:05-01:00"],
            [time("2020-01-02T03:04:05+00:00"), time("2020-01-02T04:04:05+00:00")],
        ),
        (pa.date64(), ["2020-01-02"], [dt.date(2020, 1, 2)]),
        (pa.large_binary(), ["AAE=", ""], [b"\0\1", b""]),
        (pa.binary(2), ["AAE="], [b"\0\1"]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"], ["a", "b", "a"]),
        (
            pa.decimal256(50, 3),
            ["1.5", "-12345678901234567890123456789.001"],
            [Decimal("1.5"), Decimal("-12345678901234567890123456789.001")],
        ),
    ],
    ids=str,
)
def test_types_which_are_text_in_json(kind, texts, want):
    nested = pa.struct([("l", pa.list_(pa.struct([("v", kind)])))])
    decoder = json_decoder(("v", kind), ("n", nested))
    lines = [b"{}", b'{"n":null}', b'{"n":{"l":null}}', b'{"n":{"l":[]}}', b'{"n":{"l":[null]}}']
    plain = len(lines)
    lines += [json.dumps({"v": t, "n": {"l": [{"v": t}, {}, None]}}).encode() for t in texts]
    decoded = decode(decoder, lines)
    assert decoded.bad == []
    assert decoded.batch["v"].to_pylist() == [None] * plain + want
    empty = [None, None, {"l": None}, {"l": []}, {"l": [None]}]
    full = [{"l": [{"v": value}, {"v": None}, None]} for value in want]
    assert decoded.batch["n"].to_pylist() == empty + full


def test_long_values_make_short_errors():
    decoder = json_decoder(("n", pa.struct([("a", pa.int64())])))
    (bad,) = decode(decoder, [b'{"n":{"a":' + b"1" * 5000 + b"}}"]).bad
    assert len(str(bad.error)) < 250
    assert bad.error.__traceback__ is None


def test_nanoseconds():
    decoder = json_decoder(("t", pa.timestamp("ns")))
    lines = [b'{"t":"2020-01-02T03:04:05.1234567891Z"}', b'{"t":"0001-01-01T00:00:00Z"}']
    decoded = decode(decoder, lines)
    assert decoded.batch["t"].cast(pa.int64()).to_pylist() == [1577934245123456789]
    assert [row for row, _ in decoded.bad] == [1]


@given(
    st.datetimes(time("0001-01-01T12:00"), time("9999-12-31")),
    st.sampled_from(["s", "ms", "us"]),
    st.sampled_from(["", "Z", "+00:00", "+1130", "-05"]),
    st.sampled_from(["T", " "]),
    st.text("0123456789", max_size=5),
    st.booleans(),
)
def test_timestamps(when, unit, zone, separator, digits, others):
    written = when.isoformat(separator, timespec="microseconds") + digits + zone
    lines = [json.dumps({"t": written}).encode()]
    if others:
        lines += [b'{"t":"2020-01-01"}', b'{"t":"2020-01-01T00:00:00Z"}', b'{"t":"x"}', b"{}"]
    decoded = decode(json_decoder(("t", pa.timestamp(unit, "UTC"))), lines)
    offsets = {"+1130": dt.timedelta(hours=11, minutes=30), "-05": -dt.timedelta(hours=5)}
    instant = when - offsets.get(zone, dt.timedelta())
    kept = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    instant = instant.replace(microsecond=instant.microsecond // kept * kept)
    assert decoded.batch["t"].to_pylist()[0] == instant.replace(tzinfo=UTC)
    assert len(decoded.bad) == others


@given(st.lists(st.text("0123456789-:T Z+.x", max_size=30) | st.from_regex(r"\d{4}-\d\d-\d\d[T ]\d\d(:\d\d(:\d\d(\.\d{0,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?", fullmatch=True), min_size=1, max_size=6))  # fmt: skip
def test_texts_which_are_no_times_are_bad_alone_as_well(texts):
    decoder = json_decoder(("t", pa.timestamp("us")), ("d", pa.date32()))
    lines = [json.dumps({"t": t}).encode() for t in texts]
    lines += [json.dumps({"d": t}).encode() for t in texts]
    together = verdicts(decode(decoder, lines), len(lines))
    assert together == [verdicts(decode(decoder, [line]), 1)[0] for line in lines]


def test_floats():
    decoder = json_decoder(("f", pa.float32()), ("d", pa.list_(pa.float64())))
    lines = [b'{"f":1.5}', b'{"f":1e39}', b'{"d":[1,null,NaN]}', b'{"d":[null]}', b'{"f":null}']
    decoded = decode(decoder, lines)
    assert [row for row, _ in decoded.bad] == [1, 2]
    assert decoded.batch.to_pylist() == [
        {"f": 1.5, "d": None},
        {"f": None, "d": [None]},
        {"f": None, "d": None},
    ]
    assert math.isclose(decode(decoder, [b'{"f":0.1}']).batch["f"][0].as_py(), 0.1, rel_tol=1e-6)


def test_rows_without_a_value_that_may_not_be_null():
    decoder = json_decoder(
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.date32(), nullable=False, metadata={"a": "b"}),
    )
    lines = [b'{"id":1,"day":"2020-01-01"}', b'{"id":1}', b'{"id":null,"day":"x"}', b"null"]
    decoded = decode(decoder, lines)
    assert decoded.batch.num_rows == 1
    assert errors(decoded) == {
        1: "column 'day': there's no value, or null",
        2: "column 'id': there's no value, or null",
        3: "column 'id': there's no value, or null",
    }


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.float16(),
        pa.month_day_nano_interval(),
        pa.map_(pa.list_(pa.int64()), pa.string()),
        pa.large_list(pa.int64()),
        pa.list_(pa.int64(), 2),
        pa.dictionary(pa.int32(), pa.int64()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.struct([("a", pa.int64()), ("a", pa.int64())]),
    ],
    ids=str,
)
def test_types_which_json_columns_cannot_have(kind):
    with pytest.raises(ConfigurationError, match=r"'v'|'a'"):
        json_decoder(("v", kind))


@pytest.mark.parametrize(
    ("decoder_of", "form"), [(json_decoder, '{"v":"%s"}'), (csv_decoder, ",%s")]
)
def test_times_and_durations(decoder_of, form):
    kinds = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    kinds += [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
    for kind in kinds:
        is_time = pa.types.is_time(kind)
        good = ["PT0S", "-P1DT2H3M4.123456789S", "PT0.5S", "P1D"]
        bad = ["P", "PT", "1", "P1Y", "PT1.S", "P1DT", "PT9999999999999999999S", "p1d"]
        if is_time:
            good = ["00:00", "23:59:59.123456789", "01:02:03.5"]
            bad = ["24:00", "1:00", "00:60", "00:00:60", "x", "00:00:00."]
        decoder = decoder_of(("v", kind))
        decoded = decode(decoder, [(form % text).encode() for text in good + bad])
        assert list(errors(decoded)) == list(range(len(good), len(good + bad)))
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        whole = 86399 if is_time else 86400 + 2 * 3600 + 3 * 60 + 4
        count = int(f"{whole}{'123456789'[:digits]}")
        found = decoded.batch["v"].cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        assert found.to_pylist()[1] == (count if is_time else -count)


def test_empty_structs():
    decoded = decode(json_decoder(("s", pa.struct([]))), [b'{"s":{"x":1}}', b"{}"])
    assert decoded.batch["s"].to_pylist() == [{}, None]


# Schemas and adapters.


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (pa.schema([]), "the schema has no fields"),
        (pa.schema([("a", pa.int64()), ("a", pa.string())]), "more than one column 'a'"),
        (pa.schema([("_begin", pa.int64())]), "column '_begin' is reserved"),
        (pa.schema([("_value", pa.binary())]), "column '_value' is reserved"),
        ({"a": "int64"}, "expected a pyarrow.Schema"),
    ],
    ids=str,
)
def test_schemas_which_are_refused(schema, text):
    for adapter in (json_adapter(), csv_adapter(), protobuf_adapter(EVENT)):
        with pytest.raises(ConfigurationError, match=text):
            DocumentDecoder(adapter, schema)


def test_messages_without_columns():
    with pytest.raises(ConfigurationError, match="can't be decoded to columns"):
        DocumentDecoder(raw_adapter(), pa.schema([("a", pa.int64())]))


def test_raw_json_messages_have_columns():
    decoder = DocumentDecoder(raw_adapter("_meta.uuid"), pa.schema([("a", pa.int64())]))
    assert decode(decoder, [b'{"a":1}']).batch.to_pylist() == [{"a": 1}]


# CSV.


def test_csv_columns_are_by_position():
    decoder = csv_decoder(
        ("n", pa.int64()),
        ("t", pa.string()),
        ("x", pa.float64()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us")),
        ("b", pa.binary()),
        ("ok", pa.bool_()),
        ("sum", pa.decimal128(5, 2)),
        ("k", pa.dictionary(pa.int32(), pa.string())),
        ("f", pa.binary(1)),
    )
    records = [
        b'uuid,1,"a,""b""\nc",1.5,2020-01-02,2020-01-02T03:04:05.1234567Z,\xff,true,1.5,k,z,rest',
        b"uuid,,,,,,,,,,,rest",
    ]
    decoded = decode(decoder, records)
    assert decoded.bad == []
    full, empty = decoded.batch.to_pylist()
    assert full == {
        "n": 1,
        "t": 'a,"b"\nc',
        "x": 1.5,
        "d": dt.date(2020, 1, 2),
        "at": time("2020-01-02T03:04:05.123456"),
        "b": b"\xff",
        "ok": True,
        "sum": Decimal("1.50"),
        "k": "k",
        "f": b"z",
    }
    texts = {"t": "", "b": b"", "k": ""}
    assert empty == {name: texts.get(name) for name in full}


def test_csv_records_of_several_types_and_no_slices():
    decoder = csv_decoder(("n", pa.int64()), ("t", pa.timestamp("ns")))
    records = [b"u,%s,%s" % pair for pair in [(b"1", b""), (b"x", b""), (b"", b""), (b"4", b"2020-01-01"), (b"", b"x")]]  # fmt: skip
    decoded = decode(decoder, records)
    assert decoded.batch["n"].to_pylist() == [1, None, 4]
    assert [row for row, _ in decoded.bad] == [1, 4]


def test_bad_csv_records():
    decoder = csv_decoder(
        pa.field("n", pa.int64(), nullable=False), ("t", pa.string()), uuid_column=1
    )
    records = [b"1,uuid,a", b"x,uuid,a", b",uuid,a", b"1,uuid", b'"', b"1,uuid,\xff", b"2,uuid,b"]
    decoded = decode(decoder, records)
    assert decoded.batch.to_pylist() == [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]
    found = errors(decoded)
    assert found[1] == "column 'n': Failed to parse string: 'x' as a scalar of type int64"
    assert found[2] == "column 'n': there's no value, or null"
    assert found[3] == "record has 1 fields besides its UUID"
    assert list(found) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", ["1.0", "1e0", "-1.0"])
def test_a_number_with_a_fraction_or_exponent_is_no_integer(number):
    for kind, text in [
        (pa.int64(), number),
        (pa.uint8(), number),
        (pa.list_(pa.int32()), f"[1,{number}]"),
        (pa.struct([("a", pa.int64())]), f'{{"a":{number}}}'),
        (pa.map_(pa.string(), pa.int64()), f'{{"a":{number}}}'),
    ]:
        decoded = decode(json_decoder(("v", kind)), [b'{"v":%s}' % text.encode()])
        assert list(errors(decoded)) == [0], kind
    assert list(errors(decode(csv_decoder(("v", pa.int64())), [b"uuid," + number.encode()]))) == [0]
    record = f"{spark.message_uuid(1)},{number}\n".encode()
    for form, content in ((spark.NDJSON, spark.line(1, f'"v":{number}')), (spark.CSV, record)):
        for kind in ("byte", "long", "double"):
            (row,) = spark.Journal(spark.spark_schema(("v", kind)), form).read(content)
            assert row["v"] == (float(number) if kind == "double" else None)


# JSON: maps.

MAPS = (
    ("id", pa.int64()),
    ("m", pa.map_(pa.string(), pa.int8())),
    ("days", pa.list_(pa.map_(pa.string(), pa.date32()))),
    ("deep", pa.struct([("x", pa.map_(pa.string(), pa.struct([("d", pa.decimal128(4, 1))])))])),
)


def test_json_objects_are_maps():
    decoded = decode(
        json_decoder(*MAPS),
        [
            b'{"id":1,"m":{"a":1,"b":null},"days":[{"x":"2020-01-02"},null,{}],"other":[{}]}',
            b'{"m":null,"deep":{"x":{"k":{"d":1.5},"l":{"d":"2"},"n":{}}}}',
            b'{"m":{},"deep":{},"days":null}',
            b"null",
        ],
    )
    assert decoded.bad == []
    assert decoded.batch.to_pylist() == [
        {"id": 1, "m": [("a", 1), ("b", None)], "days": [[("x", dt.date(2020, 1, 2))], None, []], "deep": None},
        {"id": None, "m": None, "days": None, "deep": {"x": [("k", {"d": Decimal("1.5")}), ("l", {"d": Decimal(2)}), ("n", {"d": None})]}},
        {"id": None, "m": [], "days": None, "deep": {"x": None}},
        {"id": None, "m": None, "days": None, "deep": None},
    ]  # fmt: skip


@pytest.mark.parametrize("outer", ["m", 'm"', "\n\\"])
def test_names_which_json_escapes(outer):
    inner = pa.struct([('q"\\', pa.int8()), ("\t", pa.decimal128(4, 1)), ("é", pa.float64())])
    decoder = json_decoder(
        (outer, pa.struct([("x", pa.map_(pa.string(), pa.list_(inner)))])),
        ('n"', inner),
    )
    good = {'q"\\': 7, "\t": 0.5, "é": 1.25}
    for bad, text in (
        ({'q"\\': "no"}, "Expected `int | null`, got `str`"),
        ({"\t": True}, "got `bool`"),
        (3, "Expected `object | null`, got `int`"),
    ):
        lines = [
            {outer: {"x": {"a": [good, None, {}]}}, 'n"': good},
            {outer: {"x": {"a": [bad]}}},
            {'n"': bad},
            {outer: {"x": None}, 'n"': {"\t": 12, "other": 1}},
        ]
        decoded = decode(decoder, [json.dumps(line).encode() for line in lines])
        first, *others = verdicts(decoded, len(lines))
        want = {'q"\\': 7, "\t": Decimal("0.5"), "é": 1.25}
        none = dict.fromkeys(want)
        assert first == {outer: {"x": [("a", [want, None, none])]}, 'n"': want}
        assert others == [None, None, {outer: {"x": None}, 'n"': none | {"\t": Decimal(12)}}]
        assert all(text in error for error in errors(decoded).values()), errors(decoded)


def test_bad_documents_of_maps_are_told_apart():
    messages = [
        b'{"id":1,"m":{"a":1}}',
        b'{"id":"x","m":{"a":2}}',
        b'{"id":3,"m":{"a":300}}',
        b'{"id":4,"m":[1]}',
        b"nothing",
        b'{"id":6,"days":[{"x":"2020-01-02"},{"x":"2020-13-02"}]}',
        b'{"id":7,"m":{"a":1},"m":{"a":1}}',
        b'{"id":8,"m":{"b":8},"y":NaN}',
        b'{"id":9,"days":[{"y":"2021-01-02"}]}',
        b'{"id":10}{"id":11}',
    ]
    decoded = decode(json_decoder(*MAPS), messages)
    assert [row and row["id"] for row in verdicts(decoded, len(messages))] == [
        1, None, None, None, None, None, None, 8, 9, None
    ]  # fmt: skip
    assert errors(decoded)[2].startswith("column 'm': ")
    assert errors(decoded)[5].startswith("column 'days': ")
    alone = decode(json_decoder(*MAPS[1:2]), messages)
    assert [row if row is None else row["m"] for row in verdicts(alone, len(messages))] == [
        [("a", 1)], [("a", 2)], None, None, None, None, None, [("b", 8)], None, None
    ]  # fmt: skip
    assert list(errors(alone)) == [2, 3, 4, 6, 9]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.struct([]), pa.null()], ids=str)
def test_types_which_csv_columns_cannot_have(kind):
    with pytest.raises(ConfigurationError, match="'v'"):
        csv_decoder(("v", kind))


# Protobuf.


def _event_class() -> type:
    proto = descriptor_pb2.FileDescriptorProto(name="columns_test.proto", syntax="proto3")
    proto.package = "columns_test"
    proto.dependency.append(timestamp_pb2.DESCRIPTOR.name)
    kind = proto.enum_type.add(name="Kind")
    kind.value.add(name="PLAIN", number=0)
    kind.value.add(name="FANCY", number=1)
    field = descriptor_pb2.FieldDescriptorProto
    inner = proto.message_type.add(name="Inner")
    inner.field.add(name="big", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    inner.field.add(name="raw", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    event = proto.message_type.add(name="Event")
    entry = event.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)

    def add(name, number, kind, *, label=field.LABEL_OPTIONAL, type_name=None, optional=False):
        added = event.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            added.type_name = type_name
        if optional:
            event.oneof_decl.add(name=f"_{name}")
            added.oneof_index = len(event.oneof_decl) - 1
            added.proto3_optional = True

    add("uuid", 1, field.TYPE_BYTES)
    add("id", 2, field.TYPE_UINT64)
    add("name", 3, field.TYPE_STRING)
    add("score", 4, field.TYPE_DOUBLE)
    add("kind", 5, field.TYPE_ENUM, type_name=".columns_test.Kind")
    add("inner", 6, field.TYPE_MESSAGE, type_name=".columns_test.Inner")
    add("many", 7, field.TYPE_MESSAGE, type_name=".columns_test.Inner", label=field.LABEL_REPEATED)
    add("tags", 8, field.TYPE_STRING, label=field.LABEL_REPEATED)
    add("at", 9, field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add("counts", 10, field.TYPE_MESSAGE, type_name=".columns_test.Event.CountsEntry", label=field.LABEL_REPEATED)  # fmt: skip
    add("maybe", 11, field.TYPE_INT32, optional=True)
    add("ok", 12, field.TYPE_BOOL)
    pool = descriptor_pool.DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool.Add(stamp)
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("columns_test.Event"))


EVENT = _event_class()
INNER = pa.struct([("big", pa.int64()), ("raw", pa.binary())])


def protobuf_decoder(*fields: object) -> DocumentDecoder:
    return DocumentDecoder(protobuf_adapter(EVENT), pa.schema(fields))


def test_protobuf_columns_are_fields():
    decoder = protobuf_decoder(
        ("id", pa.uint64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("kind", pa.string()),
        ("inner", INNER),
        ("many", pa.list_(INNER)),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", "UTC")),
        ("counts", pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))),
        ("maybe", pa.int32()),
        ("ok", pa.bool_()),
        ("uuid", pa.binary(16)),
    )
    full = EVENT(uuid=bytes(16), id=2**64 - 1, name="é", score=1.5, kind=1, tags=["a", "b"], maybe=0, ok=True)  # fmt: skip
    full.inner.big = 2**62
    full.inner.raw = b"\xff"
    full.many.add(big=1)
    full.at.seconds, full.at.nanos = -1, 999_999_999
    full.counts["k"] = 7
    other = EVENT(uuid=bytes(16), kind=9)
    decoded = decode(decoder, [full.SerializeToString(), other.SerializeToString()])
    assert decoded.bad == []
    assert decoded.batch.to_pylist() == [
        {
            "id": 2**64 - 1,
            "name": "é",
            "score": 1.5,
            "kind": "FANCY",
            "inner": {"big": 2**62, "raw": b"\xff"},
            "many": [{"big": 1, "raw": b""}],
            "tags": ["a", "b"],
            "at": dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            "counts": [{"key": "k", "value": 7}],
            "maybe": 0,
            "ok": True,
            "uuid": bytes(16),
        },
        {
            "id": 0,
            "name": "",
            "score": 0.0,
            "kind": "9",
            "inner": None,
            "many": [],
            "tags": [],
            "at": None,
            "counts": [],
            "maybe": None,
            "ok": False,
            "uuid": bytes(16),
        },
    ]


def test_protobuf_maps_are_maps():
    decoder = protobuf_decoder(("counts", pa.map_(pa.string(), pa.int8())))
    messages = [EVENT(counts=counts).SerializeToString() for counts in ({"a": 1}, {}, {"b": 300})]
    decoded = decode(decoder, messages)
    assert decoded.batch["counts"].to_pylist() == [[("a", 1)], []]
    assert list(errors(decoded)) == [2]


def test_bad_protobuf_messages():
    decoder = protobuf_decoder(("id", pa.int64()), ("maybe", pa.int32()), ("kind", pa.int8()))  # fmt: skip
    messages = [
        EVENT(id=1, kind=1).SerializeToString(),
        b"\xff",
        EVENT(id=2**63).SerializeToString(),
        EVENT(kind=300).SerializeToString(),
        b"",
    ]
    decoded = decode(decoder, messages)
    assert decoded.batch["id"].to_pylist() == [1, 0]
    assert decoded.batch["kind"].to_pylist() == [1, 0]
    found = errors(decoded)
    assert list(found) == [1, 2, 3]
    assert found[2].startswith("column 'id': ")
    assert found[3].startswith("column 'kind': ")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("missing", pa.int64()),
        ("id", pa.string()),
        ("name", pa.int64()),
        ("name", pa.binary()),
        ("uuid", pa.string()),
        ("tags", pa.string()),
        ("name", pa.list_(pa.string())),
        ("inner", pa.string()),
        ("inner", pa.struct([("big", pa.string())])),
        ("inner", pa.timestamp("us")),
        ("counts", pa.map_(pa.int64(), pa.string())),
        ("counts", pa.list_(pa.struct([("key", pa.string())]))),
        ("ok", pa.int64()),
    ],
    ids=str,
)
def test_types_which_protobuf_columns_cannot_have(name, kind):
    with pytest.raises(ConfigurationError, match=f"(?i){name}|Inner.big"):
        protobuf_decoder((name, kind))
