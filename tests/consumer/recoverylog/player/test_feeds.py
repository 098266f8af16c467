"""Content that is read ahead of playback, within bounds."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog.playing.feed import FEED_BYTES, LogFeed, LogFeeds
from gazette_aio.consumer.recoverylog.playing.ranges import LogRange
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES
from tests.cancellation import close_at_every_await
from tests.consumer.recoverylog.player.logs import LOG, create_log
from tests.waiting import eventually, turns

CHUNK = bytes(range(256)) * 4096


@pytest.fixture
async def wake() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def head(client: JournalClient) -> int:
    """End of a log that is much longer than a feed."""
    await create_log(client)
    count = 4 * FEED_BYTES // len(CHUNK)
    for _ in range(count):
        await client.append(LOG, CHUNK)
    return count * len(CHUNK)


async def test_memory_is_bounded(client: JournalClient, head: int, wake: asyncio.Event):
    async with LogFeed(client, LogRange(LOG, 0, head), wake) as feed:
        taken = 0
        while taken < head:
            await eventually(lambda: feed.buffered_end >= min(head, feed.offset + FEED_BYTES))
            await turns(50)
            assert feed.buffered_end - feed.offset < FEED_BYTES + (2 << 20)
            taken += sum(map(len, feed.take(taken, None)))
        await eventually(lambda: feed.has_ended)
        assert taken == head == feed.write_head
    assert wake.is_set()


async def test_parts_of_chunks(client: JournalClient, head: int, wake: asyncio.Event):
    async with LogFeed(client, LogRange(LOG, 100, 0), wake) as feed:
        await eventually(lambda: feed.buffered_end > 1000)
        assert feed.take(150, 160) == [CHUNK[150:160]]
        assert feed.take(160, 160) == []
        assert b"".join(feed.take(200, 300)) == CHUNK[200:300]
        assert feed.offset == 300
        assert "at 300" in repr(feed)
    assert head


async def test_the_next_part_is_read_ahead(
    broker: EmbeddedBroker, client: JournalClient, head: int, wake: asyncio.Event
):
    far = 2 * READ_THROUGH_BYTES
    ranges = [LogRange(LOG, 0, 1000), LogRange(LOG, far, 0)]
    with broker.control.observe("read") as reads:
        async with LogFeeds(client, wake) as feeds:
            first = await feeds.at(LOG, 0, ranges)
            assert await feeds.at(LOG, 500, ranges) is first
            await reads.seen(2)
            second = await feeds.at(LOG, far, ranges[1:])
            assert (second.offset, feeds.current) == (far, second)
            # A short gap is read, and a long one isn't.
            assert await feeds.at(LOG, far + 100, ranges[1:]) is second
            third = await feeds.at(LOG, head - 10, [LogRange(LOG, head - 10, 0)])
            assert third is not second
            await reads.seen(3)
    assert sorted((request.offset, request.end_offset) for request in reads.requests) == [
        (0, 1000),
        (far, 0),
        (head - 10, 0),
    ]


async def test_failures(
    broker: EmbeddedBroker, client: JournalClient, head: int, wake: asyncio.Event
):
    with broker.control.once("read", status=pb.Status.NOT_ALLOWED):
        async with LogFeed(client, LogRange(LOG, 0, 0), wake) as feed:
            await wake.wait()
            assert not feed.has_ended
            assert isinstance(feed.take_failure(), pb.NotAllowedError)
            assert feed.has_ended
    assert head


async def test_closing(client: JournalClient, head: int, wake: asyncio.Event):
    async def opened() -> LogFeeds:
        feeds = LogFeeds(client, wake)
        feed = await feeds.at(LOG, 0, [LogRange(LOG, 0, 1000), LogRange(LOG, 2000, 0)])
        await eventually(lambda: feed.buffered_end)
        return feeds

    assert await close_at_every_await(opened) >= 1
    assert head
