from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.client import BufferedRetryReader, JournalClient
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.cancellation import cancel_at
from tests.client.support import JOURNAL, content, metadata, refusal, script_read
from tests.waiting import eventually

NOT_YET = pb.Status.OFFSET_NOT_YET_AVAILABLE


def buffered(client: JournalClient, limit: int = 64, **options: object) -> BufferedRetryReader:
    return BufferedRetryReader(client.read(JOURNAL, **options), limit=limit)  # type: ignore[arg-type]


def with_hole(broker: StubBroker) -> None:
    """Serve `one`, `tw` at 100, and `three`, `four` at 200."""
    broker.read_responses.put_nowait(metadata(100))
    broker.read_responses.put_nowait(content(100, b"one\ntw"))
    broker.read_responses.put_nowait(metadata(200, first=False))
    broker.read_responses.put_nowait(content(200, b"three\nfour\n"))
    broker.read_responses.put_nowait(refusal(NOT_YET, 211))
    broker.finish()


@pytest.fixture
async def looked_at(broker: StubBroker) -> AsyncIterator[None]:
    """Requests are of no interest."""
    yield
    while not broker.read_requests.empty():
        broker.read_requests.get_nowait()


pytestmark = pytest.mark.usefixtures("looked_at")


async def test_seek(broker: StubBroker, client: JournalClient) -> None:
    async with buffered(client, offset=100) as reader:
        broker.read_responses.put_nowait(metadata(100))
        broker.read_responses.put_nowait(content(100, b"foo\nbar\nbaz\n"))
        assert await reader.readline() == b"foo\n"
        assert (reader.tell(), reader.buffered, reader.reader.offset) == (104, 8, 112)
        # Within the buffer.
        assert await reader.seek(2, os.SEEK_CUR) == 106
        assert (reader.tell(), reader.buffered) == (106, 6)
        assert broker.open_rpcs == 1
        assert await reader.readline() == b"r\n"
        # By another RPC.
        assert await reader.seek(-3, os.SEEK_CUR) == 105
        assert (reader.tell(), reader.buffered) == (105, 0)
        await eventually(lambda: broker.open_rpcs == 0)
        script_read(broker, 105, b"ar\n", status=NOT_YET)
        assert await reader.readline() == b"ar\n"
        assert await reader.seek(reader.tell()) == 108
        with pytest.raises(ValueError, match="SEEK_SET"):
            await reader.seek(0, os.SEEK_END)
        with pytest.raises(ValueError, match="negative"):
            await reader.seek(-1)
    assert [(await broker.read_requests.get()).offset for _ in range(2)] == [100, 105]


async def test_lines_over_failures(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 0, b"one\ntw", error=StubError(grpc.StatusCode.UNAVAILABLE, "gone"))
    script_read(broker, 6, b"o\n\nthree")
    async with buffered(client, end_offset=14) as reader:
        lines = [(reader.offset - len(line), line) async for line in reader]
    assert lines == [(0, b"one\n"), (4, b"two\n"), (8, b"\n"), (9, b"three")]
    assert "closed" in repr(reader)


async def test_at_the_head_what_is_there_stays(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 0, b"one\ntw", status=NOT_YET)
    script_read(broker, 6, b"o\nend")
    async with buffered(client, end_offset=11) as reader:
        assert await reader.readline() == b"one\n"
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await reader.readline()
        assert (reader.tell(), reader.buffered) == (4, 2)
        assert await reader.readuntil(b"o\n") == b"two\n"
        with pytest.raises(pb.UnexpectedEOFError) as raised:
            await reader.readuntil()
        assert raised.value.offset == 8
        with pytest.raises(pb.UnexpectedEOFError, match="3 of 4 bytes"):
            await reader.readexactly(4)
        assert await reader.readexactly(3) == b"end"
        assert await reader.readexactly(0) == await reader.readline() == await reader.read() == b""
        assert await reader.peek() == b""
        with pytest.raises(ValueError, match="negative"):
            await reader.readexactly(-1)
        with pytest.raises(ValueError, match="empty"):
            await reader.readuntil(b"")


async def test_a_hole_cuts_off_a_line(broker: StubBroker, client: JournalClient) -> None:
    with_hole(broker)
    async with buffered(client, offset=100) as reader:
        assert await reader.readline() == b"one\n"
        began = reader.offset
        with pytest.raises(pb.OffsetJumpError) as raised:
            await reader.readline()
        assert (began, raised.value.requested, raised.value.offset) == (104, 106, 200)
        assert (reader.tell(), reader.buffered) == (200, 0)
        assert await reader.readexactly(6) == b"three\n"
        assert await reader.readline() == b"four\n"


async def test_peek_and_read_up_to_a_hole(broker: StubBroker, client: JournalClient) -> None:
    with_hole(broker)
    async with buffered(client, offset=100) as reader:
        assert await reader.peek() == b"o"
        assert await reader.peek(100) == b"one\ntw"
        assert (reader.offset, reader.buffered, reader.reader.offset) == (100, 6, 200)
        assert await reader.read(4) == b"one\n"
        assert await reader.read() == b"tw"
        assert reader.offset == 106
        with pytest.raises(pb.OffsetJumpError):
            await reader.peek()
        assert reader.offset == 200
        assert await reader.read(0) == b""
        assert await reader.peek(3) == b"thr"
        assert await reader.read() == b"three\nfour\n"
        assert reader.offset == 211


async def test_a_known_hole_is_passed_by(broker: StubBroker, client: JournalClient) -> None:
    with_hole(broker)
    async with buffered(client, offset=100) as reader:
        await reader.peek(100)
        # Before the hole, and right behind it, without another RPC.
        assert await reader.seek(106) == reader.offset == 106
        assert await reader.seek(200) == reader.offset == 200
        assert await reader.readline() == b"three\n"
        await eventually(broker.read_responses.empty)
    assert broker.read_requests.qsize() == 1


async def test_the_head_as_first_offset(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 700, b"tail\n", status=NOT_YET)
    async with buffered(client, offset=-1) as reader:
        assert reader.tell() == -1
        assert await reader.peek(2) == b"ta"
        assert reader.tell() == 700
        assert await reader.readline() == b"tail\n"


async def test_the_buffer_is_bounded(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 0, b"12345678\n" + b"x" * 50)
    async with buffered(client, limit=9, end_offset=59) as reader:
        assert await reader.readline() == b"12345678\n"
        with pytest.raises(pb.FrameTooLargeError) as raised:
            await reader.readline()
        assert (raised.value.journal, raised.value.begin, raised.value.end) == (JOURNAL, 9, 18)
        assert reader.buffered == 9
        # Unless it's asked for.
        assert await reader.peek(20) == b"x" * 20
        assert await reader.readexactly(30) == b"x" * 30
        assert await reader.read() == b"x" * (reader.offset - 39)
    with pytest.raises(ValueError, match="positive"):
        buffered(client, limit=0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 10, 11, 14, 24])
async def test_pieces_of_content_make_no_difference(
    broker: StubBroker, client: JournalClient, size: int
) -> None:
    text = b"1234567\r\n12345678\r\n12\r\n"
    broker.read_responses.put_nowait(metadata(0))
    for begin in range(0, len(text), size):
        broker.read_responses.put_nowait(content(begin, text[begin : begin + size]))
    broker.read_responses.put_nowait(refusal(NOT_YET, len(text)))
    broker.finish()
    async with buffered(client, limit=9) as reader:
        # It buffers what there is, which is more than the limit.
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await reader.readexactly(len(text) + 1)
        assert reader.buffered == len(text)
        assert await reader.readuntil(b"\r\n") == b"1234567\r\n"
        with pytest.raises(pb.FrameTooLargeError) as raised:
            await reader.readuntil(b"\r\n")
        assert (raised.value.begin, raised.value.end) == (9, 18)
        assert await reader.readexactly(10) == b"12345678\r\n"
        assert await reader.readuntil(b"\r\n") == b"12\r\n"


async def test_a_seek_which_does_not_begin_loses_nothing(
    broker: StubBroker, client: JournalClient
) -> None:
    script_read(broker, 100, b"one\ntwo\n")
    async with buffered(client, offset=100) as reader:
        assert await reader.peek(8) == b"one\ntwo\n"
        reader.reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.seek(50)
        assert (reader.tell(), reader.buffered) == (100, 8)
    with pytest.raises(RuntimeError, match="closed"):
        await reader.seek(50)
    assert (reader.tell(), await reader.read()) == (100, b"one\ntwo\n")


async def test_reading_no_bytes_does_nothing(broker: StubBroker, client: JournalClient) -> None:
    with_hole(broker)
    async with buffered(client, offset=100) as reader:
        await reader.peek(100)
        assert await reader.read() == b"one\ntw"
        assert await reader.read(0) == await reader.readexactly(0) == b""
        with pytest.raises(pb.OffsetJumpError):
            await reader.read()
        assert await reader.readline() == b"three\n"
        assert await reader.readline() == b"four\n"
        await eventually(broker.read_responses.empty)
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await reader.readline()


async def test_cancel_and_restart(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 0, b"one\ntwo")
    broker.read_responses.put_nowait(metadata(7))
    async with buffered(client, block=True) as reader:
        assert await reader.readline() == b"one\n"
        reading = asyncio.create_task(reader.readline())
        await eventually(lambda: broker.read_requests.qsize() == 2)
        with pytest.raises(pb.ValidationError):
            await reader.restart(pb.ReadRequest())
        assert reader.buffered == 3
        reader.reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        broker.finish()
        await eventually(lambda: broker.open_rpcs == 0)
        while not broker.read_responses.empty():
            broker.read_responses.get_nowait()
        script_read(broker, 4, b"two\n")
        await reader.restart(pb.ReadRequest(journal=JOURNAL, offset=4))
        assert (reader.tell(), reader.buffered) == (4, 0)
        assert await reader.readline() == b"two\n"


async def test_cancellation_loses_nothing(broker: StubBroker, client: JournalClient) -> None:
    text = b"one\ntwo\nthree\nfour\n"

    async def read(request: pb.ReadRequest):  # type: ignore[no-untyped-def]
        yield metadata(request.offset)
        for offset in range(request.offset, len(text), 3):
            await asyncio.sleep(0)
            yield content(offset, text[offset : offset + 3])

    broker.read_handler = read
    number, was_cancelled = 0, True
    while was_cancelled:
        lines: list[bytes] = []

        async def operation(reader: BufferedRetryReader, lines: list[bytes]) -> None:
            async for line in reader:
                assert text[: reader.offset].endswith(line)
                lines.append(line)

        async with buffered(client, end_offset=len(text)) as reader:
            was_cancelled = await cancel_at(operation(reader, lines), number)
            await operation(reader, lines)
        assert b"".join(lines) == text
        number += 1
    assert number > 3
    await eventually(lambda: broker.open_rpcs == 0)


class _Pieces:
    """A reader of a journal in memory, with holes."""

    def __init__(self, pieces: list[tuple[int, bytes]], position: int = 0) -> None:
        self.pieces = pieces
        self.offset = position
        self.request = pb.ReadRequest(journal=JOURNAL)

    async def read(self, limit: int = -1) -> bytes:
        for begin, data in self.pieces:
            if self.offset < begin:
                requested, self.offset = self.offset, begin
                raise pb.OffsetJumpError(requested=requested, offset=begin)
            if self.offset < begin + len(data):
                rest = data[self.offset - begin :]
                rest = rest if limit < 0 else rest[:limit]
                self.offset += len(rest)
                return rest
        return b""

    async def seek(self, offset: int) -> int:
        self.offset = offset
        return offset


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab\n", min_size=1, max_size=6)), max_size=8),
    st.lists(
        st.tuples(st.sampled_from(["read", "peek", "line", "exactly", "seek"]), st.integers(0, 9)),
        max_size=30,
    ),
)
async def test_every_byte_has_its_offset(
    parts: list[tuple[int, str]], calls: list[tuple[str, int]]
) -> None:
    journal: dict[int, int] = {}
    pieces: list[tuple[int, bytes]] = []
    end = 0
    for gap, text in parts:
        end += gap
        pieces.append((end, text.encode()))
        journal.update(enumerate(text.encode(), end))
        end += len(text)

    def at(offset: int, data: bytes) -> bool:
        return all(journal[offset + index] == byte for index, byte in enumerate(data))

    reader = BufferedRetryReader(_Pieces(pieces), limit=8)  # type: ignore[arg-type]
    for call, size in calls:
        before = reader.tell()
        try:
            if call == "seek":
                assert await reader.seek(min(size, end)) == reader.tell() == min(size, end)
            elif call == "peek":
                data = await reader.peek(size)
                assert len(data) <= size
                assert at(before, data)
                assert reader.tell() == before
            else:
                data = await (
                    reader.read(size)
                    if call == "read"
                    else reader.readline()
                    if call == "line"
                    else reader.readexactly(size)
                )
                assert at(before, data)
                assert reader.tell() == before + len(data)
                assert data or call != "line" or before == end
        except pb.OffsetJumpError as jump:
            hole = range(jump.requested, jump.offset)
            assert all(offset in journal for offset in range(before, hole.start))
            assert not any(offset in journal for offset in hole)
            assert reader.tell() == hole.stop
            assert reader.tell() in journal
        except (pb.UnexpectedEOFError, pb.FrameTooLargeError):
            assert reader.tell() == before
