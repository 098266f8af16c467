"""Rows of messages."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.message.framing import FixedFraming
from gazette_aio.message.uuid import build_uuid, clock_as_ns, get_clock
from gazette_aio.protocol.errors import ConfigurationError, FramingError
from gazette_aio.spark.rows.records import RowDecoder, RowLayout
from gazette_aio.spark.types import KEY_COLUMN, RESERVED, default_schema
from tests import golden
from tests.spark.messages import (
    CSV,
    EPOCH_MS,
    FIXED,
    NDJSON,
    PRODUCER,
    Journal,
    line,
    message_uuid,
    source_options,
    spark_schema,
)

UTC = dt.UTC
WITHOUT_KEY = {name: kind for name, kind in RESERVED.items() if name != KEY_COLUMN}
EPOCH = dt.datetime.fromtimestamp(EPOCH_MS // 1000, UTC)
UUID_NAMES = ("_uuid", "_timestamp", "_producer", "_clock", "_flags")
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")

ID_AND_NAME = spark_schema(
    ("id", "integer"), ("name", "string"), ("_begin", "long"), ("_corrupt_record", "string")
)
WITHOUT_CORRUPT = spark_schema(("id", "integer"), ("name", "string"), ("_begin", "long"))
GOOD = (line(1, '"id":1,"name":"é"'), line(2, '"id":2,"name":"b"'))


# Columns which tell of messages.


def all_reserved(*more: Any) -> pa.Schema:
    return pa.schema([*(pa.field(name, kind) for name, kind in WITHOUT_KEY.items()), *more])


def test_reserved_columns_tell_of_messages() -> None:
    first, second = line(1, '"id":1', flags=1), b'{"id":2}\n'
    rows = Journal(all_reserved()).read(first + second)
    uuid = message_uuid(1, flags=1)
    assert rows == [
        {
            "_journal": "a/journal",
            "_begin": 0,
            "_end": len(first),
            "_uuid": str(uuid),
            "_timestamp": EPOCH + dt.timedelta(milliseconds=1),
            "_producer": PRODUCER.hex(),
            "_clock": f"{get_clock(uuid):016x}",
            "_flags": 1,
            "_value": first[:-1],
        },
        {
            "_journal": "a/journal",
            "_begin": len(first),
            "_end": len(first + second),
            **dict.fromkeys(UUID_NAMES),
            "_value": second[:-1],
        },
    ]


@pytest.mark.parametrize("name", WITHOUT_KEY)
def test_each_column_can_be_alone(name: str) -> None:
    content = b"".join(GOOD)
    whole = Journal(all_reserved()).read(content)
    for nullable in (True, False):
        schema = pa.schema([pa.field(name, RESERVED[name], nullable)])
        assert Journal(schema, mode="FAILFAST").read(content) == [{name: r[name]} for r in whole]


def uuid_columns(parts: list[tuple[bytes, int, int]], schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the rows of messages by the producers, clocks and flags of their UUIDs."""
    content = b"".join(
        b'{"_meta":{"uuid":"%s"}}\n' % str(build_uuid(*part)).encode() for part in parts
    )
    journal = Journal(schema, isolation="read-uncommitted", includeAcks="true")
    times = [f.name for f in schema if pa.types.is_timestamp(f.type)]
    found: list[dict[str, Any]] = []
    for batch in journal.load(content):
        # Clocks reach beyond the times of Python.
        rows = zip(batch.drop_columns(times).to_pylist(), *(batch[t] for t in times), strict=True)
        found += [row | {t: v.value for t, v in zip(times, v, strict=True)} for row, *v in rows]
    return found


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=6, max_size=6), st.integers(1, 2**64 - 1), st.integers(0, 1023)
        ),
        max_size=8,
    )
)
def test_texts_of_uuids_are_those_of_uuids(parts: list[tuple[bytes, int, int]]) -> None:
    assert uuid_columns(parts, spark_schema(*_UUID_TYPES.items())) == [
        {
            "_uuid": str(build_uuid(producer, clock, flags)),
            "_producer": producer.hex(),
            "_clock": f"{clock:016x}",
            "_flags": flags,
            "_timestamp": clock_as_ns(clock) // 1000,
        }
        for producer, clock, flags in parts
    ]


def test_golden_uuids() -> None:
    cases = [case for case in golden.load("uuid.json")["build"] if case["clock"]]
    assert len(cases) > 10
    parts = [(bytes.fromhex(c["producer"]), c["clock"], c["flags"]) for c in cases]
    assert uuid_columns(parts, spark_schema(("_uuid", "string"), ("_flags", "integer"))) == [
        {"_uuid": case["string"], "_flags": case["got_flags"]} for case in cases
    ]


def test_golden_times() -> None:
    cases = [case for case in golden.load("uuid.json")["clock_as_time"] if case["clock"]]
    parts = [(PRODUCER, case["clock"], 0) for case in cases]
    assert [
        row["_timestamp"]
        for row in uuid_columns(
            parts, spark_schema(("_timestamp", "timestamp"), ("_flags", "integer"))
        )
    ] == [case["seconds"] * 10**6 + case["subsec_nanos"] // 1000 for case in cases]


_UUID_TYPES = {
    "_uuid": "string",
    "_timestamp": "timestamp",
    "_producer": "string",
    "_clock": "string",
    "_flags": "integer",
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", UUID_NAMES)
def test_a_message_without_uuid_has_no_value_of_its_columns(mode: str, name: str) -> None:
    schema = pa.schema([pa.field(name, RESERVED[name], nullable=False), ("_begin", pa.int64())])
    content = GOOD[0] + b"{}\n" + GOOD[1]
    journal = Journal(schema, mode=mode)
    if mode != "DROPMALFORMED":
        with pytest.raises(
            FramingError, match=f"'{name}' is NOT NULL, but the message has no UUID"
        ):
            journal.read(content)
        return
    assert [row["_begin"] for row in journal.read(content)] == [0, len(GOOD[0]) + 3]
    assert journal.skipped == 1


LABELS = (
    ("app.gazette.dev/region", ("eu", "us")),
    ("part", ("7",)),
)


def test_labels_are_columns() -> None:
    schema = spark_schema(
        ("region", "string", False),
        ("regions", {"type": "array", "elementType": "string", "containsNull": False}),
        ("part", "string"),
        ("nothing", "string"),
        ("nowhere", {"type": "array", "elementType": "string", "containsNull": True}),
    )
    columns = (
        "region=app.gazette.dev/region, regions=app.gazette.dev/region, part, nothing, nowhere"
    )
    rows = Journal(schema, labels=LABELS, partitionColumns=columns).read(b"".join(GOOD))
    row = {"region": "eu", "regions": ["eu", "us"], "part": "7", "nothing": None, "nowhere": None}
    assert rows == [row, row]


def test_a_label_which_must_be_there() -> None:
    schema = spark_schema(("part", "string", False), ("_begin", "long"))
    with pytest.raises(
        ConfigurationError, match="'part' is NOT NULL, but journal a/journal has no label part"
    ):
        Journal(schema, partitionColumns="part")


def test_acknowledgements_are_no_rows() -> None:
    content = GOOD[0] + line(3, flags=2) + GOOD[1]
    for options in ({}, {"isolation": "read-uncommitted"}):
        assert [r["id"] for r in Journal(WITHOUT_CORRUPT, **options).read(content)] == [1, 2]


def test_acknowledgements_are_rows_of_nulls_if_asked_for() -> None:
    content = GOOD[0] + line(3, '"id":"no document"', flags=2) + b'{"id":"x"}\n' + GOOD[1]
    schema = spark_schema(("id", "integer"), ("_flags", "integer"), ("_corrupt_record", "string"))
    journal = Journal(schema, isolation="read-uncommitted", includeAcks="true")
    assert [tuple(row.values()) for row in journal.read(content)] == [
        (1, 0, None),
        (None, 2, None),
        (None, None, '{"id":"x"}'),
        (2, 0, None),
    ]
    dropping = Journal(
        schema, isolation="read-uncommitted", includeAcks="true", mode="DROPMALFORMED"
    )
    assert [row["_flags"] for row in dropping.read(content)] == [0, 2, 0]
    with pytest.raises(ConfigurationError, match="'id' is NOT NULL, but acknowledgements"):
        Journal(
            spark_schema(("id", "integer", False)),
            isolation="read-uncommitted",
            includeAcks="true",
            mode="FAILFAST",
        )


def test_rows_are_of_a_time() -> None:
    lines = [line(number, f'"id":{number}') for number in range(6)]
    lines.insert(3, b'{"id":99}\n')
    content = b"".join(lines)

    def ids(**options: int) -> list[int]:
        texts = {name: str(EPOCH_MS + number) for name, number in options.items()}
        return [row["id"] for row in Journal(WITHOUT_CORRUPT, **texts).read(content)]

    assert ids(startingTimestamp=2) == [2, 99, 3, 4, 5]
    assert ids(endingTimestamp=2) == [0, 1, 99]
    assert ids(startingTimestamp=1, endingTimestamp=4) == [1, 2, 99, 3]
    assert ids(startingTimestamp=2**62, endingTimestamp=2**62) == [99]
    for name, expected in (("a/journal", [5, 99]), ("b/other", [0, 1, 2, 3, 4, 5, 99])):
        of_one = f'{{"{name}": {EPOCH_MS + 5}}}'
        rows = Journal(WITHOUT_CORRUPT, startingTimestamp=of_one).read(content)
        assert sorted(row["id"] for row in rows) == expected
    assert ids(startingTimestamp=-EPOCH_MS, endingTimestamp=2**62) == [0, 1, 2, 99, 3, 4, 5]


def test_a_record_which_is_not_of_the_time_is_not_bad() -> None:
    content = line(1, '"id":"x"') + GOOD[1]
    journal = Journal(WITHOUT_CORRUPT, mode="FAILFAST", startingTimestamp=str(EPOCH_MS + 2))
    assert [row["id"] for row in journal.read(content)] == [2]


# Bad records.

BAD_LINES = {
    "blank": b"",
    "blank with spaces": b"  \t",
    "two objects": b'{"id":1}{"id":2}',
    "not UTF-8": b'{"id":1,"name":"a\xff\xfeb"}',
    "another type": b'{"id":1,"name":7}',
    "an integer as text": b'{"id":"1"}',
    "not integral": b'{"id":1.5}',
    "too large": b'{"id":2147483648}',
    "far too large": b'{"id":123456789012345678901234567890}',
    "a name twice": b'{"id":1,"id":1}',
    "an array": b"[1]",
    "a number": b"1",
    "truncated": b'{"id":1',
    "not JSON": b"hello, world",
    "a zero byte": b'{"id":1,"name":"\x00"}',
    "no comma": b'{"id":1 "name":"a"}',
}
ODD_LINES = {
    "missing members": (b"{}", None, None),
    "more members": (b'{"id":1,"name":"a","x":{"y":[1]}}', 1, "a"),
    "nulls": (b'{"id":null,"name":null}', None, None),
    "null": (b"null", None, None),
    "spaces": (b'  { "id" : 1 , "name" : "a" }  ', 1, "a"),
    "escapes": (rb'{"id":1,"name":"\u00e9\n"}', 1, "é\n"),
    "carriage return": (b'{"id":1,"name":"a"}\r', 1, "a"),
    "empty text": (b'{"id":0,"name":""}', 0, ""),
}


def corrupt_text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


@pytest.mark.parametrize("bad", BAD_LINES.values(), ids=BAD_LINES)
def test_bad_lines_in_each_mode(bad: bytes) -> None:
    content = GOOD[0] + bad + b"\n" + GOOD[1]
    begin, end = len(GOOD[0]), len(GOOD[0]) + len(bad) + 1
    first = {"id": 1, "name": "é", "_begin": 0, "_corrupt_record": None}
    last = {"id": 2, "name": "b", "_begin": end, "_corrupt_record": None}

    permissive = Journal(ID_AND_NAME, mode="PERMISSIVE")
    row = {"id": None, "name": None, "_begin": begin, "_corrupt_record": corrupt_text(bad)}
    assert permissive.read(content) == [first, row, last]
    assert permissive.skipped == 0

    del row["_corrupt_record"]
    assert Journal(WITHOUT_CORRUPT).read(content)[1] == row

    dropping = Journal(ID_AND_NAME, mode="DROPMALFORMED")
    assert dropping.read(content) == [first, last]
    assert dropping.skipped == 1

    with pytest.raises(FramingError) as caught:
        Journal(ID_AND_NAME, mode="FAILFAST").read(content)
    assert (caught.value.journal, caught.value.begin, caught.value.end) == ("a/journal", begin, end)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"bad record of journal a/journal at bytes [{begin}, {end}): ")
    assert re.search(r": \S.* \(mode=PERMISSIVE", text)


def test_the_first_of_bad_lines_fails() -> None:
    with pytest.raises(FramingError) as caught:
        Journal(ID_AND_NAME, mode="FAILFAST").read(GOOD[0] + b'{"id":"x"}\n{"id":"y"}\n' + GOOD[1])
    assert caught.value.begin == len(GOOD[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("odd", "id_", "name"), ODD_LINES.values(), ids=ODD_LINES)
def test_odd_lines_which_are_good(mode: str, odd: bytes, id_: int | None, name: str | None) -> None:
    rows = Journal(ID_AND_NAME, mode=mode).read(GOOD[0] + odd + b"\n")
    assert rows[1:] == [{"id": id_, "name": name, "_begin": len(GOOD[0]), "_corrupt_record": None}]


@given(st.data())
def test_bad_lines_do_not_change_good_ones(data: st.DataObject) -> None:
    good = st.integers(0, 10**6).map(lambda n: line(n, f'"id":{n},"name":"{n}"'))
    bad = st.sampled_from(list(BAD_LINES.values())).map(lambda content: content + b"\n")
    lines = data.draw(st.lists(good | bad, max_size=40))
    is_bad = [each[:-1] in BAD_LINES.values() for each in lines]
    clean = b"".join(each for each, wrong in zip(lines, is_bad, strict=True) if not wrong)
    schema = spark_schema(("id", "integer"), ("name", "string"), ("_uuid", "string"), ("_corrupt_record", "string"))  # fmt: skip
    expected = Journal(schema, mode="FAILFAST").read(clean)
    dropping = Journal(schema, mode="DROPMALFORMED", batchRows="7")
    assert dropping.read(b"".join(lines)) == expected
    assert dropping.skipped == sum(is_bad)
    found = Journal(schema, batchRows="5").read(b"".join(lines))
    assert [r for r, wrong in zip(found, is_bad, strict=True) if not wrong] == expected
    texts = [corrupt_text(each[:-1]) for each, wrong in zip(lines, is_bad, strict=True) if wrong]
    assert [r["_corrupt_record"] for r in found if r["_corrupt_record"] is not None] == texts


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_a_column_which_must_have_values(mode: str) -> None:
    schema = spark_schema(("id", "integer", False))
    journal = Journal(schema, mode=mode)
    content = GOOD[0] + b'{"id":null}\n{}\n' + GOOD[1]
    if mode == "FAILFAST":
        text = r"'id': there's no value, or null \(it can't be a row of nulls, .*schema.toNullable"
        with pytest.raises(FramingError, match=text):
            journal.read(content)
    else:
        assert journal.read(content) == [{"id": 1}, {"id": 2}]
        assert journal.skipped == 2


def test_columns_which_must_have_values_are_not_permissive() -> None:
    for name, kind in (("id", "integer"), ("_value", "binary"), ("_uuid", "string")):
        journal = Journal(spark_schema((name, kind, False)))
        assert len(journal.read(b"".join(GOOD))) == 2
        with pytest.raises(
            FramingError, match=r"columns are NOT NULL: read it by schema\.toNullable\(\)"
        ):
            journal.read(GOOD[0] + b"nothing\n" + GOOD[1])
    places = spark_schema(("_journal", "string", False), ("_begin", "long", False), ("_end", "long", False))  # fmt: skip
    rows = Journal(places).read(b"nothing\n")
    assert rows == [{"_journal": "a/journal", "_begin": 0, "_end": 8}]


def test_a_document_whose_uuid_is_invalid() -> None:
    bad = b'{"_meta":{"uuid":"zzz"},"id":7}'
    content = GOOD[0] + bad + b"\n" + GOOD[1]
    schema = spark_schema(("id", "integer"), ("_journal", "string"), ("_uuid", "string"), ("_value", "binary"), ("part", "string"), ("_corrupt_record", "string"))  # fmt: skip
    rows = Journal(schema, labels=LABELS, partitionColumns="part").read(content)
    assert rows[1] == {
        "id": None,
        "_journal": "a/journal",
        "_uuid": None,
        "_value": bad,
        "part": "7",
        "_corrupt_record": bad.decode(),
    }
    with pytest.raises(FramingError, match="invalid UUID length") as caught:
        Journal(schema, mode="FAILFAST").read(content)
    assert (caught.value.begin, caught.value.kind) == (len(GOOD[0]), "uuid")


def test_the_column_of_bad_records_has_the_name_which_an_option_says() -> None:
    schema = spark_schema(("id", "integer"), ("broken", "string"), ("_corrupt_record", "integer"))
    rows = Journal(schema, columnNameOfCorruptRecord="broken").read(b'{"_corrupt_record":1}\nx\n')
    assert [tuple(row.values()) for row in rows] == [(None, None, 1), (None, "x", None)]


# Other formats.


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_garbage_between_fixed_frames_is_one_record(chunk: int) -> None:
    frames = [
        FixedFraming().encode(b"\x0a\x10" + message_uuid(n).bytes + b"\x12\x01a") for n in (1, 2)
    ]
    garbage = b"not a \xff frame"
    content = frames[0] + garbage + frames[1]
    schema = spark_schema(("_value", "binary"), ("_begin", "long"), ("_end", "long"), ("_uuid", "string"), ("_corrupt_record", "string"))  # fmt: skip
    begin, end = len(frames[0]), len(frames[0]) + len(garbage)
    rows = Journal(schema, FIXED).read(content, chunk)
    assert rows[1] == {
        "_value": garbage,
        "_begin": begin,
        "_end": end,
        "_uuid": None,
        "_corrupt_record": "not a \ufffd frame",
    }
    assert [row["_uuid"] for row in rows] == [str(message_uuid(1)), None, str(message_uuid(2))]
    with pytest.raises(FramingError, match=rf"at bytes \[{begin}, \d+\): detected de-sync"):
        Journal(schema, FIXED, mode="FAILFAST").read(content, chunk)
    dropping = Journal(schema, FIXED, mode="DROPMALFORMED")
    assert [row["_begin"] for row in dropping.read(content, chunk)] == [0, end]
    assert dropping.skipped == 1


def test_csv_columns_are_by_position() -> None:
    records = [
        f"{message_uuid(1)},1,a b",
        f'{message_uuid(2)},2,"x,""y"""',
        f"{message_uuid(3)},,",
        f"{message_uuid(4)},no,b",
        f"{message_uuid(5, 2)},,",
        "uuid,id,name",
    ]
    content = "".join(record + "\n" for record in records).encode()
    rows = Journal(ID_AND_NAME, CSV).read(content)
    assert [(row["id"], row["name"], row["_corrupt_record"]) for row in rows] == [
        (1, "a b", None),
        (2, 'x,"y"', None),
        (None, "", None),
        (None, None, records[3]),
        (None, None, records[5]),
    ]


def test_which_csv_records_are_bad_does_not_depend_on_the_first_one() -> None:
    """A task may begin with any record, of which others don't learn how many fields they have."""
    narrow, wide = f"{message_uuid(1)},1", f"{message_uuid(2)},2,b,more"
    torn, good = f'{message_uuid(3)},3,"c"c', f"{message_uuid(4)},4,d"
    for records in ((narrow, wide, torn, good), (torn, good, wide, narrow)):
        content = "".join(record + "\n" for record in records).encode()
        rows = Journal(ID_AND_NAME, CSV).read(content)
        bad = [(row["_corrupt_record"] or "").rstrip("\n") for row in rows]
        assert bad == ["" if each in (wide, good) else each for each in records]
        found = [(row["id"], row["name"]) for row in rows if row["id"] is not None]
        assert found == [(2, "b"), (4, "d")] or found == [(4, "d"), (2, "b")]


def test_csv_uuids_may_be_in_another_column() -> None:
    content = f"1,{message_uuid(1)},a\n".encode()
    schema = spark_schema(("id", "integer"), ("name", "string"), ("_uuid", "string"))
    rows = Journal(schema, CSV, uuid="1").read(content)
    assert rows == [{"id": 1, "name": "a", "_uuid": str(message_uuid(1))}]


def test_raw_messages_need_no_uuid() -> None:
    content = GOOD[0] + b"no JSON\n\n" + b'{"_meta":{"uuid":7}}\n' + line(4, flags=2)
    schema = spark_schema(("_value", "binary"), ("_uuid", "string"))
    rows = Journal(schema, format="raw", mode="FAILFAST").read(content)
    assert [row["_value"] + b"\n" for row in rows] == content.splitlines(keepends=True)[:-1]
    assert [row["_uuid"] for row in rows] == [str(message_uuid(1)), None, None, None]


def test_chunks_are_rows_of_the_default_schema() -> None:
    rows = Journal(default_schema(), "image/png").read(b"helloyo", 5)
    assert [tuple(row.values()) for row in rows] == [(b"helloyo", "a/journal", 0, 7, None)]


@pytest.mark.parametrize(
    ("options", "content_type", "text"),
    [
        ({"format": "raw"}, NDJSON, "column 'id': messages of format raw have no columns"),
        ({}, "image/png", "column 'id': messages of content type 'image/png' have no columns"),
        ({}, "", "column 'id': messages of content type '' have no columns"),
        ({}, FIXED, "column 'id': columns of protobuf messages need the option 'messageType'"),
    ],
)
def test_formats_without_columns(options: dict[str, str], content_type: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        RowLayout(source_options(**options), ID_AND_NAME).decoder_of(content_type)


# Types.

FORMAT_TYPES: list[tuple[Any, str, Any]] = [
    ("boolean", "true", True),
    ("byte", "-128", -128),
    ("short", "32767", 32767),
    ("integer", "-2147483648", -(2**31)),
    ("long", "9223372036854775807", 2**63 - 1),
    ("float", "1.5", 1.5),
    ("double", "1e300", 1e300),
    ("decimal(10,2)", "12.5", Decimal("12.50")),
    ("decimal(38,0)", '"123"', Decimal(123)),
    ("string", '"é"', "é"),
    ("string collate UTF8_LCASE", '"a"', "a"),
    ("binary", '"/wA="', b"\xff\x00"),
    ("date", '"2020-02-29"', dt.date(2020, 2, 29)),
    ("timestamp", '"2020-01-01T01:00:00.1234567+01:00"', dt.datetime(2020, 1, 1, 0, 0, 0, 123456, UTC)),
    ("timestamp", '"2020-01-01 01:00:00"', dt.datetime(2020, 1, 1, 1, tzinfo=UTC)),
    ("timestamp_ntz", '"2020-01-01T01:00:00"', dt.datetime(2020, 1, 1, 1)),  # noqa: DTZ001
    ({"type": "udt", "class": "x.Y", "pyClass": "y", "sqlType": "double"}, "1", 1.0),
    ({"type": "array", "elementType": "date", "containsNull": True}, '["2020-01-01",null]', [dt.date(2020, 1, 1), None]),
    ({"type": "struct", "fields": [{"name": "a", "type": "short", "nullable": True, "metadata": {}}]}, '{"a":1}', {"a": 1}),
    ({"type": "map", "keyType": "string", "valueType": "decimal(3,1)", "valueContainsNull": True}, '{"a":1.5,"b":null}', [("a", Decimal("1.5")), ("b", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), FORMAT_TYPES, ids=str)
def test_each_type_of_spark_is_decoded_exactly(kind: Any, text: str, value: Any) -> None:
    schema = spark_schema(("v", kind), ("_corrupt_record", "string"))
    rows = Journal(schema).read(line(1, f'"v":{text}') + line(2, '"v":null') + b"x\n")
    assert [row["v"] for row in rows] == [value, None, None]
    assert [row["_corrupt_record"] for row in rows] == [None, None, "x"]
    required = spark_schema(("v", kind, False))
    assert Journal(required, mode="FAILFAST").read(line(1, f'"v":{text}')) == [{"v": value}]


DECIMAL: Any = "decimal(5,2)"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (DECIMAL, "{}"),
        (DECIMAL, '"{}"'),
        ({"type": "array", "elementType": DECIMAL, "containsNull": True}, "[1,{}]"),
        ({"type": "struct", "fields": [{"name": "a", "type": DECIMAL, "nullable": True, "metadata": {}}]}, '{{"a":{}}}'),
        ({"type": "map", "keyType": "string", "valueType": DECIMAL, "valueContainsNull": True}, '{{"a":{}}}'),
    ],
    ids=str,
)  # fmt: skip
def test_decimals_of_too_many_digits_are_bad(kind: Any, text: str) -> None:
    schema = spark_schema(("v", kind), ("_corrupt_record", "string"))
    numbers = ["999.99", "1234.5", "-1234.5", "-999.99", "1000", "1e3"]
    content = b"".join(line(1, f'"v":{text.format(number)}') for number in numbers)
    bad = [row["_corrupt_record"] is not None for row in Journal(schema).read(content)]
    assert bad == [False, True, True, False, True, True]


@pytest.mark.parametrize(
    "kind",
    [
        "void",
        {"type": "array", "elementType": "void", "containsNull": True},
        {
            "type": "map",
            "keyType": {"type": "array", "elementType": "integer", "containsNull": True},
            "valueType": "integer",
            "valueContainsNull": True,
        },
    ],
    ids=str,
)
def test_types_which_documents_cannot_have(kind: Any) -> None:
    schema = spark_schema(("v", kind))
    for form in ("ndjson", "csv"):
        with pytest.raises(ConfigurationError, match="column 'v'"):
            RowLayout(source_options(format=form), schema)


# Batches.


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 12), st.integers(1, 700))
@example([9, 9, 9], 3, 20)
def test_batches_are_bounded(sizes: list[int], rows: int, size: int) -> None:
    content = b"".join(b"%b\n" % (b"x" * each) for each in sizes)
    journal = Journal(default_schema(), format="raw", batchRows=str(rows), batchBytes=str(size))
    found = journal.read(content)
    assert [row["_value"] for row in found] == [b"x" * each for each in sizes]
    for batch in journal.batches:
        assert batch.num_rows <= rows
        held = batch["_end"][-1].as_py() - batch["_begin"][0].as_py()
        assert held <= size or batch.num_rows == 1
    for one, two in zip(journal.batches, journal.batches[1:], strict=False):
        # None is cut short without need.
        more = two["_end"][0].as_py() - one["_begin"][0].as_py()
        assert one.num_rows == rows or more > size


def test_a_layout_serves_many_journals() -> None:
    layout = RowLayout(source_options(mode="FAILFAST"), WITHOUT_CORRUPT)
    assert layout.decoder_of(NDJSON) is layout.decoder_of(NDJSON)
    for name in ("a/b", "a/c"):
        decoder = RowDecoder(layout, name, (), NDJSON)
        assert repr(decoder) == f"<RowDecoder of {name}, 0 records skipped>"
        with pytest.raises(FramingError, match=f"journal {name} at bytes"):
            decoder.bad(FramingError("bad"), b"", 0, 1)


def test_each_error_is_on_one_line() -> None:
    layout = RowLayout(source_options(mode="FAILFAST"), WITHOUT_CORRUPT)
    decoder = RowDecoder(layout, "a/journal", (), NDJSON)
    with pytest.raises(FramingError) as caught:
        decoder.bad(FramingError("first\nsecond " + "x" * 10_000, kind="desync"), b"", 3, 7)
    assert str(caught.value).startswith(
        "bad record of journal a/journal at bytes [3, 7): first second xxx"
    )
    assert len(str(caught.value)) < 1000
    assert (caught.value.kind, caught.value.begin, caught.value.end) == ("desync", 3, 7)
