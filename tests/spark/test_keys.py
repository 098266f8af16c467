"""Keys of messages, as columns of sources, and to choose journals of sinks."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.mapping import modulo_mapping
from gazette_aio.protocol import ConfigurationError, ListResponse, ValidationError
from gazette_aio.spark.options import SinkOptions, SourceOptions
from gazette_aio.spark.rows.keys import csv_key_reader, json_key_reader, protobuf_key_reader
from gazette_aio.spark.rows.records import RowLayout
from gazette_aio.spark.sink.routing import Router, check_keys
from gazette_aio.spark.sink.rows import SinkColumns, classify_rows
from gazette_aio.spark.types import KEY_COLUMN, default_schema
from tests.spark.messages import (
    CSV,
    FIXED,
    FLIGHT,
    FLIGHT_TYPE,
    NDJSON,
    Journal,
    line,
    message_uuid,
    source_options,
    spark_schema,
)

KEYS = spark_schema((KEY_COLUMN, "binary"))
TARGETS = [(f"topic/part-{number}", NDJSON) for number in range(3)]


# Readers.


@pytest.mark.parametrize(("document", "key"), [
    ('{"a":{"b":"é"},"c":"x"}', "é".encode()),
    ('{"a":{"b":"\\ud83d\\ude00\\n"}}', "\U0001f600\n".encode()),
    ('{"a":{"x":[{"b":1}],"b":-1.50}}', b"-1.50"),
    ('{"a":{"b":18446744073709551616}}', b"18446744073709551616"),
    ('{"a":{"b":true}}', b"true"),
    ('{"a":{"b":""}}', b""),
    ('{"a":{"b":null}}', None),
    ('{"a":{"b":{}}}', None),
    ('{"a":{"b":[1]}}', None),
    ('{"a":{}}', None),
    ('{"a":null}', None),
    ('{"a":"b"}', None),
    ("{}", None),
    ("[]", None),
    ('{"a":{"b":"x"', None),
])  # fmt: skip
def test_members_of_json_documents(document: str, key: bytes | None) -> None:
    assert json_key_reader("a.b")(document.encode()) == key


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans() | st.none()))
def test_keys_of_json_are_texts_or_json(document: dict[str, Any]) -> None:
    document["k"] = document.pop("", None)
    value = document["k"]
    expected = value if isinstance(value, str) else None if value is None else json.dumps(value)
    found = json_key_reader("k")(json.dumps(document, ensure_ascii=False).encode("utf-8", "ignore"))
    if expected is None or expected.isprintable():
        assert found == (None if expected is None else expected.encode())


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\0")), min_size=2))
def test_columns_of_csv_records(fields: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="").writerow(fields)
    record = text.getvalue().encode()
    assert [csv_key_reader(str(n))(record) for n in range(len(fields) + 1)] == [
        *(field.encode() for field in fields),
        None,
    ]


def test_fields_of_protobuf_messages() -> None:
    message = FLIGHT(stamp=b"\xff\0", number=7, ratio=0.5, on_time=True)
    message.origin.code = "é"
    frame = message.SerializeToString()
    expected = {
        "stamp": b"\xff\0", "number": b"7", "ratio": b"0.5", "on_time": b"true",
        "origin.code": "é".encode(),
    }  # fmt: skip
    assert {name: protobuf_key_reader(name, FLIGHT)(frame) for name in expected} == expected
    read = protobuf_key_reader("origin.code", FLIGHT)
    assert read(b"") is None
    assert read(b"\xff") is None
    for name in ("none", "origin.none", "number.none", "origin", "stops", "delays", "stops.code"):
        with pytest.raises(ConfigurationError, match="option 'keyColumn'"):
            protobuf_key_reader(name, FLIGHT)


# Sources.


def test_a_source_has_a_column_of_keys() -> None:
    content = line(1, '"item":"tea","n":1') + line(2, '"n":2') + b'{"item":3}\n'
    assert Journal(KEYS, keyColumn="item").read(content) == [
        {KEY_COLUMN: b"tea"},
        {KEY_COLUMN: None},
        {KEY_COLUMN: b"3"},
    ]
    # Raw messages have keys by the content type of their journal.
    raw = Journal(KEYS, keyColumn="item", format="raw", isolation="read-uncommitted")
    assert [row[KEY_COLUMN] for row in raw.read(b'{"item":"a"}\nnonsense\n')] == [b"a", None]
    with_bad = spark_schema((KEY_COLUMN, "binary"), ("n", "long"), ("_corrupt_record", "string"))
    rows = Journal(with_bad, keyColumn="item").read(line(1, '"item":"tea","n":"x"') + b"nonsense\n")
    assert [row[KEY_COLUMN] for row in rows] == [b"tea", None]
    records = "".join(f"{message_uuid(n)},k{n}\n" for n in range(2)).encode()
    keys = [row[KEY_COLUMN] for row in Journal(KEYS, CSV, keyColumn="1").read(records)]
    assert keys == [b"k0", b"k1"]


def test_keys_that_a_source_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="column '_key' needs option 'keyColumn'"):
        Journal(KEYS)
    with pytest.raises(ConfigurationError, match="must be the index of a column"):
        Journal(KEYS, CSV, keyColumn="item")
    with pytest.raises(ConfigurationError, match="which needs 'messageType'"):
        Journal(KEYS, FIXED, keyColumn="number")
    with pytest.raises(ConfigurationError, match="messages have no field 'item'"):
        Journal(KEYS, FIXED, keyColumn="item", messageType=FLIGHT_TYPE)
    with pytest.raises(ConfigurationError, match="'application/x' have no members"):
        Journal(KEYS, "application/x", keyColumn="item")
    with pytest.raises(ConfigurationError, match="column '_key' can't be NOT NULL"):
        RowLayout(source_options(keyColumn="a"), spark_schema((KEY_COLUMN, "binary", False)))
    with pytest.raises(ConfigurationError, match="'_key' must be BINARY"):
        RowLayout(source_options(keyColumn="a"), spark_schema((KEY_COLUMN, "string")))


def test_undecoded_messages_have_a_column_of_keys_if_options_name_one() -> None:
    assert default_schema(has_key=True).names == [KEY_COLUMN, *default_schema().names]


# Sinks.


def sink_options(**given: str) -> SinkOptions:
    given = {"brokers": "http://a:1", "prefix": "topic/"} | given
    return SinkOptions.parse(given, streaming=False)


def journals_of(table: pa.Table, partition: int = 0, **given: str) -> list[str]:
    """Return the journal of each row."""
    options = sink_options(**given)
    columns = classify_rows(table.schema, options.key_column)
    router = Router(options, columns, TARGETS, lambda *_: pytest.fail("at random"), partition)
    (batch,) = table.to_batches()
    rows = [(row, name) for (name, _), found in router.route(batch).items() for row in found]
    return [name for _, name in sorted(rows)]


def journals_by(*keys: bytes) -> list[str]:
    """Return the journals which publishers choose for keys."""
    listing = ListResponse()
    for name, content_type in TARGETS:
        spec = listing.journals.add().spec
        spec.name = name
        spec.labels.labels.add(name="content-type", value=content_type)
    choose = modulo_mapping(bytes, lambda: listing)
    return [choose(key)[0] for key in keys]


ITEMS = [f"item-{number}" for number in range(9)]
BY_ITEM = journals_by(*(item.encode() for item in ITEMS))


@pytest.mark.parametrize(("columns", "member"), [
    ({"item": ITEMS, "n": range(9)}, "item"),
    ({"order": [{"item": item, "n": 1} for item in ITEMS]}, "order.item"),
    ({"a.b": ITEMS, "a": [{"b": "x"}] * 9}, "a.b"),
    ({"value": [json.dumps({"item": item}) for item in ITEMS]}, "item"),
    ({"_value": [json.dumps({"o": {"item": item}}).encode() for item in ITEMS]}, "o.item"),
    ({"value": ["{}"] * 9, "by": ITEMS}, "by"),
    ({"value": ["{}"] * 9, "_key": [item.encode() for item in ITEMS]}, "_key"),
    ({"n": range(9), "_key": [item.encode() for item in ITEMS]}, "_key"),
    ({"n": range(9), "key": ITEMS}, "key"),
])  # fmt: skip
def test_a_sink_maps_the_member_that_an_option_names(columns: Any, member: str) -> None:
    assert journals_of(pa.table(columns), keyColumn=member) == BY_ITEM


def test_keys_of_numbers_are_their_texts() -> None:
    table = pa.table({"n": pa.array([-1, 20, 300], pa.int16()), "is": [True, False, True]})
    assert journals_of(table, keyColumn="n") == journals_by(b"-1", b"20", b"300")
    assert journals_of(table, keyColumn="is") == journals_by(b"true", b"false", b"true")
    documents = pa.table({"value": ['{"n":-1}', '{"n":20}', '{"n":300}']})
    assert journals_of(documents, keyColumn="n") == journals_by(b"-1", b"20", b"300")


def test_the_named_member_stays_in_the_message() -> None:
    schema = pa.table({"item": ["a"], "key": ["b"]}).schema
    assert classify_rows(schema).documents == ("item",)
    assert classify_rows(schema, "item").documents == ("item", "key")
    assert classify_rows(schema, "key").documents == ("item", "key")
    value = pa.table({"value": ["{}"], "by": ["a"]}).schema
    assert classify_rows(value, "by") == SinkColumns("value", (), ("by",), None, None)
    assert classify_rows(value.remove(1), "by").reads_keys


def test_rows_without_a_key_are_refused() -> None:
    nested = pa.table({"order": [{"item": "a"}, None, {"item": "b"}]})
    with pytest.raises(ValidationError, match=r"row 1, column 'order\.item': the value is null"):
        journals_of(nested, keyColumn="order.item")
    with pytest.raises(ValidationError, match="row 1, column 'item': the value is null"):
        journals_of(pa.table({"value": ['{"item":1}', "{}"]}), keyColumn="item")


@pytest.mark.parametrize(("columns", "member", "error"), [
    ({"item": ["a"]}, "name", "rows have no column 'name'"),
    ({"item": ["a"]}, "item.name", "rows have no column 'item.name'"),
    ({"item": [{"name": "a"}]}, "item.code", "rows have no column 'item.code'"),
    ({"item": [{"name": "a"}]}, "item", "column 'item' must be STRING"),
    ({"item": [1.5]}, "item", "column 'item' must be STRING"),
    ({"value": ["{}"], "item": ["a"]}, "name", "there is also column 'item'"),
])  # fmt: skip
def test_columns_that_cannot_be_keys_are_refused(columns: Any, member: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        classify_rows(pa.table(columns).schema, member)


def test_whole_messages_of_several_content_types_have_no_common_key() -> None:
    options = sink_options(keyColumn="item")
    columns = classify_rows(pa.table({"value": ["{}"]}).schema, "item")
    check_keys(options, columns, TARGETS)
    with pytest.raises(ConfigurationError, match="several content types"):
        check_keys(options, columns, [*TARGETS, ("topic/csv", CSV)])
    with pytest.raises(ConfigurationError, match="index of a column"):
        check_keys(options, columns, [("topic/csv", CSV)])


@pytest.mark.parametrize(("given", "error"), [
    ({"keyColumn": " "}, "expected the name of a member"),
    ({"keyColumn": "a..b"}, "expected the name of a member"),
    ({"keyColumn": "a", "mapping": "random"}, "has no effect with mapping=random"),
    ({"keyColumn": "a", "mapping": "partition"}, "has no effect with mapping=partition"),
])  # fmt: skip
def test_options_that_contradict_are_refused(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        sink_options(**given)


def test_keys_need_journals_to_choose_from() -> None:
    given = {"brokers": "http://a:1", "journal": "ab/cd", "keyColumn": "item"}
    with pytest.raises(ConfigurationError, match="'keyColumn' needs one of selector"):
        SinkOptions.parse(given, streaming=False)
    named = {"brokers": "http://a:1", "prefix": "a/", "keyColumn": "item"}
    assert SourceOptions.parse(named, streaming=True).key_column == "item"
    with pytest.raises(ConfigurationError, match="keyColumn=item contradicts column 'journal'"):
        journals_of(pa.table({"item": ["a"], "journal": ["a/b"]}), keyColumn="item")


# Partitions.


def test_a_partition_goes_to_one_journal() -> None:
    table = pa.table({"n": range(9), "key": ITEMS})
    for partition in range(7):
        expected = [TARGETS[partition % 3][0]] * 9
        assert journals_of(table, partition, mapping="partition") == expected
