"""Selectors of prefixes, with brokers which know them and brokers which don't."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient, connect, iter_journals
from gazette_aio.protocol.journal_spec import label_set_ext
from gazette_aio.protocol.selector import selector_matches
from gazette_aio.testing.stub_broker import Age, StubBroker
from tests.client.support import header, listing

NAMES = ("a/one", "a/two", "b", "b/one", "b/two", "c/one")


class Listed:
    """A key space of some journals, which a stub broker lists as its release would."""

    def __init__(self, broker: StubBroker, *names: str) -> None:
        self.requests: list[pb.ListRequest] = []
        self.listing = listing(*names, revision=10)
        for number, journal in enumerate(self.listing.journals):
            pb.set_value(journal.spec.labels, "region", ("eu-1", "eu-2", "us-1")[number % 3])
        broker.list_handler = self.answer

    def answer(self, request: pb.ListRequest) -> pb.ListResponse:
        self.requests.append(request)
        return pb.ListResponse(
            header=self.listing.header,
            journals=[
                journal
                for journal in self.listing.journals
                if selector_matches(request.selector, label_set_ext(journal.spec))
            ],
        )


@contextlib.asynccontextmanager
async def listed(age: Age) -> AsyncGenerator[tuple[JournalClient, Listed]]:
    async with StubBroker(age=age) as broker, connect(broker.endpoint) as client:
        yield client, Listed(broker, *NAMES)


SELECTORS: list[tuple[str, list[str]]] = [
    ("name:prefix=b/", ["b/one", "b/two"]),
    ("name:prefix=nothing/", []),
    ("name in (c/one), region", ["c/one"]),
    ("region:prefix=eu", ["a/one", "a/two", "b/one", "b/two"]),
    ("region:prefix=eu, name:prefix=b", ["b/one", "b/two"]),
    ("region:prefix!=eu", ["b", "c/one"]),
    ("name:prefix=b, name=c/one", ["b", "b/one", "b/two", "c/one"]),
    ("name:prefix=b, name!=b/one", ["b", "b/two"]),
    ("name:prefix=", list(NAMES)),
]


@pytest.mark.parametrize("age", ["newest", "v0.100", "v0.89"])
@pytest.mark.parametrize(("selector", "expected"), SELECTORS)
async def test_any_broker_lists_by_prefix(age: Age, selector: str, expected: list[str]) -> None:
    async with listed(age) as (client, _):
        assert [j.spec.name for j in (await client.list(selector)).journals] == expected
        async with contextlib.aclosing(iter_journals(client, selector)) as journals:
            assert [journal.spec.name async for journal in journals] == expected
    async with (
        listed(age) as (client, _),
        contextlib.aclosing(iter_journals(client, selector)) as journals,
    ):
        assert [journal.spec.name async for journal in journals] == expected


@pytest.mark.parametrize(("selector", "expected"), SELECTORS)
async def test_a_polled_broker_lists_by_prefix(selector: str, expected: list[str]) -> None:
    async with listed("v0.89") as (client, _), client.watch(selector) as watched:
        assert [journal.spec.name for journal in (await watched.ready()).journals] == expected


async def test_a_broker_that_knows_prefixes_is_asked_once() -> None:
    async with listed("newest") as (client, space):
        await client.list("name:prefix=nothing/")
        assert [request.watch for request in space.requests] == [False, True]
        await client.list("name:prefix=nothing/")
        assert len(space.requests) == 3
    async with listed("newest") as (client, space):
        await client.list("name:prefix=b/")  # What it lists answers the question.
        await client.list("name:prefix=nothing/")
        assert len(space.requests) == 2
    async with listed("v0.89") as (client, space):
        await client.list("name=b")
        assert len(space.requests) == 1


async def test_a_refusal_is_raised_without_a_watch_that_looks_for_prefixes(
    client: JournalClient, broker: StubBroker
) -> None:
    requests: list[pb.ListRequest] = []

    def refuse(request: pb.ListRequest) -> pb.ListResponse:
        requests.append(request)
        return pb.ListResponse(status=pb.Status.NOT_ALLOWED, header=header())

    broker.list_handler = refuse
    with pytest.raises(pb.NotAllowedError):
        async for _ in iter_journals(client, "name:prefix=a/"):
            pass
    assert len(requests) == 1
