"""The console over HTTP, on a broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from click.testing import CliRunner

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.cli.app import cli
from gazette_aio.cli.shell.failures import InputError
from gazette_aio.client import get_journal
from gazette_aio.console import routes
from gazette_aio.consumer.api import list_shards
from gazette_aio.serving import http_site
from gazette_aio.testing import StubBroker, create_journals, journal_spec
from tests.console.serving import KEYS, asked, bearer, require_headers, serving

_HALF_BODY = (
    b"POST /api/heads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 9\r\n\r\n{"
)


@pytest.fixture
async def page(gazette_broker: EmbeddedBroker) -> AsyncIterator[aiohttp.ClientSession]:
    async with serving(gazette_broker) as session:
        yield session


async def test_journals_and_heads(page, gazette_client):
    await create_journals(gazette_client, *(journal_spec(f"a/{name}") for name in ("one", "two")))
    await gazette_client.append("a/one", b"hello")
    listed = await asked(page, "/api/journals?text=ON")
    assert (listed["total"], listed["matched"]) == (2, 1)
    assert [row["name"] for row in listed["rows"]] == ["a/one"]
    listed = await asked(page, "/api/journals?selector=name%3Da/two&limit=1")
    assert [row["name"] for row in listed["rows"]] == ["a/two"]
    first, missing = await asked(page, "/api/heads", body={"names": ["a/one", "a/missing"]})
    assert first == {"name": "a/one", "head": "5", "problem": ""}
    assert missing["head"] == ""
    assert "JOURNAL_NOT_FOUND" in missing["problem"]


async def test_folders(page, gazette_client):
    names = [f"a/{number:03}" for number in range(3)] + ["b/one"]
    await create_journals(gazette_client, *map(journal_spec, names))
    for name in names:
        await gazette_client.append(name, name.encode())
    asks = {"names": ["", "a/", "b/one", "c/"]}
    heads = await asked(page, "/api/heads", body=asks)
    assert [head["head"] for head in heads] == ["20", "15", "5", "0"]
    asks["selector"] = "name=a/001"
    heads = await asked(page, "/api/heads", body=asks)
    assert [head["head"] for head in heads] == ["5", "5", "5", "0"]
    await asked(page, "/api/heads", 400, body={**asks, "selector": "=="})
    sums = await asked(page, "/api/summary?folder=a/")
    [[broker, primaries, replicas]] = sums.pop("brokers")
    assert (broker.split("/")[0], primaries, replicas) == ("local", 3, 3)
    assert sums == {"journals": 3, "health": {"served": 3}, "troubled": [], "stores": []}
    listed = await asked(page, "/api/journals?folder=")
    assert [row.get("folder") for row in listed["rows"]] == ["a/", None]
    assert listed["rows"][0]["health"] == {"served": 3}


async def test_sums_of_many_journals_are_not_asked_for(page, gazette_client, monkeypatch):
    monkeypatch.setattr(routes, "_MAX_SUMMED", 1)
    await create_journals(gazette_client, *map(journal_spec, ("a/one", "a/two", "b/one")))
    every, few = await asked(page, "/api/heads", body={"names": ["", "b/"]})
    assert (every["head"], few["head"]) == ("", "0")
    assert "journals" in every["problem"]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: ", b""),
        (_HALF_BODY, b"HTTP/1.1 408 "),
    ],
)
async def test_requests_have_to_arrive(gazette_broker, monkeypatch, sent, received):
    if not received:
        monkeypatch.setattr(http_site, "FIRST_REQUEST_SECONDS", 0.1)
    monkeypatch.setattr(http_site, "LINGERING_SECONDS", 0.1)
    monkeypatch.setattr(routes, "BODY_SECONDS", 0.1)
    async with serving(gazette_broker) as page:
        url = urlsplit(str(page._base_url))
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            writer.write(sent)
            answer = b""
            # A reset, if a busy machine sends this later than it may.
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read()
            assert answer[:13] == received
        finally:
            writer.close()
            with contextlib.suppress(ConnectionResetError):
                await writer.wait_closed()


async def test_pages_are_bounded(page, gazette_client):
    for kind in "abc":
        names = (f"{kind}/{number:03}" for number in range(100))
        await create_journals(gazette_client, *map(journal_spec, names))
    for limit in (1000, 999999999):
        listed = await asked(page, f"/api/journals?limit={limit}")
        assert (listed["total"], len(listed["rows"])) == (300, 200)
    rest = await asked(page, "/api/journals?limit=1000&offset=200")
    assert [row["name"] for row in rest["rows"]] == [f"c/{number:03}" for number in range(100)]
    # Brokers list those of a prefix only.
    listed = await asked(page, "/api/journals?selector=name:prefix%3Db/&limit=3")
    assert (listed["total"], len(listed["rows"])) == (100, 3)
    beyond = await asked(page, "/api/journals?offset=999999999")
    assert beyond["rows"] == []


async def test_a_journal(page, gazette_client):
    await create_journals(gazette_client, journal_spec("a/one"))
    await gazette_client.append("a/one", b"hello")
    detail = await asked(page, "/api/journal?name=a/one")
    assert (detail["head"], detail["covered"]) == ("5", "5")
    assert [store["fragments"] for store in detail["stores"]] == [1]
    await asked(page, "/api/journal?name=a/missing", 404)


async def test_suspended_journals_have_the_heads_of_their_specs(
    gazette_broker, gazette_client, page
):
    await create_journals(gazette_client, *map(journal_spec, ("a/one", "a/two")))
    await gazette_client.append("a/two", b"hello")
    journal = await get_journal(gazette_client, "a/one")
    change = pb.ApplyRequest.Change(upsert=journal.spec, expect_mod_revision=journal.mod_revision)
    change.upsert.suspend.level = pb.JournalSpec.Suspend.FULL
    change.upsert.suspend.offset = 100
    await gazette_client.apply([change])
    heads = await asked(page, "/api/heads", body={"names": ["a/one", "a/"]})
    assert [head["head"] for head in heads] == ["100", "105"]
    detail = await asked(page, "/api/journal?name=a/one")
    assert (detail["head"], detail["row"]["health"]) == ("100", "suspended")


async def test_the_page_and_its_files(page):
    async with page.get("/") as response:
        text = await response.text()
        assert response.headers["Content-Type"].startswith("text/html")
        require_headers(response)
    for path in ("console.js", "console.css", "list.js", "icon.svg"):
        async with page.get(f"/{path}") as response:
            assert response.status == 200
    assert "style=" not in text
    assert "onclick=" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/api/journals?selector=%3D%3D",
        "/api/journals?offset=-1",
        "/api/journals?limit=9999999999999999999999",
        "/api/journal?name=%3Cscript%3E",
        "/api/journal",
    ],
)
async def test_requests_that_mean_nothing(page, path):
    await asked(page, path, 400)


@pytest.mark.parametrize(
    "body", [{"names": ["<script>"]}, {"names": "a"}, {}, {"names": ["a"] * 201}, [], {"x": 1}]
)
async def test_bodies_that_mean_nothing(page, body):
    await asked(page, "/api/heads", 400, body=body)


async def test_invalid_answers_of_brokers_are_no_fault_of_the_browser():
    async with StubBroker() as broker:
        unsound = pb.ListResponse.Journal(spec=pb.JournalSpec(name="not a name"))
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[unsound])
        async with serving(broker) as page:
            refused = await asked(page, "/api/journals", 502)
            assert "Journals[0]" in refused["problem"]


async def test_other_paths(page):
    for path in ("/%2e%2e/server.py", "/server.py", "/page/index.html", "/api"):
        await asked(page, path, 404)


async def test_other_sites_get_no_answers(page):
    await asked(page, "/api/journals", 403, Origin="http://evil.example")
    await asked(page, "/api/journals", 403, Sec_Fetch_Site="cross-site")
    await asked(page, "/api/journals", 403, Host="evil.example")


@pytest.mark.gazette_broker(auth_keys=KEYS)
async def test_tokens_are_those_of_the_brokers(gazette_broker, gazette_client, monkeypatch):
    await create_journals(gazette_client, journal_spec("a/one"), journal_spec("b/two"))
    # Credentials of the process itself aren't those of a browser.
    monkeypatch.setenv("BROKER_AUTHKEYS", KEYS)
    header = await bearer(pb.Capability.LIST, "name:prefix=a/")
    async with serving(gazette_broker) as page:
        await asked(page, "/api/journals", 401)
        await asked(page, "/api/summary", 401)
        await asked(page, "/api/journals", 401, Authorization="Bearer forged")
        await asked(page, "/api/journals", 400, Authorization="Basic YTpi")
        listed = await asked(page, "/api/journals", Authorization=header)
        assert [row["name"] for row in listed["rows"]] == ["a/one"]
        await asked(page, "/api/journal?name=b/two", 404, Authorization=header)
        # A token to list doesn't permit to read heads, which says so by journal.
        [head] = await asked(page, "/api/heads", body={"names": ["a/one"]}, Authorization=header)
        assert head["head"] == ""
        assert head["problem"]


def test_the_command_lends_no_credentials_to_members(tmp_path, monkeypatch):
    """Members see the token of the browser, also where the environment has credentials."""
    taken: dict[str, Any] = {}

    async def run(served: object, **_: Any) -> None:
        pass

    monkeypatch.setattr("gazette_aio.cli.tools.console.run_until_signal", run)
    monkeypatch.setattr(
        "gazette_aio.cli.tools.console.Console", lambda *_, **options: taken.update(options)
    )
    monkeypatch.setenv("CONSUMER_AUTHKEYS", KEYS)
    monkeypatch.setenv("CONSUMER_CERT_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("CONSUMER_CERT_KEY_FILE", str(tmp_path / "missing"))
    arguments = ["console", "--consumer.address=https://127.0.0.1:1", "--timeout=0.1"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0

    async def ask() -> str:
        async with taken["open_shards"](pb.NoopAuth()) as client:
            with pytest.raises(pb.GazetteError) as caught:
                await list_shards(client)
        return str(caught.value)

    # The certificate would be read before anybody is dialled.
    assert "missing" not in asyncio.run(ask())


@pytest.mark.parametrize("option", ["auth-keys=c2VjcmV0", "auth-token=token", "cert-file={}"])
def test_the_command_lends_no_credentials(tmp_path, option):
    (certificate := tmp_path / "cert.pem").write_text("certificate")
    arguments = ["console", f"--broker.{option.format(certificate)}", "--port=0"]
    if "cert" in option:
        arguments.append(f"--broker.cert-key-file={certificate}")
    done = CliRunner().invoke(cli, arguments)
    assert isinstance(done.exception, InputError)
    assert "the console takes no" in str(done.exception)
