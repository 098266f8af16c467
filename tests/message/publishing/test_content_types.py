"""A mapping that gives a journal another content type than the journal's spoils nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio import (
    BearerAuth,
    EmbeddedBroker,
    JournalClient,
    KeyedAuth,
    Publisher,
    ReadCommittedIter,
    connect,
    json_adapter,
)
from gazette_aio.testing import create_journals, journal_spec

NDJSON, FIXED = "application/x-ndjson", "application/x-protobuf-fixed"


def mapped(message: dict[str, Any]) -> tuple[str, str]:
    return "shop/orders", message.get("type", NDJSON)


WRONG = {"id": 2, "type": FIXED}


async def ids(client: JournalClient) -> list[int]:
    async with ReadCommittedIter("shop/orders", json_adapter(), client=client) as iterator:
        return [each.message["id"] async for each in iterator if "id" in each.message]


@pytest.fixture
async def client(gazette_client: JournalClient) -> JournalClient:
    labels = {"content-type": NDJSON}
    await create_journals(gazette_client, journal_spec("shop/orders", labels=labels))
    return gazette_client


async def committed(publisher: Publisher[Any]) -> None:
    await publisher.publish_committed(mapped, WRONG)


async def batch(publisher: Publisher[Any]) -> None:
    await publisher.publish_committed_batch(mapped, [WRONG])


async def in_transaction(publisher: Publisher[Any]) -> None:
    async with publisher.transaction():
        await publisher.publish_uncommitted(mapped, WRONG)


async def nowait_in_transaction(publisher: Publisher[Any]) -> None:
    async with publisher.transaction():
        publisher.publish_uncommitted_nowait(mapped, WRONG)


async def by_hand(publisher: Publisher[Any]) -> None:
    await publisher.publish_uncommitted(mapped, WRONG)


async def nowait_by_hand(publisher: Publisher[Any]) -> None:
    publisher.publish_uncommitted_nowait(mapped, WRONG)
    await publisher.drain()


@pytest.mark.parametrize(
    "publish",
    [committed, batch, in_transaction, nowait_in_transaction, by_hand, nowait_by_hand],
)
async def test_another_content_type_is_refused(client: JournalClient, publish: Any) -> None:
    publisher = Publisher(client.appends, json_adapter())
    await publisher.publish_committed(mapped, {"id": 1})

    with pytest.raises(pb.GazetteError) as raised:
        await publish(Publisher(client.appends, json_adapter()))

    assert (
        "the mapping gives shop/orders the content type 'application/x-protobuf-fixed', and the "
        "journal has 'application/x-ndjson'"
    ) in str(raised.value)
    await publisher.publish_committed(mapped, {"id": 3})
    assert await ids(client) == [1, 3]


@pytest.mark.parametrize(
    "failure",
    [TimeoutError(), pb.TransportError("UNAVAILABLE", "broker is down", retryable=True)],
)
async def test_it_is_refused_after_an_outage(
    client: JournalClient, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: Any) -> Any:
        raise failure

    publisher = Publisher(client.appends, json_adapter())
    with monkeypatch.context() as patched:
        patched.setattr(type(client.appends), "list", fail)
        await publisher.publish_committed(mapped, {"id": 1})
    await publisher.publish_committed(mapped, {"id": 2})
    wrong = Publisher(client.appends, json_adapter())
    with monkeypatch.context() as patched:
        patched.setattr(type(client.appends), "list", fail)
        with pytest.raises(pb.ValidationError):
            await wrong.publish_committed(mapped, WRONG | {"id": object()})
    with pytest.raises(pb.MappingError, match="has 'application/x-ndjson'"):
        await wrong.publish_committed(mapped, WRONG)
    assert await ids(client) == [1, 2]


async def test_it_is_refused_once_the_journal_was_created(gazette_client: JournalClient) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    with pytest.raises(pb.JournalNotFoundError):
        await publisher.publish_committed(mapped, WRONG)
    labels = {"content-type": NDJSON}
    await create_journals(gazette_client, journal_spec("shop/orders", labels=labels))
    with pytest.raises(pb.MappingError, match="has 'application/x-ndjson'"):
        await publisher.publish_committed(mapped, WRONG)
    assert await ids(gazette_client) == []


async def test_a_token_for_appends_only_publishes() -> None:
    keys = "c2VjcmV0LXNlY3JldA=="
    async with EmbeddedBroker(auth_keys=keys, fsync="off") as broker:
        async with connect(broker.endpoint, auth=KeyedAuth(keys)) as client:
            labels = {"content-type": NDJSON}
            await create_journals(client, journal_spec("shop/orders", labels=labels))
            claims = pb.Claims(capability=pb.Capability.APPEND)
            token = KeyedAuth(keys).sign(claims, timedelta(hours=1), time.time())
            async with connect(broker.endpoint, auth=BearerAuth(token)) as confined:
                publisher = Publisher(confined.appends, json_adapter())
                await publisher.publish_committed(mapped, {"id": 1})
            assert await ids(client) == [1]
