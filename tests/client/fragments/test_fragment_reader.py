"""Reading fragments from a store which hands out bytes as a test says."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
import random
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import FragmentReader, FragmentSource, connect, open_fragment_url
from gazette_aio.client.metrics import NoMetrics
from tests.cancellation import cancel_at_every_await
from tests.client.fragments.fragment_support import (
    CODECS,
    URL,
    FakeBody,
    FakeFetcher,
    fragment_of,
    read_all,
    read_until_error,
    stored,
)
from tests.client.support import JOURNAL
from tests.waiting import eventually, turns

CODEC = pb.CompressionCodec
DATA = b"".join(b"%06d " % number for number in range(300))
MIB = 1 << 20


def chunked(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def open_data(
    data: bytes,
    fragment: pb.Fragment,
    offset: int | None = None,
    *,
    size: int = 1 << 16,
    **options: Any,
) -> FragmentReader:
    """Open what a store holds, handed out in chunks of `size` bytes."""
    begin = fragment.begin if offset is None else offset
    body = FakeBody(chunked(data, size), headers=gzip_label(fragment))
    return await open_fragment_url(fragment, begin, URL, transport=FakeFetcher(body), **options)


def gzip_label(fragment: pb.Fragment) -> dict[str, str]:
    offloaded = fragment.compression_codec == CODEC.GZIP_OFFLOAD_DECOMPRESSION
    return {"Content-Encoding": "gzip"} if offloaded else {}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("verify", [False, True])
async def test_byte_by_byte(codec: int, verify: bool) -> None:
    data, fragment = stored(DATA[:300], codec, members=3), fragment_of(DATA[:300], codec)
    assert await read_all(await open_data(data, fragment, size=1, verify=verify)) == DATA[:300]


@given(
    codec=st.sampled_from(CODECS),
    length=st.integers(0, 2000),
    members=st.integers(1, 3),
    size=st.integers(1, 3000),
    seed=st.integers(0, 9),
    verify=st.booleans(),
    limits=st.lists(st.sampled_from([-1, 1, 7, 100, 5000]), min_size=1, max_size=4),
    data=st.data(),
)
def test_any_offset_and_chunks(
    codec: int,
    length: int,
    members: int,
    size: int,
    seed: int,
    verify: bool,
    limits: list[int],
    data: st.DataObject,
) -> None:
    # One half compresses well, the other one doesn't at all.
    content = (b"abc" * length)[: length // 2] + random.Random(seed).randbytes(length - length // 2)
    fragment = fragment_of(content, codec)
    offset = data.draw(st.integers(fragment.begin, fragment.end))
    target = data.draw(st.integers(offset, fragment.end))

    async def run() -> None:
        raw = stored(content, codec, members=members)
        reader = await open_data(raw, fragment, offset, size=max(size, length // 50), verify=verify)
        got = bytearray()
        async with reader:
            step = 0
            while data_read := await reader.read(limits[step % len(limits)]):
                limit = limits[step % len(limits)]
                assert limit < 0 or len(data_read) <= limit
                got += data_read
                assert reader.offset == offset + len(got)
                step += 1
                if reader.offset < target < fragment.end:
                    skipped = target - reader.offset
                    await reader.seek(target)
                    got += content[reader.offset - 100 - skipped : reader.offset - 100]
        assert bytes(got) == content[offset - 100 :]

    asyncio.run(run())


TEXT = b"XXXXXhello, world!!!"


@pytest.mark.parametrize("codec", CODECS)
async def test_ends(codec: int) -> None:
    data = stored(TEXT, codec)
    assert await read_all(await open_data(data, fragment_of(TEXT, codec))) == TEXT
    reader = await open_data(data, fragment_of(TEXT, codec), 105)
    assert await read_all(reader) == TEXT[5:]
    assert reader.offset == 120
    assert await read_all(await open_data(data, fragment_of(TEXT, codec), 120)) == b""

    got, error = await read_until_error(await open_data(data, fragment_of(TEXT, codec, end=121)))
    assert (got, type(error), str(error)) == (TEXT, pb.UnexpectedEOFError, "unexpected EOF")
    assert isinstance(error, pb.UnexpectedEOFError)
    assert (error.journal, error.offset, error.retryable) == (JOURNAL, 120, True)

    got, error = await read_until_error(await open_data(data, fragment_of(TEXT, codec, end=117)))
    assert (got, type(error)) == (b"", pb.DidNotReadExpectedEOFError)
    assert str(error) == "did not read EOF at expected Fragment.End"


async def test_another_codec_is_damage() -> None:
    reader = await open_data(stored(TEXT, CODEC.GZIP), fragment_of(TEXT, CODEC.SNAPPY))
    got, error = await read_until_error(reader)
    assert (got, type(error)) == (b"", pb.FragmentError)
    assert str(error).startswith("corrupt Snappy content")
    with pytest.raises(pb.FragmentError, match="corrupt Snappy content"):
        # Damage ahead of the offset is found when it's opened.
        await open_data(stored(TEXT, CODEC.GZIP), fragment_of(TEXT, CODEC.SNAPPY), 105)
    with pytest.raises(pb.ConfigurationError, match="unsupported codec INVALID"):
        await open_data(b"", pb.Fragment(journal=JOURNAL, end=5))


async def test_errors_repeat() -> None:
    async with await open_data(DATA, fragment_of(DATA, end=9000)) as reader:
        assert await reader.read() == DATA
        for _ in range(2):
            with pytest.raises(pb.UnexpectedEOFError):
                await reader.read()
        assert reader.read_nowait() is None


async def test_offsets_outside_of_the_fragment() -> None:
    fetcher = FakeFetcher()
    for offset in (-1, 99, 121):
        with pytest.raises(pb.ValidationError, match=rf"offset {offset} isn't within"):
            await open_fragment_url(fragment_of(TEXT), offset, URL, transport=fetcher)
    assert fetcher.requests == []


@pytest.mark.parametrize("codec", CODECS)
async def test_sums(codec: int) -> None:
    content = random.Random(1).randbytes(3 * MIB)
    fragment, data = fragment_of(content, codec), stored(content, codec)
    for offset in (100, 100 + MIB + 5):
        reader = await open_data(data, fragment, offset, verify=True)
        assert await read_all(reader) == content[offset - 100 :]

    fragment.sum.part3 ^= 1
    assert await read_all(await open_data(data, fragment)) == content
    # The last slice is withheld, so that nobody takes the end for good.
    got, error = await read_until_error(await open_data(data, fragment, verify=True))
    assert isinstance(error, pb.FragmentError)
    assert "wrong SHA-1 sum" in str(error)
    assert MIB <= len(got) < len(content)
    assert content.startswith(got)
    assert error.offset == 100 + len(got)

    fragment.ClearField("sum")
    with pytest.raises(pb.FragmentError, match="no sum to verify"):
        await open_data(data, fragment, verify=True)


@pytest.mark.parametrize("codec", CODECS)
async def test_an_empty_fragment_has_no_sum(codec: int) -> None:
    fragment = fragment_of(b"", codec)
    fragment.ClearField("sum")
    assert await read_all(await open_data(stored(b"", codec), fragment, verify=True)) == b""
    reader = await open_data(stored(b"+", codec), fragment, verify=True)
    assert isinstance((await read_until_error(reader))[1], pb.DidNotReadExpectedEOFError)


async def test_sums_of_parts_take_the_whole_file() -> None:
    fetcher = FakeFetcher(FakeBody([TEXT]), FakeBody([TEXT]))
    for verify in (True, False):
        reader = await open_fragment_url(
            fragment_of(TEXT), 105, URL, transport=fetcher, verify=verify
        )
        assert await read_all(reader) == TEXT[5:]
    assert ["Range" in headers for _, headers in fetcher.requests] == [False, True]


async def test_seek() -> None:
    async with await open_data(DATA, fragment_of(DATA), 105, size=100) as reader:
        await reader.seek(105)
        await reader.seek(350)
        assert await reader.read(4) == DATA[250:254]
        end = reader.fragment.end
        for target in (353, 0, end, end + 1):
            with pytest.raises(pb.SeekRequiresNewReaderError) as caught:
                await reader.seek(target)
            assert caught.value.offset == reader.offset == 354
        await reader.seek(end - 1)
        assert await reader.read() == DATA[-1:]
        assert await reader.read() == b""


async def test_limits() -> None:
    async with await open_data(DATA, fragment_of(DATA), size=100) as reader:
        assert await reader.read(0) == b""
        assert reader.read_nowait() is None
        assert await reader.read(30) == DATA[:30]
        assert reader.read_nowait(0) == b""
        assert reader.read_nowait(30) == DATA[30:60]
        assert reader.read_nowait() == DATA[60:100]
        assert await read_all(reader) == DATA[100:]
        assert reader.read_nowait() == b""


def bomb(codec: int, length: int) -> bytes:
    compressor = pb.compressor(codec)
    zeros = bytes(MIB)
    return b"".join(compressor.compress(zeros) for _ in range(length // MIB)) + compressor.finish()


@pytest.mark.parametrize("codec", [CODEC.GZIP, CODEC.ZSTANDARD])
async def test_bombs(codec: int) -> None:
    data = bomb(codec, 16 * MIB)
    fragment = fragment_of(b"", codec, end=100 + 16 * MIB)
    async with await open_data(data, fragment) as reader:
        total, most = 0, 0
        async for chunk in reader:
            assert len(chunk) <= MIB
            total += len(chunk)
            most = max(most, reader.waiting_bytes)
            if total > 8 * MIB:
                break
        assert most <= 2 * MIB
    fragment.end = 200
    got, error = await read_until_error(await open_data(data, fragment))
    assert (len(got), type(error)) == (0, pb.DidNotReadExpectedEOFError)


async def test_no_more_than_two_slices_ahead() -> None:
    data = bytes(10 * MIB)
    body = FakeBody(chunked(data, MIB))
    reader = await open_fragment_url(fragment_of(data), 100, URL, transport=FakeFetcher(body))
    async with reader:
        await eventually(lambda: reader.waiting_bytes == 2 * MIB)
        await turns(10)
        assert body.taken == reader.waiting_bytes == 2 * MIB
        assert await reader.read(1) == b"\0"  # Which makes room.
        await eventually(lambda: body.taken == 3 * MIB)
    assert body.closed


async def test_small_chunks_are_bounded_too() -> None:
    data = bytes(4 * MIB)
    body = FakeBody(chunked(data, 1000))
    reader = await open_fragment_url(fragment_of(data), 100, URL, transport=FakeFetcher(body))
    async with reader:
        await eventually(lambda: reader.waiting_bytes > MIB)
        await turns(10)
        assert body.taken < MIB + 2000
        assert await read_all(reader) == data


async def test_work_is_done_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from gazette_aio.protocol.codecs import content as fragment_content

    seen: set[bool] = set()
    step = fragment_content.FragmentContent.step

    def spied(self: fragment_content.FragmentContent, data: bytes = b"") -> bytes:
        if data:
            seen.add(threading.current_thread() is threading.main_thread())
        return step(self, data)

    monkeypatch.setattr(fragment_content.FragmentContent, "step", spied)
    await read_all(
        await open_data(stored(DATA, CODEC.ZSTANDARD), fragment_of(DATA, CODEC.ZSTANDARD))
    )
    await read_all(await open_data(DATA, fragment_of(DATA), verify=True))
    assert seen == {False}


async def test_a_stalled_body() -> None:
    body = FakeBody([DATA[:50], DATA[50:]])
    reader = await open_fragment_url(
        fragment_of(DATA), 100, URL, transport=FakeFetcher(body), progress_timeout=0.2
    )
    async with reader:
        assert await reader.read() == DATA[:50]
        body.gate.clear()
        with pytest.raises(pb.TransportError) as caught:
            await read_all(reader)
    error = caught.value
    assert (error.code, error.journal, error.retryable) == ("DEADLINE_EXCEEDED", JOURNAL, True)
    assert 'no byte of "http://store/f?…" came within 0.2 s' in str(error)
    assert body.closed == 1


async def test_chunks_of_nothing_are_no_progress() -> None:
    body = FakeBody(itertools.chain([DATA[:50]], itertools.repeat(b"")))
    reader = await open_fragment_url(
        fragment_of(DATA), 100, URL, transport=FakeFetcher(body), progress_timeout=0.05
    )
    got, error = await read_until_error(reader)
    assert got == DATA[:50]
    assert isinstance(error, pb.TransportError)
    assert error.code == "DEADLINE_EXCEEDED"
    assert body.closed == 1


async def test_damage_is_told_at_once() -> None:
    body = FakeBody([stored(TEXT, CODEC.GZIP) + b"garbage, which is no member"])
    body.after = asyncio.Event().wait
    fragment = fragment_of(TEXT, CODEC.GZIP, end=200)
    reader = await open_fragment_url(fragment, 100, URL, transport=FakeFetcher(body))
    async with asyncio.timeout(60):
        got, error = await read_until_error(reader)
    assert (got, type(error)) == (TEXT, pb.FragmentError)


async def test_a_silent_store() -> None:
    class Silent(FakeFetcher):
        async def open(self, url: str, headers: object) -> FakeBody:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    with pytest.raises(pb.TransportError, match="no answer within") as caught:
        await open_fragment_url(
            fragment_of(DATA), 100, URL, transport=Silent(), progress_timeout=0.01
        )
    assert caught.value.retryable


@pytest.mark.parametrize("phase", ["open", "body"])
async def test_failures_of_fetchers(phase: str) -> None:
    for failure, expected in (
        (ConnectionResetError(104, "reset"), pb.TransportError),
        (TimeoutError(), pb.TransportError),
        (pb.TransportError("UNAVAILABLE", "down", retryable=True), pb.TransportError),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
    ):
        body = FakeBody([DATA[:9], failure])
        fetcher = FakeFetcher(failure if phase == "open" else body)
        with pytest.raises(expected) as caught:
            await read_all(await open_fragment_url(fragment_of(DATA), 100, URL, transport=fetcher))
        error = caught.value
        assert "secret" not in repr(error)
        if isinstance(error, pb.TransportError):
            assert (error.retryable, error.journal) == (True, JOURNAL)
            assert "secret" not in str(pickle.loads(pickle.dumps(error)))
        assert body.closed == (phase == "body")


async def test_closing() -> None:
    data = bytes(10 * MIB)
    body = FakeBody(chunked(data, 1000))
    reader = await open_fragment_url(fragment_of(data), 100, URL, transport=FakeFetcher(body))
    await reader.read()
    assert repr(reader).startswith("<FragmentReader of 'a/journal' [100, 10485860) at 1100, open")
    assert "secret" not in repr(reader)
    reading = asyncio.create_task(read_all(await open_data(b"", fragment_of(b""))))
    assert await reading == b""
    await reader.aclose()
    await reader.aclose()
    assert (body.closed, reader.waiting_bytes) == (1, 0)
    assert "closed" in repr(reader)
    with pytest.raises(RuntimeError, match="was closed"):
        await reader.read()


async def test_closing_ends_a_read() -> None:
    body = FakeBody([DATA])
    body.gate.clear()
    reader = await open_fragment_url(fragment_of(DATA), 100, URL, transport=FakeFetcher(body))
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    reader.abandon()
    with pytest.raises(RuntimeError, match="was closed"):
        await reading
    await eventually(lambda: body.closed)
    await reader.aclose()


async def test_closing_before_anything_happened() -> None:
    body = FakeBody([DATA])
    reader = await open_fragment_url(fragment_of(DATA), 100, URL, transport=FakeFetcher(body))
    reader.abandon()
    await reader.aclose()
    assert (body.closed, body.taken) == (1, 0)


async def test_a_reader_which_was_read_to_its_end_needs_no_closing() -> None:
    body = FakeBody([DATA])
    reader = await open_fragment_url(fragment_of(DATA), 100, URL, transport=FakeFetcher(body))
    assert [chunk async for chunk in reader] == [DATA]
    assert body.closed == 1
    await reader.aclose()
    assert await reader.read() == b""


async def test_a_leaked_reader() -> None:
    body = FakeBody(chunked(bytes(10 * MIB), MIB))
    reader = await open_fragment_url(
        fragment_of(bytes(10 * MIB)), 100, URL, transport=FakeFetcher(body)
    )
    await reader.read()
    with pytest.warns(ResourceWarning, match=r"FragmentReader of .* was never closed"):  # noqa: PT031
        del reader
        gc.collect(1)
    await eventually(lambda: body.closed)


@pytest.mark.parametrize("codec", [CODEC.NONE, CODEC.ZSTANDARD])
async def test_cancellation(codec: int) -> None:
    content = DATA[:200]
    raw = chunked(stored(content, codec, members=10), 16)
    fetcher = FakeFetcher(make=lambda: FakeBody(raw))
    source = FragmentSource(fetcher=fetcher)
    fragment = fragment_of(content, codec)
    reader: FragmentReader | None = None

    async def operation() -> None:
        nonlocal reader
        reader = None
        reader = await source.open(fragment, 105, URL)
        await reader.read(20)
        await reader.seek(150)
        for at in range(150, 300, 10):
            got = b""
            while len(got) < 10:
                got += await reader.read(10 - len(got))
            assert got == content[at - 100 : at - 90]

    async def check() -> None:
        if reader is not None:
            # Nothing is lost: reading on brings what is missing.
            at = reader.offset - 100
            assert await read_all(reader) == content[at:]
        await eventually(lambda: all(body.closed == 1 for body in fetcher.opened))
        await eventually(lambda: "0 open" in repr(source))

    assert await cancel_at_every_await(operation, check) > 5
    await source.aclose()


async def test_cancelled_closing() -> None:
    fetcher = FakeFetcher(make=lambda: FakeBody(chunked(stored(DATA, CODEC.GZIP), 9)))

    async def operation() -> None:
        source = FragmentSource(fetcher=fetcher)
        try:
            reader = await source.open(fragment_of(DATA, CODEC.GZIP), 100, URL)
            reader.abandon()
        finally:
            await source.aclose()

    async def check() -> None:
        await eventually(lambda: all(body.closed == 1 for body in fetcher.opened))

    assert await cancel_at_every_await(operation, check) == 2


async def test_metrics() -> None:
    class Counts(NoMetrics):
        def __init__(self) -> None:
            self.seen: list[tuple[object, ...]] = []

        def fragment_open(self, *args: object, **_kwargs: object) -> None:
            self.seen.append(("open", *args))

        def read_fragment_bytes(self, *args: object, **_kwargs: object) -> None:
            self.seen.append(("read", *args))

        def discard_fragment_bytes(self, *args: object, **_kwargs: object) -> None:
            self.seen.append(("discard", *args))

    counts, data = Counts(), stored(TEXT, CODEC.ZSTANDARD)
    fetcher = FakeFetcher(
        FakeBody([data], headers={"Content-Length": str(len(data))}), FakeBody([], status=404)
    )
    fragment = fragment_of(TEXT, CODEC.ZSTANDARD)
    reader = await open_fragment_url(fragment, 105, URL, transport=fetcher, metrics=counts)
    async with reader:
        await reader.read(5)
        await reader.seek(115)
        await reader.read()
        with pytest.raises(pb.TransportError, match="404 Not Found"):
            await open_fragment_url(fragment, 105, URL, transport=fetcher, metrics=counts)
    assert counts.seen == [
        ("open", JOURNAL, "ZSTANDARD", 20, len(data)),
        ("discard", JOURNAL, "ZSTANDARD", 5),
        ("read", JOURNAL, "ZSTANDARD", 5),
        ("discard", JOURNAL, "ZSTANDARD", 5),
        ("read", JOURNAL, "ZSTANDARD", 5),
    ]


async def test_a_source_closes_its_readers() -> None:
    fetcher = FakeFetcher(make=lambda: FakeBody(chunked(DATA, 1)))
    source = FragmentSource(fetcher=fetcher)
    readers = [await source.open(fragment_of(DATA), 100, URL) for _ in range(3)]
    assert repr(source) == "<FragmentSource, 3 open>"
    await source.aclose()
    await source.aclose()
    assert [body.closed for body in fetcher.opened] == [1, 1, 1]
    assert repr(source) == "<FragmentSource, closed>"
    with pytest.raises(RuntimeError, match="was closed"):
        await readers[0].read()
    with pytest.raises(RuntimeError, match="is closed"):
        await source.open(fragment_of(DATA), 100, URL)


async def test_closing_a_source_while_it_opens() -> None:
    gate, body = asyncio.Event(), FakeBody([DATA])

    class Slow(FakeFetcher):
        async def open(self, url: str, headers: Mapping[str, str]) -> FakeBody:
            await gate.wait()
            return await super().open(url, headers)

    source = FragmentSource(fetcher=Slow(body))
    opening = asyncio.create_task(source.open(fragment_of(DATA), 105, URL))
    await asyncio.sleep(0)
    await source.aclose()
    gate.set()
    with pytest.raises(RuntimeError, match="was closed"):
        await opening
    await eventually(lambda: body.closed)


def test_a_source_belongs_to_its_loop() -> None:
    source = FragmentSource(fetcher=FakeFetcher(make=lambda: FakeBody([DATA])))

    async def read() -> bytes:
        return await read_all(await source.open(fragment_of(DATA), 100, URL))

    assert asyncio.run(read()) == DATA
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(read())


async def test_the_fragments_of_a_client() -> None:
    fetcher = FakeFetcher(FakeBody([DATA]))
    async with connect("http://127.0.0.1:1", fragment_fetcher=fetcher) as client:
        reader = await client.fragments.open(fragment_of(DATA), 100, URL)
        assert await reader.read() == DATA
    assert (fetcher.opened[0].closed, fetcher.closed) == (1, 1)
