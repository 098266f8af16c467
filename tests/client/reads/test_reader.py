from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient, Reader, connect
from gazette_aio.testing.stub_broker import End, StubBroker, StubError
from tests.cancellation import cancel_at_every_await
from tests.client.fragments.fake_fragments import URL, FakeFragments, http_error
from tests.client.support import (
    JOURNAL,
    Garbage,
    content,
    drain,
    fragment,
    header,
    held_up,
    listing,
    metadata,
    refusal,
    script_read,
)
from tests.waiting import eventually, turns

OFFSET_NOT_YET_AVAILABLE = pb.Status.OFFSET_NOT_YET_AVAILABLE


def request(offset: int = 0, **fields: object) -> pb.ReadRequest:
    return pb.ReadRequest(journal=JOURNAL, offset=offset, **fields)  # type: ignore[arg-type]


async def test_offset_of_minus_one_becomes_that_of_the_head(
    broker: StubBroker, client: JournalClient
) -> None:
    async with Reader(client, request(-1)) as reader:
        script_read(broker, 110)
        with pytest.raises(pb.OffsetJumpError, match="offset jump") as raised:
            await reader.read()
        assert (raised.value.requested, raised.value.offset) == (-1, 110)
        assert reader.offset == reader.request.offset == 110
        assert reader.response.fragment.end == 1024
        assert await reader.read() == b""
        assert await reader.read() == b""
    assert (await broker.read_requests.get()).offset == -1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (pb.Status.NOT_JOURNAL_BROKER, pb.NotJournalBrokerError),
        (pb.Status.INSUFFICIENT_JOURNAL_BROKERS, pb.InsufficientJournalBrokersError),
        (pb.Status.JOURNAL_NOT_FOUND, pb.JournalNotFoundError),
        (pb.Status.SUSPENDED, pb.SuspendedError),
        (pb.Status.OFFSET_NOT_YET_AVAILABLE, pb.OffsetNotYetAvailableError),
        (pb.Status.NOT_ALLOWED, pb.NotAllowedError),
    ],
)
async def test_refusals(
    broker: StubBroker,
    client: JournalClient,
    status: pb.Status.ValueType,
    error: type[pb.BrokerStatusError],
) -> None:
    broker.read_responses.put_nowait(refusal(status))
    broker.finish()
    async with Reader(client, request()) as reader:
        with pytest.raises(error) as raised:
            await reader.read()
        where = f"journal {JOURNAL} at {broker.endpoint}"
        explained = f": {error.explanation}" if error.explanation else ""
        assert str(raised.value) == f"{pb.Status.Name(status)} ({where}){explained}"
        assert raised.value.header == header()
        assert raised.value.journal == JOURNAL
        # It stays in error.
        with pytest.raises(error):
            await reader.read()
    await broker.read_requests.get()


async def test_an_unknown_status_keeps_its_number(instant: object) -> None:
    async with StubBroker() as broker, JournalClient(broker.endpoint) as client:
        broker.read_responses.put_nowait(refusal(99))  # type: ignore[arg-type]
        broker.finish()
        async with Reader(client, request()) as reader:
            with pytest.raises(pb.UnknownStatusError) as raised:
                await reader.read()
        assert raised.value.status == 99
        await broker.read_requests.get()


async def test_content_then_not_yet_available(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 100, b"prior content", status=OFFSET_NOT_YET_AVAILABLE)
    async with Reader(client, request(100)) as reader:
        read, error = await drain(reader)
    assert read == b"prior content"
    assert isinstance(error, pb.OffsetNotYetAvailableError)
    assert reader.offset == 113
    await broker.read_requests.get()


async def test_head_of_a_non_blocking_read_is_its_offset(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.read_responses.put_nowait(refusal(OFFSET_NOT_YET_AVAILABLE, 777))
    broker.finish()
    async with Reader(client, request(-1)) as reader:
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await reader.read()
        assert reader.offset == 777
    await broker.read_requests.get()


async def test_small_reads_across_a_jump(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 110, b"foo bar baz bing")
    async with Reader(client, request(105)) as reader:
        with pytest.raises(pb.OffsetJumpError) as raised:
            await reader.read(6)
        assert (raised.value.requested, raised.value.offset) == (105, 110)
        assert str(raised.value).startswith(f"offset jump of {JOURNAL} from 105 to 110: ")
        read: list[tuple[bytes, int]] = []
        while data := await reader.read(6):
            read.append((data, reader.offset))
            assert reader.write_head == reader.response.write_head == 1024
            assert reader.response.fragment.end == 1024
    assert read == [(b"foo ba", 116), (b"r ", 118), (b"baz bi", 124), (b"ng", 126)]
    await broker.read_requests.get()


async def test_content_which_comes_with_a_jump_is_kept(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.read_responses.put_nowait(metadata(100))
    broker.read_responses.put_nowait(content(120, b"behind"))
    broker.finish()
    async with Reader(client, request(100)) as reader:
        with pytest.raises(pb.OffsetJumpError):
            await reader.read()
        assert await reader.read() == b"behind"
        assert reader.offset == 126
        assert await reader.read() == b""
    await broker.read_requests.get()


async def test_jumps_may_be_skipped(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 110, b"content")
    async with Reader(client, request(5), on_offset_jump="skip") as reader:
        assert await drain(reader) == (b"content", None)
    assert reader.offset == 117
    await broker.read_requests.get()


async def test_rpc_error_follows_content(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 100, b"partial read", error=StubError(grpc.StatusCode.UNKNOWN, "potato"))
    async with Reader(client, request(100)) as reader:
        read, error = await drain(reader)
    assert read == b"partial read"
    assert isinstance(error, pb.TransportError)
    assert (error.code, error.details, error.journal) == ("UNKNOWN", "potato", JOURNAL)
    assert not error.retryable
    await broker.read_requests.get()


@pytest.mark.parametrize("is_stored", [True, False])
async def test_data_loss_has_a_place(
    broker: StubBroker, client: JournalClient, is_stored: bool
) -> None:
    response = metadata(100)
    if is_stored:
        response.fragment.backing_store = "file:///"
    broker.read_responses.put_nowait(response)
    broker.read_responses.put_nowait(content(100, b"partial"))
    broker.finish(StubError(grpc.StatusCode.DATA_LOSS, "wrong SHA-1 sum"))
    async with Reader(client, request(100)) as reader:
        read, error = await drain(reader)
    assert read == b"partial"
    assert isinstance(error, pb.FragmentError if is_stored else pb.DataLossError)
    assert (error.text, error.journal, error.offset) == ("wrong SHA-1 sum", JOURNAL, 107)
    await broker.read_requests.get()


@pytest.mark.parametrize("response", [metadata(100), content(100, b"back")])
async def test_a_response_must_not_go_back(
    broker: StubBroker, client: JournalClient, response: pb.ReadResponse
) -> None:
    broker.read_responses.put_nowait(response)
    async with Reader(client, request(105)) as reader:
        with pytest.raises(pb.ValidationError) as raised:
            await reader.read()
        assert str(raised.value) == "invalid ReadResponse offset (100; expected >= 105)"
        with pytest.raises(pb.ValidationError):
            await reader.read()
    await broker.read_requests.get()


async def test_an_invalid_response(broker: StubBroker, client: JournalClient) -> None:
    response = metadata(100)
    response.fragment.journal = ""
    broker.read_responses.put_nowait(response)
    broker.finish()
    async with Reader(client, request(100)) as reader:
        with pytest.raises(pb.ValidationError, match=r"^ReadResponse.Fragment.Journal: invalid"):
            await reader.read()
    await broker.read_requests.get()


async def test_reads_end_at_the_end_offset(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 105, b"hello, world")
    async with Reader(client, request(105, end_offset=111)) as reader:
        await reader.next_response()
        await eventually(broker.read_responses.empty)
        assert await drain(reader) == (b"hello,", None)
        assert reader.offset == 111
    await broker.read_requests.get()


async def test_a_hole_may_reach_beyond_the_end_offset(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.read_responses.put_nowait(metadata(100, fragment_url="http://unused/"))
    async with Reader(client, request(10, end_offset=20)) as reader:
        assert await drain(reader) == (b"", None)
        assert reader.offset == 100
    await broker.read_requests.get()


async def test_metadata_only(broker: StubBroker, client: JournalClient) -> None:
    broker.read_responses.put_nowait(metadata(100, fragment_url="http://store/fragment"))
    broker.finish()
    async with Reader(client, request(100, metadata_only=True, do_not_proxy=True)) as reader:
        response = await reader.next_response()
        assert response is not None
        assert response.fragment_url == "http://store/fragment"
        assert await reader.next_response() is None
        assert reader.response.header == header()
    sent = await broker.read_requests.get()
    assert sent.metadata_only
    assert sent.do_not_proxy


async def test_requests_are_checked_before_anything_is_sent(client: JournalClient) -> None:
    with pytest.raises(pb.ValidationError, match="invalid Offset"):
        Reader(client, request(-2))


async def test_cancelling_a_read_loses_nothing(broker: StubBroker, client: JournalClient) -> None:
    async with Reader(client, request(100)) as reader:
        broker.read_responses.put_nowait(metadata(100))
        await reader.next_response()
        reading = asyncio.create_task(reader.read())
        await turns()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        broker.read_responses.put_nowait(content(100, b"content"))
        assert await reader.read() == b"content"
        broker.finish()
        assert await reader.read() == b""
    await broker.read_requests.get()


async def test_two_tasks_that_read_are_refused(broker: StubBroker, client: JournalClient) -> None:
    async with Reader(client, pb.ReadRequest(journal=JOURNAL, block=True)) as reader:
        reading = asyncio.create_task(reader.read())
        await broker.read_requests.get()
        await turns()
        with pytest.raises(pb.UsageError, match="two tasks use one reader"):
            await reader.read()
        broker.read_responses.put_nowait(
            pb.ReadResponse(header=header(), fragment=fragment(), write_head=1024)
        )
        broker.read_responses.put_nowait(pb.ReadResponse(content=b"content"))
        assert await reading == b"content"


async def test_closing_ends_the_rpc(broker: StubBroker, client: JournalClient) -> None:
    reader = Reader(client, request(100))
    broker.read_responses.put_nowait(metadata(100))
    broker.read_responses.put_nowait(content(100, b"some"))
    assert await reader.read() == b"some"
    assert "begun" in repr(reader)
    assert client.status().streams[0].journal == JOURNAL
    await reader.aclose()
    await reader.aclose()
    assert client.status().streams == ()
    assert await reader.read() == b""
    await eventually(lambda: broker.open_rpcs == 0)
    await broker.read_requests.get()


async def test_closing_the_client_under_a_reader(broker: StubBroker, client: JournalClient) -> None:
    async with Reader(client, request(100)) as reader:
        reading = asyncio.create_task(reader.read())
        await broker.read_requests.get()
        await client.aclose()
        assert await reading == b""


async def test_a_reader_which_is_never_closed_warns(
    broker: StubBroker, client: JournalClient
) -> None:
    reader = Reader(client, request(100))
    broker.read_responses.put_nowait(metadata(100))
    broker.read_responses.put_nowait(content(100, b"content"))
    await reader.read()
    broker.read_responses.put_nowait(metadata(107, first=False))
    await eventually(broker.read_responses.empty)
    with pytest.warns(ResourceWarning, match="never closed"):
        del reader
    await broker.read_requests.get()
    await eventually(lambda: broker.open_rpcs == 0)  # Its RPC is ended nevertheless.


async def test_reading_ahead_is_bounded(broker: StubBroker, client: JournalClient) -> None:
    sent = 0

    async def endless(request: pb.ReadRequest):  # type: ignore[no-untyped-def]
        nonlocal sent
        offset = request.offset
        yield metadata(offset)
        while True:
            sent += 1
            yield content(offset, bytes(128 << 10))
            offset += 128 << 10

    broker.read_handler = endless
    broker.list_handler = lambda request: listing()
    async with Reader(client, request(0)) as reader:
        await reader.read()
        await held_up(client, lambda: sent)
        (stream,) = client.status().streams
        # One message may exceed the bound, and the transport holds more, up to its largest windows.
        assert stream.waiting_bytes < (1 << 20) + (200 << 10)
        assert sent < 512
        assert (await reader.read())[:1] == b"\0"
    await eventually(lambda: broker.open_rpcs == 0)


async def test_reading_no_bytes_does_nothing(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 100, b"content")
    async with Reader(client, request(100)) as reader:
        assert await reader.read(2) == b"co"
        assert await reader.read(0) == reader.read_nowait(0) == b""
        assert reader.offset == 102
        assert await reader.read(1) == b"n"
        assert await drain(reader) == (b"tent", None)
    await broker.read_requests.get()


async def test_nothing_yet_is_not_the_end(broker: StubBroker, client: JournalClient) -> None:
    broker.read_responses.put_nowait(metadata(100))
    async with Reader(client, request(100)) as reader:
        assert reader.read_nowait() is None
        await reader.next_response()
        assert reader.read_nowait() is None
        broker.read_responses.put_nowait(content(100, b"content"))
        await reader.next_response()
        assert reader.read_nowait() == b"content"
        assert reader.read_nowait() is None
        broker.read_responses.put_nowait(End())
        assert await reader.read() == b""
        assert reader.read_nowait() == b""
    await broker.read_requests.get()


async def test_an_undecodable_response(broker: StubBroker, client: JournalClient) -> None:
    broker.read_responses.put_nowait(metadata(100))
    broker.read_responses.put_nowait(content(100, b"content"))
    broker.read_responses.put_nowait(Garbage())  # type: ignore[arg-type]
    async with Reader(client, request(100)) as reader:
        read, error = await drain(reader)
        assert read == b"content"
        assert isinstance(error, pb.TransportError)
        assert error.details.startswith("undecodable response")
        # The RPC is given up, although the broker didn't end it.
        await eventually(lambda: broker.open_rpcs == 0)
    await broker.read_requests.get()


async def test_names_outside_of_the_root_are_refused(
    broker: StubBroker, client: JournalClient
) -> None:
    outside = pb.ReadRequest(journal="../journal")
    with pytest.raises(pb.ValidationError, match=r"^Journal: cannot begin with '\.\./'"):
        Reader(client, outside)
    with pytest.raises(pb.ValidationError, match="cannot begin"):
        client.read("../journal")
    reader = client.read(JOURNAL)
    with pytest.raises(pb.ValidationError, match="cannot begin"):
        await reader.restart(outside)
    async with connect(broker.endpoint, allow_parent=True) as permissive:
        script_read(broker, 0, b"content")
        async with Reader(permissive, outside) as inside:
            assert await drain(inside) == (b"content", None)
    assert (await broker.read_requests.get()).journal == "../journal"


HELLO = b"XXXXXhello, world!!!"


def direct(offset: int, **fields: object) -> pb.ReadRequest:
    return request(offset, do_not_proxy=True, **fields)


def refer(broker: StubBroker, offset: int, begin: int = 100, end: int = 120) -> None:
    """Have a Read RPC refer to the file of a fragment."""
    response = metadata(offset, fragment_url=URL)
    response.header.route.endpoints[:] = [broker.endpoint]
    response.fragment.CopyFrom(fragment(begin, end))
    broker.read_responses.put_nowait(response)
    broker.finish()


async def test_a_fragment_file_is_read(broker: StubBroker, client: JournalClient) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    refer(broker, 105)
    async with Reader(client, direct(105)) as reader:
        response = await reader.next_response()
        assert response is not None
        assert (response.fragment.begin, response.fragment_url) == (100, URL)
        assert await drain(reader) == (b"hello, world!!!", None)
        assert reader.offset == 120
        assert reader.response.fragment.end == 120
        assert fragments.open_count == 0
        assert await reader.read() == b""
    assert fragments.opened == [(100, 105, False)]
    assert client.router.route(JOURNAL).endpoints == [broker.endpoint]
    # The RPC was let go before the file was opened.
    assert fragments.open_rpcs_seen == [0]
    assert (await broker.read_requests.get()).do_not_proxy


async def test_a_fragment_file_is_read_up_to_the_end_offset(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100, piece=4)
    refer(broker, 105)
    async with Reader(client, direct(105, end_offset=111)) as reader:
        assert await drain(reader) == (b"hello,", None)
        assert reader.offset == 111
    assert fragments.open_count == 0
    await broker.read_requests.get()


async def test_a_hole_may_reach_beyond_the_end_offset_and_into_a_fragment_file(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    refer(broker, 100)
    async with Reader(client, direct(10, end_offset=20)) as reader:
        assert await drain(reader) == (b"", None)
        assert reader.offset == 100
    assert fragments.opened == []
    await broker.read_requests.get()


async def test_other_ends_of_the_rpc_are_no_referrals(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    response = metadata(100, first=False, fragment_url=URL)
    broker.read_responses.put_nowait(response)
    broker.read_responses.put_nowait(content(100, b"proxied"))
    broker.finish()
    broker.read_responses.put_nowait(response)
    broker.finish()
    broker.read_responses.put_nowait(response)
    broker.finish(StubError(grpc.StatusCode.UNAVAILABLE, "gone"))
    async with Reader(client, direct(100)) as reader:
        assert await drain(reader) == (b"proxied", None)
    # It was to be proxied, but the broker stopped.
    async with Reader(client, request(100)) as reader:
        assert await drain(reader) == (b"", None)
    async with Reader(client, direct(100)) as reader:
        read, error = await drain(reader)
    assert read == b""
    assert isinstance(error, pb.TransportError)
    assert fragments.opened == []
    for _ in range(3):
        await broker.read_requests.get()


async def test_adjusted_offset(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 100, b"foobar\nbaz\n")
    async with Reader(client, request(100)) as reader:
        buffered, _ = await drain(reader)
        _, rest = buffered.split(b"\n", 1)
        assert reader.offset == 111
        assert reader.adjusted_offset(len(rest)) == 107
    await broker.read_requests.get()


@pytest.mark.parametrize("opened", [False, True])
async def test_seek(broker: StubBroker, client: JournalClient, *, opened: bool) -> None:
    fragments = FakeFragments(client, HELLO, 100, piece=2)

    async def refused(offset: int, whence: int = os.SEEK_SET) -> None:
        before = reader.offset
        with pytest.raises(pb.SeekRequiresNewReaderError) as raised:
            await reader.seek(offset, whence)
        assert raised.value.offset == reader.offset == before

    refer(broker, 100)
    async with Reader(client, direct(0)) as reader:
        await refused(105)  # The RPC hasn't begun.
        with pytest.raises(pb.OffsetJumpError):
            await reader.read()
        await refused(105)  # It goes on.
        if opened:
            assert await reader.read(1) == b"X"
            assert await reader.seek(4, os.SEEK_CUR) == 105
        else:
            assert await reader.next_response() is None
            assert "direct" in repr(reader)
            assert await reader.seek(5, os.SEEK_CUR) == 105
        assert await reader.seek(106) == 106
        await refused(-1, os.SEEK_CUR)
        await refused(120)
        with pytest.raises(ValueError, match="SEEK_SET"):
            await reader.seek(0, os.SEEK_END)
        assert await drain(reader) == (b"ello, world!!!", None)
        await refused(110)
    assert fragments.opened == [(100, 100 if opened else 106, False)]
    assert fragments.open_count == 0
    await broker.read_requests.get()


async def test_a_seek_which_fails_ends_the_reader(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    fragments.failures.append((107, pb.FragmentError("damaged")))
    refer(broker, 100)
    async with Reader(client, direct(100)) as reader:
        assert await reader.read(2) == b"XX"
        for _ in range(2):
            with pytest.raises(pb.FragmentError):
                await (reader.seek(110) if not fragments.failures else reader.read())
            fragments.failures.append((0, pb.FragmentError("unused")))
        assert reader.offset == 107
    assert fragments.open_count == 0
    await broker.read_requests.get()


@pytest.mark.parametrize(
    ("at", "error"),
    [
        (105, http_error(403)),
        (110, pb.FragmentError("damaged")),
        (115, pb.UnexpectedEOFError("unexpected EOF")),
        (120, pb.DidNotReadExpectedEOFError("did not read EOF at expected Fragment.End")),
    ],
)
async def test_failures_of_fragment_files(
    broker: StubBroker, client: JournalClient, at: int, error: pb.GazetteError
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    fragments.failures.append((at, error))
    refer(broker, 105)
    async with Reader(client, direct(105)) as reader:
        read, raised = await drain(reader)
        assert read == HELLO[5 : at - 100]
        assert raised is error
        assert reader.offset == at
        # It stays in error, and holds nothing.
        assert await drain(reader) == (b"", error)
        assert fragments.open_count == 0
    await broker.read_requests.get()


async def test_a_fragment_file_without_transport(broker: StubBroker, client: JournalClient) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    broker.read_responses.put_nowait(metadata(100, fragment_url="file:///fragment"))
    broker.finish()
    async with Reader(client, direct(100)) as reader:
        with pytest.raises(pb.ConfigurationError, match="file"):
            await reader.read()
    assert fragments.opened == []
    await broker.read_requests.get()


async def test_abandoning_closes_the_fragment_file(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    refer(broker, 100)
    reader = Reader(client, direct(100))
    await reader.read()
    assert fragments.open_count == 1
    reader.abandon()
    assert fragments.open_count == 0
    assert await reader.read() == b""
    await reader.aclose()
    await broker.read_requests.get()


async def test_closing_while_the_rpc_begins(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, rpc = asyncio.Event(), client.context.rpc.read

    async def slow(*args: object, **options: object) -> object:
        await gate.wait()
        return await rpc(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(client.context.rpc, "read", slow)
    reader = Reader(client, request(100))
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await reader.aclose()
    gate.set()
    assert await reading == b""
    await eventually(lambda: not client.context.rpc.streams)
    # The broker may have seen the RPC.
    await eventually(lambda: broker.open_rpcs == 0)
    while not broker.read_requests.empty():
        broker.read_requests.get_nowait()


@pytest.mark.parametrize("waits", [False, True])
async def test_closing_while_the_fragment_file_is_opened(
    broker: StubBroker, client: JournalClient, *, waits: bool
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    fragments.gate.clear()
    refer(broker, 100)
    reader = Reader(client, direct(100))
    reading = asyncio.create_task(reader.read())
    await eventually(lambda: fragments.opened)
    if waits:
        await reader.aclose()
    else:
        reader.abandon()
    fragments.gate.set()
    assert await reading == b""
    assert fragments.open_count == 0
    assert await reader.read() == b""
    assert reader.offset == 100
    assert not reader.is_live
    await broker.read_requests.get()


async def test_closing_ahead_of_the_end_of_a_referral(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100)
    response = metadata(100, fragment_url=URL)
    response.fragment.CopyFrom(fragment(100, 120))
    broker.read_responses.put_nowait(response)
    reader = Reader(client, direct(100))
    await reader.next_response()
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    await reader.aclose()
    assert await reading == b""
    assert fragments.opened == []
    await broker.read_requests.get()


async def test_nothing_is_begun_by_who_is_cancelled_already(
    broker: StubBroker, client: JournalClient
) -> None:
    # The broker may see the RPC of the second read, at any time. A handler leaves no request behind.
    async def stall(_: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        await asyncio.Event().wait()
        yield pb.ReadResponse()

    broker.read_handler = stall
    async with Reader(client, request(100)) as reader:
        reading = asyncio.create_task(reader.read())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await reader.read()
    assert client.status().streams == ()
    await eventually(lambda: broker.open_rpcs == 0)


async def test_cancelling_a_read_of_a_fragment_file(
    broker: StubBroker, client: JournalClient
) -> None:
    fragments = FakeFragments(client, HELLO, 100, piece=3)
    read = b""

    async def operation() -> None:
        nonlocal read
        read = b""
        refer(broker, 100)
        async with Reader(client, direct(100)) as reader:
            try:
                read += await reader.read(2)
                await reader.seek(110)
                read += await reader.read()
            except asyncio.CancelledError:
                # What's left follows what was read or skipped.
                begin = reader.offset
                rest, _ = await drain(reader)
                assert rest == HELLO[begin - 100 :]
                assert begin >= 100 + len(read)
                raise

    async def check() -> None:
        assert fragments.open_count == 0
        await eventually(lambda: broker.open_rpcs == 0)
        while not broker.read_requests.empty():
            broker.read_requests.get_nowait()
        while not broker.read_responses.empty():
            broker.read_responses.get_nowait()

    assert await cancel_at_every_await(operation, check) > 5


class StartsPerTurn:
    """Tracing that counts the reads that begin in a turn of the event loop."""

    def __init__(self) -> None:
        self.total = self.most = self._now = 0

    def start(self, operation: str, journal: str = "", *, current: bool = False) -> StartsPerTurn:
        if not self._now:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.total += 1
        self._now += 1
        self.most = max(self.most, self._now)
        return self

    def _end_turn(self) -> None:
        self._now = 0

    def set(self, name: str, value: str | float) -> None:
        pass

    def end(self, error: BaseException | None = None) -> None:
        pass

    def record(self, operation: str, seconds: float, attributes: object) -> None:
        pass


async def test_many_reads_begin_in_turns() -> None:
    starts = StartsPerTurn()
    async with connect("http://127.0.0.1:1", tracing=starts) as client:
        readers = [Reader(client, request()) for _ in range(100)]
        reads = [asyncio.create_task(reader.read()) for reader in readers]
        await eventually(lambda: starts.total == len(reads))
        for reader, read in zip(readers, reads, strict=True):
            read.cancel()
            await reader.aclose()
        await asyncio.wait(reads)
    assert starts.most <= 16
