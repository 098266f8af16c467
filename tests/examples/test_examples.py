"""The small examples, each run against a broker of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gazette_aio import load_journal_space
from gazette_aio.client import connect

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "examples" / "events.yaml"


@pytest.mark.parametrize(
    ("module", "printed"),
    [
        ("examples.append_and_read", "hello\njournal\n"),
        (
            "examples.publish_and_read_committed",
            "part-00 order 1\npart-00 order 3\npart-01 order 2\npart-01 order 4\n",
        ),
    ],
)
def test_programs(module, printed):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(printed.splitlines())


async def test_append_and_read_on_a_given_broker(gazette_broker):
    from examples.append_and_read import append_and_read

    assert await append_and_read(gazette_broker.endpoint) == b"hello\njournal\n"
    assert await append_and_read(gazette_broker.endpoint) == b"hello\njournal\n"


@pytest.fixture
async def events(gazette_broker, gazette_client, monkeypatch):
    """The journal of the web services, and the address of its broker in the environment."""
    monkeypatch.setenv("BROKER_ADDRESS", gazette_broker.endpoint)
    await gazette_client.apply(load_journal_space(EVENTS.read_text()).to_apply_request())
    return "examples/events"


async def content_of(endpoint: str, journal: str, end: int) -> bytes:
    async with connect(endpoint) as client, client.read(journal, end_offset=end) as reader:
        return b"".join([chunk async for chunk in reader])


async def test_fastapi(gazette_broker, events):
    from examples.fastapi_app import app

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        posts = [client.post("/events", json={"number": number}) for number in range(20)]
        answers = [answer.json() for answer in await asyncio.gather(*posts)]

    ends = [answer["end"] for answer in answers]
    content = await content_of(gazette_broker.endpoint, events, max(ends))
    for number, answer in enumerate(answers):
        assert content[answer["begin"] : answer["end"]] == b'{"number":%d}\n' % number


async def test_fastapi_without_the_journal(gazette_broker, monkeypatch):
    from examples.fastapi_app import app

    monkeypatch.setenv("BROKER_ADDRESS", gazette_broker.endpoint)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        answer = await client.post("/events", json={})

    assert answer.status_code == 503
    assert "JOURNAL_NOT_FOUND" in answer.json()["detail"]


async def test_aiohttp(gazette_broker, events):
    aiohttp = pytest.importorskip("aiohttp")
    from aiohttp.test_utils import TestClient, TestServer

    from examples.aiohttp_app import create_app

    assert aiohttp
    async with TestClient(TestServer(create_app())) as client:
        answer = await client.post("/events", json={"kind": "click"})
        placed = await answer.json()

    assert answer.status == 201
    content = await content_of(gazette_broker.endpoint, events, placed["end"])
    assert content[placed["begin"] :] == b'{"kind":"click"}\n'
