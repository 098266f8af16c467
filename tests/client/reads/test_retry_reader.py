from __future__ import annotations

import asyncio
import os

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import Failure, JournalClient, RetryPolicy
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import JOURNAL, content, drain, header, metadata, refusal, script_read
from tests.waiting import eventually

NOT_YET = pb.Status.OFFSET_NOT_YET_AVAILABLE
UNAVAILABLE = StubError(grpc.StatusCode.UNAVAILABLE, "gone")


async def asked_offsets(broker: StubBroker) -> list[int]:
    offsets: list[int] = []
    while not broker.read_requests.empty():
        offsets.append((await broker.read_requests.get()).offset)
    return offsets


async def test_reads_on_over_failures(broker: StubBroker, client: JournalClient) -> None:
    """One reader is taken through errors, blocking, a jump, a cancellation and a restart."""
    reader = client.read(JOURNAL, offset=100)
    script_read(broker, 100, b"foo", error=UNAVAILABLE)
    script_read(broker, 103, b"barba", error=StubError(grpc.StatusCode.UNKNOWN, "an error"))
    broker.read_responses.put_nowait(refusal(pb.Status.NOT_JOURNAL_BROKER))
    broker.finish()
    script_read(broker, 108, b"zbing", status=NOT_YET)

    read, error = await drain(reader)
    assert read == b"foobarbazbing"
    assert isinstance(error, pb.OffsetNotYetAvailableError)
    assert reader.offset == 113
    assert await asked_offsets(broker) == [100, 103, 108, 108]

    reader.request.block = True
    script_read(broker, 113, b"next ", status=NOT_YET)
    script_read(broker, 118, b"read", error=UNAVAILABLE)
    broker.read_responses.put_nowait(metadata(512))
    read, error = await drain(reader)
    assert read == b"next read"
    assert isinstance(error, pb.OffsetJumpError)
    assert reader.offset == reader.request.offset == error.offset == 512
    await asked_offsets(broker)

    broker.read_responses.put_nowait(content(512, b"xxxxyyyy"))
    assert await anext(reader) == b"xxxxyyyy"
    broker.finish(UNAVAILABLE)
    reading = asyncio.create_task(reader.read())
    await broker.read_requests.get()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(asyncio.CancelledError):
        await reader.read()
    broker.finish()

    script_read(broker, 100, b"foo", error=UNAVAILABLE)
    script_read(broker, 103, b"barb")
    broker.read_responses.put_nowait(metadata(107))
    broker.read_responses.put_nowait(content(107, b"az.ignored"))
    await reader.restart(pb.ReadRequest(journal=JOURNAL, offset=100, end_offset=110))
    assert await drain(reader) == (b"foobarbaz.", None)
    assert reader.offset == 110
    assert await drain(reader) == (b"", None)
    assert await asked_offsets(broker) == [100, 103, 107]
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await reader.read()


async def test_cancel_leaves_the_task_uncancelled(
    broker: StubBroker, client: JournalClient
) -> None:
    reader = client.read(JOURNAL, block=True)

    async def cancel() -> None:
        await broker.read_requests.get()
        reader.cancel()

    cancelling = asyncio.create_task(cancel())
    with pytest.raises(asyncio.CancelledError):
        await reader.read()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
    await reader.aclose()
    await cancelling


async def test_cancel_interrupts_a_back_off(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 0, error=StubError(grpc.StatusCode.UNKNOWN, "an error"))
    async with client.read(
        JOURNAL, retry_policy=RetryPolicy(backoff=lambda attempt: 3600.0)
    ) as reader:
        reading = asyncio.create_task(reader.read())
        await broker.read_requests.get()
        await eventually(lambda: "1 failures" in repr(reader))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


@pytest.mark.parametrize(
    "script",
    [
        [(b"foobar", None), (b"", None)],
        [(b"foobar", UNAVAILABLE)],
        [(b"foo", StubError(grpc.StatusCode.DEADLINE_EXCEEDED, "remote")), (b"bar", None)],
        [(b"foobar", StubError(grpc.StatusCode.CANCELLED, "remote"))],
        [(bytes([byte]), None) for byte in b"foobar"],
    ],
    ids=["data, then end", "data with error", "time-out", "remote cancellation", "single bytes"],
)
async def test_any_way_to_end_a_stream(
    broker: StubBroker, client: JournalClient, script: list[tuple[bytes, StubError | None]]
) -> None:
    offset = 100
    for data, error in script:
        script_read(broker, offset, data, error=error)
        offset += len(data)
    script_read(broker, offset, b"bazbing", status=NOT_YET)
    async with client.read(JOURNAL, offset=100) as reader:
        read, last = await drain(reader)
    assert read == b"foobarbazbing"
    assert isinstance(last, pb.OffsetNotYetAvailableError)
    assert reader.offset == 113
    assert len(await asked_offsets(broker)) == len(script) + 1


async def test_seek(broker: StubBroker, client: JournalClient) -> None:
    async with client.read(JOURNAL, offset=100, end_offset=150) as reader:
        assert await reader.seek(5, os.SEEK_CUR) == 105
        assert await reader.seek(106) == 106
        script_read(broker, 106, b"ello, world")
        assert await reader.read(5) == b"ello,"
        await eventually(lambda: broker.open_rpcs == 0)
        assert await reader.seek(-6, os.SEEK_CUR) == 105
        assert reader.offset == 105
        script_read(broker, 105, b"hello, world")
        assert await reader.read(5) + await reader.read(5) == b"hello,"
        with pytest.raises(ValueError, match="SEEK_SET"):
            await reader.seek(0, os.SEEK_END)
        with pytest.raises(ValueError, match="negative"):
            await reader.seek(-1)
        with pytest.raises(ValueError, match=r"151, beyond the end of the read \(150\)"):
            await reader.seek(151)
        assert await reader.read(2) == b" w"
    assert await asked_offsets(broker) == [106, 105]


async def test_the_end_in_a_hole_stays_the_end(broker: StubBroker, client: JournalClient) -> None:
    async with client.read(JOURNAL, offset=100, end_offset=150) as reader:
        script_read(broker, 100, b"foo")
        broker.read_responses.put_nowait(metadata(200))
        assert await drain(reader) == (b"foo", None)
        assert await drain(reader) == (b"", None)
        assert await reader.seek(0, os.SEEK_CUR) == reader.offset == 200
    assert await asked_offsets(broker) == [100, 103]


async def test_the_head_is_not_a_jump(broker: StubBroker, client: JournalClient) -> None:
    script_read(broker, 700, b"tail", status=NOT_YET)
    async with client.read(JOURNAL, offset=-1) as reader:
        assert reader.write_head == 0
        assert await anext(reader) == b"ta"
        assert reader.offset == 702
        assert reader.write_head == reader.response.write_head == 1024
        assert await anext(reader) == b"il"
        with pytest.raises(pb.OffsetNotYetAvailableError):
            await anext(reader)
        assert reader.response.status == NOT_YET
        assert reader.write_head == reader.response.write_head
    await asked_offsets(broker)


async def test_journal_not_found_has_a_grace(broker: StubBroker, client: JournalClient) -> None:
    for _ in range(5):
        broker.read_responses.put_nowait(refusal(pb.Status.JOURNAL_NOT_FOUND))
        broker.finish()
    async with client.read(JOURNAL) as reader:
        with pytest.raises(pb.JournalNotFoundError) as raised:
            await reader.read()
    assert raised.value.attempt == 4
    assert len(await asked_offsets(broker)) == 5


async def test_journal_not_found_at_a_given_header_is_final(
    broker: StubBroker, client: JournalClient
) -> None:
    broker.read_responses.put_nowait(refusal(pb.Status.JOURNAL_NOT_FOUND))
    broker.finish()
    request = pb.ReadRequest(journal=JOURNAL, header=header())
    async with client.read(request) as reader:
        with pytest.raises(pb.JournalNotFoundError):
            await reader.read()
    assert len(await asked_offsets(broker)) == 1


@pytest.mark.parametrize("status", [pb.Status.SUSPENDED, pb.Status.NOT_ALLOWED])
async def test_final_statuses(
    broker: StubBroker, client: JournalClient, status: pb.Status.ValueType
) -> None:
    broker.read_responses.put_nowait(refusal(status))
    broker.finish()
    async with client.read(JOURNAL, block=True) as reader:
        with pytest.raises(pb.BrokerStatusError) as raised:
            await reader.read()
    assert raised.value.status == status
    assert len(await asked_offsets(broker)) == 1


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    ],
)
async def test_final_codes(
    broker: StubBroker, client: JournalClient, code: grpc.StatusCode
) -> None:
    broker.finish(StubError(code, "no"))
    async with client.read(JOURNAL, block=True) as reader:
        with pytest.raises(pb.TransportError, match=f"^{code.name}: no$"):
            await reader.read()
    await asked_offsets(broker)


async def test_ends_without_progress_are_throttled(broker: StubBroker) -> None:
    delays: list[int] = []

    def backoff(attempt: int) -> float:
        delays.append(attempt)
        return 0.0

    for _ in range(5):
        script_read(broker, 100)
    script_read(broker, 100, b"ab")
    script_read(broker, 102)
    script_read(broker, 102, b"cd", status=NOT_YET)
    async with JournalClient(broker.endpoint, retry=RetryPolicy(backoff=backoff)) as client:
        async with client.read(JOURNAL, offset=100) as reader:
            read, _ = await drain(reader)
    assert read == b"abcd"
    # The first end costs nothing, those in a row do, and progress makes a new start.
    assert delays == [-1, 0, 1, 2, 3, -1, 0]
    await asked_offsets(broker)


async def test_policy_bounds_attempts(broker: StubBroker) -> None:
    seen: list[Failure] = []
    policy = RetryPolicy(
        backoff=lambda attempt: 0.0, max_attempts=3, on_error=lambda f: seen.append(f)
    )
    for _ in range(3):
        broker.finish(UNAVAILABLE)
    async with JournalClient(broker.endpoint, retry=policy) as client:
        async with client.read(JOURNAL) as reader:
            with pytest.raises(pb.TransportError) as raised:
                await reader.read()
    assert (raised.value.code, raised.value.attempt) == ("UNAVAILABLE", 2)
    assert raised.value.retryable
    assert broker.endpoint in str(raised.value)
    assert [failure.attempt for failure in seen] == [0, 1, 2]
    await asked_offsets(broker)


async def test_a_broker_that_is_down_is_named() -> None:
    policy = RetryPolicy(backoff=lambda attempt: 0.0, max_attempts=2)
    async with JournalClient("http://127.0.0.1:1", retry=policy) as client:
        async with client.read(JOURNAL) as reader:
            with pytest.raises(pb.TransportError, match=r"UNAVAILABLE: broker http://127.0.0.1:1"):
                await reader.read()


async def test_requests_are_checked_at_once(client: JournalClient) -> None:
    with pytest.raises(pb.ValidationError, match="Journal"):
        client.read("/bad")
    with pytest.raises(pb.ValidationError, match="EndOffset"):
        client.read(JOURNAL, offset=10, end_offset=5)


async def test_repr_shows_the_state(client: JournalClient) -> None:
    async with client.read(JOURNAL, offset=5) as reader:
        assert repr(reader) == "<RetryReader of 'a/journal' at 5, open, 0 failures in a row>"
        reader.cancel()
        assert "cancelled" in repr(reader)
    assert "closed" in repr(reader)


async def test_closing_under_a_read_ends_it(broker: StubBroker, client: JournalClient) -> None:
    reader = client.read(JOURNAL, offset=100, block=True)
    reading = asyncio.create_task(reader.read())
    await broker.read_requests.get()
    await reader.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await reading
    assert client.status().streams == ()
    assert broker.read_requests.empty()


async def test_reading_no_bytes_does_nothing(client: JournalClient) -> None:
    async with client.read(JOURNAL, offset=100) as reader:
        assert await reader.read(0) == b""
        assert reader.offset == 100
