"""Live tails of the console."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.console import Console, TailLimits
from gazette_aio.console.tail_forms import TextForm
from gazette_aio.testing import create_journals, journal_spec
from tests.console.serving import asked, next_event, require_headers
from tests.console.serving import serving as console_of
from tests.waiting import eventually

_HOSTILE = "</script><img src=x onerror=alert(1)>\n\ndata: {}\r\n\x00\x1b[2J"


def serving(broker: Any, **limits: Any) -> AbstractAsyncContextManager[aiohttp.ClientSession]:
    return console_of(broker, tail_limits=TailLimits(**limits))


@pytest.fixture
async def journal(gazette_client: Any) -> str:
    await create_journals(gazette_client, journal_spec("a/journal"))
    return "a/journal"


async def test_new_content_follows_the_most_recent(gazette_broker, gazette_client, journal):
    old = 2 * TextForm.recent_bytes
    await gazette_client.append(journal, b"x" * old + b"recent")
    async with serving(gazette_broker) as page:
        async with page.get(f"/api/tail?name={journal}") as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            require_headers(response)
            head = old + 6
            event = await next_event(response)
            assert int(event["begin"]) == head - TextForm.recent_bytes
            assert (event["end"], event["text"][-8:]) == (str(head), "xxrecent")
            await gazette_client.append(journal, b"new")
            event = await next_event(response)
            assert event == {"begin": str(head), "end": str(head + 3), "text": "new"}


def test_content_neither_ends_its_event_nor_is_markup():
    [event] = TextForm().events(90, _HOSTILE.encode())
    assert event.count(b"\n") == 3
    assert b"\r" not in event
    first, data, end, rest = event.split(b"\n")
    after = 90 + len(_HOSTILE)
    assert (first, end, rest) == (b"id: %d" % after, b"", b"")
    assert json.loads(data.removeprefix(b"data: ")) == {
        "begin": "90",
        "end": str(after),
        "text": _HOSTILE,
    }


async def test_large_content_comes_in_small_events(gazette_broker, gazette_client, journal):
    text = "ä€😀" * 3000
    await gazette_client.append(journal, text.encode())
    async with serving(gazette_broker, event_bytes=1000) as page:
        async with page.get(f"/api/tail?name={journal}&begin=0") as response:
            found = ""
            while len(found) < len(text):
                event = await next_event(response)
                assert int(event["end"]) - int(event["begin"]) <= 1000
                found += event["text"]
    assert found == text


async def test_quiet_journals_keep_the_connection(gazette_broker, journal):
    async with serving(gazette_broker, quiet_seconds=0.01) as page:
        async with page.get(f"/api/tail?name={journal}") as response:
            assert await next_event(response) is None
            assert await next_event(response) is None


async def test_tails_are_few_and_end_with_their_page(gazette_broker, journal):
    async with serving(gazette_broker, count=2) as page:
        path = f"/api/tail?name={journal}"
        first, second = await page.get(path), await page.get(path)
        async with page.get(path) as third:
            assert third.status == 503
            assert "too many tails" in (await third.json())["problem"]
        first.close()
        await eventually(lambda: is_free(page, path))
        second.close()


async def is_free(page: aiohttp.ClientSession, path: str) -> bool:
    """Return whether another tail is served."""
    async with page.get(path) as response:
        return response.status == 200


async def test_browsers_that_take_nothing_are_cut_off(gazette_broker, gazette_client, journal):
    await gazette_client.append(journal, b"x" * (12 << 20))
    async with serving(gazette_broker, count=1, write_seconds=0.05) as page:
        async with page.get("/") as response:
            host, port = response.url.host, response.url.port
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, (host, port))
        request = f"GET /api/tail?name={journal}&begin=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        await loop.sock_sendall(slow, request.encode())
        assert (await loop.sock_recv(slow, 12)) == b"HTTP/1.1 200"
        await eventually(lambda: is_free(page, f"/api/tail?name={journal}"))
        slow.close()


async def test_a_stop_ends_tails_at_once(gazette_broker, journal):
    console = Console(lambda auth: connect(gazette_broker.endpoint, auth=auth))
    await console.start()
    async with aiohttp.ClientSession(console.url) as page:
        async with page.get(f"/api/tail?name={journal}") as response:
            # A tail that isn't ended takes all of the grace.
            await console.stop(3600.0)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_a_journal_that_goes_ends_its_tail_with_the_reason(
    gazette_broker, gazette_client, journal
):
    async with serving(gazette_broker) as page:
        async with page.get(f"/api/tail?name={journal}") as response:
            [listed] = (await gazette_client.list()).journals
            await gazette_client.append(journal, b"x")
            assert (await next_event(response))["text"] == "x"
            name = listed.spec.name
            deletion = pb.ApplyRequest.Change(delete=name, expect_mod_revision=listed.mod_revision)
            await gazette_client.apply(pb.ApplyRequest(changes=[deletion]))
            assert "JOURNAL_NOT_FOUND" in (await next_event(response))["problem"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("name=a/missing", 404),
        ("name=../../etc/passwd", 400),
        ("name=%2e%2e/a", 400),
        ("name=%3Cscript%3E", 400),
        ("", 400),
    ],
)
async def test_names_that_are_no_journals(gazette_broker, query, status):
    async with serving(gazette_broker) as page:
        await asked(page, f"/api/tail?{query}", status)


async def test_other_sites_get_no_content(gazette_broker, journal):
    async with serving(gazette_broker) as page:
        await asked(page, f"/api/tail?name={journal}", 403, Host="evil.example")
        await asked(page, f"/api/tail?name={journal}", 403, Origin="http://evil.example")


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_content_needs_a_token(gazette_broker, journal):
    async with serving(gazette_broker) as page:
        await asked(page, f"/api/tail?name={journal}", 401)
