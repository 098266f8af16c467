"""Arguments of wrong types, which are refused before anything is published."""

from __future__ import annotations

import dataclasses
from typing import Any

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
from tests.message.fakes import FakeAppends

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


@pytest.mark.parametrize("mapped", ["a/journal", None])
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
