"""Fragments of web servers, some of which misbehave."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.client import (
    FragmentReader,
    FragmentSource,
    HTTPFragmentFetcher,
    open_fragment_url,
)
from tests.cancellation import cancel_at_every_await
from tests.client.fragments.fragment_support import (
    CODECS,
    RawStore,
    fragment_of,
    head,
    open_files,
    read_all,
    read_until_error,
    stored,
)
from tests.waiting import eventually

CODEC = pb.CompressionCodec
DATA = b"".join(b"%06d " % number for number in range(3000))
SIGNATURE = "X-Signature=secret%2Fsecret"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def source() -> AsyncIterator[FragmentSource]:
    source = FragmentSource()
    yield source
    await source.aclose()


class Store:
    """A web server as object stores are, of one file."""

    def __init__(self) -> None:
        self.file = DATA
        self.headers: dict[str, str] = {}
        self.knows_ranges = True
        self.requests: list[web.BaseRequest] = []
        self.port = 0

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/bucket/a%2Fb?{SIGNATURE}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        begin, status, headers = 0, 200, dict(self.headers)
        if self.knows_ranges and (ranges := request.headers.get("Range")):
            begin, status = int(ranges.removeprefix("bytes=").removesuffix("-")), 206
            headers["Content-Range"] = f"bytes {begin}-{len(self.file) - 1}/{len(self.file)}"
        response = web.StreamResponse(status=status, headers=headers)
        if "chunked" not in headers:
            response.content_length = len(self.file) - begin
        await response.prepare(request)
        await response.write(self.file[begin:])
        return response


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = Store()
    runner = web.ServerRunner(web.Server(store.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    store.port = runner.addresses[0][1]
    yield store
    await runner.cleanup()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("knows_ranges", [True, False])
async def test_files(store: Store, source: FragmentSource, codec: int, knows_ranges: bool) -> None:
    store.file, store.knows_ranges = stored(DATA, codec), knows_ranges
    if codec == CODEC.GZIP_OFFLOAD_DECOMPRESSION:
        store.headers["Content-Encoding"] = "gzip"
    fragment = fragment_of(DATA, codec)
    assert await read_all(await source.open(fragment, 100, store.url(), verify=True)) == DATA
    assert await read_all(await source.open(fragment, 5_000, store.url())) == DATA[4_900:]
    assert await read_all(await source.open(fragment, fragment.end, store.url())) == b""
    for request in store.requests:
        # A signature covers the URL as it's spelled.
        assert request.raw_path == f"/bucket/a%2Fb?{SIGNATURE}"
        assert request.version == (1, 1)
        assert request.headers["Accept-Encoding"] == ("gzip" if codec == CODEC.GZIP else "identity")
    ranges = [request.headers.get("Range") for request in store.requests]
    parts = ["bytes=4900-", f"bytes={len(DATA) - 1}-"]  # At its end, the file isn't fetched anew.
    assert ranges == [None, *(parts if codec == CODEC.NONE else [None, None])]
    # They share a connection.
    assert len({request.transport for request in store.requests}) == 1


async def test_chunked_bodies(store: Store, source: FragmentSource) -> None:
    store.headers["chunked"] = "1"
    assert await read_all(await source.open(fragment_of(DATA), 5_000, store.url())) == DATA[4_900:]


async def test_encodings_which_nobody_asked_for(store: Store, source: FragmentSource) -> None:
    store.knows_ranges = False
    store.headers["Content-Encoding"] = "gzip"
    store.file = gzip.compress(DATA)
    assert await read_all(await source.open(fragment_of(DATA), 5_000, store.url())) == DATA[4_900:]
    store.file = stored(DATA, CODEC.GZIP)
    fragment = fragment_of(DATA, CODEC.GZIP)
    assert await read_all(await source.open(fragment, 100, store.url())) == DATA
    # A file which was compressed twice is not what its name says.
    store.file = gzip.compress(store.file)
    got, error = await read_until_error(await source.open(fragment, 100, store.url()))
    assert got != DATA
    assert isinstance(error, pb.UnexpectedEOFError)
    with pytest.raises(pb.TransportError, match="Content-Encoding"):
        await source.open(fragment_of(DATA, CODEC.ZSTANDARD), 100, store.url())


async def test_without_a_client(store: Store) -> None:
    before = open_files()
    assert await read_all(await open_fragment_url(fragment_of(DATA), 100, store.url())) == DATA
    for fragment, offset in ((fragment_of(DATA, CODEC.SNAPPY), 101), (fragment_of(DATA), 99)):
        with pytest.raises(pb.GazetteError):
            await open_fragment_url(fragment, offset, store.url())
    # The server notices a moment later.
    await eventually(lambda: open_files() <= before)


def secret_free(error: BaseException, records: list[logging.LogRecord]) -> None:
    seen: BaseException | None = error
    while seen is not None:
        assert "secret" not in f"{seen!r} {seen} {seen.args}"
        seen = seen.__cause__ or seen.__context__
    assert not [record for record in records if "secret" in record.getMessage()]


@pytest.mark.parametrize(
    ("status", "retryable"),
    [("403 Forbidden", True), ("404 Not Found", True), ("503 Slow", True), ("405 No", False)],
)
async def test_refusals(
    source: FragmentSource, status: str, retryable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, Content_Length=5) + b"error")

    async with RawStore(answer) as store:
        with pytest.raises(pb.TransportError) as caught:
            await source.open(fragment_of(DATA), 100, store.url())
    error = caught.value
    assert (error.http_status, error.retryable) == (int(status[:3]), retryable)
    assert '/f?…")' in str(error)
    assert "!OK fetching (" in str(error)
    secret_free(error, caplog.records)


def says(*parts: bytes, delay: float = 0.0, then: str = "close") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(delay)  # Time is the subject of the test that gives a delay.
        match then:
            case "stall":
                await reader.read()
            case "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, linger
                )
                writer.close()
            case _:
                pass
        raise ConnectionResetError

    return answer


LENGTH = head(Content_Length=len(DATA))


@pytest.mark.slow
async def test_a_trickle(source: FragmentSource) -> None:
    """It takes as long as it takes, as long as bytes keep coming."""
    source.progress_timeout = 6  # A busy machine lets a byte through within it.
    text = b"one byte at a time"
    parts = [text[at : at + 1] for at in range(len(text))]
    async with RawStore(says(head(Content_Length=len(text)), *parts, delay=0.35)) as store:
        assert await read_all(await source.open(fragment_of(text), 100, store.url())) == text


@pytest.mark.parametrize(
    ("answer", "expected", "complete"),
    [
        (says(LENGTH, DATA[:9_000], then="stall"), "DEADLINE_EXCEEDED", 9_000),
        (says(LENGTH, DATA[:9_000], then="reset"), "UNAVAILABLE", None),
        (says(LENGTH, DATA[:9_000]), "UNAVAILABLE", 9_000),
        (says(head(Transfer_Encoding="chunked"), b"5\r\n" + DATA[:5]), "UNAVAILABLE", 5),
        (says(head(Transfer_Encoding="chunked"), b"zz\r\n"), "UNAVAILABLE", 0),
    ],
    ids=["stall", "reset", "cut", "cut chunk", "no chunk"],
)
async def test_bodies_which_break_off(
    source: FragmentSource, answer: Answer, expected: str, complete: int | None
) -> None:
    # Only silence is to be noticed by time, which passes quickly on a busy machine.
    is_silent = expected == "DEADLINE_EXCEEDED" or complete == 0
    source.progress_timeout = 0.1 if is_silent else 60.0
    got, error = b"", None
    async with RawStore(answer) as store:
        while error is None or (is_silent and len(got) != complete):
            source.progress_timeout *= 2
            try:
                got, error = await read_until_error(
                    await source.open(fragment_of(DATA), 100, store.url())
                )
            except pb.TransportError as raised:
                error = raised
    assert isinstance(error, pb.TransportError)
    assert (error.retryable, error.journal) == (True, "a/journal")
    # aiohttp may miss a chunk which is none, so that only the silence behind it is noticed.
    assert error.code == expected or complete == 0
    assert DATA.startswith(got)
    # A reset may overtake what was sent before it.
    assert complete is None or len(got) == complete
    secret_free(error, [])


async def test_bodies_of_the_wrong_length(source: FragmentSource) -> None:
    async with RawStore(says(head(Content_Length=9_000), DATA[:9_000])) as store:
        got, error = await read_until_error(await source.open(fragment_of(DATA), 100, store.url()))
        assert (got, type(error)) == (DATA[:9_000], pb.UnexpectedEOFError)
    async with RawStore(says(head(Connection="close"), DATA[:9_000])) as store:
        # Nobody knows whether that is all.
        got, error = await read_until_error(await source.open(fragment_of(DATA), 100, store.url()))
        assert (got, type(error)) == (DATA[:9_000], pb.UnexpectedEOFError)
    async with RawStore(says(head(Content_Length=9_000), DATA)) as store:
        # What follows isn't an answer, and may be noticed before or after what is.
        with pytest.raises((pb.TransportError, pb.UnexpectedEOFError)) as caught:
            await read_all(await source.open(fragment_of(DATA), 100, store.url()))
        assert caught.value.retryable
    async with RawStore(says(head(Content_Length=len(DATA) + 1), DATA, b"+")) as store:
        got, error = await read_until_error(await source.open(fragment_of(DATA), 100, store.url()))
        assert (got, type(error)) == (b"", pb.DidNotReadExpectedEOFError)


async def test_wrong_ranges(source: FragmentSource) -> None:
    partial = head("206 Partial Content", Content_Length=9, Content_Range="bytes 0-8/21000")
    for answer in (partial, head("206 Partial Content", Content_Length=9)):
        async with RawStore(says(answer, DATA[:9])) as store:
            with pytest.raises(pb.TransportError, match="Content-Range") as caught:
                await source.open(fragment_of(DATA), 5_000, store.url())
            secret_free(caught.value, [])
    async with RawStore(says(partial, DATA[:9])) as store:
        with pytest.raises(pb.TransportError, match="206 Partial Content"):
            await source.open(fragment_of(DATA), 100, store.url())
    async with RawStore(says(head("416 Range Not Satisfiable", Content_Length=0))) as store:
        with pytest.raises(pb.UnexpectedEOFError):
            await source.open(fragment_of(DATA), 5_000, store.url())


async def test_redirects(source: FragmentSource, store: Store) -> None:
    target = store.url()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("307 Temporary Redirect", Location=target, Content_Length=0))

    async with RawStore(answer) as first:
        reader = await source.open(fragment_of(DATA), 5_000, first.url())
        assert await read_all(reader) == DATA[4_900:]
        for target, text in (  # noqa: B007 - The server tells it.
            ("file:///etc/passwd", "redirects to another scheme"),
            ("https://127.0.0.1:1/?secret", "redirects to another scheme"),
            ("ftp://host/?secret", "redirects to another scheme"),
            ("http://[broken/?secret", "redirects to another scheme"),
            ("?secret=again", "redirects too often"),
        ):
            with pytest.raises(pb.TransportError, match=text) as caught:
                await source.open(fragment_of(DATA), 100, first.url())
            assert (caught.value.http_status, caught.value.retryable) == (307, False)
            secret_free(caught.value, [])


async def test_servers_which_do_not_answer(source: FragmentSource) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = f"http://user:secret@127.0.0.1:{port}/f?secret"
        with pytest.raises(pb.TransportError, match="UNAVAILABLE: fetching") as caught:
            await source.open(fragment_of(DATA), 100, url)
    assert caught.value.retryable
    secret_free(caught.value, [])

    for garbage in (
        b"garbage?secret\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header secret\r\n\r\n",
        b"",
    ):
        async with RawStore(says(garbage)) as store:
            with pytest.raises(pb.TransportError, match="UNAVAILABLE") as caught:
                await source.open(fragment_of(DATA), 100, store.url())
            assert caught.value.retryable
            secret_free(caught.value, [])


async def test_a_handshake_which_stalls() -> None:
    source = FragmentSource(fetcher=HTTPFragmentFetcher(connect_timeout=0.05))
    async with RawStore(says(then="stall")) as store:
        url = store.url().replace("http:", "https:")
        with pytest.raises(pb.TransportError, match=r"fetching .*Timeout") as caught:
            await source.open(fragment_of(DATA), 100, url)
        assert caught.value.retryable
        secret_free(caught.value, [])
    await source.aclose()


async def test_invalid_urls(source: FragmentSource) -> None:
    for url in (
        "http://host:port/?secret",
        "http://[::1/?secret",
        "http://a b/?secret",
        "http://h/\n?secret",
        "http://user:secret@h/%zz",
        "http://user:sec ret@h/",
    ):
        with pytest.raises(pb.ValidationError) as caught:
            await source.open(fragment_of(DATA), 100, url)
        secret_free(caught.value, [])
    for url in (
        "http:///f?secret",
        "http://user:secret@[host]/f",
        "http:user:secret@host/f",
        f"http://{'x' * 70}/?secret",
    ):
        with pytest.raises(pb.ConfigurationError) as refused:
            await source.open(fragment_of(DATA), 100, url)
        secret_free(refused.value, [])


async def test_odd_characters_of_urls(source: FragmentSource, store: Store) -> None:
    url = f'http://127.0.0.1:{store.port}/ü"{{b}}?sig=a%2Fb+c ä#frag'
    assert await read_all(await source.open(fragment_of(DATA), 100, url)) == DATA
    assert store.requests[0].raw_path == "/%C3%BC%22%7Bb%7D?sig=a%2Fb+c%20%C3%A4"


async def test_closing_amid_bodies(store: Store) -> None:
    store.file = bytes(20 << 20)
    before = open_files()
    source = FragmentSource()
    fragment = fragment_of(b"", end=100 + (20 << 20))
    readers: list[FragmentReader] = []
    for _ in range(3):
        readers.append(await source.open(fragment, 100, store.url()))
        assert await readers[-1].read()
    await readers[0].aclose()
    readers[1].abandon()
    await source.aclose()
    await eventually(lambda: open_files() <= before)


async def test_cancellation(store: Store) -> None:
    before = open_files()

    async def operation() -> None:
        source = FragmentSource()
        try:
            async with await source.open(fragment_of(DATA), 5_000, store.url()) as reader:
                assert await read_all(reader) == DATA[4_900:]
        finally:
            await source.aclose()

    async def check() -> None:
        await eventually(lambda: open_files() <= before)

    assert await cancel_at_every_await(operation, check) > 3


def test_importing_brings_no_http() -> None:
    import subprocess

    code = "import sys, gazette_aio.client; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
