"""Brokers which restart, hand over, and let tokens and URLs expire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker, ManualClock
from gazette_aio.client import AsyncAppend, JournalClient, RetryPolicy, connect
from gazette_aio.testing import FaultProxy, StubBroker, create_journals, journal_spec
from gazette_aio.testing.stub_broker import StubError
from tests.client.support import content
from tests.faults.support import JOURNAL, SWIFT, running
from tests.waiting import eventually

RECORD = b"%05d;"
KEY = "c2VjcmV0"


def check_records(data: bytes, count: int) -> int:
    """Check that records came once at least and in order; return how many were repeated."""
    seen, repeated = -1, 0
    for text in data.decode().split(";")[:-1]:
        assert int(text) <= seen + 1, f"{text} behind {seen}"
        repeated += int(text) <= seen
        seen = max(seen, int(text))
    assert seen == count - 1
    return repeated


@pytest.mark.parametrize("grace", [1.0, 0.0], ids=["in order", "at once"])
async def test_a_broker_restarts(
    broker: EmbeddedBroker, client: JournalClient, grace: float
) -> None:
    """Those who append in the background and who read don't notice, but for the time it takes."""
    received = bytearray()

    async def read() -> None:
        async with client.read(JOURNAL, block=True) as reader:
            async for chunk in reader:
                received.extend(chunk)
                assert reader.offset == len(received)

    async with running(read()):
        appends: list[AsyncAppend] = []
        for number in range(300):
            append = await client.appends.start_append(JOURNAL)
            append.write(RECORD % number)
            append.release()
            appends.append(append)
            if number % 10 == 9:  # Others are under way while the broker stops.
                await appends[-10]
            if number % 100 == 50:
                await broker.stop(grace)
                await broker.start()
        await asyncio.gather(*appends)
        head = (await client.append(JOURNAL)).commit.end
        await eventually(lambda: len(received) >= head)
    for number, append in enumerate(appends):
        begin, end = append.commit_range
        assert received[begin:end] == RECORD % number
    repeated = check_records(bytes(received), 300)
    if grace:
        assert not repeated, "what arrives while a broker stops in order is acknowledged"


class Pair:
    """Two scripted brokers of one journal, each behind a proxy, one of them its primary."""

    def __init__(self) -> None:
        self.brokers = (StubBroker(suffix="left"), StubBroker(suffix="right"))
        self.proxies = (FaultProxy(), FaultProxy())
        self.content = bytearray()
        self.primary = 0
        self.opinions: tuple[int, int] | None = None
        """Whom each one takes for the primary, if they differ."""
        self.refused = 0
        self.changed = asyncio.Event()

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        for number, (broker, proxy) in enumerate(zip(self.brokers, self.proxies, strict=True)):
            await stack.enter_async_context(broker)
            await stack.enter_async_context(proxy)
            proxy.upstream = broker.endpoint
            broker.advertised = proxy.endpoint
            self.script(number)

    def header(self, number: int) -> pb.Header:
        primary = self.primary if self.opinions is None else self.opinions[number]
        return self.brokers[number].header(*self.brokers, primary=self.brokers[primary])

    def move(self) -> None:
        self.primary = 1 - self.primary
        self.tell()

    def tell(self) -> None:
        """Wake up the readers, for whom there is content, or another primary."""
        self.changed.set()
        self.changed = asyncio.Event()

    def script(self, number: int) -> None:
        async def append(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
            first = await anext(requests)
            header = self.header(number)
            if header.route.primary != number:
                self.refused += 1
                if not first.do_not_proxy:
                    # What it can't pass on to one who takes itself for a replica.
                    raise StubError(grpc.StatusCode.UNAVAILABLE, "proxying failed")
                return pb.AppendResponse(
                    status=pb.Status.NOT_JOURNAL_PRIMARY_BROKER,
                    header=header,
                    registers=pb.LabelSet(),
                )
            data, is_committed = b"", False
            async for request in requests:
                data += request.content
                is_committed = not request.content
            assert is_committed
            begin = len(self.content)
            self.content += data
            self.tell()
            return pb.AppendResponse(
                header=header,
                commit=pb.Fragment(
                    journal=JOURNAL,
                    begin=begin,
                    end=begin + len(data),
                    sum=pb.sha1_sum(data),
                    compression_codec=pb.CompressionCodec.NONE,
                ),
                registers=pb.LabelSet(),
            )

        async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            header = self.header(number)
            if header.route.primary != number:
                yield pb.ReadResponse(
                    status=pb.Status.NOT_JOURNAL_BROKER, header=header, offset=request.offset
                )
                return
            yield pb.ReadResponse(
                header=header,
                offset=request.offset,
                write_head=len(self.content),
                fragment=pb.Fragment(
                    journal=JOURNAL,
                    begin=0,
                    end=max(len(self.content), request.offset),
                    compression_codec=pb.CompressionCodec.NONE,
                ),
            )
            offset = request.offset
            while self.primary == number:
                changed = self.changed
                while data := bytes(self.content[offset : offset + 1000]):
                    yield content(offset, data)
                    offset += len(data)
                await changed.wait()

        self.brokers[number].append_handler = append
        self.brokers[number].read_handler = read


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        pair = Pair()
        await pair.start(stack)
        yield pair


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_primary_moves(pair: Pair, is_reset: bool) -> None:
    """Refusals tell of the new primary, and so do brokers which are gone, by being gone."""
    received = bytearray()
    async with connect(pair.proxies[0].endpoint, retry=SWIFT) as client:

        async def read() -> None:
            request = pb.ReadRequest(journal=JOURNAL, block=True, do_not_proxy=True)
            async with client.read(request) as reader:
                async for chunk in reader:
                    received.extend(chunk)
                    assert reader.offset == len(received)

        async with running(read()):
            pending: list[AsyncAppend] = []
            for number in range(120):
                request = pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
                async with client.appends.append(request) as append:
                    append.write(RECORD % number)
                pending.append(append)
                if number % 20 == 10:
                    pair.move()
                    if is_reset:
                        await pair.proxies[1 - pair.primary].reset()
                if number % 5 == 0:
                    await append
            await asyncio.gather(*pending)
            await eventually(lambda: len(received) == len(pair.content))
    assert received == pair.content
    repeated = check_records(bytes(received), 120)
    assert is_reset or not repeated
    assert is_reset or pair.refused >= 6


async def test_brokers_which_disagree(pair: Pair) -> None:
    """Each takes the other for the primary: that's given up on, and then tried with delays."""
    pair.opinions = (1, 0)
    policy = RetryPolicy(backoff=lambda _: 0.02, max_attempts=3)
    request = pb.AppendRequest(journal=JOURNAL, do_not_proxy=True)
    async with connect(pair.proxies[0].endpoint, retry=policy) as client:
        begin = time.monotonic()
        with pytest.raises(pb.NotJournalPrimaryBrokerError) as raised:
            await client.append(request, b"content")
        assert raised.value.attempt == 2
        assert time.monotonic() - begin < 15
        assert pair.refused <= 12

        # They agree after all, which one who holds on gets to know.
        append = asyncio.create_task(
            client.append(request, b"content", retry_policy=RetryPolicy(backoff=lambda _: 0.02))
        )
        await eventually(lambda: pair.refused > 20)
        assert not append.done()
        pair.opinions = None
        pair.move()
        await append
    assert pair.content == b"content"


async def test_tokens_expire(proxy: FaultProxy, tmp_path: Path) -> None:
    """Brokers end streams whose token expires. The next RPC has a fresh one, and nobody notices."""
    clock = ManualClock(start=1_000_000.0)
    keys = pb.KeyedAuth(KEY, clock=clock)
    tokens: list[str] = []
    stale: list[str] = []

    async def token() -> str:
        await asyncio.sleep(0)
        if stale:
            return stale.pop()
        claims = pb.Claims(pb.Capability.ALL)
        tokens.append(keys.sign(claims, timedelta(seconds=10), clock()))
        return tokens[-1]

    async with EmbeddedBroker(
        tmp_path / "broker",
        auth_keys=KEY,
        clock=clock,
        advertise=proxy.endpoint,
        socket=tmp_path / "socket",
        http_port=None,
        fsync="off",
    ):
        proxy.upstream = f"unix://localhost{tmp_path}/socket"
        async with connect(proxy.endpoint, auth=token, retry=SWIFT) as client:
            await create_journals(client, journal_spec(JOURNAL))
            async with (
                client.read(JOURNAL, block=True) as reader,
                client.watch("name:prefix=watched/") as watched,
            ):
                await watched.ready()
                received = b""
                for number in range(5):
                    append = client.appends.try_append(JOURNAL, RECORD % number)
                    assert append is not None
                    await append
                    while len(received) < 6 * (number + 1):
                        received += await reader.read()
                    change = pb.ApplyRequest.Change(upsert=journal_spec(f"watched/{number}"))
                    await client.apply([change])
                    async for listing in watched.updates():
                        if len(listing.journals) == number + 1:
                            break
                    if number == 3:
                        # One which expires on its way is refused, and costs an attempt.
                        stale += [tokens[0]] * 2
                    clock.advance(11)
                assert received == b"".join(RECORD % number for number in range(5))
    assert not stale
    assert len(set(tokens)) >= 5


class Store:
    """Serves a fragment file by signed URLs, of which it accepts the newest one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.signature = 0
        self.statuses: list[int] = []
        self.proxy = FaultProxy()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncGenerator[None]:
        app = web.Application()
        app.router.add_get("/fragment", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with self.proxy:
                port = runner.addresses[0][1]
                self.proxy.upstream = f"http://127.0.0.1:{port}"
                yield
        finally:
            await runner.cleanup()

    def sign(self) -> str:
        self.signature += 1
        return f"{self.proxy.endpoint}/fragment?signature={self.signature}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        status = 200 if request.query["signature"] == str(self.signature) else 403
        begin = 0
        if status == 200 and (requested := request.headers.get("Range")):
            status, begin = 206, int(requested.removeprefix("bytes=").split("-")[0])
        self.statuses.append(status)
        if status == 403:
            return web.Response(status=403)
        end = len(self.data)
        return web.Response(
            status=status,
            body=self.data[begin:],
            headers={"Content-Range": f"bytes {begin}-{end - 1}/{end}"} if status == 206 else {},
        )


async def test_signed_urls_expire() -> None:
    """Each Read RPC brings a fresh URL, and reading goes on at the very next byte."""
    data = b"".join(RECORD % number for number in range(20_000))
    store = Store(data)

    async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        assert request.do_not_proxy
        yield pb.ReadResponse(
            header=broker.header(),
            offset=request.offset,
            write_head=len(data),
            fragment=pb.Fragment(
                journal=JOURNAL,
                begin=0,
                end=len(data),
                sum=pb.sha1_sum(data),
                compression_codec=pb.CompressionCodec.NONE,
                backing_store="s3://bucket/",
                mod_time=1,
            ),
            fragment_url=store.sign(),
        )
        if len(store.statuses) == 0:
            store.signature += 1  # The first one expires before it's used.

    async with (
        store.serve(),
        StubBroker() as broker,
        connect(broker.endpoint, retry=SWIFT) as client,
    ):
        broker.read_handler = read
        received = b""
        async with client.read(JOURNAL, end_offset=len(data), direct=True) as reader:
            async for chunk in reader:
                received += chunk
                if len(received) - len(chunk) < 30_000 <= len(received):
                    store.signature += 1
                    await store.proxy.reset()
        assert received == data
    assert store.statuses[0] == 403
    assert set(store.statuses[1:]) <= {200, 206}
    assert len(store.statuses) >= 2
