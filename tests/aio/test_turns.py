from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from gazette_aio.aio import turns
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.turns import Turns, in_turns
from tests.cancellation import cancel_at


@pytest.fixture
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0)


@pytest.fixture
def _much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLICE_SECONDS", 3600)


async def suspensions(work: object) -> int:
    number = 0
    while await cancel_at(work(), number):  # type: ignore[operator]
        number += 1
    return number


def counted() -> Generator[None, None, int]:
    for _ in range(7):
        yield
    return 7


async def of_a_generator() -> None:
    assert await in_turns(counted()) == 7


async def of_steps() -> None:
    turns = Turns()
    for _ in range(7):
        await turns.rest()


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize("work", [of_a_generator, of_steps])
async def test_others_have_their_turns(work: object) -> None:
    assert await suspensions(work) == 7


@pytest.mark.usefixtures("_much_time")
@pytest.mark.parametrize("work", [of_a_generator, of_steps])
async def test_there_is_time_left(work: object) -> None:
    assert await suspensions(work) == 0


async def test_a_signal_wakes_all_who_wait_and_nobody_later() -> None:
    signal = Signal()
    signal.set()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    early = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    early[1].cancel()
    event = signal.next()
    signal.set()
    late = asyncio.create_task(wait(9))
    await asyncio.wait(early)
    assert woken == [0, 2]
    assert event.is_set()
    assert not late.done()
    assert not signal.next().is_set()
    signal.set()
    await late
