"""Reads of fragment files, rather than through the broker."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import (
    BufferedRetryReader,
    JournalClient,
    RetryPolicy,
    RetryReader,
    connect,
    install_file_transport,
)
from gazette_aio.client.metrics import NoMetrics
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import cancel_at
from tests.client.fragments.fake_fragments import URL, FakeFragments, http_error
from tests.client.fragments.fragment_support import RawStore, head
from tests.client.support import (
    JOURNAL,
    content,
    drain,
    fragment,
    listing,
    metadata,
    refusal,
    spec,
)
from tests.waiting import eventually

CreateStored = Callable[[pb.CompressionCodec.ValueType], Awaitable[EmbeddedBroker]]

CONTENT = b"".join(b"%04d" % number for number in range(15))
PERSISTED = 40


class Serving:
    """Serves CONTENT: two fragments are persisted only, and the rest is at hand.

    Args:
        broker: The stub which it answers for.
    """

    def __init__(self, broker: StubBroker) -> None:
        self.asked: list[tuple[int, bool]] = []
        """Offset of each request, and whether it was not to be proxied."""
        self.url = URL
        self._broker = broker
        broker.read_handler = self.answer

    async def answer(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        self.asked.append((request.offset, request.do_not_proxy))
        async for response in self._responses(request):
            if response.HasField("header"):
                response.header.route.endpoints[:] = [self._broker.endpoint]
            yield response

    async def _responses(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        offset, is_first = request.offset, True
        while offset < len(CONTENT):
            begin = offset // 20 * 20 if offset < PERSISTED else PERSISTED
            end = begin + 20
            response = metadata(offset, first=is_first)
            response.fragment.CopyFrom(fragment(begin, end))
            is_first = False
            if offset < PERSISTED:
                response.fragment_url = self.url
            yield response
            if offset < PERSISTED and request.do_not_proxy:
                return
            yield content(offset, CONTENT[offset:end])
            offset = end
        yield refusal(pb.Status.OFFSET_NOT_YET_AVAILABLE, offset)


@pytest.fixture
async def serving(broker: StubBroker) -> AsyncIterator[Serving]:
    yield Serving(broker)
    await eventually(lambda: broker.open_rpcs == 0)


@pytest.fixture
def fragments(client: JournalClient) -> FakeFragments:
    return FakeFragments(client, CONTENT)


async def read_to_head(reader: RetryReader) -> bytes:
    """Read up to the head."""
    read, error = await drain(reader)
    assert isinstance(error, pb.OffsetNotYetAvailableError), error
    return read


async def test_files_first_and_then_the_broker(
    broker: StubBroker,
    client: JournalClient,
    serving: Serving,
    fragments: FakeFragments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counter[str]()

    def read_bytes(journal: str, count: int) -> None:
        counted[journal] += count

    monkeypatch.setattr(client.context.metrics, "read_bytes", read_bytes)
    broker.list_handler = lambda request: listing()
    async with client.read(JOURNAL, offset=3, direct=True, verify=True) as reader:
        assert await reader.read(17) == CONTENT[3:10]
        assert await reader.read(17) == CONTENT[10:17]
        assert await reader.read(17) == CONTENT[17:20]
        # No URL is asked for before it's needed, as it expires soon.
        await client.list()  # A request that was sent before would arrive before.
        assert serving.asked == [(3, True)]
        assert reader.response.fragment.end == 20
        assert await read_to_head(reader) == CONTENT[20:]
    assert counted == {JOURNAL: len(CONTENT) - 3}
    assert serving.asked == [(3, True), (20, True), (40, True)]
    assert fragments.opened == [(0, 3, True), (20, 20, True)]
    assert fragments.open_count == 0


@pytest.mark.parametrize(
    ("request_says", "option", "is_direct"),
    [
        (False, None, False),
        (True, None, True),
        (False, True, True),
        (True, False, False),
    ],
)
async def test_what_reads_directly(
    client: JournalClient,
    serving: Serving,
    fragments: FakeFragments,
    request_says: bool,
    option: bool | None,
    is_direct: bool,
) -> None:
    request = pb.ReadRequest(journal=JOURNAL, do_not_proxy=request_says)
    async with client.read(request, direct=option) as reader:
        assert reader.is_direct == is_direct
        assert await read_to_head(reader) == CONTENT
    assert serving.asked[0] == (0, is_direct)
    assert len(fragments.opened) == (2 if is_direct else 0)
    assert request.offset == 0


async def test_metadata_is_not_content(client: JournalClient) -> None:
    request = pb.ReadRequest(journal=JOURNAL, metadata_only=True)
    with pytest.raises(pb.ConfigurationError, match="metadata"):
        client.read(request)
    reader = client.read(JOURNAL)
    with pytest.raises(pb.ConfigurationError, match="metadata"):
        await reader.restart(request)


@pytest.mark.parametrize(
    "error",
    [
        http_error(403),
        http_error(404),
        pb.TransportError("DEADLINE_EXCEEDED", "no byte came", retryable=True),
        pb.TransportError("UNAVAILABLE", "reset by peer", retryable=True),
        pb.FragmentError("damaged"),
        pb.UnexpectedEOFError("unexpected EOF"),
        pb.DidNotReadExpectedEOFError("did not read EOF at expected Fragment.End"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:30],
)
@pytest.mark.parametrize("at", [0, 3, 11, 20, 40])
async def test_failures_lose_and_repeat_nothing(
    client: JournalClient,
    serving: Serving,
    fragments: FakeFragments,
    error: pb.GazetteError,
    at: int,
) -> None:
    fragments.failures += [(at, error), (at, error)]
    async with client.read(JOURNAL, direct=True) as reader:
        assert await read_to_head(reader) == CONTENT
    begun = [offset for offset, _ in serving.asked]
    assert set(begun) == {0, min(at, 40), 20, 40}
    assert begun == sorted(begun)
    assert all(is_direct for _, is_direct in serving.asked)
    assert fragments.open_count == 0


async def test_progress_is_a_new_start(
    broker: StubBroker, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    delays: list[int] = []
    policy = RetryPolicy(backoff=lambda attempt: delays.append(attempt) or 0.0, max_attempts=2)  # type: ignore[func-returns-value]
    async with connect(broker.endpoint, retry=policy) as client:
        fragments = FakeFragments(client, CONTENT)
        fragments.failures += [(at, http_error(403)) for at in range(1, PERSISTED)]
        with caplog.at_level(logging.WARNING):
            async with client.read(JOURNAL, direct=True) as reader:
                assert await read_to_head(reader) == CONTENT
    # An expired URL costs one short delay, and no warning.
    assert set(delays) == {-1, 0}
    assert caplog.records == []


async def test_waits_for_a_store_are_logged_once(
    broker: StubBroker, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    policy = RetryPolicy(backoff=lambda attempt: 0.0)
    unreachable = pb.TransportError("UNAVAILABLE", "store is unreachable", retryable=True)
    async with connect(broker.endpoint, retry=policy) as client:
        fragments = FakeFragments(client, CONTENT)
        for at in (3, 25):
            fragments.failures += [(at, unreachable)] * 20
        with caplog.at_level(logging.WARNING):
            async with client.read(JOURNAL, direct=True) as reader:
                assert await read_to_head(reader) == CONTENT
    subject = f"read of journal {JOURNAL} at {broker.endpoint}"
    texts = [record.getMessage() for record in caplog.records]
    # One wait for each of two fragments: it begins, and it ends.
    assert [text.removeprefix(subject).split()[0] for text in texts] == ["fails,", "succeeds"] * 2
    assert all("store is unreachable" in text for text in texts)
    assert all("secret" not in text for text in texts)


@pytest.mark.parametrize(
    "error", [pb.FragmentError("damaged"), http_error(405)], ids=["damaged", "refused"]
)
async def test_what_stays_unreadable_is_raised(
    client: JournalClient, serving: Serving, fragments: FakeFragments, error: pb.GazetteError
) -> None:
    fragments.failures += [(25, error)] * 5
    async with client.read(JOURNAL, direct=True) as reader:
        assert await drain(reader) == (CONTENT[:25], error)
        assert reader.offset == 25
        assert [offset for offset, _ in serving.asked] == [0, 20, 25, 25, 25]
        # The caller may go around it.
        await reader.seek(PERSISTED)
        assert await read_to_head(reader) == CONTENT[PERSISTED:]


async def test_files_without_transport_are_read_through_the_broker(
    client: JournalClient, serving: Serving, fragments: FakeFragments
) -> None:
    serving.url = "file:///fragment"
    async with client.read(JOURNAL, offset=5, direct=True) as reader:
        assert await read_to_head(reader) == CONTENT[5:]
        assert not reader.is_direct
        await reader.seek(30)
        assert await read_to_head(reader) == CONTENT[30:]
        assert serving.asked == [(5, True), (5, False), (30, False)]
        serving.url = URL
        await reader.restart(pb.ReadRequest(journal=JOURNAL, offset=30))
        assert await read_to_head(reader) == CONTENT[30:]
    assert fragments.opened == [(20, 30, False)]


@pytest.mark.parametrize(
    "url", ["file://elsewhere/fragment", "file:///../fragment", "file:///out", "http:///fragment"]
)
async def test_urls_which_this_client_cannot_open_are_read_through_the_broker(
    broker: StubBroker, serving: Serving, instant: RetryPolicy, tmp_path: Path, url: str
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to("../fragment")
    (tmp_path / "fragment").write_bytes(CONTENT[:20])
    serving.url = url
    root = tmp_path / "root"
    async with (
        connect(broker.endpoint, retry=instant, file_root=root) as client,
        client.read(JOURNAL, offset=5, direct=True) as reader,
    ):
        assert await read_to_head(reader) == CONTENT[5:]
        assert not reader.is_direct


async def test_codecs_which_this_client_lacks_are_read_through_the_broker(
    client: JournalClient, serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(codec: int) -> None:
        raise pb.FragmentError("unsupported codec NONE")

    monkeypatch.setattr("gazette_aio.protocol.codecs.content.decompressor", unsupported)
    (tmp_path / "f").write_bytes(CONTENT[:20])
    serving.url = "file:///f"
    with install_file_transport(tmp_path):
        async with client.read(JOURNAL, direct=True) as reader:
            assert await read_to_head(reader) == CONTENT
            assert not reader.is_direct
    assert serving.asked == [(0, True), (0, False)]


async def test_endless_redirects_are_given_up(
    client: JournalClient, serving: Serving, instant: RetryPolicy
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head("302 Found", Location="again", Content_Length=0))

    async with RawStore(answer) as store:
        serving.url = store.url()
        async with client.read(JOURNAL, direct=True) as reader:
            read, error = await drain(reader)
    assert read == b""
    assert isinstance(error, pb.TransportError)
    assert "redirects too often" in str(error)
    assert len(serving.asked) == instant.permanent_attempts


async def test_what_is_wrong_with_the_client_is_raised(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object, **__: object) -> None:
        raise pb.ConfigurationError("no certificate")

    monkeypatch.setattr(client.context.rpc, "read", read)
    async with client.read(JOURNAL, direct=True) as reader:
        with pytest.raises(pb.ConfigurationError, match="certificate"):
            await reader.read()


async def test_seek(
    client: JournalClient,
    serving: Serving,
    fragments: FakeFragments,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with client.read(JOURNAL, direct=True) as reader:
        assert await reader.read(2) == CONTENT[:2]
        # Forward within the file, it's read on.
        assert await reader.seek(13) == reader.offset == 13
        assert reader.adjusted_offset(4) == 9
        assert await reader.read(2) == CONTENT[13:15]
        assert serving.asked == [(0, True)]
        # Elsewhere, it takes another RPC.
        assert await reader.seek(-5, os.SEEK_CUR) == reader.offset == 10
        fragments.failures.append((14, pb.FragmentError("damaged")))
        assert await reader.read(1) == CONTENT[10:11]
        with caplog.at_level(logging.WARNING):
            assert await reader.seek(18) == reader.offset == 18
        assert "damaged" in caplog.text
        assert await read_to_head(reader) == CONTENT[18:]
    assert [offset for offset, _ in serving.asked] == [0, 10, 18, 20, 40]
    assert fragments.open_count == 0


@pytest.mark.parametrize("seeks", [False, True])
async def test_cancel(
    client: JournalClient,
    serving: Serving,
    fragments: FakeFragments,
    seeks: bool,
) -> None:
    async with client.read(JOURNAL, direct=True) as reader:
        await reader.read(2)
        pending = reader.seek(19) if seeks else reader.read()
        task = asyncio.create_task(pending)
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert reader.offset == (19 if seeks else 2)
        with pytest.raises(asyncio.CancelledError):
            await reader.seek(5)
        await reader.restart(pb.ReadRequest(journal=JOURNAL, offset=6))
        assert await read_to_head(reader) == CONTENT[6:]
    assert fragments.open_count == 0


async def test_restarting_after_a_cancelled_seek(
    client: JournalClient, serving: Serving, fragments: FakeFragments
) -> None:
    async with client.read(JOURNAL, direct=True) as reader:
        await reader.read(2)
        seeking = asyncio.create_task(reader.seek(19))
        await asyncio.sleep(0)
        reader.cancel()
        # Race: the seek has yet to notice.
        await reader.restart(pb.ReadRequest(journal=JOURNAL, offset=6))
        with pytest.raises(asyncio.CancelledError):
            await seeking
        assert reader.offset == 6
        assert await read_to_head(reader) == CONTENT[6:]
    assert fragments.open_count == 0


async def test_closing_under_a_read_ends_it(
    client: JournalClient, serving: Serving, fragments: FakeFragments
) -> None:
    reader = client.read(JOURNAL, direct=True)
    await reader.read(2)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await reading
    assert fragments.open_count == 0


async def test_cancellation_loses_nothing(
    client: JournalClient, serving: Serving, fragments: FakeFragments
) -> None:
    async def operation(reader: RetryReader, read: bytearray) -> None:
        read += await reader.read(2)
        await reader.seek(12)
        read += CONTENT[2:12]
        await drain_into(reader, read)

    async def drain_into(reader: RetryReader, read: bytearray) -> None:
        try:
            async for chunk in reader:
                read += chunk
        except pb.OffsetNotYetAvailableError:
            pass

    number = 0
    for number in itertools.count():
        read = bytearray()
        async with client.read(JOURNAL, direct=True) as reader:
            was_cancelled = await cancel_at(operation(reader, read), number)
            if reader.offset == 12 and len(read) == 2:
                read += CONTENT[2:12]  # Who seeks gets there.
            assert reader.offset == len(read)
            await drain_into(reader, read)
        assert read == CONTENT
        assert fragments.open_count == 0
        if not was_cancelled:
            break
    assert number > 20


async def test_not_yet_available_away_from_the_head(
    broker: StubBroker, client: JournalClient
) -> None:
    lagging = refusal(pb.Status.OFFSET_NOT_YET_AVAILABLE, 100)
    lagging.write_head = 90
    at_head = refusal(pb.Status.OFFSET_NOT_YET_AVAILABLE, 100)
    for responses, count in ([lagging, lagging, at_head], 3), ([lagging] * 6, 5):
        for response in responses:
            broker.read_responses.put_nowait(response)
            broker.finish()
        async with client.read(JOURNAL, offset=100) as reader:
            with pytest.raises(pb.OffsetNotYetAvailableError):
                await reader.read()
        assert broker.read_requests.qsize() == count
        while not broker.read_requests.empty():
            broker.read_requests.get_nowait()
        while not broker.read_responses.empty():
            broker.read_responses.get_nowait()


# With a broker and its files.

_CODECS = [
    pb.CompressionCodec.NONE,
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.SNAPPY,
    pb.CompressionCodec.ZSTANDARD,
]


def text(seed: int, size: int) -> bytes:
    chance = random.Random(seed)
    return b"".join(b"%d %d\n" % (number, chance.getrandbits(40)) for number in range(size // 16))


async def read_up_to_head(reader: RetryReader, chance: random.Random) -> list[tuple[int, bytes]]:
    """Return runs of content, and where they began."""
    runs: list[tuple[int, bytearray]] = []
    while True:
        try:
            data = await reader.read(chance.choice([-1, 100, 10_000, 1 << 20]))
        except pb.OffsetJumpError:
            continue
        except pb.OffsetNotYetAvailableError:
            return [(begin, bytes(run)) for begin, run in runs]
        begin = reader.offset - len(data)
        if runs and runs[-1][0] + len(runs[-1][1]) == begin:
            runs[-1][1].extend(data)
        else:
            runs.append((begin, bytearray(data)))


@pytest.fixture
async def stored(
    tmp_path: Path,
) -> AsyncIterator[CreateStored]:
    """Create a journal of three persisted fragments, a hole between two, and live content."""
    root = tmp_path / "fragments"
    root.mkdir()
    async with EmbeddedBroker(file_root=root, fsync="off", persist_delay=0.0) as broker:

        async def create(codec: pb.CompressionCodec.ValueType) -> EmbeddedBroker:
            journal = spec(JOURNAL)
            journal.fragment.compression_codec = codec
            journal.fragment.stores.append("file:///")
            async with connect(broker.endpoint) as client:
                await client.apply([pb.ApplyRequest.Change(upsert=journal)])
                for number in range(4):
                    await client.append(JOURNAL, text(number, 300_000))
                    if number < 3:
                        await broker.flush(JOURNAL)
                files = sorted((root / JOURNAL).iterdir())
                files[1].unlink()
                # A hole is skipped if what follows is old.
                os.utime(files[2], (1, 1))
                await broker.refresh(JOURNAL)
            return broker

        yield create


@pytest.mark.parametrize("codec", _CODECS, ids=pb.CompressionCodec.Name)
async def test_direct_reads_equal_proxied_ones(
    stored: CreateStored,
    tmp_path: Path,
    codec: pb.CompressionCodec.ValueType,
) -> None:
    broker = await stored(codec)
    chance = random.Random(codec)
    opened = 0

    class Opened(NoMetrics):
        def fragment_open(self, *_args: object, **_kwargs: object) -> None:
            nonlocal opened
            opened += 1

    root = tmp_path / "fragments"
    async with connect(broker.endpoint, file_root=root, metrics=Opened()) as client:
        head = (await client.append(JOURNAL)).commit.end
        whole = {}
        async with client.read(JOURNAL) as reader:
            whole = dict(await read_up_to_head(reader, chance))
        assert len(whole) == 2
        begins = sorted(whole)
        hole = (len(whole[0]), begins[1])
        offsets = [0, 1, hole[0] - 1, hole[0], hole[0] + 7, hole[1], head - 1, head]
        for offset in offsets + [chance.randrange(head) for _ in range(4)]:
            async with (
                client.read(JOURNAL, offset=offset) as proxied,
                client.read(JOURNAL, offset=offset, direct=True, verify=offset % 2 == 0) as direct,
            ):
                expected = await read_up_to_head(proxied, chance)
                assert await read_up_to_head(direct, chance) == expected
                assert direct.offset == proxied.offset == head
                assert direct.is_direct
                # Over the edge, and on with what is appended now.
                if offset == 1:
                    tail = text(9, 1000)
                    commit = (await client.append(JOURNAL, tail)).commit
                    assert await read_up_to_head(direct, chance) == [(commit.begin, tail)]
                    await proxied.seek(commit.end)
                    head = commit.end
        assert opened > len(offsets)
        async with client.read(JOURNAL, end_offset=hole[0] + 5, direct=True) as reader:
            assert b"".join([chunk async for chunk in reader]) == whole[0]
            assert reader.offset == hole[1]


async def test_lines_of_files(stored: CreateStored, tmp_path: Path) -> None:
    broker = await stored(pb.CompressionCodec.ZSTANDARD)
    lines = [line for number in (0, 2, 3) for line in text(number, 300_000).splitlines(True)]
    read: list[bytes] = []
    async with (
        connect(broker.endpoint, file_root=tmp_path / "fragments") as client,
        BufferedRetryReader(client.read(JOURNAL, direct=True), limit=4096) as reader,
    ):
        while True:
            try:
                read.append(await reader.readline())
            except pb.OffsetJumpError:
                continue
            except pb.OffsetNotYetAvailableError:
                break
        assert reader.reader.is_direct
    assert read == lines


async def test_damage_is_found(stored: CreateStored, tmp_path: Path) -> None:
    broker = await stored(pb.CompressionCodec.NONE)
    file = min((tmp_path / "fragments" / JOURNAL).iterdir())
    damaged = bytearray(file.read_bytes())
    damaged[1000] ^= 1
    file.write_bytes(damaged)
    policy = RetryPolicy(backoff=lambda attempt: 0.0)
    async with connect(broker.endpoint, file_root=tmp_path / "fragments", retry=policy) as client:
        async with client.read(JOURNAL, offset=7, direct=True, verify=True) as reader:
            # Its end is withheld, so that it never looks complete.
            read, error = await drain(reader)
            assert isinstance(error, pb.FragmentError)
            assert "SHA-1" in str(error)
            assert 7 + len(read) == reader.offset < len(damaged)
        file.write_bytes(damaged[:2000])
        async with client.read(JOURNAL, offset=7, direct=True) as reader:
            read, error = await drain(reader)
            assert read == damaged[7:2000]
            assert isinstance(error, pb.UnexpectedEOFError)
            assert reader.offset == 2000


async def test_interruptions_lose_nothing(stored: CreateStored, tmp_path: Path) -> None:
    broker = await stored(pb.CompressionCodec.GZIP)
    chance = random.Random(1)
    read = bytearray()
    expected = text(0, 300_000) + text(2, 300_000) + text(3, 300_000)
    interruptions = 0
    async with (
        connect(broker.endpoint, file_root=tmp_path / "fragments") as client,
        client.read(JOURNAL, direct=True) as reader,
    ):
        while len(read) < len(expected):
            try:
                async with asyncio.timeout(chance.random() * 0.003):
                    read += await reader.read(chance.randrange(1, 100_000))
            except TimeoutError:
                interruptions += 1
            except pb.OffsetJumpError:
                pass
    assert read == expected
    assert interruptions


async def test_without_file_transport(
    stored: CreateStored,
) -> None:
    broker = await stored(pb.CompressionCodec.GZIP)
    chance = random.Random(0)
    async with (
        connect(broker.endpoint) as client,
        client.read(JOURNAL) as proxied,
        client.read(JOURNAL, direct=True) as direct,
    ):
        assert await read_up_to_head(direct, chance) == await read_up_to_head(proxied, chance)
        assert not direct.is_direct
