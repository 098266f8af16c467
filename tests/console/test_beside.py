"""The console beside another server."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.console import Console, ServedWithConsole


class _Served:
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    def ready(self) -> dict[str, object]:
        return {"endpoint": "there"}

    async def flush(self) -> None:
        self.calls.append("flush")

    async def stop(self, grace: float) -> None:
        self.calls.append(f"stop {grace}")


async def test_both_are_served():
    served = _Served()
    console = Console(lambda auth: connect("http://127.0.0.1:1", auth=auth))
    both = ServedWithConsole(served, console)
    await both.start()
    try:
        assert both.ready() == {"endpoint": "there", "console": console.url}
        taken = ServedWithConsole(
            _Served(), Console(lambda _: connect(), port=int(console.url[:-1].rpartition(":")[2]))
        )
        with pytest.raises(pb.ConfigurationError, match="unable to listen"):
            await taken.start()
        await taken.stop(0.0)
        await both.flush()
    finally:
        await both.stop(1.0)
    assert served.calls == ["start", "flush", "stop 1.0"]


async def test_the_server_stops_though_the_stop_of_its_console_is_cancelled():
    class Stuck:
        async def stop(self, grace: float) -> None:
            raise asyncio.CancelledError

    served = _Served()
    both = ServedWithConsole(served, cast("Console", Stuck()))
    with pytest.raises(asyncio.CancelledError):
        await both.stop(2.0)
    assert served.calls == ["stop 2.0"]
