"""Ports of hosts that have several addresses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.serving.http_site import SiteRunner
from gazette_aio.serving.listening import bound_listener

EVERYWHERE = ""


@pytest.fixture
async def runner() -> AsyncIterator[SiteRunner]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = SiteRunner(app)
    yield runner
    await runner.cleanup()


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


async def test_any_free_port_is_one_for_all_addresses(runner: SiteRunner):
    port = await runner.listen(EVERYWHERE, 0)
    hosts = ["127.0.0.1", "[::1]"] if has_ipv6() else ["127.0.0.1"]
    async with aiohttp.ClientSession() as session:
        for host in hosts:
            async with session.get(f"http://{host}:{port}/") as response:
                assert await response.text() == "hello"


async def test_a_port_that_is_taken_is_refused(runner: SiteRunner):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"unable to listen on 127.0.0.1:{port}: "):
            await runner.listen("127.0.0.1", port)


class Listener:
    """A bound server with sockets of some ports."""

    def __init__(self, *ports: int) -> None:
        self.sockets = [Socket(port) for port in ports]
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Socket:
    def __init__(self, port: int) -> None:
        self.port = port

    def getsockname(self) -> tuple[str, int]:
        return "address", self.port


@pytest.mark.parametrize("taken", [0, 1, 4])
async def test_a_port_that_others_have_on_one_address_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, taken: int
):
    """The port of the first address may be taken on the second one."""
    asked: list[int] = []
    made: list[Listener] = []

    async def create_server(_: Any, __: str, port: int, **options: Any) -> Any:
        asked.append(port)
        assert options == {"start_serving": False}
        if port and len(asked) <= 2 * taken:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        made.append(Listener(port, port) if port else Listener(100 + len(asked), 1))
        return made[-1]

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", create_server)
    listener = await bound_listener(asyncio.Protocol, EVERYWHERE, 0)
    assert len({each.getsockname()[1] for each in listener.sockets}) == 1
    assert [each.is_closed for each in made] == [True] * (taken + 1) + [False]


async def test_an_address_that_never_has_one_port_is_refused(monkeypatch: pytest.MonkeyPatch):
    async def create_server(_: Any, __: str, port: int, **___: Any) -> Any:
        if port:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return Listener(1, 2)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", create_server)
    with pytest.raises(OSError, match="in use"):
        await bound_listener(asyncio.Protocol, EVERYWHERE, 0)
