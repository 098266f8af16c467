"""Senders of a MessageProducer's messages wait for the transactions that consume these."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.consumer.transactions.produced import MOST_BYTES
from tests.consumer.transactions.clocked import ClockLoop, run_clocked
from tests.consumer.transactions.forms import Lines, Produced
from tests.consumer.transactions.world import shard_spec
from tests.waiting import turns

ROOM = 4


class Held(Produced):
    """Consumes nothing until the test says so."""

    def __init__(self, loop: ClockLoop, **fields: Any) -> None:
        spec = shard_spec("source/A", "source/B", max_ms=10_000, **fields)
        contents = {name: Lines(name) for name in ("source/A", "source/B")}
        super().__init__(loop, contents, spec)
        self.may_consume = asyncio.Event()
        self.application.consume_message = self.consume

    async def consume(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        await self.may_consume.wait()
        self.application.consumed.append(envelope)

    async def consumed_all(self, count: int) -> list[Any]:
        """Let messages be consumed, and return them."""
        self.may_consume.set()
        await turns(20 * count)
        found: list[Any] = self.application.consumed
        assert len(found) == count
        return found


def messages(world: Held, count: int, size: int | None = None) -> list[Any]:
    """Return messages of a journal, which have `size` bytes each."""
    rows = [world.content.outside() for _ in range(count)]
    if size is not None:
        for number, row in enumerate(rows):
            row.begin, row.end = number * size, (number + 1) * size
    return rows


@pytest.mark.parametrize(
    ("room", "size"), [(ROOM, None), (1000, MOST_BYTES // ROOM)], ids=["messages", "bytes"]
)
def test_senders_wait_for_room_in_turn(room: int, size: int | None):
    async def test(loop: ClockLoop) -> None:
        async with Held(loop, read_channel_size=room) as world:
            rows = messages(world, 20, size)
            for row in rows:
                world.application.queue.put_nowait([row])
            await turns(200)
            # One is being sent.
            assert 20 - world.application.queue.qsize() == ROOM + 1
            assert await world.consumed_all(20) == rows

    run_clocked(test)


def test_a_message_of_more_bytes_than_there_is_room_for_is_consumed():
    async def test(loop: ClockLoop) -> None:
        async with Held(loop) as world:
            rows = messages(world, 3, 2 * MOST_BYTES)
            for row in rows:
                world.application.queue.put_nowait([row])
            assert await world.consumed_all(3) == rows

    run_clocked(test)


def test_messages_of_several_journals_are_consumed_in_the_order_of_their_arrival():
    async def test(loop: ClockLoop) -> None:
        async with Held(loop) as world:
            a, b = world.contents.values()
            rows = [a.outside(), a.outside(), b.outside(), a.outside()]
            world.application.queue.put_nowait(rows)
            assert await world.consumed_all(4) == rows

    run_clocked(test)


@pytest.mark.parametrize(
    ("room", "size"), [(1, None), (1000, MOST_BYTES)], ids=["messages", "bytes"]
)
def test_a_cancelled_sender_takes_no_room(room: int, size: int | None):
    async def test(loop: ClockLoop) -> None:
        async with Held(loop, read_channel_size=room) as world:
            rows = messages(world, 4, size)
            sent: list[int] = []

            async def read_messages(shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
                for number in range(3):  # The others wait for the first.
                    sending = asyncio.create_task(sink.send([rows[number]]))
                    await turns()
                    if sending.done():
                        sent.append(number)
                    else:
                        sending.cancel()
                        await asyncio.wait((sending,))
                await sink.send([rows[3]])
                await asyncio.Event().wait()

            world.application.read_messages = read_messages
            world.task.cancel()
            await asyncio.wait((world.task,))
            async with world:
                await turns(100)
                assert sent == [0]
                assert await world.consumed_all(2) == [rows[0], rows[3]]

    run_clocked(test)
