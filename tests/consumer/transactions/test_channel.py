"""The channel from readers to transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.consumer.transactions.channel import MessageChannel
from tests.consumer.transactions.journals import SIZE, Content
from tests.waiting import turns


class Ready:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def run_of(count: int) -> list[Any]:
    content = Content()
    return [content.outside() for _ in range(count)]


async def test_runs_arrive_in_order_before_the_end():
    ready = Ready()
    channel = MessageChannel(ready)
    assert not channel.is_ready
    first, second = run_of(2), run_of(3)
    await channel.send(first)
    await channel.send(second)
    channel.end(ValueError("an error"))
    await channel.send(run_of(1))
    assert ready.count == 3
    assert [channel.take(), channel.take()] == [first, second]
    assert channel.is_ready
    with pytest.raises(ValueError, match="an error"):
        channel.take()


async def test_the_end_without_an_error_is_none():
    channel = MessageChannel(Ready())
    channel.end()
    assert channel.is_ready
    assert channel.take() is None


async def test_messages_of_several_journals_are_runs():
    channel = MessageChannel(Ready())
    a, b = Content("a"), Content("b")
    messages = [a.outside(), a.outside(), b.outside(), a.outside()]
    await channel.send(messages)
    assert [channel.take() for _ in range(3)] == [messages[:2], messages[2:3], messages[3:]]


@pytest.mark.parametrize("bounds", [{"messages": 4}, {"size_bytes": 4 * SIZE}])
async def test_senders_wait_for_room_in_turn(bounds: dict[str, int]):
    channel = MessageChannel(Ready(), **bounds)
    await channel.send(run_of(3))
    sent: list[int] = []

    async def send(count: int) -> None:
        await channel.send(run_of(count))
        sent.append(count)

    tasks = [asyncio.create_task(send(count)) for count in (2, 1)]
    await turns()
    assert sent == []
    channel.take()
    await turns()
    assert sent == [2, 1]
    await asyncio.gather(*tasks)


async def test_a_run_that_is_larger_than_the_channel_is_split():
    channel = MessageChannel(Ready(), messages=2)
    messages = run_of(5)
    task = asyncio.create_task(channel.send(messages))
    got: list[Any] = []
    while len(got) < 5:
        await turns()
        run: Any = channel.take()
        assert len(run) <= 2
        assert not channel.is_ready
        got += run
    assert got == messages
    await task


async def test_a_message_that_is_larger_than_the_bound_of_bytes_passes_alone():
    channel = MessageChannel(Ready(), size_bytes=1)
    await channel.send(run_of(1))
    task = asyncio.create_task(channel.send(run_of(1)))
    await turns()
    channel.take()
    await task
    assert channel.is_ready


@pytest.mark.parametrize("bounds", [{"messages": 2}, {"size_bytes": 2 * SIZE}])
async def test_a_cancelled_sender_holds_nothing(bounds: dict[str, int]):
    channel = MessageChannel(Ready(), **bounds)
    await channel.send(run_of(2))
    waiting = asyncio.create_task(channel.send(run_of(1)))
    await turns()
    waiting.cancel()
    await asyncio.wait((waiting,))
    channel.take()
    await channel.send(run_of(2))
    assert channel.is_ready
