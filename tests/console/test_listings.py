"""Listings of many journals, which are kept for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.console.listings import ListingLimits, Listings
from gazette_aio.testing import create_journals, journal_spec
from tests.console.serving import KEYS, asked, bearer, serving
from tests.loop_steps import SLICE_CALLS, longest_step
from tests.waiting import eventually

_AUTH = pb.NoopAuth()


class Opened:
    """Opens clients, and counts them."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.count = 0

    @asynccontextmanager
    async def __call__(self, auth: pb.Authorizer) -> AsyncIterator[Any]:
        self.count += 1
        async with connect(self._endpoint, auth=auth) as client:
            yield client


@pytest.fixture
async def opened(gazette_broker, gazette_client):
    await create_journals(gazette_client, *map(journal_spec, ("a/one", "b/two")))
    return Opened(gazette_broker.endpoint)


@asynccontextmanager
async def cached(opened: Any, **limits: Any) -> AsyncIterator[Any]:
    """Cache listings of one journal or more. Yields a function that lists."""
    limits = {"journals": 1, "seconds": 3600.0} | limits
    listings = Listings(opened, ListingLimits(**limits))

    async def get(selector: str = "", token: str | None = None) -> Any:
        return await listings.get(_AUTH, token, selector)

    try:
        yield get
    finally:
        await listings.aclose()


async def test_requests_share_a_listing(opened):
    async with cached(opened) as get:
        first, second = await asyncio.gather(get(), get())
        assert [journal.spec.name for journal in first] == ["a/one", "b/two"]
        assert await get() is first is second
        assert opened.count == 1
        # Other tokens and selectors have listings of their own.
        assert await get(token="token") is not first
        assert len(await get("name=a/one")) == 1
        assert opened.count == 3


async def test_listings_are_kept_for_a_moment(opened):
    async with cached(opened, seconds=0.0) as get:
        first = await get()

        async def listed_anew() -> bool:
            return await get() is not first

        await eventually(listed_anew)


async def test_small_listings_are_not_kept(opened):
    async with cached(opened, journals=3) as get:
        assert await get() is not await get()


async def test_few_listings_are_kept(opened):
    async with cached(opened, count=2) as get:
        first = await get(token="one")
        for token in ("two", "three"):
            await get(token=token)
        assert await get(token="one") is not first


async def test_failures_are_not_kept(opened):
    async with cached(opened) as get:
        for _ in range(2):
            with pytest.raises(pb.ValidationError):
                await get("==")
    assert opened.count == 2


async def test_a_browser_that_goes_ends_no_listing_of_others(opened):
    async with cached(opened) as get:
        leaving, staying = asyncio.ensure_future(get()), asyncio.ensure_future(get())
        await asyncio.sleep(0)
        leaving.cancel()
        assert len(await staying) == 2
        assert opened.count == 1


async def test_an_edit_ends_what_is_kept(gazette_broker, gazette_client):
    await create_journals(gazette_client, journal_spec("a/one"))
    limits = ListingLimits(journals=1, seconds=3600.0)
    async with serving(gazette_broker, listing_limits=limits) as page:
        assert (await asked(page, "/api/journals"))["total"] == 1
        shown = await asked(page, "/api/spec?name=a/one")
        new = {**shown, "revision": "0", "name": "a/two"}
        new["text"] = shown["text"].replace("a/one", "a/two")
        await asked(page, "/api/apply", body=new)
        assert (await asked(page, "/api/journals"))["total"] == 2


async def test_the_end_of_listings():
    waits = asyncio.Event()

    @asynccontextmanager
    async def open_client(_: pb.Authorizer) -> AsyncIterator[Any]:
        waits.set()
        await asyncio.Event().wait()
        yield

    listings = Listings(cast("Any", open_client), ListingLimits())
    waiting = asyncio.ensure_future(listings.get(_AUTH, None, ""))
    await waits.wait()
    await listings.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.gazette_broker(auth_keys=KEYS)
async def test_a_listing_is_kept_for_its_token(gazette_broker, gazette_client):
    await create_journals(gazette_client, *map(journal_spec, ("a/one", "b/two")))
    limits = ListingLimits(journals=1, seconds=3600.0)
    all_of_them = await bearer(pb.Capability.LIST)
    one_of_them = await bearer(pb.Capability.LIST, "name:prefix=a/")
    async with serving(gazette_broker, listing_limits=limits) as page:
        assert (await asked(page, "/api/journals", Authorization=all_of_them))["total"] == 2
        assert (await asked(page, "/api/journals", Authorization=one_of_them))["total"] == 1
        await asked(page, "/api/journals", 401)
        await asked(page, "/api/journals", 401, Authorization=f"{one_of_them}x")


async def test_thousands_of_journals_keep_the_event_loop_from_nobody(
    gazette_broker, gazette_client
):
    names = [f"tenants/{number // 100:03}/part-{number % 100:02}" for number in range(10_000)]
    for begin in range(0, len(names), 100):
        await create_journals(gazette_client, *map(journal_spec, names[begin : begin + 100]))
    async with serving(gazette_broker) as page:
        with longest_step() as longest:
            top = await asked(page, "/api/journals?folder=")
            inner = await asked(page, "/api/journals?folder=tenants/&offset=90")
            found = await asked(page, "/api/journals?text=part-07&limit=10")
        assert (top["total"], top["entries"]) == (10_000, 1)
        assert [row["journals"] for row in inner["rows"]] == [100] * 10
        assert (found["matched"], len(found["rows"])) == (100, 10)
        await asked(page, "/api/journals?folder=tenants", 400)
    assert longest.calls < 2 * SLICE_CALLS, longest.step
