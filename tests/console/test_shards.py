"""The page of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
import gazette_aio.protocol.consumer as pc
from gazette_aio.console.shard_views import shard_lag, shard_page, shard_row
from gazette_aio.consumer.api import connect_shards
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from tests.cli.test_shards import Forgetful
from tests.console.browser import PROGRAM, opened
from tests.console.serving import asked, bearer, serving
from tests.console.test_views import each_step
from tests.consumer.api.members import StubMember
from tests.waiting import eventually


def _listed(name: str, *codes: int, primary: int = 0) -> pc.ListResponse.Shard:
    shard = pc.ListResponse.Shard(spec=pc.ShardSpec(id=name))
    for number, code in enumerate(codes):
        shard.route.members.add(zone="here", suffix=f"member-{number}")
        shard.status.add(code=code)
    shard.route.primary = primary
    return shard


def test_the_primary_is_first_and_errors_are_shown():
    codes = pc.ReplicaStatus.Code
    shard = _listed("shard", codes.STANDBY, codes.FAILED, primary=1)
    shard.spec.sources.add(journal="a/journal")
    shard.status[1].errors.append("<b>broken</b>")
    assert shard_row(shard) == {
        "id": "shard",
        "status": "FAILED",
        "members": ["here/member-1 FAILED", "here/member-0 STANDBY"],
        "sources": ["a/journal"],
        "problems": ["<b>broken</b>"],
    }
    row = shard_row(_listed("shard", primary=-1))
    assert (row["status"], row["members"], row["problems"]) == ("IDLE", [], [])


def test_pages_of_matching_shards():
    shards = [_listed(f"{kind}-{number:04}") for kind in ("a", "B") for number in range(5000)]
    steps = list(each_step(shard_page(shards, "b-", 4990, 100)))
    page = steps.pop()
    assert len(steps) > 100
    assert (page["total"], page["matched"]) == (10000, 5000)
    assert page["statuses"] == {"IDLE": 5000}
    assert [row["id"] for row in page["rows"]] == [f"B-{number}" for number in range(4990, 5000)]


def test_lags_are_sums_if_all_are_known():
    lag = shard_lag("shard", {"a": 5, "b": 1 << 60})
    assert lag["bytes"] == str((1 << 60) + 5)
    assert lag["sources"] == [
        {"journal": "a", "bytes": "5"},
        {"journal": "b", "bytes": str(1 << 60)},
    ]
    partly = shard_lag("shard", {"a": 5, "b": None})
    assert (partly["bytes"], partly["sources"][1]["bytes"]) == ("", "")
    assert shard_lag("shard", None) == {"id": "shard", "bytes": "", "sources": []}


@pytest.fixture
async def harness():
    async with consumer_harness(Forgetful()) as harness:
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(harness.client, journal_spec("words/in", labels=labels))
        await harness.start_member()
        source = pc.ShardSpec.Source(journal="words/in")
        await harness.create_shards(
            pc.ShardSpec(id="shard-one", sources=[source], max_txn_duration={"seconds": 1})
        )
        await harness.wait_for_primary("shard-one")
        yield harness


def serving_shards(harness: Any, **options: Any) -> Any:
    def open_shards(auth: pb.Authorizer) -> Any:
        return connect_shards(harness.members[0].endpoint, auth=auth)

    return serving(harness.client, open_shards=open_shards, **options)


async def test_shards(harness: Any, tmp_path: Path) -> None:
    token = await bearer(pb.Capability.LIST | pb.Capability.READ)
    async with serving_shards(harness) as page:
        await asked(page, "/api/shards", 401)
        await asked(page, "/api/shards", 403, Host="evil.example")
        await asked(page, "/api/shards?selector=%3D%3D", 400, Authorization=token)
        listed = await asked(page, "/api/shards", Authorization=token)
        assert (listed["total"], listed["matched"]) == (1, 1)
        [row] = listed["rows"]
        assert (row["id"], row["status"]) == ("shard-one", "PRIMARY")
        assert row["sources"] == ["words/in"]
        if PROGRAM is None:
            return
        async with opened(f"{page._base_url}shards.html", tmp_path / "profile") as tab:
            await tab.until("document.getElementById('problem')?.textContent.includes('token')")
            await tab.run(f"document.getElementById('token').value = '{token.split()[1]}'")
            await tab.run("document.getElementById('access').requestSubmit()")
            await tab.until(
                "document.getElementById('status').textContent.startsWith('1 of 1 shards · 1 primary')"
            )
            await tab.until("document.getElementById('rows').textContent.includes('0 B')")
            shown = await tab.run("document.getElementById('rows').textContent")
            assert "shard-one" in shown
            assert "● primary" in shown
            source = await tab.run("document.querySelector('#rows .sources a').href")
            assert source == f"{page._base_url}#words/in"
            await tab.photograph("shards")
            # It asks before it does it.
            await tab.run("document.querySelector('#rows .commands button').click()")
            assert "shard-one" in await tab.run(
                "document.querySelector('dialog:modal').textContent"
            )
            await tab.run("document.getElementById('confirm-yes').click()")
            await tab.until("document.getElementById('problem').textContent.includes('APPLY')")
            await tab.asks_again("/api/shards")
            assert await tab.run("document.getElementById('problem').checkVisibility()")
            assert not await tab.run("document.getElementById('confirm').open")


async def test_shards_are_unassigned(harness: Any) -> None:
    reads = await bearer(pb.Capability.LIST | pb.Capability.READ)
    token = await bearer(pb.Capability.LIST | pb.Capability.APPLY)
    path, body = "/api/unassign", {"shard": "shard-one", "failed": True}
    async with serving_shards(harness) as page:
        await asked(page, path, 401, body=body, Authorization=reads)
        await asked(page, path, 403, body=body, Authorization=token, Origin="http://evil.example")
        for wrong in ({}, {**body, "shard": ""}, {**body, "force": True}):
            await asked(page, path, 400, body=wrong, Authorization=token)
        # It has no failed replica.
        kept = await asked(page, path, body=body, Authorization=token)
        assert kept == {"shards": []}
        body["failed"] = False
        done = await asked(page, path, body=body, Authorization=token)
        assert done == {"shards": ["shard-one"]}
    async with serving_shards(harness, read_only=True) as page:
        await asked(page, path, 403, body=body, Authorization=token)


async def test_refusals_of_members_are_no_fault_of_the_browser(gazette_broker: Any) -> None:
    body = {"shard": "shard-one", "failed": False}
    refusals = {
        409: pc.Status.ETCD_TRANSACTION_FAILED,
        502: pc.Status.NO_SHARD_PRIMARY,
    }
    async with StubMember() as member:

        def open_shards(auth: pb.Authorizer) -> Any:
            return connect_shards(member.endpoint, auth=auth)

        async with serving(gazette_broker, open_shards=open_shards) as page:
            for status, refusal in refusals.items():
                member.answer("Unassign", pc.UnassignResponse(status=refusal))
                await asked(page, "/api/unassign", status, body=body)


async def test_lags(harness: Any) -> None:
    token = await bearer(pb.Capability.LIST | pb.Capability.READ)
    body = {"names": ["shard-one", "shard-missing"]}
    async with serving_shards(harness) as page:
        lags = await asked(page, "/api/lags", body=body)
        assert [lag["bytes"] for lag in lags] == ["", ""]

        async def caught_up() -> bool:
            one, missing = await asked(page, "/api/lags", body=body, Authorization=token)
            assert missing == {"id": "shard-missing", "bytes": "", "sources": []}
            [source] = one["sources"]
            assert source["journal"] == "words/in"
            return bool(one["bytes"] == source["bytes"] == "0")

        await eventually(caught_up)
        for wrong in (["shard"] * 201, ["a b"], [""]):
            await asked(page, "/api/lags", 400, body={"names": wrong}, Authorization=token)


async def test_a_console_without_a_consumer(gazette_broker: Any) -> None:
    async with serving(gazette_broker) as page:
        refused = await asked(page, "/api/shards", 404)
        assert "--consumer.address" in refused["problem"]
        await asked(page, "/api/lags", 404, body={"names": []})
