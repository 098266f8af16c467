"""Least sizes of batches: when a batch begins, and when it waits."""

from __future__ import annotations

import json
from functools import partial

import pytest

from gazette_aio.spark.planning.journal_ranges import FragmentInfo, JournalInfo
from gazette_aio.spark.streaming.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.streaming.minimum import unread
from gazette_aio.spark.streaming.offsets import Offsets
from gazette_aio.spark.streaming.planner import StreamPlanner
from tests.pyspark.journals import Producer


class Time:
    """A clock which a test sets, in seconds."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now


def test_expired_content_is_not_unread():
    journal = JournalInfo("a", 100, fragments=(FragmentInfo(60, 80), FragmentInfo(80, 100)))
    assert unread(Offsets({"a": 10}), journal) == (60, 100)
    assert unread(Offsets({"a": 70}), journal) == (70, 100)
    assert unread(Offsets({"a": 100}), journal) == (100, 100)
    assert unread(Offsets({"a": 101}), journal) == (60, 100), "it's another journal"
    expired = JournalInfo("a", 100, fragments=())
    assert unread(Offsets({"a": 10}), expired) == (100, 100)


def query_of(world, clock, planner=StreamPlanner, **options):
    options = {"startingOffsets": "earliest", **options}
    return world.query(planner=partial(planner, clock=clock), **options)


async def test_a_batch_waits_for_its_least_bytes(world):
    clock, producer = Time(), Producer()
    await world.create("a", "b")
    size = (await world.publish("a", [0], producer)).end
    query = query_of(world, clock, minBytesPerTrigger=str(3 * size), maxTriggerDelay="60s")
    assert await query.trigger(), "the begin of the query is kept at once"
    assert query.rows == []
    assert not await query.trigger()
    await world.publish("b", [1], producer)
    clock.now += 59
    assert not await query.trigger()
    assert (await query.planner.latest())["j"] == {"test/a": size, "test/b": size}, (
        "the lag is reported"
    )
    await world.publish("a", [2], producer)
    assert await query.trigger()
    assert query.ids == [0, 1, 2]
    assert not await query.trigger(), "nothing is left"
    await world.publish("a", [3], producer)
    assert not await query.trigger(), "what was read before doesn't count"
    clock.now += 60
    assert await query.trigger(), "the delay is over"
    await world.publish("a", [4], producer)
    clock.now -= 1
    assert await query.trigger(), "the clock was set back"
    assert query.ids == [0, 1, 2, 3, 4]


async def test_a_delay_outlives_the_process(world):
    clock = Time()
    await world.create("a")
    options = {"minRowsPerTrigger": "9", "maxTriggerDelay": "60s"}
    query = query_of(world, clock, **options)
    assert await query.trigger()
    await world.publish("a", [0, 1])
    clock.now += 40
    query.planner_type = partial(StreamPlanner, clock=clock)
    query.restart()
    assert not await query.trigger(), "a restart doesn't end the wait"
    clock.now += 20
    query.restart()
    assert await query.trigger(), "nor does it begin anew"
    assert query.ids == [0, 1]
    assert query.end["t"] == int(clock.now * 1000)


async def test_a_checkpoint_without_a_time_does_not_wait(world):
    clock = Time()
    await world.create("a")
    query = query_of(world, clock)
    await query.trigger()
    assert "t" not in query.end
    await world.publish("a", [0])
    given = {"brokers": world.broker.endpoint, "prefix": "test/"}
    query.restart(**given, minRowsPerTrigger="9")
    assert await query.trigger()
    await world.publish("a", [1])
    assert not await query.trigger()


@pytest.mark.parametrize("limit", [{}, {"max_rows": 4}, {"max_bytes": 1 << 20}])
async def test_a_batch_waits_for_its_least_rows(world, limit):
    clock, producer = Time(), Producer()
    await world.create("a", "b")
    query = query_of(world, clock, minRowsPerTrigger="4")
    await query.trigger(**limit)
    await world.publish("a", [0, 1], producer)
    assert not await query.trigger(**limit)
    await world.append("b", producer.pending({"id": 2}) + producer.ack())
    assert not await query.trigger(**limit), "acknowledgements aren't rows"
    await world.publish("a", [3], producer)
    while await query.trigger(**limit):
        clock.now += 900  # What a limit leaves may be too little again.
    assert query.ids == [0, 1, 2, 3]


async def test_what_was_counted_is_not_read_again(world, monkeypatch):
    clock, producer = Time(), Producer()
    await world.create("a")
    query = query_of(world, clock, minRowsPerTrigger="30")
    await query.trigger()
    reads = []
    scan = query.planner._scan

    def counted(journal, begin, end, *, is_aligned):
        reads.append((begin, end))
        return scan(journal, begin, end, is_aligned=is_aligned)

    monkeypatch.setattr(query.planner._tail, "_scan", counted)
    for number in range(3):
        assert not await query.trigger()
        await world.publish("a", range(10 * number, 10 * number + 10), producer)
    assert await query.trigger()
    assert query.ids == list(range(30))
    assert [begin for begin, _ in reads] == [0, *(end for _, end in reads[:-1])]


async def test_a_run_which_ends_does_not_wait(world):
    clock = Time()
    await world.create("a")
    query = query_of(world, clock, minBytesPerTrigger="1g")
    await query.trigger()
    await world.publish("a", [0])
    assert not await query.trigger()
    await query.planner.fix_targets()
    assert await query.trigger(), "of an AvailableNow run"
    query.restart()
    await world.publish("a", [1])
    assert not await query.trigger()
    assert await query.trigger(waits=False), "of a single batch"
    assert query.ids == [0, 1]


async def test_a_named_begin_is_kept_while_it_waits(world):
    clock = Time()
    await world.create("a")
    head = (await world.publish("a", [0, 1])).end
    query = query_of(
        world, clock, minRowsPerTrigger="3", startingOffsets=json.dumps({"test/a": head // 2})
    )
    await query.trigger()
    assert query.end["base"] == {"test/a": head // 2}
    query.restart()
    await world.publish("a", [2, 3])
    assert await query.trigger()
    assert query.ids == [1, 2, 3]


async def test_an_old_reader_waits_after_its_first_batch(world):
    clock = Time()
    await world.create("a")
    await world.publish("a", [0])
    query = query_of(world, clock, minRowsPerTrigger="2", maxTriggerDelay="60s")
    query.planner_type = LegacyStreamPlanner
    query.planners[-1] = query.planner = LegacyStreamPlanner(
        query.options, query.schema, clock=clock
    )
    assert await query.trigger()
    assert query.ids == [0]
    await world.publish("a", [1])
    assert not await query.trigger()
    clock.now += 60
    assert await query.trigger()
    assert query.ids == [0, 1]
