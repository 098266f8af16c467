"""Formats of messages."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.framing import CSVFraming, FixedFraming, NDJSONFraming
from gazette_aio.message.uuid import ZERO_UUID
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.spark.rows.formats import format_of, isolation_of, uuid_field
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

UUID_1 = message_uuid(1)


@pytest.mark.parametrize(
    ("options", "content_type", "kind", "framing", "has_uuids"),
    [
        ({}, NDJSON, "ndjson", NDJSONFraming, True),
        ({}, CSV, "csv", CSVFraming, True),
        ({}, FIXED, "protobuf-fixed", FixedFraming, True),
        ({}, "", "raw", None, False),
        ({}, "application/x-gazette-recoverylog", "raw", None, False),
        ({"format": "ndjson"}, "", "ndjson", NDJSONFraming, True),
        ({"format": "csv"}, NDJSON, "csv", CSVFraming, True),
        ({"format": "protobuf-fixed"}, CSV, "protobuf-fixed", FixedFraming, True),
        ({"format": "raw"}, NDJSON, "raw", NDJSONFraming, False),
        ({"format": "raw"}, CSV, "raw", CSVFraming, False),
        ({"format": "raw"}, FIXED, "raw", FixedFraming, False),
        ({"format": "raw"}, "image/png", "raw", None, False),
    ],
)
def test_the_format_is_of_the_option_or_the_content_type(
    options: dict[str, str], content_type: str, kind: str, framing: type | None, has_uuids: bool
) -> None:
    found = format_of(source_options(**options), content_type)
    assert found.kind == kind
    assert type(found.framing) is (framing or type(None))
    expected = "read-committed" if has_uuids else "read-uncommitted"
    assert isolation_of(source_options(**options), content_type) == expected
    asked = source_options(isolation="read-uncommitted", **options)
    assert isolation_of(asked, content_type) == "read-uncommitted"
    asked = source_options(isolation="read-committed", **options)
    if framing is None:
        with pytest.raises(
            ConfigurationError, match=re.escape(f"framing for content type {content_type!r}")
        ):
            isolation_of(asked, content_type)
    else:
        assert isolation_of(asked, content_type) == "read-committed"


def test_chunks_have_no_uuid() -> None:
    adapter = format_of(source_options(), "").adapter
    assert adapter.uuid(adapter.decode(line(1)[:-1])) == ZERO_UUID


def uuids(content_type: str, content: bytes, **options: str) -> tuple[list[UUID], int]:
    """Return the UUIDs of messages, and how many others are bad."""
    schema = spark_schema(("_value", "binary"), ("_uuid", "string"), ("_corrupt_record", "string"))
    journal = Journal(
        schema, content_type, isolation="read-uncommitted", includeAcks="true", **options
    )
    rows = journal.read(content)
    good = [row for row in rows if row["_corrupt_record"] is None]
    found = format_of(source_options(**options), content_type)

    def uuid_of(message: bytes) -> UUID:
        try:
            return found.adapter.uuid(found.adapter.decode(message))
        except Exception:  # noqa: BLE001 - each adapter has classes of its own.
            assert found.is_lenient
            return ZERO_UUID

    singly = [uuid_of(row["_value"]) for row in good]
    texts = [None if uuid == ZERO_UUID else str(uuid) for uuid in singly]
    assert texts == [row["_uuid"] for row in good]
    return singly, len(rows) - len(good)


def test_uuids_of_json_documents() -> None:
    content = line(1, '"a":1') + b'{"a":1}\n' + b'{"_meta":{"uuid":1}}\n'
    assert uuids(NDJSON, content) == ([UUID_1, ZERO_UUID], 1)
    content = f'{{"a":{{"id":"{UUID_1}"}}}}\n{{"a":null}}\n'.encode()
    assert uuids(NDJSON, content, uuid="/a/id") == ([UUID_1, ZERO_UUID], 0)
    assert uuids(NDJSON, content, uuid="a.id") == ([UUID_1, ZERO_UUID], 0)
    assert uuids(NDJSON, f'{{"id":"{UUID_1}"}}\n'.encode(), uuid="id") == ([UUID_1], 0)


@pytest.mark.parametrize("rows", [1, 100])
def test_uuids_of_csv_records(rows: int) -> None:
    records = [f"{message_uuid(n)},{n}" for n in range(rows)]
    records[-1] = f'"{message_uuid(rows - 1)}",{rows}'
    content = "".join(f"{record}\n" for record in records).encode()
    assert uuids(CSV, content) == ([message_uuid(n) for n in range(rows)], 0)
    assert uuids(CSV, content + b"uuid,n\n")[1] == 1
    content = f"{message_uuid(2)},{UUID_1},\n".encode() * rows
    assert uuids(CSV, content, uuid="1") == ([UUID_1] * rows, 0)


FIELDS = {
    "another field first": b"\x12\x02ab" + b"\x0a\x10" + UUID_1.bytes,
    "groups": b"\x1b\x0a\x10" + bytes(16) + b"\x23\x24\x1c\x0a\x10" + UUID_1.bytes,
    "all wire types": b"\x18\x96\x01\x25abcd\x29abcdefgh\x0a\x10" + UUID_1.bytes + b"\x12\x00",
    "the last one counts": b"\x12\x00\x0a\x10" + bytes(range(16)) + b"\x0a\x10" + UUID_1.bytes,
}


@pytest.mark.parametrize("message", FIELDS.values(), ids=FIELDS)
def test_uuids_of_protobuf_messages_of_unknown_type(message: bytes) -> None:
    encode = FixedFraming().encode
    content = b"".join(
        [encode(b"\x0a\x10" + message_uuid(n).bytes + b"\x12\x01a") for n in range(20)]
        + [encode(message), encode(b""), encode(b"\x12\x01a"), encode(b"\x0a\x00")]
    )
    expected = [*(message_uuid(n) for n in range(20)), UUID_1, *[ZERO_UUID] * 3]
    assert uuids(FIXED, content) == (expected, 0)
    assert uuids(FIXED, content, format="raw") == (expected, 0)


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x05abcde",
        b"\x12\x05abc",
        b"\x0b",
        b"\x24",
        b"\x80",
        b"\xff" * 20,
        b"\x29abc",
        b"\x88" + b"\x80" * 10 + b"\0\0",
    ],
)
def test_what_is_no_protobuf_message_has_no_valid_uuid(message: bytes) -> None:
    content = FixedFraming().encode(message)
    assert uuids(FIXED, content) == ([], 1)
    assert uuids(FIXED, content, format="raw") == ([ZERO_UUID], 0)
    with pytest.raises(ValidationError):
        format_of(source_options(), FIXED).adapter.uuid(message)


@given(st.binary(max_size=60).filter(lambda message: b"\n" not in message))
def test_any_bytes_have_a_uuid_or_none(message: bytes) -> None:
    for content_type, content in (
        (FIXED, FixedFraming().encode(message)),
        (NDJSON, message + b"\n"),
    ):
        found, bad = uuids(content_type, content, format="raw")
        assert (len(found), bad) == (1, 0)


@given(st.binary(max_size=8), st.integers(0, 2**31 - 1))
def test_unknown_messages_have_the_uuids_of_known_ones(other: bytes, number: int) -> None:
    message = FLIGHT(stamp=UUID_1.bytes, other=other, number=number).SerializeToString()
    unknown = format_of(source_options(), FIXED).adapter
    known = format_of(source_options(messageType=FLIGHT_TYPE), FIXED).adapter
    assert unknown.uuid(message) == known.uuid(known.decode(message)) == UUID_1


def test_the_field_of_uuids_may_be_named() -> None:
    named = source_options(messageType=FLIGHT_TYPE, uuid="other")
    message = FLIGHT(other=UUID_1.bytes).SerializeToString()
    assert uuids(FIXED, FixedFraming().encode(message), messageType=FLIGHT_TYPE, uuid="other") == ([UUID_1], 0)  # fmt: skip
    assert format_of(named, NDJSON).kind == "ndjson"


def test_a_field_by_the_name_uuid_precedes_the_first_one() -> None:
    proto = descriptor_pb2.FileDescriptorProto(name="spark_formats.proto", syntax="proto3")
    message = proto.message_type.add(name="Named")
    for name, number in (("key", 1), ("uuid", 5)):
        message.field.add(name=name, number=number, type="TYPE_BYTES")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    named = message_factory.GetMessageClass(pool.FindMessageTypeByName("Named"))
    assert uuid_field(named, "named") == "uuid"
    assert uuid_field(FLIGHT, "flight") == "stamp"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"messageType": "no.such.module:Flight"},
            "'messageType': can't import 'no.such.module:Flight'",
        ),
        ({"messageType": "json:Flight"}, "'messageType': can't import 'json:Flight'"),
        ({"messageType": "json:loads"}, "'json:loads' isn't a class of protobuf messages"),
        ({"messageType": "json:JSONDecoder"}, "'json:JSONDecoder' isn't a class of protobuf"),
        (
            {"messageType": "google.protobuf.timestamp_pb2:Timestamp"},
            "has neither a bytes field 'uuid' nor a bytes field of number 1",
        ),
        ({"messageType": FLIGHT_TYPE, "uuid": "number"}, "has no bytes field number"),
        ({"uuid": "stamp"}, "'uuid' names a field of protobuf messages, which needs 'messageType'"),
    ],
)
def test_messages_which_cannot_be_read(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        format_of(source_options(**options), FIXED)


def test_a_column_of_uuids_is_an_index() -> None:
    with pytest.raises(ConfigurationError, match="'uuid' must be the index of a column"):
        format_of(source_options(uuid="/a/b"), CSV)
