"""The page of shards."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import gazette_aio.protocol as pb
import gazette_aio.protocol.consumer as pc
from gazette_aio.client import connect
from gazette_aio.console import Console
from gazette_aio.console.guards import HEADERS
from gazette_aio.console.shard_views import shard_lag, shard_page, shard_row
from gazette_aio.consumer.api import connect_shards
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests.cli.test_shards import Forgetful
from tests.console.browser import PROGRAM, opened
from tests.waiting import eventually

_KEYS = "c2VjcmV0"


def _listed(name: str, *codes: int, primary: int = 0) -> pc.ListResponse.Shard:
    shard = pc.ListResponse.Shard(spec=pc.ShardSpec(id=name))
    for number, code in enumerate(codes):
        shard.route.members.add(zone="here", suffix=f"member-{number}")
        shard.status.add(code=code)
    shard.route.primary = primary
    return shard


def each_step(steps: Any) -> Any:
    """Iterate the steps of some work, and then its result."""
    yield (yield from steps)


def test_the_primary_is_first_and_errors_are_shown():
    codes = pc.ReplicaStatus.Code
    shard = _listed("shard", codes.STANDBY, codes.FAILED, primary=1)
    shard.spec.sources.add(journal="a/journal")
    shard.status[1].errors.append("<b>broken</b>")
    row = shard_row(shard)
    assert row.members == ("here/member-1 FAILED", "here/member-0 STANDBY")
    assert (row.status, row.sources) == ("FAILED", ("a/journal",))
    assert row.problems == ("<b>broken</b>",)


def test_shards_without_members():
    row = shard_row(_listed("shard", primary=-1))
    assert (row.status, row.members, row.problems) == ("IDLE", (), ())


def test_pages_of_matching_shards():
    shards = [_listed(f"{kind}-{number:04}") for kind in ("a", "B") for number in range(5000)]
    steps = list(each_step(shard_page(shards, "b-", 4990, 100)))
    page = steps.pop()
    assert len(steps) > 100
    assert (page.total, page.matched, page.offset) == (10000, 5000, 4990)
    assert [row.id for row in page.rows] == [f"B-{number}" for number in range(4990, 5000)]


def test_lags_are_sums_if_all_are_known():
    lag = shard_lag("shard", {"a": 5, "b": 1 << 60})
    assert lag.bytes == str((1 << 60) + 5)
    assert [(source.journal, source.bytes) for source in lag.sources] == [
        ("a", "5"),
        ("b", str(1 << 60)),
    ]
    partly = shard_lag("shard", {"a": 5, "b": None})
    assert (partly.bytes, partly.sources[1].bytes) == ("", "")
    unknown = shard_lag("shard", None)
    assert (unknown.bytes, unknown.sources) == ("", ())


@pytest.fixture
async def harness():
    async with consumer_harness(Forgetful()) as harness:
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(harness.client, journal_spec("words/in", labels=labels))
        member = await harness.start_member()
        source = pc.ShardSpec.Source(journal="words/in")
        await harness.create_shards(
            pc.ShardSpec(id="shard-one", sources=[source], max_txn_duration={"seconds": 1})
        )
        await harness.wait_for_primary("shard-one")
        yield harness, member.endpoint


async def test_shards(harness: Any, tmp_path: Path, pictures: Path) -> None:
    running, endpoint = harness
    console = Console(
        lambda auth: connect(running.client.endpoint, auth=auth),
        open_shards=lambda auth: connect_shards(endpoint, auth=auth),
    )
    claims = pb.Claims(capability=pb.Capability.LIST | pb.Capability.READ)
    metadata = await pb.KeyedAuth(_KEYS).authorize(claims, timedelta(minutes=1))
    token = dict(metadata)["authorization"]
    await console.start()
    try:
        async with aiohttp.ClientSession(console.url) as page:
            async with page.get("/api/shards") as response:
                assert response.status == 401
            async with page.get("/api/shards", headers={"Host": "evil.example"}) as response:
                assert response.status == 403
            async with page.get("/api/shards", headers={"Authorization": token}) as response:
                assert response.status == 200
                assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
                listed = await response.json()
        assert (listed["total"], listed["matched"]) == (1, 1)
        [row] = listed["rows"]
        assert (row["id"], row["status"]) == ("shard-one", "PRIMARY")
        assert row["sources"] == ["words/in"]
        if PROGRAM is None:
            return
        async with opened(f"{console.url}shards.html", tmp_path / "profile") as tab:
            await tab.until("document.getElementById('problem')?.textContent.includes('token')")
            tab.complaints.clear()  # The refusal without a token.
            await tab.run(f"document.getElementById('token').value = '{token.split()[1]}'")
            await tab.run("document.getElementById('access').requestSubmit()")
            await tab.until("document.getElementById('status').textContent === '1 of 1 shards'")
            await tab.until("document.getElementById('rows').textContent.includes('0 B')")
            shown = await tab.run("document.getElementById('rows').textContent")
            assert "shard-one" in shown
            assert "words/in" in shown
            assert "● primary" in shown
            for theme in ("light", "dark"):
                await tab.theme(theme)
                (pictures / f"shards-{theme}.png").write_bytes(await tab.picture())
            assert tab.complaints == []
    finally:
        await console.stop(1.0)


async def test_lags(harness: Any) -> None:
    running, endpoint = harness
    console = Console(
        lambda auth: connect(running.client.endpoint, auth=auth),
        open_shards=lambda auth: connect_shards(endpoint, auth=auth),
    )
    await console.start()
    try:
        async with aiohttp.ClientSession(console.url) as page:
            lags = {"json": {"ids": ["shard-one", "shard-missing"]}}
            async with page.post("/api/lags", **lags) as response:
                assert [lag["bytes"] for lag in await response.json()] == ["", ""]
            reads = pb.Claims(capability=pb.Capability.LIST | pb.Capability.READ)
            metadata = await pb.KeyedAuth(_KEYS).authorize(reads, timedelta(minutes=1))
            headers = {"Authorization": dict(metadata)["authorization"]}

            async def caught_up() -> bool:
                async with page.post("/api/lags", headers=headers, **lags) as response:
                    one, missing = await response.json()
                assert missing == {"id": "shard-missing", "bytes": "", "sources": []}
                [source] = one["sources"]
                assert source["journal"] == "words/in"
                return bool(one["bytes"] == source["bytes"] == "0")

            await eventually(caught_up)
            body = {"ids": ["shard"] * 201}
            async with page.post("/api/lags", json=body, headers=headers) as response:
                assert response.status == 400
    finally:
        await console.stop(1.0)


async def test_a_console_without_a_consumer(gazette_broker: Any) -> None:
    console = Console(lambda auth: connect(gazette_broker.endpoint, auth=auth))
    await console.start()
    try:
        async with aiohttp.ClientSession(console.url) as page:
            async with page.get("/api/shards") as response:
                assert response.status == 404
                assert "--consumer.address" in (await response.json())["problem"]
            async with page.post("/api/lags", json={"ids": []}) as response:
                assert response.status == 404
    finally:
        await console.stop(1.0)
