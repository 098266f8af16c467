"""Adapters of the kinds of messages which users have."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import uuid as stdlib_uuid
from typing import Any

import msgspec
import pydantic
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import gazette_aio.protocol as pb
from gazette_aio.message import (
    ZERO_UUID,
    Adapter,
    Publisher,
    build_uuid,
    csv_adapter,
    json_adapter,
    parse_uuid,
    protobuf_adapter,
    raw_adapter,
)
from gazette_aio.protocol._generated.consumer_pb2 import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from tests.message.fakes import FakeAppends

UUID = build_uuid(b"\x01BBBBB", 2227086848019753072, 1)
TEXT = str(UUID)
Entry = Checkpoint.Source.ProducerEntry


class Struct(msgspec.Struct):
    v: int
    x: float | None = None


class Meta(msgspec.Struct):
    uuid: str | None = None
    other: int = 0


class Stamped(msgspec.Struct):
    v: int
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class Identified(msgspec.Struct):
    uuid: stdlib_uuid.UUID | None = None
    v: int = 0


@dataclasses.dataclass
class Data:
    v: int
    x: float | None = None


class Model(pydantic.BaseModel):
    v: int
    x: float | None = None


class Named(pydantic.BaseModel):
    names: list[str]


class ModelMeta(pydantic.BaseModel):
    uuid: str | None = None


class StampedModel(pydantic.BaseModel):
    v: int
    meta: ModelMeta | None = pydantic.Field(default=None, alias="_meta")


@pytest.mark.parametrize(
    "message", [{"v": 1}, Struct(1), Data(1), Model(v=1)], ids=lambda m: type(m).__name__
)
def test_messages_without_a_uuid_of_their_own(message):
    adapter = json_adapter(type(message))
    assert isinstance(adapter, Adapter)
    before = repr(message)
    encoded = adapter.encode(message, UUID)
    assert repr(message) == before
    assert encoded.startswith(b'{"_meta":{"uuid":"' + TEXT.encode() + b'"},"v":1')
    assert adapter.frame_uuid(encoded) == UUID
    decoded = adapter.decode(encoded)
    if isinstance(message, dict):
        assert decoded == {"_meta": {"uuid": TEXT}, "v": 1}
        assert adapter.uuid(decoded) == UUID
    else:
        assert decoded == message
        assert adapter.uuid(decoded) == ZERO_UUID
    assert adapter.acknowledgement(UUID) == f'{{"_meta":{{"uuid":"{TEXT}","ack":true}}}}'.encode()


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (Stamped(1), {"v": 1, "_meta": {"uuid": TEXT}}),
        (Stamped(1, Meta("x" * 36, 5)), {"v": 1, "_meta": {"uuid": TEXT, "other": 5}}),
        (StampedModel(v=1), {"v": 1, "_meta": {"uuid": TEXT}}),
        (StampedModel(v=1, _meta=ModelMeta(uuid="z")), {"v": 1, "_meta": {"uuid": TEXT}}),
        ({"v": 1, "_meta": {"other": 5}}, {"v": 1, "_meta": {"uuid": TEXT, "other": 5}}),
        (
            {"_meta": {"uuid": "", "other": 5}, "v": 1},
            {"_meta": {"uuid": TEXT, "other": 5}, "v": 1},
        ),
        ({"_meta": {"uuid": TEXT.upper()}, "v": 2**70}, {"_meta": {"uuid": TEXT}, "v": 2**70}),
        ({"_meta": None, "v": 1}, {"_meta": {"uuid": TEXT}, "v": 1}),
        ({}, {"_meta": {"uuid": TEXT}}),
    ],
)
def test_messages_with_a_uuid_are_stamped_in_place(message, want):
    adapter = json_adapter(type(message))
    before = repr(message)
    encoded = adapter.encode(message, UUID)
    assert repr(message) == before
    assert json.loads(encoded) == want
    assert list(json.loads(encoded)) == list(want)
    assert adapter.uuid(adapter.decode(encoded)) == UUID
    assert adapter.frame_uuid(encoded) == UUID


def test_top_level_uuids():
    adapter = json_adapter(Identified, "uuid")
    encoded = adapter.encode(Identified(v=3), UUID)
    assert json.loads(encoded) == {"uuid": TEXT, "v": 3}
    assert adapter.uuid(adapter.decode(encoded)) == UUID
    assert json.loads(adapter.encode(Identified(ZERO_UUID, 3), UUID)) == {"uuid": TEXT, "v": 3}
    assert adapter.acknowledgement(UUID) == f'{{"uuid":"{TEXT}"}}'.encode()
    deep = json_adapter(dict, "a.b.c")
    encoded = deep.encode({"v": 1}, UUID)
    assert json.loads(encoded) == {"a": {"b": {"c": TEXT}}, "v": 1}
    assert deep.frame_uuid(encoded) == deep.frame_uuid(deep.acknowledgement(UUID)) == UUID
    for bad in ("", "a..b"):
        with pytest.raises(ConfigurationError):
            json_adapter(dict, bad)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_which_json_cannot_hold(number):
    for message in (
        {"v": number},
        {"v": [1, {"w": (number,)}]},
        Struct(1, number),
        Data(1, number),
        Model(v=1, x=number),
    ):
        with pytest.raises(ValidationError, match="has no JSON encoding"):
            json_adapter(type(message)).encode(message, UUID)
    assert b"null" in json_adapter().encode({"v": None, "w": 1.5}, UUID)


CYCLE = {}
CYCLE["v"] = [CYCLE]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"a": [{"b c": "x\ud800"}]}, r"^\$\.a\[0\]\['b c'\]: .*surrogates not allowed"),
        ({"a": {"\ud800": 1}}, r"^\$\.a: .*surrogates not allowed"),
        ({"a": {None: 1}}, r"^\$\.a: Only dicts with str-like or number-like keys"),
        ({None: 1}, r"^\$: Only dicts with str-like or number-like keys"),
        ({"a": [1, {2}, object()]}, r"^\$\.a\[2\]: Encoding objects of type object is unsupp"),
        ({"a": 10**5000}, r"^\$\.a: .*integer"),
        (CYCLE, r"^\$\.v\[0\]\.v.*recursion"),
        (Struct("\ud800", 1.0), r"^\$\.v: .*surrogates not allowed"),
        (Data("\ud800", 1.0), r"^\$\.v: .*surrogates not allowed"),
        (Named(names=["", "\ud800"]), r"^\$\.names\[1\]: .*surrogates not allowed"),
        ({"a": ({"b": math.inf},)}, r"^\$\.a\[0\]\.b: inf has no JSON encoding"),
        (Struct(1, math.nan), r"^\$\.x: nan has no JSON encoding"),
    ],
)
async def test_what_json_cannot_hold(message, text):
    adapter, appends = json_adapter(type(message)), FakeAppends()
    publisher = Publisher(appends, adapter)
    to = "some/journal", "application/x-ndjson"
    for publish in (publisher.publish_committed, publisher.publish_uncommitted):
        with pytest.raises(ValidationError, match=text):
            await publish(lambda _: to, message)
    with pytest.raises(ValidationError, match=text):
        await publisher.publish_committed_batch(to, [message])
    assert not appends.journals


@pytest.mark.parametrize("field", ["\ud800", None, b"bytes", 1])
def test_what_a_field_of_csv_cannot_hold(field):
    with pytest.raises(ValidationError, match=r"^field 2, counted from zero, isn't text: "):
        csv_adapter().encode(["", "a", field], UUID)


def test_what_is_not_an_object():
    class Array(msgspec.Struct, array_like=True):
        v: int

    with pytest.raises(ValidationError, match="object"):
        json_adapter(Array).encode(Array(1), UUID)
    with pytest.raises(ValidationError, match="no JSON object for the member 'uuid'"):
        json_adapter().encode({"_meta": 1}, UUID)
    with pytest.raises(ValidationError, match="no JSON object for the member 'uuid'"):
        json_adapter(bytes).encode(b'{"_meta":[]}', UUID)
    adapter = json_adapter()
    assert adapter.frame_uuid(b"null") == adapter.uuid(adapter.decode(b"null")) == ZERO_UUID
    assert adapter.frame_uuid(b'{"_meta":null}') == adapter.frame_uuid(b'{"_meta":{}}') == ZERO_UUID
    assert adapter.frame_uuid(b' {"_meta" : {"uuid":"' + TEXT.encode() + b'"}} \r') == UUID
    for bad in (
        b"",
        b"  ",
        b"[]",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"\x1e{}",
        b"{",
        b"3",
        b'{"a":"\xff"',
    ):
        for call in (adapter.decode, adapter.frame_uuid):
            with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
                call(bad)
    for bad in (b'{"_meta":{"uuid":""}}', b'{"_meta":{"uuid":5}}', b'{"_meta":{"uuid":"zz"}}'):
        with pytest.raises(ValidationError):
            adapter.frame_uuid(bad)
        with pytest.raises(ValidationError):
            adapter.uuid(adapter.decode(bad))


def test_pydantic_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigurationError, match="pydantic"):
        json_adapter(Model)


def test_unsupported_types():
    class Plain:
        def __init__(self, v): ...

    with pytest.raises(ConfigurationError, match="not supported"):
        json_adapter(msgspec.Struct | Struct | Stamped)  # type: ignore[arg-type]


def test_types_which_could_not_be_read_back():
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        v: int

    class StrictModel(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        v: int

    class StrictStamped(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
        uuid: str | None = None
        v: int = 0

    for kind in (Strict, StrictModel):
        with pytest.raises(ConfigurationError, match="forbids other members"):
            json_adapter(kind)
    adapter = json_adapter(StrictStamped, "uuid")
    assert adapter.decode(adapter.encode(StrictStamped(), UUID)) == StrictStamped(uuid=TEXT)


def test_tagged_and_renamed_members():
    class Tagged(msgspec.Struct, tag="event", rename="camel", frozen=True):
        user_name: str
        message_id: str | None = None

    adapter = json_adapter(Tagged, "messageId")
    message = Tagged("a")
    decoded = adapter.decode(adapter.encode(message, UUID))
    assert decoded == Tagged("a", message_id=TEXT)
    assert adapter.uuid(decoded) == UUID


@pytest.mark.parametrize("stale", ["x" * 35 + '"' + "y", "é" * 18, '"' * 36, "\\" * 40])
@pytest.mark.parametrize("path", ["uuid", "_meta.uuid", "ключ.a b"])
def test_members_which_hold_something_else_are_replaced(stale, path):
    adapter = json_adapter(dict, path)
    names = path.split(".")
    message: Any = stale
    for name in reversed(names):
        message = {name: message}
    document: Any = json.loads(adapter.encode(message, UUID))
    for name in names:
        document = document[name]
    assert document == TEXT


def test_raw_documents():
    adapter = json_adapter(bytes)
    stamp = adapter.encoder(b"\x01BBBBB", 1, b"\n")
    for document in (b"{}", b"{ }", b'{ "v":1}', b'{"_m\\u0065ta":{"uuid":null,"v":1}}'):
        for stamped in (adapter.encode(document, UUID), stamp(document, 160)):
            pairs = json.loads(stamped, object_pairs_hook=list)
            assert [name for name, _ in pairs].count("_meta") == 1, stamped
            assert adapter.frame_uuid(stamped) == parse_uuid(json.loads(stamped)["_meta"]["uuid"])
    for bad in (b'{"a":\n1}', b'{"a":1}\n', b"[1]", b"{"):
        with pytest.raises((ValidationError, msgspec.DecodeError)):
            adapter.encode(bad, UUID)


def test_protobuf():
    adapter = protobuf_adapter(Entry, uuid_field="id")
    message = Entry()
    message.state.last_ack = 7
    encoded = adapter.encode(message, UUID)
    assert encoded.startswith(b"\x0a\x10" + UUID.bytes)
    assert message.id == b""
    stamped = Entry(id=b"0" * 16)
    assert adapter.decode(adapter.encode(stamped, UUID)).id == UUID.bytes
    assert stamped.id == b"0" * 16
    assert adapter.uuid(adapter.decode(encoded)) == adapter.frame_uuid(encoded) == UUID
    assert adapter.frame_uuid(message.SerializeToString()) == ZERO_UUID
    assert adapter.decode(adapter.acknowledgement(UUID)) == Entry(id=UUID.bytes)
    with pytest.raises(ValidationError):
        adapter.uuid(Entry(id=b"short"))
    for cls, field in ((Entry, "uuid"), (pb.Label, "name")):
        with pytest.raises(ConfigurationError, match="no bytes field"):
            protobuf_adapter(cls, field)


def test_csv():
    adapter = csv_adapter()
    with pytest.raises(ValidationError):
        adapter.acknowledgement(UUID)
    record = ["", "123", 'qu"ote']
    assert adapter.encode(record, UUID) == f'{TEXT},123,"qu""ote"'.encode()
    assert record[0] == ""
    assert (
        adapter.encode(["", "567,891", "\udcff"], UUID) == f'{TEXT},"567,891",'.encode() + b"\xff"
    )
    assert adapter.acknowledgement(UUID) == f"{TEXT},,".encode()
    assert adapter.uuid(adapter.decode(adapter.acknowledgement(UUID))) == UUID
    with pytest.raises(ValidationError, match="record has 1 fields"):
        adapter.encode([""], UUID)
    learning = csv_adapter(uuid_column=1)
    with pytest.raises(ValidationError, match="no field of the UUID"):
        learning.encode(["a"], UUID)
    assert learning.encode(["a", ""], UUID) == f"a,{TEXT}".encode()
    with pytest.raises(ValidationError, match="fields are empty"):
        adapter.uuid([])
    with pytest.raises(ValidationError, match="invalid UUID length: 10"):
        adapter.uuid(["not-a-uuid", " bar"])
    other = csv_adapter(columns=3, uuid_column=1)
    assert other.encode(["a", "", "b"], UUID) == f"a,{TEXT},b".encode()
    with pytest.raises(ConfigurationError):
        csv_adapter(columns=2, uuid_column=2)


def test_raw():
    adapter: Adapter[Any] = raw_adapter()
    assert adapter.encode(b"x", UUID) == adapter.decode(b"x") == b"x"
    assert adapter.uuid(b"x") == ZERO_UUID
    with pytest.raises(ValidationError):
        adapter.acknowledgement(UUID)
    adapter = raw_adapter(
        lambda frame: stdlib_uuid.UUID(bytes=frame[:16]),
        stamp=lambda frame, uuid: uuid.bytes + frame,
        acknowledgement=lambda uuid: uuid.bytes,
    )
    assert (
        adapter.uuid(adapter.encode(b"x", UUID))
        == adapter.uuid(adapter.acknowledgement(UUID))
        == UUID
    )
    documents = raw_adapter("_meta.uuid")
    for document in (
        b'{"v": 1.50}',
        b'{"a":"\\"_meta\\"", "v": 1.50}',
        b'{"v":1.50,"_meta":{"n":1}}',
    ):
        encoded = documents.encode(document, UUID)
        assert documents.uuid(encoded) == UUID
        assert b"1.50" in encoded
        assert json.loads(encoded)["v"] == 1.5


class Laid(msgspec.Struct):
    v: msgspec.Raw


class Inner(msgspec.Struct):
    b: float


class Nested(msgspec.Struct):
    a: float
    inner: Inner | None


class Deep(msgspec.Struct):
    inner: Inner
    total: float
    name: str | None = None


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (json_adapter(), {"v": msgspec.Raw(b"[1,\n2]")}),
        (json_adapter(), {"v": msgspec.Raw(b'1}\n{"v":2')}),
        (json_adapter(Laid), Laid(msgspec.Raw(b"[1,\n2]"))),
        (raw_adapter("_meta.uuid"), b'{"v":\n1}'),
    ],
)
def test_documents_are_one_line(adapter: Any, message: Any) -> None:
    with pytest.raises(ValidationError, match="one line"):
        adapter.encode(message, UUID)
    with pytest.raises(ValidationError, match="one line"):
        adapter.encoder(b"abcdef", 0, b"\n")(message, 160)
    with pytest.raises(ValidationError, match="one line"):
        adapter.split([message])


def test_nulls_beside_raw_members() -> None:
    adapter = json_adapter()
    message = {"a": None, "v": msgspec.Raw(b"1.50")}
    assert adapter.encode(message, UUID).endswith(b',"a":null,"v":1.50}')
    message["x"] = float("nan")
    with pytest.raises(ValidationError, match="nan"):
        adapter.encode(message, UUID)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_floats_of_members_of_members(bad: float) -> None:
    for adapter, message in (
        (json_adapter(Deep), Deep(Inner(bad), 1.0)),
        (json_adapter(Deep), Deep(Inner(-bad), bad)),
        (json_adapter(Nested), Nested(1.0, Inner(bad))),
    ):
        encoders: list[Any] = [lambda message: adapter.encode(message, UUID)]  # noqa: B023
        encoders.append(lambda message: adapter.encoder(b"abcdef", 0)(message, 160))  # noqa: B023
        encoders.append(lambda message: adapter.split([message] * 3))  # noqa: B023
        for encode in encoders:
            with pytest.raises(ValidationError, match="no JSON encoding"):
                encode(message)
    # What isn't of its type is encoded as it is.
    wrong: Any = None
    untyped = Deep(wrong, 1.0)
    assert json_adapter(Deep).encoder(b"abcdef", 0)(untyped, 160).endswith(b'"name":null}')
    assert len(json_adapter(Deep).split([untyped]).rests) == 1
    huge = Deep(Inner(1.7e308), 1.7e308)
    assert b"1.7e308" in json_adapter(Deep).encoder(b"abcdef", 0)(huge, 160)


def test_a_text_which_is_shorter_than_a_uuid_is_replaced_alone() -> None:
    adapter = raw_adapter("_meta.uuid")
    # A quote is where one would be behind a UUID.
    document = b'{"_meta":{"uuid":"abc","other":"1234567890123456789012"},"v":1}'
    encoded = json.loads(adapter.encode(document, UUID))
    assert encoded == {"_meta": {"uuid": TEXT, "other": "1234567890123456789012"}, "v": 1}


@pytest.mark.parametrize("path", ['"{', "a.\n", "a\\b", "\ud800", "a..b"])
def test_paths_which_lead_nowhere(path: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid UUID path"):
        json_adapter(uuid_path=path)
    with pytest.raises(ConfigurationError, match="invalid UUID path"):
        raw_adapter(path)


def test_a_uuid_field_which_is_there_but_empty() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="presence.proto", package="presence", syntax="proto2"
    )
    kind = file.message_type.add(name="Event")
    kind.field.add(name="uuid", number=1, type=12, label=1)
    kind.field.add(name="v", number=2, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    event: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("presence.Event"))
    adapter: Any = protobuf_adapter(event)
    message = event(uuid=b"", v=3)
    encoded = adapter.encode(message, UUID)
    assert event.FromString(encoded).uuid != b""
    assert event.FromString(encoded).v == 3
    assert adapter.split([message]).rests == [b"\x10\x03"]
    assert message.HasField("uuid")
