"""Reads of exact ranges, and probes."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.client.fragments.file_transport import FileBody, FileTransport
from gazette_aio.spark.reading import bounded
from gazette_aio.spark.reading.bounded import BoundedReader, map_bounded
from gazette_aio.testing import no_leaks
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.fragments.fake_fragments import FakeFragments, http_error
from tests.client.fragments.test_direct_reads import CONTENT, Serving
from tests.client.support import JOURNAL, content, metadata, refusal, spec
from tests.waiting import eventually, turns

INSTANT = RetryPolicy(backoff=lambda attempt: 0.0)
PARTS = [b"%d" % part * 1000 for part in range(4)]
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield


@pytest.fixture
async def broker() -> AsyncIterator[StubBroker]:
    async with StubBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: StubBroker) -> AsyncIterator[JournalClient]:
    async with connect(broker.endpoint, retry=INSTANT) as client:
        yield client


class Stored:
    """A journal of three persisted fragments and local content, 1,000 bytes of each."""

    def __init__(self, broker: EmbeddedBroker, client: JournalClient, root: Path) -> None:
        self.broker = broker
        self.client = client
        self.root = root

    @property
    def files(self) -> list[Path]:
        return sorted(self.root.rglob("*-*-*"))

    async def create(self, codec: pb.CompressionCodec.ValueType) -> None:
        journal = spec(JOURNAL)
        journal.fragment.compression_codec = codec
        journal.fragment.stores.append("file:///")
        await self.client.apply([pb.ApplyRequest.Change(upsert=journal)])
        for number, part in enumerate(PARTS):
            await self.client.append(JOURNAL, part)
            if number < 3:
                await self.broker.flush(JOURNAL)
        await self.broker.refresh(JOURNAL)

    async def lose(self, *numbers: int, refresh: bool = True) -> None:
        files = self.files
        for number in numbers:
            files[number].unlink()
        if refresh:
            await self.broker.refresh(JOURNAL)


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[Stored]:
    root = tmp_path / "fragments"
    root.mkdir()
    async with (
        EmbeddedBroker(file_root=root, fsync="off", persist_delay=0.0, http_port=None) as broker,
        connect(broker.endpoint, file_root=root, retry=INSTANT) as client,
    ):
        stored = Stored(broker, client, root)
        await stored.create(pb.CompressionCodec.GZIP)
        yield stored


async def read(reader: BoundedReader) -> list[tuple[int, bytes]]:
    """Read up to the end, and return runs of content."""
    runs: list[tuple[int, bytearray]] = []
    async with reader:
        async for offset, data in reader:
            assert data
            if runs and runs[-1][0] + len(runs[-1][1]) == offset:
                runs[-1][1].extend(data)
            else:
                runs.append((offset, bytearray(data)))
    assert reader.offset == reader.end
    return [(offset, bytes(run)) for offset, run in runs]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("begin", "end"), [(0, 4000), (1, 2), (999, 1001), (1000, 3000), (2500, 3999), (3000, 4000)]
)
async def test_exact_ranges(stored: Stored, direct: bool, begin: int, end: int) -> None:
    reader = BoundedReader(stored.client, JOURNAL, begin, end, direct=direct, fetch_timeout=0)
    assert await read(reader) == [(begin, WHOLE[begin:end])]
    assert reader.gaps == ()
    assert reader.is_direct is direct


@pytest.mark.parametrize(
    "codec",
    [
        pb.CompressionCodec.NONE,
        pb.CompressionCodec.SNAPPY,
        pb.CompressionCodec.ZSTANDARD,
    ],
    ids=pb.CompressionCodec.Name,
)
async def test_codecs(tmp_path: Path, codec: pb.CompressionCodec.ValueType) -> None:
    async with (
        EmbeddedBroker(
            file_root=tmp_path, fsync="off", persist_delay=0.0, http_port=None
        ) as broker,
        connect(broker.endpoint, file_root=tmp_path) as client,
    ):
        await Stored(broker, client, tmp_path).create(codec)
        assert await read(BoundedReader(client, JOURNAL, 7, 3500)) == [(7, WHOLE[7:3500])]


async def test_an_empty_range_takes_no_rpc(client: JournalClient) -> None:
    for offset in (0, 5):
        assert await read(BoundedReader(client, JOURNAL, offset, offset)) == []
    assert client.status().streams == ()


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (6, 5)])
async def test_invalid_ranges(client: JournalClient, begin: int, end: int) -> None:
    with pytest.raises(pb.ValidationError, match=r"a/journal: \["):
        BoundedReader(client, JOURNAL, begin, end)


@pytest.mark.parametrize("direct", [True, False])
async def test_content_before_the_first_fragment_is_lost(stored: Stored, direct: bool) -> None:
    os.utime(stored.files[1], (1, 1))
    await stored.lose(0)
    reader = BoundedReader(stored.client, JOURNAL, 200, 4000, direct=direct)
    with pytest.raises(
        pb.DataLossError, match=r"^lost \[200, 1000\) of journal a/journal: "
    ) as info:
        await read(reader)
    assert info.value.missing == ((200, 1000),)
    assert (info.value.journal, info.value.offset) == (JOURNAL, 200)
    copy = pickle.loads(pickle.dumps(info.value))
    assert (str(copy), copy.missing) == (str(info.value), info.value.missing)
    # It isn't as if it had ended.
    with pytest.raises(pb.DataLossError):
        await anext(reader)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
async def test_holes(stored: Stored, direct: bool, is_old: bool) -> None:
    """The broker skips an old one, and ends the read at a young one as if it were the head."""
    if is_old:
        os.utime(stored.files[2], (1, 1))
    await stored.lose(1)
    reader = BoundedReader(stored.client, JOURNAL, 5, 4000, direct=direct, fetch_timeout=0.01)
    found = bytearray()

    async def consume() -> None:
        async with reader:
            async for _, data in reader:
                found.extend(data)

    with pytest.raises(pb.DataLossError) as info:
        await consume()
    assert found == WHOLE[5:1000]
    assert info.value.missing == ((1000, 2000),)


@pytest.mark.parametrize("is_old", [True, False])
async def test_holes_are_skipped_if_asked_to(
    stored: Stored, is_old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_old:
        os.utime(stored.files[2], (1, 1))
    await stored.lose(0, 1)
    told: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        reader = BoundedReader(
            stored.client,
            JOURNAL,
            0,
            4000,
            fetch_timeout=0.01,
            fail_on_data_loss=False,
            on_gap=lambda begin, end: told.append((begin, end)),
        )
        assert await read(reader) == [(2000, WHOLE[2000:])]
    assert reader.gaps == tuple(told) == ((0, 2000),)
    assert "lost [0, 2000) of journal a/journal" in caplog.text
    reader = BoundedReader(
        stored.client, JOURNAL, 100, 1900, fetch_timeout=0.01, fail_on_data_loss=False
    )
    assert await read(reader) == []
    assert reader.gaps == ((100, 1900),)


@pytest.mark.parametrize("direct", [True, False])
async def test_the_first_content_which_a_broker_does_not_know_of_yet(
    stored: Stored, direct: bool
) -> None:
    """It took the journal over, and persisted a fragment of its own meanwhile."""
    first = stored.files[0]
    hidden = first.rename(stored.root / "hidden")
    await stored.broker.refresh(JOURNAL)
    skipped = stored.broker.control.observe("read", journal=JOURNAL)
    reader = BoundedReader(stored.client, JOURNAL, 200, 4000, direct=direct)
    reading = asyncio.create_task(read(reader))
    await eventually(lambda: skipped.hits > 1)
    hidden.rename(first)
    await stored.broker.refresh(JOURNAL)
    assert await reading == [(200, WHOLE[200:])]
    assert not reader.gaps


async def test_two_holes(stored: Stored) -> None:
    await stored.lose(0, 2)
    reader = BoundedReader(
        stored.client, JOURNAL, 0, 4000, fetch_timeout=0.0, fail_on_data_loss=False
    )
    assert await read(reader) == [(1000, PARTS[1]), (3000, PARTS[3])]
    assert reader.gaps == ((0, 1000), (2000, 3000))


@pytest.mark.parametrize("skips", [True, False])
async def test_files_which_are_gone(stored: Stored, skips: bool) -> None:
    """The broker doesn't know as yet."""
    await stored.lose(1, refresh=False)
    reader = BoundedReader(
        stored.client, JOURNAL, 0, 4000, fetch_timeout=0.05, fail_on_data_loss=not skips
    )
    if skips:
        assert await read(reader) == [(0, PARTS[0]), (2000, WHOLE[2000:])]
        assert reader.gaps == ((1000, 2000),)
        return
    with pytest.raises(pb.DataLossError, match="its file is gone") as info:
        await read(reader)
    assert info.value.missing == ((1000, 2000),)


@pytest.mark.parametrize("problem", ["another directory", "a file is missing", "not readable"])
async def test_files_which_are_not_found_here_come_through_the_broker(
    stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    mount = tmp_path / "mount"
    if problem == "another directory":
        mount.mkdir()
    else:
        shutil.copytree(stored.root, mount)
    if problem == "a file is missing":
        sorted(mount.rglob("*-*-*"))[1].unlink()
    if problem == "not readable":  # By anybody but root, as whom tests may run.
        refused = FileBody(HTTPStatus.FORBIDDEN)

        def refuse(*_: object) -> FileBody:
            return refused

        # Root may read any file.
        monkeypatch.setattr(FileTransport, "_open", refuse)
    told: list[int] = []
    async with connect(stored.broker.endpoint, file_root=mount) as client:
        reader = BoundedReader(client, JOURNAL, 5, 4000, on_missing_file=lambda: told.append(1))
        assert await read(reader) == [(5, WHOLE[5:])]
        assert (told, reader.is_direct) == ([1], False)
        assert client.status().streams == ()
        # Nobody minds where it doesn't matter.
        reader = BoundedReader(client, JOURNAL, 3000, 4000, on_missing_file=lambda: told.append(2))
        assert await read(reader) == [(3000, WHOLE[3000:])]
        assert (told, reader.is_direct) == ([1], True)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("skips", [True, False])
async def test_files_which_are_gone_for_the_broker_as_well(
    stored: Stored, skips: bool, direct: bool
) -> None:
    await stored.lose(1, refresh=False)
    reader = BoundedReader(
        stored.client,
        JOURNAL,
        0,
        4000,
        direct=direct,
        on_missing_file=lambda: None,
        fetch_timeout=0.05,
        fail_on_data_loss=not skips,
    )
    if skips:
        assert await read(reader) == [(0, PARTS[0]), (2000, WHOLE[2000:])]
        assert reader.gaps == ((1000, 2000),)
        return
    with pytest.raises(pb.DataLossError, match=r"its file is gone: .*no such file") as info:
        await read(reader)
    assert info.value.missing == ((1000, 2000),)


async def test_content_behind_the_head(stored: Stored) -> None:
    """The journal isn't the one which the range was planned for."""
    with pytest.raises(pb.DataLossError, match="after the write head 4000") as info:
        await read(BoundedReader(stored.client, JOURNAL, 3900, 5000, fetch_timeout=0.01))
    assert info.value.missing == ((4000, 5000),)
    reader = BoundedReader(
        stored.client, JOURNAL, 4500, 5000, fetch_timeout=0.0, fail_on_data_loss=False
    )
    assert await read(reader) == []
    assert reader.gaps == ((4500, 5000),)


async def test_journals_which_are_gone(stored: Stored) -> None:
    with pytest.raises(pb.DataLossError, match="JOURNAL_NOT_FOUND") as info:
        await read(BoundedReader(stored.client, "no/journal", 3, 5, fetch_timeout=0.01))
    assert info.value.missing == ((3, 5),)
    reader = BoundedReader(stored.client, "no/journal", 3, 5, fail_on_data_loss=False)
    assert await read(reader) == []
    assert reader.gaps == ((3, 5),)


class Growing:
    """Serves CONTENT up to `there`, though its head is at the end, which grows as it's asked."""

    def __init__(self, broker: StubBroker) -> None:
        self.there = 10
        self.steps: list[int] = []
        self.asked = 0
        broker.read_handler = self.answer
        broker.fragments_handler = self.fragments

    async def answer(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        self.asked += 1
        if self.steps:
            self.there = self.steps.pop(0)
        offset = request.offset
        end = min(request.end_offset, self.there)
        if offset < end:
            yield metadata(offset)
            yield content(offset, CONTENT[offset:end])
        if end < request.end_offset:
            response = refusal(pb.Status.OFFSET_NOT_YET_AVAILABLE, max(end, offset))
            response.write_head = len(CONTENT)
            yield response

    def fragments(self, request: pb.FragmentsRequest) -> pb.FragmentsResponse:
        return pb.FragmentsResponse(header=refusal(pb.Status.OK).header)


async def test_content_which_comes_late_is_waited_for(
    broker: StubBroker, client: JournalClient
) -> None:
    growing = Growing(broker)
    growing.steps = [10] * 12 + [11] * 7 + [30] * 30 + [60]
    assert await read(BoundedReader(client, JOURNAL, 0, 60)) == [(0, CONTENT)]
    assert growing.asked == 50


async def test_progress_is_a_new_start(broker: StubBroker) -> None:
    growing = Growing(broker)
    growing.steps = [there for there in range(10, 40) for _ in range(7)] + [60]
    attempts: list[int] = []
    policy = RetryPolicy(backoff=lambda attempt: attempts.append(attempt) or 0.0)  # type: ignore[func-returns-value]
    async with connect(broker.endpoint, retry=policy) as client:
        assert await read(BoundedReader(client, JOURNAL, 0, 60)) == [(0, CONTENT)]
    assert growing.asked > 200
    assert max(attempts) < 5


async def test_waiting_has_an_end_and_backs_off(broker: StubBroker) -> None:
    growing = Growing(broker)
    attempts: list[int] = []
    seconds = 0.025
    while max(attempts, default=0) < 1:
        seconds *= 2  # A busy machine may not try twice within it.
        growing.asked, delay = 0, seconds / 12
        policy = RetryPolicy(backoff=lambda attempt: attempts.append(attempt) or delay)  # type: ignore[func-returns-value]  # noqa: B023
        async with connect(broker.endpoint, retry=policy) as client:
            with pytest.raises(pb.DataLossError, match="before the write head 60") as info:
                await read(BoundedReader(client, JOURNAL, 0, 50, fetch_timeout=seconds))
        assert info.value.missing == ((10, 50),)
        assert growing.asked <= 30


@pytest.mark.parametrize("fails", [True, False])
async def test_fragments_which_cannot_be_listed(
    broker: StubBroker, client: JournalClient, fails: bool
) -> None:
    Growing(broker)
    broker.fragments_handler = None
    reader = BoundedReader(client, JOURNAL, 0, 50, fetch_timeout=0.0, fail_on_data_loss=fails)
    # What to go on with isn't known then; but that it's missing is.
    with pytest.raises(pb.DataLossError if fails else pb.TransportError) as info:
        await read(reader)
    if isinstance(info.value, pb.DataLossError):
        assert info.value.missing == ((10, 50),)


async def test_expired_urls_are_asked_for_anew(broker: StubBroker, client: JournalClient) -> None:
    serving = Serving(broker)
    fragments = FakeFragments(client, CONTENT)
    fragments.failures += [(0, http_error(403)), (11, http_error(403)), (25, http_error(404))]
    assert await read(BoundedReader(client, JOURNAL, 0, 60)) == [(0, CONTENT)]
    assert [offset for offset, _ in serving.asked] == [0, 0, 11, 20, 25, 40]
    assert fragments.open_count == 0


async def test_a_stall_is_no_loss(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stall(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        yield metadata(0)
        await asyncio.Event().wait()

    broker.read_handler = stall
    monkeypatch.setattr(bounded, "STALL_SECONDS", 0.02)
    reader = BoundedReader(client, JOURNAL, 0, 9, fetch_timeout=0.0, fail_on_data_loss=False)
    with pytest.raises(pb.TransportError, match="no content of journal a/journal at 0"):
        await read(reader)


async def test_a_refusal_is_no_loss(broker: StubBroker, client: JournalClient) -> None:
    broker.read_responses.put_nowait(refusal(pb.Status.NOT_ALLOWED))
    broker.finish()
    with pytest.raises(pb.NotAllowedError):
        await read(BoundedReader(client, JOURNAL, 0, 9, fail_on_data_loss=False))
    broker.read_requests.get_nowait()


async def test_cancellation_loses_nothing(broker: StubBroker, client: JournalClient) -> None:
    Serving(broker)
    FakeFragments(client, CONTENT)
    found = bytearray()
    async with BoundedReader(client, JOURNAL, 0, 60) as reader:
        steps = 0
        while len(found) < 60:
            task = asyncio.ensure_future(anext(reader))
            await turns(steps % 7)
            steps += 1
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                offset, data = task.result()
                assert offset == len(found)
                found += data
    assert found == CONTENT
    await eventually(lambda: broker.open_rpcs == 0)


async def test_closing_amid_a_read(broker: StubBroker, client: JournalClient) -> None:
    Serving(broker)
    reader = BoundedReader(client, JOURNAL, 41, 60, direct=False)
    assert (await anext(reader))[0] == 41
    assert "at 60 of 60" in repr(reader)
    await reader.aclose()
    await reader.aclose()
    reader = BoundedReader(client, JOURNAL, 0, 60)
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await anext(reader)


# Bounded calls.


async def test_few_calls_run_at_once_and_their_results_keep_their_order() -> None:
    running: set[int] = set()
    most = 0

    async def square(number: int) -> int:
        nonlocal most
        running.add(number)
        most = max(most, len(running))
        await turns(number % 5)
        running.remove(number)
        return number * number

    assert await map_bounded(square, range(100), limit=7) == [n * n for n in range(100)]
    assert most == 7


async def test_bounded_calls_end_at_the_first_failure() -> None:
    begun: list[int] = []
    cancelled: list[int] = []

    async def call(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise pb.StoreError("three")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    with pytest.raises(pb.StoreError, match="three"):
        await map_bounded(call, range(100), limit=4)
    assert begun == [0, 1, 2, 3]
    assert sorted(cancelled) == [0, 1, 2]
