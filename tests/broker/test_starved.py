"""A broker that can't run doesn't charge clients for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gazette_aio.broker.service.receive_guard import ReceiveGuard


class StarvedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is advanced by hand: `lost` seconds within which it didn't run."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0.0

    def time(self) -> float:
        return super().time() + self.lost


async def silent(sent: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield await sent.get()


def test_stops_of_a_broker_are_not_those_of_its_client() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StarvedLoop)
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        with ReceiveGuard(silent(sent)) as receive:

            async def starve() -> None:
                for _ in range(20):
                    loop.lost += 10.0
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                await sent.put(b"late")

            starving = asyncio.create_task(starve())
            assert await receive.next(1.0) == b"late"
            assert receive.waited < 1.0
            await starving
            # What the client spends while the broker runs counts.
            with pytest.raises(TimeoutError):
                await receive.next(0.0)

    with asyncio.Runner(loop_factory=StarvedLoop) as runner:
        runner.run(main())


async def test_the_end_of_a_token_is_one_for_any_broker() -> None:
    with ReceiveGuard(silent(asyncio.Queue())) as receive, pytest.raises(TimeoutError):
        await receive.next(3600.0, asyncio.get_running_loop().time() + 0.01)
