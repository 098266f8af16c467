"""A broker that can't run doesn't charge clients for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.journal.flow_control import FlowBalance, FlowControl
from gazette_aio.broker.journal.receive_guard import Looks, ReceiveGuard
from tests.broker.caller import calling, journal_spec


class StarvedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is advanced by hand: `lost` seconds within which it didn't run."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0.0

    def time(self) -> float:
        return super().time() + self.lost


def flow(*, min_rate: int) -> FlowControl:
    now_millis = int(asyncio.get_running_loop().time() * 1000)
    return FlowControl(FlowBalance(), max_rate=0, min_rate=min_rate, now_millis=now_millis)


async def silent(sent: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield await sent.get()


def test_stops_of_a_broker_are_not_those_of_its_client() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StarvedLoop)
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        rate = flow(min_rate=1000)  # The client may be silent for a second.
        with ReceiveGuard(silent(sent), rate, Looks()) as receive:

            async def starve() -> None:
                for _ in range(20):
                    loop.lost += 10.0
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                await sent.put(b"late")

            starving = asyncio.create_task(starve())
            assert await receive.next(math.inf) == b"late"
            await starving
            # What the client spends while the broker runs counts.
            rate.spent = 1
            with pytest.raises(TimeoutError):
                await receive.next(math.inf)

    with asyncio.Runner(loop_factory=StarvedLoop) as runner:
        runner.run(main())


async def test_the_end_of_a_token_is_one_for_any_broker() -> None:
    rate, looks = flow(min_rate=0), Looks()
    with (
        ReceiveGuard(silent(asyncio.Queue()), rate, looks) as receive,
        pytest.raises(TimeoutError),
    ):
        await receive.next(asyncio.get_running_loop().time() + 0.01)


async def test_a_broker_without_a_least_rate_lets_clients_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    patience_millis = FlowControl.patience_millis

    def record(flow: FlowControl) -> float:
        waits.append(patience_millis(flow))
        return waits[-1]

    monkeypatch.setattr(FlowControl, "patience_millis", record)
    async with (
        EmbeddedBroker(tmp_path, fsync="off", min_append_rate=0) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec())
        await caller.commit(b"content")
    assert set(waits) == {math.inf}
