"""Streaming queries whose journals come and go, or lose content, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gazette_aio.protocol.errors import DataLossError
from gazette_aio.spark.streaming import listing as stream_listing
from gazette_aio.spark.streaming import planner as stream_planner
from gazette_aio.spark.streaming.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.streaming.planner import StreamPlanner


async def test_new_journals_are_read_from_their_first_byte(world):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query()
    await query.trigger()
    await world.create("b")
    await world.publish("b", [1])
    await world.persist("b")
    await world.publish("b", [2])
    await world.publish("b", [3])
    await world.lose_fragments("b", 1)
    await query.drain()
    assert query.ids == [2, 3], "its first fragment isn't there any more"


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_an_old_reader_keeps_places_in_journals_which_are_gone(world, isolation):
    await world.create("a", "b")
    await world.publish("a", [0])
    await world.publish("b", [1])
    query = world.query(
        planner=LegacyStreamPlanner, startingOffsets="earliest", isolation=isolation
    )
    await query.drain()
    place = query.end["j"]["test/b"]
    await world.delete("b")
    query.restart()
    for number in range(2, 4):
        await world.publish("a", [number])
        assert await query.trigger()
        # The first batch of a run is planned without a begin.
        assert query.end["j"].get("test/b") == (None if number == 2 else place)
    query.restart()
    await query.drain()
    assert query.ids == list(range(4))


@pytest.mark.parametrize("fails", [True, False])
async def test_journals_which_are_gone(world, fails, caplog):
    await world.create("a", "b")
    await world.publish("a", [0])
    await world.publish("b", [1, 2, 3])
    query = world.query(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    await query.trigger(max_bytes=1)
    await world.delete("b")
    await world.publish("a", [4])
    if fails:
        with pytest.raises(DataLossError, match="DATA_LOSS: journal test/b is gone: "):
            await query.trigger()
        return
    await query.drain()
    assert [r["id"] for r in query.rows if r["_journal"] == "test/a"] == [0, 4]
    said = [r for r in caplog.records if r.name == "gazette_aio.spark.streaming.planner"]
    assert [r.journal for r in said] == ["test/b"], "it's told of once"
    # What was read of it isn't lost.
    await world.delete("a")
    assert not await query.trigger()


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_a_query_started_again_knows_what_it_has_not_read_of_a_journal_which_is_gone(
    world, isolation, caplog
):
    await world.create("a", "b")
    await world.publish("a", [0])
    await world.publish("b", [1, 2, 3])
    options = {"startingOffsets": "earliest", "isolation": isolation}
    query = world.query(**options)
    await query.trigger(max_bytes=1)
    unread = [query.end["j"]["test/b"], await world.head("b")]
    await world.delete("b")
    for _ in range(2):
        query.restart()
        with pytest.raises(DataLossError) as raised:
            await query.trigger()
        assert [*raised.value.missing[0]] == unread
    changed = {"brokers": world.broker.endpoint, "prefix": "test/", "failOnDataLoss": "false"}
    query.restart(**changed, **options)
    await query.drain()
    await query.trigger()
    assert caplog.text.count("test/b is gone") == 1
    await world.publish("a", [4])
    assert await query.trigger()
    assert "h" not in query.end
    query.restart()
    await query.drain()
    assert [r["id"] for r in query.rows if r["_journal"] == "test/a"] == [0, 4]


async def test_a_planned_batch_of_a_journal_which_is_gone(world):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    planned = await query.plan()
    await world.delete("a")
    query.restart()
    with pytest.raises(DataLossError, match=r"test/a is gone: \[0, \d+\) can't be read"):
        await query.run(*planned)
    query.restart(brokers=world.broker.endpoint, prefix="test/", failOnDataLoss="false")
    await query.run(*planned)
    assert query.rows == []


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_journals_created_anew(world, fails, isolation, planner):
    await world.create("a")
    await world.publish("a", range(5))
    query = world.query(
        startingOffsets="earliest",
        isolation=isolation,
        failOnDataLoss=str(fails).lower(),
        planner=planner,
    )
    await query.drain()
    query.restart()
    await world.delete("a")
    for file in (world.root / "test").rglob("*-*-*"):
        file.unlink()
    await world.create("a")
    await world.publish("a", range(10, 20))
    if fails:
        with pytest.raises(DataLossError, match="test/a was created anew"):
            await query.trigger()
        return
    await query.drain()
    assert query.ids == [*range(5), *range(10, 20)]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_content_which_expired(world, fails, old, isolation, monkeypatch):
    if old:
        monkeypatch.setattr(stream_planner, "is_old", lambda fragment: fragment.mod_time > 0)
    await world.create("a")
    query = world.query(
        startingOffsets="earliest",
        isolation=isolation,
        failOnDataLoss=str(fails).lower(),
        fetchTimeout="0.2s",
    )
    await query.trigger()
    for number in range(3):
        await world.publish("a", [number])
        await world.persist("a")
    await world.lose_fragments("a", 1)
    if fails:
        # Content which isn't old is waited for, by who reads it.
        match = "test/a has lost its oldest fragments" if old else r"lost \[0, \d+\) of journal"
        with pytest.raises(DataLossError, match=match):
            await query.trigger()
        return
    await query.drain()
    assert query.ids == [1, 2]


async def test_an_idle_query_whose_last_content_expired(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    await query.drain()
    await world.persist("a")
    await world.lose_fragments("a", 1)
    await world.publish("a", [1])
    monkeypatch.setattr(stream_listing, "FRESH_SECONDS", -1.0)  # It was long ago.
    await query.drain()
    assert query.ids == [0, 1]


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_an_idle_query_all_of_whose_content_expired(world, fails, caplog):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(
        startingOffsets="earliest", isolation="read-uncommitted", failOnDataLoss=fails
    )
    await query.drain()
    await world.persist("a")
    await world.lose_fragments("a", 1)
    for _ in range(2):
        assert not await query.trigger()
        query.restart()
    assert caplog.text == ""
    await world.publish("a", [1])
    await query.drain()
    assert query.ids == [0, 1]


async def test_write_heads_which_are_behind_for_a_moment(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    await query.drain()
    real = stream_listing.list_journals

    async def list_journals(*args, **kwargs):
        found = await real(*args, **kwargs)
        return [
            replace(one, head=one.head - 3) if not kwargs["fragments"] else one for one in found
        ]

    monkeypatch.setattr(stream_listing, "list_journals", list_journals)
    assert not await query.trigger()
    await world.publish("a", [1])
    monkeypatch.setattr(stream_listing, "list_journals", real)
    await query.drain()
    assert query.ids == [0, 1]


async def test_fragments_of_a_replica_which_is_behind(world, monkeypatch):
    await world.create("a")
    await world.publish("a", range(3))
    query = world.query(startingOffsets="earliest")
    await query.drain()
    real = stream_listing.list_journals

    async def list_journals(*args, **kwargs):
        found = await real(*args, **kwargs)
        behind = query.end["j"]["test/a"] - 1
        return [replace(one, head=behind) if kwargs["fragments"] else one for one in found]

    monkeypatch.setattr(stream_listing, "list_journals", list_journals)
    monkeypatch.setattr(stream_listing, "FRESH_SECONDS", -1.0)
    await world.publish("a", [3])
    await query.drain()
    assert query.ids == list(range(4))


@pytest.mark.parametrize("fails", [True, False])
async def test_write_heads_which_stay_behind(world, monkeypatch, fails):
    monkeypatch.setattr(stream_listing, "PROBE_SECONDS", 0.05)
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    await query.drain()
    end = query.end
    end["j"]["test/a"] += 50
    query.log.append(json.dumps(end))
    if fails:
        with pytest.raises(DataLossError, match="test/a fell behind"):
            await query.trigger()
        return
    await query.trigger()
    await world.publish("a", [1])
    await query.drain()
    assert query.ids == [0, 1]
