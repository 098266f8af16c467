"""Arguments of wrong types, which are refused before anything is published."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from gazette_aio.message import (
    Adapter,
    Publisher,
    ReadCommittedIter,
    csv_adapter,
    json_adapter,
    protobuf_adapter,
    raw_adapter,
)
from gazette_aio.message.adapters.base import SplitMessages
from gazette_aio.message.uuid import ZERO_UUID
from gazette_aio.protocol.errors import ValidationError
from tests.message.fakes import FakeAppends
from tests.message.publishing.batch_fakes import BatchAppends

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

NDJSON = "application/x-ndjson"
LINES = "text/csv"
TARGET = ("a/journal", NDJSON)


class Order(msgspec.Struct):
    number: int


class Express(Order):
    pass


@dataclasses.dataclass
class Parcel:
    number: int


class Customer(pydantic.BaseModel):
    number: int


CASES: list[tuple[Adapter[Any], Any, str]] = [
    (json_adapter(Order), {"number": 1}, "expected Order, not dict"),
    (json_adapter(Order), Parcel(1), "expected Order, not Parcel"),
    (json_adapter(Order), None, "expected Order, not NoneType"),
    (json_adapter(Parcel), Order(1), "expected Parcel, not .*Order"),
    (json_adapter(Customer), {"number": 1}, "expected Customer, not dict"),
    (json_adapter(), Order(1), "expected dict, not Order"),
    (json_adapter(bytes), "{}", "expected bytes or bytearray, not str"),
    (raw_adapter(), "text", "expected bytes or bytearray, not str"),
    (csv_adapter(columns=3), "a,b,c", "expected list or tuple, not str"),
    (protobuf_adapter(BytesValue, "value"), b"bytes", "expected BytesValue, not bytes"),
]


@pytest.mark.parametrize(("adapter", "message", "text"), CASES)
async def test_a_message_of_another_type(adapter: Adapter[Any], message: Any, text: str) -> None:
    appends: Any = FakeAppends()
    publisher = Publisher(appends, adapter)
    for publish in (publisher.publish_committed, publisher.publish_uncommitted):
        for _ in range(2):
            with pytest.raises(TypeError, match=f"message: {text}"):
                await publish(lambda _: TARGET, message)
    for publish_batch in (publisher.publish_committed_batch, publisher.publish_uncommitted_batch):
        with pytest.raises(TypeError, match=f"message: {text}") as raised:
            await publish_batch(TARGET, [message])
        assert raised.value.__notes__ == ["It is message 0 of the batch, counted from zero."]
    assert not appends.journals


async def test_messages_of_a_subclass_or_of_an_unknown_class() -> None:
    appends: Any = FakeAppends()
    publisher: Publisher[Any] = Publisher(appends, json_adapter(Order))
    await publisher.publish_committed(lambda _: TARGET, Express(2))
    anything: Publisher[Any] = Publisher(appends, json_adapter(dict[str, int]))
    await anything.publish_committed(lambda _: TARGET, {"number": 1})


@pytest.mark.parametrize("mapped", ["a/journal", None, [*TARGET]])
async def test_a_mapping_that_returns_no_pair(mapped: Any) -> None:
    async def later(_: object) -> Any:
        return mapped

    appends: Any = FakeAppends()
    publisher: Publisher[Any] = Publisher(appends, json_adapter())

    def at_once(_: object) -> Any:
        return mapped

    mappings: list[Any] = [at_once, later]
    for mapping in mappings:
        for publish in (publisher.publish_committed, publisher.publish_uncommitted):
            with pytest.raises(TypeError, match="mapping: expected a pair of journal and content"):
                await publish(mapping, {})
        with pytest.raises(TypeError, match="mapping: expected a pair of journal and content"):
            await publisher.publish_uncommitted_batch(mapping, [{}])
    assert not appends.journals


class Splitting:
    """Adapter whose `split()` returns what it's given."""

    uuid_is_text = True

    def __init__(self, heads: bytes | list[bytes], rests: list[bytes]) -> None:
        self.parts = SplitMessages(heads, b'"}', rests)

    def decode(self, frame: bytes) -> bytes:
        return frame

    def encode(self, message: bytes, uuid: UUID) -> bytes:
        return message

    def uuid(self, message: bytes) -> UUID:
        return ZERO_UUID

    def acknowledgement(self, uuid: UUID) -> bytes:
        return b"{}"

    def split(self, messages: Sequence[bytes]) -> SplitMessages:
        return self.parts


@pytest.mark.parametrize(
    ("heads", "rests"),
    [(b"{", [b""]), (b"{", [b""] * 3), ([b"{"], [b""] * 2), ([b"{"] * 3, [b""] * 2)],
)
async def test_an_adapter_that_splits_to_another_number(
    heads: bytes | list[bytes], rests: list[bytes]
) -> None:
    appends: Any = FakeAppends()
    publisher = Publisher(appends, Splitting(heads, rests))
    for publish in (publisher.publish_committed_batch, publisher.publish_uncommitted_batch):
        with pytest.raises(
            ValidationError, match=r"Splitting.split\(\) returned parts of .* messages, given [12]"
        ):
            await publish(TARGET, [b"1", b"2"])
    assert not appends.journals


async def test_memory_of_messages_that_split_at_heads_of_their_own() -> None:
    appends: Any = BatchAppends()
    adapter = Splitting(b"", [b""])
    publisher = Publisher(appends, adapter)
    await publisher.publish_uncommitted_batch(TARGET, [b""])
    tracemalloc.start()
    try:
        for number in range(200):
            adapter.parts = SplitMessages(b"%01000d" % number, b"", [b""])
            await publisher.publish_uncommitted_batch(TARGET, [b""])
            appends.journals.clear()
        appends.released.clear()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


async def test_a_mapping_that_is_no_function() -> None:
    appends: Any = FakeAppends()
    publisher: Publisher[Any] = Publisher(appends, json_adapter())
    name: Any = "a/journal"
    await publisher.publish_uncommitted(lambda _: TARGET, {})
    for publish in (publisher.publish_committed, publisher.publish_uncommitted):
        with pytest.raises(TypeError, match=r"mapping: expected a function .*, not 'a/journal'"):
            await publish(name, {})
    with pytest.raises(TypeError, match=r"mapping: expected a function .*, not 'a/journal'"):
        await publisher.publish_uncommitted_batch(name, [{}])


async def test_a_type_is_no_adapter() -> None:
    appends: Any = FakeAppends()
    kind: Any = Order
    with pytest.raises(TypeError, match=r"adapter: expected an Adapter.* not .*Order"):
        Publisher(appends, kind)
    with pytest.raises(TypeError, match=r"adapter: expected an Adapter.* not .*Order"):
        ReadCommittedIter("a/journal", kind, client=appends)
    other: Any = "json"
    with pytest.raises(TypeError, match=r"adapter: expected an Adapter.* not 'json'"):
        Publisher(appends, other)
