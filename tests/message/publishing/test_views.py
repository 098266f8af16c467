"""Views of a Publisher, which publish messages of several types by one producer."""

# pyright: basic, reportArgumentType=false

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gazette_aio.message import (
    ACK_TXN,
    Clock,
    IntentLog,
    Publisher,
    ReadCommittedIter,
    csv_adapter,
    json_adapter,
)
from gazette_aio.protocol.errors import MixedTransactionError, ValidationError
from tests.message.fakes import FakeAppends, FakeClient

NDJSON, CSV = "application/x-ndjson", "text/csv"


class Order(msgspec.Struct):
    v: int


class Payment(msgspec.Struct):
    cents: int


def to_a(_message: Any) -> tuple[str, str]:
    return "j/a1", NDJSON


def to_b(_message: Any) -> tuple[str, str]:
    return "j/b1", NDJSON


@pytest.fixture
def client() -> Any:
    return FakeClient({"j/a1": NDJSON, "j/b1": NDJSON, "j/c1": CSV})


async def committed(client: Any, *journals: str) -> list[tuple[str, Any, int]]:
    iterator = ReadCommittedIter([*journals], json_adapter(), client=client)
    async with iterator:
        return [
            (each.journal, each.message.get("v", each.message.get("cents")), each.flags)
            async for each in iterator
        ]


@pytest.mark.parametrize("fast", [True, False])
async def test_a_transaction_commits_messages_of_all_views(client, tmp_path, fast) -> None:
    orders = Publisher(FakeAppends(client, fast=fast), json_adapter(Order))
    payments = orders.view(json_adapter(Payment))
    assert payments.producer_id == orders.producer_id
    assert payments.clock is orders.clock

    async with orders.transaction(intents=IntentLog(tmp_path / "intents")):
        for number in range(3):
            await orders.publish_uncommitted(to_a, Order(number))
            await payments.publish_uncommitted(to_a, Payment(100 + number))
        for number in (7, 8, 9):
            await payments.publish_uncommitted(to_b, Payment(number))

    values = [0, 100, 1, 101, 2, 102, None]
    got = await committed(client, "j/a1", "j/b1")
    assert [value for journal, value, _ in got if journal == "j/a1"] == values
    assert [value for journal, value, _ in got if journal == "j/b1"] == [7, 8, 9, None]
    # A journal has one acknowledgement.
    assert [flags for *_, flags in got].count(ACK_TXN) == 2


async def test_acknowledgements_of_each_kind_of_view(client) -> None:
    publisher = Publisher(FakeAppends(client), json_adapter(Order))
    rows = publisher.view(csv_adapter(Payment))
    await rows.publish_uncommitted(lambda _: ("j/c1", CSV), Payment(1))
    await publisher.publish_uncommitted(to_a, Order(1))

    intents = rows.build_ack_intents()

    assert [intent.journal for intent in intents] == ["j/c1", "j/a1"]
    assert intents[0].intent.endswith(b",\n")
    assert intents[1].intent.startswith(b'{"_meta"')
    assert publisher.build_ack_intents() == []


async def test_views_do_not_mix_committed_messages_into_transactions(client) -> None:
    publisher = Publisher(FakeAppends(client), json_adapter(Order))
    view = publisher.view(json_adapter(Payment))
    await publisher.publish_uncommitted(to_a, Order(1))

    with pytest.raises(MixedTransactionError):
        await view.publish_committed(to_a, Payment(2))
    publisher.build_ack_intents()
    await view.publish_committed(to_a, Payment(2))


async def test_views_of_another_framing(client) -> None:
    publisher = Publisher(FakeAppends(client), json_adapter(Order))
    view = publisher.view(csv_adapter(Payment))
    await publisher.publish_committed(to_a, Order(1))
    await view.publish_committed(lambda _: ("j/a1", CSV), Payment(2))
    await publisher.publish_uncommitted(to_a, Order(3))

    with pytest.raises(ValidationError, match="uncommitted messages of content type"):
        await view.publish_uncommitted(lambda _: ("j/a1", CSV), Payment(2))


async def test_abandoning_a_transaction_abandons_it_for_all_views(client) -> None:
    publisher = Publisher(FakeAppends(client), json_adapter(Order))
    view = publisher.view(json_adapter(Payment))
    before = publisher.producer_id

    async def fail() -> None:
        async with view.transaction(exclusive=True):
            await publisher.publish_uncommitted(to_a, Order(1))
            await view.publish_uncommitted(to_a, Payment(2))
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert before != publisher.producer_id == view.producer_id
    async with publisher.transaction():
        await view.publish_uncommitted(to_a, Payment(3))
        await publisher.publish_uncommitted(to_a, Order(4))

    assert [value for _, value, _ in await committed(client, "j/a1")] == [3, 4, None]


async def test_clocks_rise_whoever_publishes(client) -> None:
    clock = Clock(1 << 60)
    publisher = Publisher(FakeAppends(client), json_adapter(Order), clock=clock)
    view = publisher.view(json_adapter(Payment))
    for number in range(10):
        await (publisher if number % 3 else view).publish_uncommitted(
            to_a, Order(number) if number % 3 else Payment(number)
        )
    content = bytes(client.journals["j/a1"]).splitlines()
    uuids = [json_adapter().frame_uuid(line) for line in content]
    clocks = [uuid.time << 4 | uuid.clock_seq >> 10 & 0xF for uuid in uuids]
    assert clocks == sorted(set(clocks))


def test_a_view_takes_an_adapter(client) -> None:
    publisher = Publisher(FakeAppends(client), json_adapter(Order))
    with pytest.raises(TypeError):
        publisher.view(Payment)
