"""Clients that append in the background: an AppendService, and what wraps one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio import IntentLog, Publisher, ReadCommittedIter, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import (
    AppendService,
    AsyncAppend,
    AsyncJournalClient,
    ClearedError,
    JournalClient,
    OpFuture,
    RetryReader,
    connect,
)
from gazette_aio.testing import journal_spec

JOURNAL = "a/journal"
NDJSON = "application/x-ndjson"


class Counting:
    """A wrapper of a service that counts appends, and starts each of them slowly."""

    def __init__(self, service: AppendService) -> None:
        self._service = service
        self.started = 0

    @property
    def cutoff_bytes(self) -> int:
        return self._service.cutoff_bytes

    async def start_append(
        self, request: pb.AppendRequest | str, dependencies: Iterable[asyncio.Future[Any]] = ()
    ) -> AsyncAppend:
        self.started += 1
        return await self._service.start_append(request, dependencies)

    def try_append(self, journal: str, data: bytes) -> AsyncAppend | None:
        return None

    def pending_except(self, journal: str) -> set[OpFuture[Any]]:
        return self._service.pending_except(journal)

    def cleared_error(self, journal: str) -> ClearedError | None:
        return self._service.cleared_error(journal)

    def clear_error(self, journal: str) -> BaseException | None:
        return self._service.clear_error(journal)

    async def list(self, selector: str | pb.LabelSelector | pb.ListRequest = "") -> pb.ListResponse:
        return await self._service.list(selector)

    async def apply(
        self, request: pb.ApplyRequest | Iterable[pb.ApplyRequest.Change]
    ) -> pb.ApplyResponse:
        return await self._service.apply(request)

    def read(self, request: pb.ReadRequest | str) -> RetryReader:
        return self._service.read(request)

    async def list_fragments(self, request: pb.FragmentsRequest | str) -> pb.FragmentsResponse:
        return await self._service.list_fragments(request)

    async def fragment_store_health(self, store: str) -> pb.FragmentStoreHealthResponse:
        return await self._service.fragment_store_health(store)


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[JournalClient]:
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            yield client


async def test_a_service_has_the_rpcs_of_its_client(embedded: JournalClient) -> None:
    appends: AsyncJournalClient = embedded.appends
    spec = journal_spec(JOURNAL, labels={"content-type": NDJSON})
    await appends.apply([pb.ApplyRequest.Change(upsert=spec)])

    async with embedded.appends.append(JOURNAL) as pending:
        pending.write(b"content")
    await pending

    listing = await appends.list("name=a/journal")
    assert [journal.spec.name for journal in listing.journals] == [JOURNAL]
    async with appends.read(JOURNAL) as reader:
        assert await anext(reader) == b"content"
    fragments = await appends.list_fragments(JOURNAL)
    assert [each.spec.end for each in fragments.fragments] == [7]
    health = await appends.fragment_store_health("file:///")
    assert health.status == pb.Status.OK
    assert embedded.appends.client is embedded


async def test_a_publisher_takes_any_such_client(embedded: JournalClient, tmp_path: Path) -> None:
    spec = journal_spec(JOURNAL, labels={"content-type": NDJSON})
    counting = Counting(embedded.appends)
    await counting.apply([pb.ApplyRequest.Change(upsert=spec)])
    publisher = Publisher(counting, json_adapter())

    async with publisher.transaction(intents=IntentLog(tmp_path / "intents")):
        await publisher.publish_uncommitted(lambda _: (JOURNAL, NDJSON), {"v": 1})
        batch = [{"v": 2}, {"v": 3}]
        view = publisher.view(json_adapter())
        await view.publish_uncommitted_batch((JOURNAL, NDJSON), batch)

    reader = counting.read(JOURNAL)
    async with ReadCommittedIter(reader, json_adapter(), skip_acks=True) as messages:
        values = [envelope.message["v"] for envelope in await messages.next_batch()]
    assert values == [1, 2, 3]
    assert counting.started == 3  # With the acknowledgement.
