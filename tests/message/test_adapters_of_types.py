"""JSON adapters with hooks, and CSV adapters of types."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from gazette_aio.message import ZERO_UUID, build_uuid, csv_adapter, json_adapter
from gazette_aio.message.framing import CSVFraming
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

ID = build_uuid(b"\x01abcde", 160, 0)


class Degrees:
    """A type that msgspec doesn't know."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Degrees) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)


class Reading(msgspec.Struct):
    at: int
    air: Degrees


def encode_hook(value: Any) -> Any:
    if isinstance(value, Degrees):
        return value.value
    raise NotImplementedError


def decode_hook(kind: type, value: Any) -> Any:
    return kind(value)


def test_hooks_of_members() -> None:
    adapter = json_adapter(Reading, enc_hook=encode_hook, dec_hook=decode_hook)
    message = Reading(7, Degrees(21.5))

    frame = adapter.encode(message, ID)

    assert frame == b'{"_meta":{"uuid":"%s"},"at":7,"air":21.5}' % str(ID).encode()
    assert adapter.decode(frame) == message
    assert adapter.frame_uuid(frame) == ID
    assert adapter.lines([message, Reading(8, Degrees(1))]) == (
        b'{"_meta":{"uuid":"',
        b'"},',
        b'{"at":7,"air":21.5}\n{"at":8,"air":1}\n',
        2,
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_floats_of_hooks_are_checked(value: float) -> None:
    adapter = json_adapter(Reading, enc_hook=encode_hook, dec_hook=decode_hook)
    stamped = adapter.encoder(b"\x01abcde", 0)

    with pytest.raises(ValidationError, match="has no JSON encoding"):
        adapter.encode(Reading(7, Degrees(value)), ID)
    with pytest.raises(ValidationError, match="has no JSON encoding"):
        stamped(Reading(7, Degrees(value)), 160)


def test_hooks_of_dicts() -> None:
    adapter = json_adapter(enc_hook=encode_hook)

    frame = adapter.encode({"air": Degrees(3)}, ID)

    assert adapter.decode(frame) == {"_meta": {"uuid": str(ID)}, "air": 3}
    with pytest.raises(ValidationError, match=r"^\$\.air: .*Degrees is unsupported"):
        json_adapter().encode({"air": Degrees(3)}, ID)


@pytest.mark.parametrize("members", [{"v": 1}, {"v": 1, "_meta": {"uuid": str(ID), "k": 2}}, {}])
def test_hooks_of_whole_messages(members: dict[str, Any]) -> None:
    adapter = json_adapter(Degrees, enc_hook=encode_hook, dec_hook=decode_hook)
    message = Degrees(members)

    frame = adapter.encode(message, ID)
    split = adapter.split([message])
    head = split.heads if isinstance(split.heads, bytes) else split.heads[0]
    whole = head + str(ID).encode() + split.between + split.rests[0]

    decoded = adapter.decode(frame).value
    meta = {**members.get("_meta", {}), "uuid": str(ID)}
    assert decoded == {**members, "_meta": meta}
    assert msgspec.json.decode(whole) == decoded
    assert frame.count(b"_meta") == 1
    assert adapter.uuid(message) == (ID if "_meta" in members else ZERO_UUID)


def test_hooks_are_refused_where_they_would_not_be_called() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        v: int

    for kind in (bytes, Model):
        with pytest.raises(ConfigurationError, match="neither enc_hook nor dec_hook"):
            json_adapter(kind, enc_hook=encode_hook)


class Colour(enum.Enum):
    RED = "red"


class Row(msgspec.Struct):
    name: str
    count: int
    share: float = 0.0
    is_open: bool = False
    colour: Colour | None = None
    at: dt.datetime | None = None
    amount: Decimal = Decimal(0)
    note: str | None = "a note"
    id: UUID = ZERO_UUID


ROW = Row(
    'a "name", quoted',
    -3,
    0.1,
    True,
    Colour.RED,
    dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC),
    Decimal("1.50"),
    "",
    ID,
)


@dataclasses.dataclass
class Pair:
    left: int
    right: str


class NamedPair(NamedTuple):
    left: int
    right: str


class ArrayPair(msgspec.Struct, array_like=True):
    left: int
    right: str


class RenamedPair(msgspec.Struct, rename="camel"):
    left_side: int
    right_side: str


LoosePair: Any = collections.namedtuple("LoosePair", "left right")  # noqa: PYI024 # pyright: ignore[reportUntypedNamedTuple]

MESSAGES: list[object] = [
    ROW,
    Row("", 1),
    Pair(1, "b"),
    NamedPair(1, "b"),
    ArrayPair(1, "b"),
    RenamedPair(1, "b"),
    LoosePair("1", "b"),
]


@pytest.mark.parametrize("uuid_column", [0, 1, 2])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_records_of_types(message: object, uuid_column: int) -> None:
    adapter = csv_adapter(type(message), uuid_column=uuid_column)

    frame = adapter.encode(message, ID)

    assert adapter.decode(frame) == message
    assert adapter.frame_uuid(frame) == ID
    assert adapter.uuid(message) == ZERO_UUID
    fields = csv_adapter().decode(frame)
    assert fields[uuid_column] == str(ID)
    split = adapter.split([message])
    assert split.heads[0] + str(ID).encode() + split.between + split.rests[0] == frame  # type: ignore[operator]


def test_text_of_fields() -> None:
    fields = csv_adapter().decode(csv_adapter(Row).encode(ROW, ID))

    assert fields[1:] == [
        'a "name", quoted',
        "-3",
        "0.1",
        "true",
        "red",
        "2024-02-29T12:00:00Z",
        "1.50",
        "",
        str(ID),
    ]


def test_empty_fields_are_none_unless_they_may_be_text() -> None:
    adapter = csv_adapter(Row)
    nothing = Row("", 1, note=None)

    decoded = adapter.decode(adapter.encode(nothing, ID))

    assert (decoded.colour, decoded.at, decoded.note, decoded.name) == (None, None, "", "")


def test_acknowledgements_have_the_columns_of_the_type() -> None:
    acknowledgement = csv_adapter(Pair).acknowledgement(ID)

    assert CSVFraming().encode(acknowledgement) == b"%s,,\n" % str(ID).encode()


def test_records_which_do_not_fit() -> None:
    adapter = csv_adapter(Pair)

    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        adapter.decode(csv_adapter().encode(["", "one", "b"], ID))
    with pytest.raises(ValidationError, match=r"record has 4 fields \(expected 3\)"):
        adapter.decode(csv_adapter().encode(["", "1", "b", "c"], ID))
    nested: Any = Pair(1, [2])  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="a field can't hold"):
        adapter.encode(nested, ID)


@pytest.mark.parametrize("kind", [int, dict, dict[str, int], Degrees])
def test_unsupported_types_of_records(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="are not supported"):
        csv_adapter(kind)


def test_the_type_has_the_number_of_columns() -> None:
    untyped: Any = csv_adapter
    with pytest.raises(ConfigurationError, match="columns"):
        untyped(Pair, columns=3)
    with pytest.raises(ConfigurationError, match="invalid UUID column"):
        csv_adapter(Pair, uuid_column=3)
    assert csv_adapter(list[str], columns=3).decode(b"a,b,c") == ["a", "b", "c"]


def test_tables_of_typed_records() -> None:
    pa = pytest.importorskip("pyarrow")
    from gazette_aio.message.publishing.table_rows import TableRows

    table = pa.table({"left": [1, 2], "right": ["b", "c"]})

    of_type, of_lists = (
        TableRows(table, csv_adapter(Pair)),
        TableRows(table, csv_adapter(columns=3)),
    )
    assert of_type.encode(range(2)) == of_lists.encode(range(2))


class Opened(msgspec.Struct, tag="opened"):
    account: int


class Moved(msgspec.Struct, tag="moved"):
    amount: float


def test_a_union_of_tagged_structs() -> None:
    adapter = json_adapter(Opened | Moved)
    messages = [Opened(7), Moved(1.5)]

    frames = [adapter.encode(message, ID) for message in messages]

    assert frames[1] == b'{"_meta":{"uuid":"%s"},"type":"moved","amount":1.5}' % str(ID).encode()
    assert [adapter.decode(frame) for frame in frames] == messages
    assert [adapter.frame_uuid(frame) for frame in frames] == [ID, ID]
    assert adapter.message_types == (Opened, Moved)
    assert json_adapter(Moved | Opened | Moved).message_types == (Moved, Opened)
    with pytest.raises(ValidationError, match="nan"):
        adapter.encode(Moved(float("nan")), ID)


def test_unions_of_other_types_are_refused() -> None:
    for kind, text in (
        (
            Opened | None,
            "members of a union must be tagged msgspec Structs, not <class 'NoneType'>",
        ),
        (Opened | dict[str, int], "must be tagged msgspec Structs"),
        (Opened | Reading, "must be tagged"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            json_adapter(kind)
