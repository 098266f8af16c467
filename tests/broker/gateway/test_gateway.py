"""The HTTP gateway over real connections: bodies, ends of clients, tokens, and hostile bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest
from packaging.requirements import Requirement

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.gateway import connection
from gazette_aio.broker.gateway.gateway import HttpGateway
from gazette_aio.broker.journal.flow_control import FlowControl
from gazette_aio.broker.service import read
from gazette_aio.serving import http_site
from tests.broker.caller import Caller, calling, eventually, journal_spec
from tests.broker.gateway.http_steps import exchange, split_response

_HOST = "127.0.0.1"


class Site:
    """A gateway under test."""

    def __init__(self, gateway: HttpGateway, port: int) -> None:
        self.gateway = gateway
        self.port = port

    async def raw(self, sent: bytes, *, half_close: bool = False) -> bytes:
        async with asyncio.timeout(40):
            return await exchange(_HOST, self.port, sent, half_close=half_close)

    async def fetch(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes, dict[str, str] | None]:
        sent = request(method, path, body, Connection="close", **headers)
        status, pairs, content, trailers = split_response(await self.raw(sent))
        return status, dict(pairs), content, trailers

    def idle(self) -> bool:
        return repr(self.gateway) == "<HttpGateway connections=0 requests=0>"


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(broker: EmbeddedBroker, **options: Any) -> AsyncIterator[Site]:
    gateway = HttpGateway(broker.core, **options)
    port = await gateway.bind(_HOST, 0)
    try:
        await gateway.start()
        yield Site(gateway, port)
    finally:
        await gateway.stop(1.0)


@pytest.fixture
async def site(broker: EmbeddedBroker, caller: Caller) -> AsyncIterator[Site]:
    await caller.create(journal_spec())
    async with serving(broker) as site:
        yield site


async def becomes(condition: Callable[[], bool]) -> None:
    async def met() -> bool:
        return condition()

    await eventually(met)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def connected(site: Site, sent: bytes) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection(_HOST, site.port)
    try:
        writer.write(sent)
        async with asyncio.timeout(40):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# Bodies


async def test_content_round_trips(site: Site) -> None:
    content = bytes(range(256)) * (20 << 10)  # 5 MiB, several read batches and chunks.
    status, headers, body, _ = await site.fetch("PUT", "/test/journal", content)
    assert (status, body) == (204, b"")
    assert headers["X-Commit-End"] == str(len(content))
    status, headers, body, trailers = await site.fetch("GET", "/test/journal?offset=1")
    assert (status, trailers) == (206, {"X-Close-Error": "OFFSET_NOT_YET_AVAILABLE"})
    assert body == content[1:]
    assert headers["Content-Type"] == "application/octet-stream"
    assert "Server" not in headers


async def test_encoded_bodies_are_appended_as_they_are(site: Site, caller: Caller) -> None:
    status, *_ = await site.fetch("PUT", "/test/journal", b"not gzip", Content_Encoding="gzip")
    assert status == 204
    assert await caller.read() == b"not gzip"


async def test_a_connection_serves_request_after_request(site: Site) -> None:
    sent = request("PUT", "/test/journal", b"one") + request("GET", "/test/journal")
    sent += request("HEAD", "/test/journal") + request("GET", "/test/none", Connection="close")
    received = await site.raw(sent)
    assert [line.split()[1] for line in received.splitlines() if line[:5] == b"HTTP/"] == [
        b"204",
        b"206",
        b"206",
        b"404",
    ]


async def test_clients_of_http_1_0_get_a_body_without_chunks(site: Site) -> None:
    await site.fetch("PUT", "/test/journal", b"content")
    head, _, body = (await site.raw(b"GET /test/journal HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
    assert body == b"content"
    assert b"Trailer" not in head


@pytest.mark.parametrize(
    ("target", "body"),
    [("GET /test/journal", b""), ("POST /v1/journals/read", b'{"journal":"test/journal"}')],
)
async def test_a_body_without_a_length_ends_with_its_connection(
    site: Site, target: str, body: bytes
) -> None:
    await site.fetch("PUT", "/test/journal", b"content")
    sent = request(*target.split(), body, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
    received = await site.raw(sent)
    assert b"keep-alive" not in received


def _put_fragment(directory: Path, begin: int, content: bytes) -> None:
    """Put a fragment into the store which is so old that reads may jump to it."""
    fragment = pb.Fragment(
        journal="test/journal",
        begin=begin,
        end=begin + len(content),
        sum=pb.sha1_sum(content),
        compression_codec=pb.CompressionCodec.NONE,
    )
    path = directory / "data" / "fragments" / pb.content_path(fragment)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))


async def test_a_first_jump_is_followed(site: Site, caller: Caller, tmp_path: Path) -> None:
    _put_fragment(tmp_path, 100, b"content")
    await caller.create(journal_spec(stores=["file:///"]))
    status, headers, body, _ = await site.fetch("GET", "/test/journal?offset=3")
    assert (status, body) == (206, b"content")
    assert headers["Content-Range"].startswith("bytes 100-")
    assert headers["X-Fragment-Last-Modified"] == "Sun, 09 Sep 2001 01:46:40 GMT"


async def test_a_later_jump_ends_the_body(
    site: Site, broker: EmbeddedBroker, caller: Caller, tmp_path: Path
) -> None:
    await caller.create(journal_spec(stores=["file:///"]))
    await caller.commit(b"first")
    async with connected(site, request("GET", "/test/journal?block=true")) as (reader, _):
        await head_of(reader)
        assert await reader.readexactly(10) == b"5\r\nfirst\r\n"
        _put_fragment(tmp_path, 100, b"second")
        await broker.refresh("test/journal")
        assert await head_of(reader) == b"0\r\nX-Close-Error: offset jump\r\n\r\n"


async def test_journals_without_a_broker_are_unavailable(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off", assign_delay=60.0) as broker:
        async with calling(broker.endpoint) as caller, serving(broker) as site:
            await caller.create(journal_spec())
            status, _, body, _ = await site.fetch("GET", "/test/journal")
            assert (status, body) == (503, b"INSUFFICIENT_JOURNAL_BROKERS\n")
            status, _, body, _ = await site.fetch("PUT", "/test/journal", b"x")
            assert (status, body) == (500, b"NO_JOURNAL_PRIMARY_BROKER\n")


# Clients which end early, or are slow


async def test_a_reader_which_leaves_is_forgotten(site: Site, caller: Caller) -> None:
    await caller.commit(b"content")
    for sent in (
        request("GET", "/test/journal?block=true&offset=7"),
        request("POST", "/v1/journals/read", b'{"journal":"test/journal","block":true}'),
        request("POST", "/v1/journals/list", b'{"watch":true}'),
    ):
        async with connected(site, sent):
            await becomes(lambda: "requests=1" in repr(site.gateway))
        await becomes(site.idle)


async def test_a_reader_which_was_gone_before_it_waits_is_forgotten(site: Site) -> None:
    sent = request("GET", "/test/journal?block=true")
    assert await site.raw(sent, half_close=True) == b""
    await becomes(site.idle)


async def test_whoever_waits_for_a_revision_and_leaves_is_forgotten(site: Site) -> None:
    document = b'{"journal":"test/journal","minEtcdRevision":"1000000"}'
    async with connected(site, request("POST", "/v1/journals/read", document)):
        await becomes(lambda: repr(site.gateway) == "<HttpGateway connections=1 requests=1>")
    await becomes(site.idle)


@pytest.mark.parametrize("idle_seconds", [0.0, 0.05])
async def test_whoever_sends_no_more_still_gets_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch, idle_seconds: float
) -> None:
    monkeypatch.setattr(connection, "IDLE_SECONDS", idle_seconds)
    sent = request("PUT", "/test/journal", b"one") + request("GET", "/test/journal")
    received = await site.raw(sent, half_close=True)
    assert received.startswith(b"HTTP/1.1 204 ")
    assert b"3\r\none\r\n0\r\nX-Close-Error" in received
    assert await site.raw(b"", half_close=True) == b""
    await becomes(site.idle)


@pytest.mark.parametrize(
    "sent",
    [
        request("PUT", "/test/journal", b"x" * 100)[:-1],
        request("PUT", "/test/journal", Transfer_Encoding="chunked") + b"5\r\nhello\r\n",
        request("PUT", "/test/journal", Transfer_Encoding="chunked") + b"5\r\nhello\r\nzz\r\n",
        request("PUT", "/test/journal", Transfer_Encoding="chunked") + b"5\r\nhelloxxxx",
    ],
)
async def test_truncated_bodies_are_rolled_back(site: Site, caller: Caller, sent: bytes) -> None:
    received = await site.raw(sent, half_close=True)
    assert received[:13] in (b"HTTP/1.1 500 ", b"HTTP/1.0 400 ")
    await becomes(site.idle)
    assert await caller.commit(b"ok") == 0


async def test_a_body_which_turns_into_garbage_is_rolled_back(site: Site, caller: Caller) -> None:
    sent = request("PUT", "/test/journal", Transfer_Encoding="chunked") + b"5\r\nhello\r\n"
    async with connected(site, sent) as (reader, writer):
        await becomes(lambda: "requests=1" in repr(site.gateway))
        writer.write(b"garbage\r\n")
        assert (await head_of(reader)).startswith(b"HTTP/1.1 500 ")
    await becomes(site.idle)
    assert await caller.commit(b"ok") == 0


async def test_a_writer_which_is_reset_is_rolled_back(
    site: Site, broker: EmbeddedBroker, caller: Caller
) -> None:
    sent = request("PUT", "/test/journal", b"x" * (4 << 20))[:-1]
    async with connected(site, sent) as (_, writer):
        await writer.drain()
        await becomes(lambda: "requests=1" in repr(site.gateway))
        writer.transport.abort()
    await becomes(site.idle)
    assert await caller.commit(b"ok") == 0


async def test_a_writer_which_stalls_is_rolled_back(
    site: Site, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlowControl, "patience_millis", lambda _: 50)
    sent = request("PUT", "/test/journal", b"x" * 100)[:-1]
    async with connected(site, sent) as (reader, _):
        assert b" 500 " in await head_of(reader)
        assert b"minimum append data rate" in await reader.readline()
        monkeypatch.undo()
        assert await caller.commit(b"ok") == 0


async def test_a_refused_writer_is_not_asked_for_its_body(site: Site) -> None:
    lines = (
        b"PUT /test/none HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    )
    async with connected(site, lines) as (reader, _):
        head = await head_of(reader)
        assert head.startswith(b"HTTP/1.1 500 ")
        assert b"Connection: close" in head


@pytest.mark.parametrize(
    "begun",
    [
        b"PUT /test/journal HTTP/1.1\r\nContent-Length: 2\r\n",
        b"POST /v1/journals/list HTTP/1.1\r\nContent-Length: 2\r\n",
    ],
)
async def test_a_writer_which_waits_is_asked_for_its_body(site: Site, begun: bytes) -> None:
    sent = begun + b"Host: x\r\nExpect: 100-continue\r\n\r\n"
    async with connected(site, sent) as (reader, writer):
        assert await head_of(reader) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert (await head_of(reader))[:10] == b"HTTP/1.1 2"


async def test_a_slow_reader_is_not_buffered_for(site: Site, caller: Caller) -> None:
    for _ in range(8):
        await caller.commit(b"x" * (4 << 20))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (_HOST, site.port))
        await loop.sock_sendall(client, request("GET", "/test/journal"))
        # Private: nothing else leads to the connections of the gateway.
        server = site.gateway._server
        assert server is not None
        await becomes(lambda: _buffered(server) > 0)
        sizes = [-2, -1]

        async def settled() -> bool:
            sizes.append(_buffered(server))
            return sizes[-1] == sizes[-2] == sizes[-3] > 0

        await eventually(settled)
        assert sizes[-1] < 1 << 20
        # Nor does it keep the gateway from stopping.
        async with asyncio.timeout(30):
            await site.gateway.stop(0.1)


def _buffered(server: Any) -> int:
    # Private: asyncio names connections of a server in no other way.
    return sum(transport.get_write_buffer_size() for transport in server._transports)


# Stop


async def test_the_broker_stops_with_a_reader(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec())
    await caller.commit(b"content")
    async with serving(broker) as site:
        async with connected(site, request("GET", "/test/journal?block=1")) as (reader, _):
            await head_of(reader)
            assert await reader.readexactly(12) == b"7\r\ncontent\r\n"
            await broker.core.stop_serving()
            tail = await head_of(reader)
            assert tail == b"0\r\nX-Close-Error: broker terminated RPC\r\n\r\n"


async def test_stop_ends_what_is_open(broker: EmbeddedBroker, caller: Caller) -> None:
    await caller.create(journal_spec())
    async with serving(broker) as site:
        put = request("PUT", "/test/journal", b"x" * 100)[:-1]
        async with connected(site, b"") as (idle, _), connected(site, put) as (reader, _):
            await becomes(lambda: repr(site.gateway) == "<HttpGateway connections=2 requests=1>")
            await site.gateway.stop(0.05)
            assert await reader.read() == await idle.read() == b""
            assert repr(site.gateway) == "<HttpGateway stopped>"
    assert await caller.commit(b"ok") == 0


async def test_a_taken_address_is_told(broker: EmbeddedBroker) -> None:
    async with serving(broker) as site:
        other = HttpGateway(broker.core)
        with pytest.raises(pb.ConfigurationError, match=f"127.0.0.1:{site.port}"):
            await other.bind(_HOST, site.port)
        await other.stop(0.0)


@pytest.mark.parametrize("option", ["port", "http_port"])
def test_a_port_which_is_none_is_told(option: Any) -> None:
    with pytest.raises(pb.ConfigurationError, match=f"^{option} must be 0 to 65535"):
        EmbeddedBroker(**{option: 70_000})


async def test_a_name_of_several_addresses_has_one_port(broker: EmbeddedBroker) -> None:
    gateway = HttpGateway(broker.core)
    port = await gateway.bind("", 0)
    await gateway.start()
    reader, writer = await asyncio.open_connection(_HOST, port)
    writer.write(request("GET", "/debug/ready", Connection="close"))
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    await writer.wait_closed()
    await gateway.stop(1.0)
    await gateway.stop(1.0)


async def test_a_leaked_gateway_is_told(broker: EmbeddedBroker) -> None:
    gateway = HttpGateway(broker.core)
    await gateway.bind(_HOST, 0)
    # Private: after the warning, somebody has to close what was leaked.
    listener = gateway._listener
    assert listener is not None
    kept = [gateway]
    del gateway
    with pytest.warns(ResourceWarning, match="was not stopped"):
        kept.clear()
    listener.close()


async def test_the_embedded_broker_runs_a_gateway(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "one", fsync="off", allow_origin=["http://o"]) as broker:
        url = broker.http_endpoint
        port = int(url.removeprefix(f"http://{_HOST}:"))
        sent = request("OPTIONS", "/v1/", Origin="http://o", Connection="close")
        assert b"Access-Control-Allow-Origin: http://o" in await exchange(_HOST, port, sent)
        async with EmbeddedBroker(tmp_path / "two", fsync="off", http_port=None) as other:
            assert other.http_endpoint == ""
        with pytest.raises(pb.ConfigurationError, match=f"unable to listen on {_HOST}:{port}"):
            await EmbeddedBroker(tmp_path / "two", http_port=port).start()
    assert broker.http_endpoint == ""
    with pytest.raises(ConnectionError):
        await exchange(_HOST, port, sent)
    with pytest.raises(pb.ConfigurationError, match="allow_origin"):
        EmbeddedBroker(allow_origin="http://o")


# The library


def test_the_library_is_one_which_connections_are_tested_with() -> None:
    # Two attributes of its connections, which aren't public, tell the gateway what's left to do.
    text = Path(__file__).parents[3].joinpath("pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    (declared,) = [each for each in project["dependencies"] if each.startswith("aiohttp")]
    assert Requirement(declared).specifier.contains(aiohttp.__version__), (
        f"aiohttp {aiohttp.__version__} is outside of the range which the gateway is tested with: "
        "run tests/broker/gateway, and look at GatewayConnection"
    )
    missing = {"_messages", "_waiter"} - set(aiohttp.web.RequestHandler.__slots__)
    assert not missing, f"aiohttp {aiohttp.__version__} has no {missing}: see GatewayConnection"


# Hostile bytes, and failures of our own


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /test/journal HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /test/journal HTTP/1.1\r\n" + b"X: 1\r\n" * 100_000 + b"\r\n",
        b"PUT /test/journal HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /test/journal HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[:40]),
)
async def test_what_is_not_http_is_refused(site: Site, sent: bytes) -> None:
    received = b""
    with contextlib.suppress(ConnectionError):  # Reset, for what's behind the error isn't read.
        received = await site.raw(sent, half_close=True)
    assert received[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"")
    assert (await site.fetch("GET", "/debug/ready"))[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"PUT /test/journal HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n", 501),
        (b"PUT /test/journal HTTP/1.1\r\nContent-Length: 1\r\nExpect: miracles\r\n\r\nx", 417),
        (b"GET /test/journal HTTP/2.0\r\n\r\n", 505),
        (b"GET /test/journal\r\n\r\n", 505),
    ],
)
async def test_what_is_other_http_is_refused(
    site: Site, caller: Caller, sent: bytes, status: int
) -> None:
    assert split_response(await site.raw(sent.replace(b"\r\n", b"\r\nHost: x\r\n", 1)))[0] == status
    assert await caller.commit(b"ok") == 0


async def test_a_first_request_has_to_arrive(
    site: Site, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, head, answer = 0.25, 0, b""
    while not answer:
        seconds *= 2  # A busy machine may not send a request within it.
        monkeypatch.setattr(http_site, "FIRST_REQUEST_SECONDS", seconds)
        async with (
            connected(site, request("GET", f"/test/journal?block=1&offset={head}")) as (reader, _),
            connected(site, b"") as (silent, _),
            connected(site, b"GET / HTTP/1.1\r\nHost: ") as (slow, _),
        ):
            for each in (silent, slow):
                with contextlib.suppress(ConnectionResetError):
                    assert await each.read() == b""
            # Those which sent theirs in time may wait for its answer.
            head = len(b"content") + await caller.commit(b"content")
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read(1 << 16)
    assert b" 206 " in answer


async def test_a_long_token_is_read(site: Site) -> None:
    status, *_ = await site.fetch("GET", "/test/none", Authorization="Bearer " + "x" * (40 << 10))
    assert status == 404


async def test_other_verbs_are_not_answered(site: Site) -> None:
    assert await site.raw(request("PATCH", "/test/journal", b"x")) == b""
    await becomes(site.idle)


async def test_a_failure_of_the_gateway_is_told_and_logged(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def early(*_: object, **__: object) -> None:
        raise LookupError("no such thing")

    async def late(*arguments: Any, **_: object) -> None:
        await arguments[4](read.ContentChunk(0, b"content"))
        raise LookupError("no such thing")

    await site.fetch("PUT", "/test/journal", b"content")
    monkeypatch.setattr(read, "_send_content", late)
    # A body which isn't whole has no last chunk.
    assert (await site.raw(request("GET", "/test/journal"))).endswith(b"\r\n7\r\ncontent\r\n")
    monkeypatch.setattr(read, "_metadata", early)
    status, _, body, _ = await site.fetch("GET", "/test/journal")
    assert (status, body) == (500, b"LookupError: no such thing\n")
    assert [record.message for record in caplog.records] == ["request failed"] * 2


async def test_a_failed_read_ends_with_its_error(site: Site, broker: EmbeddedBroker) -> None:
    await site.fetch("PUT", "/test/journal", b"content and more")
    failure = ("UNKNOWN", "broken\r\ndisk")
    with broker.control.cut("read", after_bytes=7, fail=failure):
        status, _, body, trailers = await site.fetch("GET", "/test/journal")
    assert (status, body, trailers) == (206, b"content", {"X-Close-Error": "broken  disk"})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("NOT_FOUND", 404),
        ("PERMISSION_DENIED", 403),
        ("DEADLINE_EXCEEDED", 504),
        ("UNAVAILABLE", 503),
        ("ABORTED", 409),
        ("FAILED_PRECONDITION", 400),
        ("DATA_LOSS", 500),
    ],
)
async def test_codes_of_failures_have_statuses_of_http(
    site: Site, broker: EmbeddedBroker, code: str, expected: int
) -> None:
    with broker.control.keep("read", fail=(code, "why")):
        status, _, body, _ = await site.fetch("GET", "/test/journal")
        assert (status, body) == (expected, b"why\n")
        status, _, body, _ = await site.fetch(
            "POST", "/v1/journals/read", b'{"journal":"test/journal"}'
        )
        assert (status, json.loads(body)["error"]["httpCode"]) == (expected, expected)


# Tokens

_KEY = "c2VjcmV0LWtleQ=="


def _token(capability: pb.Capability, **include: str) -> str:
    pairs = [item for pair in include.items() for item in pair]
    selector = pb.LabelSelector(include=pb.label_set(*pairs))
    claims = pb.Claims(capability=capability, selector=selector)
    return f"Bearer {pb.KeyedAuth(_KEY).sign(claims, timedelta(hours=1), time.time())}"


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path / "data", fsync="off", auth_keys=_KEY) as broker:
        for name in ("test/journal", "test/other"):
            change = pb.ApplyRequest.Change(upsert=journal_spec(name))
            await broker.core.space_store.apply([change])
        yield broker


async def test_journals_need_a_token(keyed: EmbeddedBroker) -> None:
    problem = b"missing or empty Authorization token\n"
    async with serving(keyed) as site:
        for method, path in (("GET", "/test/journal"), ("PUT", "/test/none"), ("GET", "/x?y=1")):
            status, headers, body, _ = await site.fetch(method, path, b"x")
            assert (status, body) == (401, problem)
            assert headers["WWW-Authenticate"] == "Bearer"
        assert (await site.fetch("HEAD", "/test/journal"))[0] == 401
        for path in ("/v1/journals/list", "/v1/journals/read"):
            status, _, body, _ = await site.fetch("POST", path, b"{nope")
            assert (status, json.loads(body)["error"]["grpcCode"]) == (401, 16)

        reads, writes = _token(pb.Capability.READ), _token(pb.Capability.APPEND)
        assert (await site.fetch("PUT", "/test/journal", b"x", Authorization=writes))[0] == 204
        assert (await site.fetch("GET", "/test/journal", Authorization=reads))[0] == 206
        status, _, body, _ = await site.fetch("PUT", "/test/journal", Authorization=reads)
        assert (status, body) == (401, b"authorization is missing required APPEND capability\n")


async def test_a_token_hides_what_it_does_not_select(keyed: EmbeddedBroker) -> None:
    token = _token(pb.Capability.READ | pb.Capability.LIST, name="test/other")
    async with serving(keyed) as site:
        status, *_ = await site.fetch("GET", "/test/journal", Authorization=token)
        assert status == 404
        assert (await site.fetch("GET", "/test/other", Authorization=token))[0] == 416
        _, _, body, _ = await site.fetch("POST", "/v1/journals/list", Authorization=token)
        listed = json.loads(body)["result"]["journals"]
        assert [journal["spec"]["name"] for journal in listed] == ["test/other"]


async def test_tokens_may_be_left_out_on_request(keyed: EmbeddedBroker) -> None:
    async with serving(keyed, allow_unauthenticated=True) as site:
        assert (await site.fetch("PUT", "/test/journal", b"x"))[0] == 204
        assert (await site.fetch("GET", "/test/journal"))[0] == 206
        empty, bad = {"Authorization": ""}, {"Authorization": "Bearer nonsense"}
        assert (await site.fetch("GET", "/test/journal", **empty))[0] == 206
        assert (await site.fetch("GET", "/test/journal", **bad))[0] == 401
        assert (await site.fetch("POST", "/v1/journals/list"))[0] == 401


async def test_write_heads_are_shown_to_those_who_may_list(keyed: EmbeddedBroker) -> None:
    for item in keyed.core.space:
        await keyed.core.replica(item)
    token = _token(pb.Capability.LIST, name="test/other")
    async with serving(keyed) as site:
        status, _, body, _ = await site.fetch("GET", "/debug/metrics")
        assert status == 200
        assert b"gazette_spool_commits_total 0" in body
        assert b"gazette_write_head" not in body
        _, _, body, _ = await site.fetch("GET", "/debug/metrics", Authorization=token)
        heads = [line for line in body.decode().splitlines() if "write_head{" in line]
        assert heads == ['gazette_write_head{journal="test/other"} 0']


# Counters


async def test_requests_are_counted(site: Site, broker: EmbeddedBroker) -> None:
    await site.fetch("PUT", "/test/journal", b"x")
    await site.fetch("PUT", "/test/none", b"x")
    await site.fetch("GET", "/test/journal")
    await site.fetch("HEAD", "/test/none")
    await site.fetch("GET", "/test/journal?offset=99")
    await site.fetch("POST", "/v1/journals/read", b'{"journal":"test/none"}')
    await site.fetch("POST", "/v1/journals/list", b'{"selector":{"include":{"labels":[{}]}}}')
    _, headers, body, _ = await site.fetch("GET", "/debug/metrics")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = body.decode().splitlines()
    completed = "gazette_journal_server_completed_totals"
    assert f'{completed}{{operation="Append",status="JOURNAL_NOT_FOUND"}} 1' in lines
    assert f'{completed}{{operation="Append",status="ok"}} 1' in lines
    assert f'{completed}{{operation="Read",status="ok"}} 1' in lines
    assert f'{completed}{{operation="Read",status="JOURNAL_NOT_FOUND"}} 2' in lines
    assert f'{completed}{{operation="Read",status="OFFSET_NOT_YET_AVAILABLE"}} 1' in lines
    assert f'{completed}{{operation="List",status="<error>"}} 1' in lines
    assert 'gazette_write_head{journal="test/journal"} 1' in lines


# JSON


async def test_a_watch_goes_on_in_json(site: Site, caller: Caller) -> None:
    sent = request("POST", "/v1/journals/list", b'{"watch":true}')

    async def names() -> list[list[str]]:
        found = []
        for _ in range(2):  # A snapshot, and the message which ends it.
            size = int(await reader.readline(), 16)
            listed = json.loads(await reader.readexactly(size))["result"]["journals"]
            await reader.readexactly(2)
            found.append([journal["spec"]["name"] for journal in listed])
        return found

    async with connected(site, sent) as (reader, _):
        await head_of(reader)
        assert await names() == [["test/journal"], []]
        await caller.create(journal_spec("test/second"))
        assert await names() == [["test/journal", "test/second"], []]


async def test_large_documents_are_refused(site: Site) -> None:
    document = b'{"journal":"' + b"a" * (300 << 10) + b'"}'
    status, _, body, _ = await site.fetch("POST", "/v1/journals/read", document)
    assert (status, json.loads(body)["error"]["grpcCode"]) == (429, 8)
    status, _, body, _ = await site.fetch(
        "POST", "/v1/journals/read", document[: 200 << 10] + b'"}'
    )
    assert status == 500
    assert "invalid length (204788" in json.loads(body)["error"]["message"]


async def test_origins_are_allowed_by_name(broker: EmbeddedBroker) -> None:
    async with serving(broker, allow_origins=["http://good"]) as site:
        for method in ("OPTIONS", "POST"):
            _, headers, _, _ = await site.fetch(method, "/v1/journals/list", Origin="http://good")
            assert headers["Access-Control-Allow-Origin"] == "http://good"
            assert "Authorization" in headers["Access-Control-Allow-Headers"]
            _, headers, _, _ = await site.fetch(method, "/v1/journals/list", Origin="http://bad")
            assert "Access-Control-Allow-Origin" not in headers
            assert headers["Vary"] == "Origin"
