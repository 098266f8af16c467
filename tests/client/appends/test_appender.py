from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.journal.flow_control import FlowBalance, FlowControl
from gazette_aio.client import Appender, JournalClient, RetryPolicy, connect
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import JOURNAL, Garbage, MemoryJournals, committed, header, refused
from tests.waiting import eventually

AN_ERROR = StubError(grpc.StatusCode.UNKNOWN, "an error")


def appender(client: JournalClient, **fields: object) -> Appender:
    return Appender(client, pb.AppendRequest(journal=JOURNAL, **fields))  # type: ignore[arg-type]


async def sent(broker: StubBroker, count: int) -> list[bytes]:
    return [(await broker.append_requests.get()).content for _ in range(count)]


async def write_until_refused(a: Appender) -> None:
    while True:
        await a.write(b"x")
        await asyncio.sleep(0)


async def expect_end(broker: StubBroker) -> None:
    assert isinstance(await broker.read_loop_errors.get(), EOFError)


async def test_messages_of_a_commit(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client, offset=100)
    with pytest.raises(asyncio.InvalidStateError):
        _ = a.response
    await a.write(b"foo")
    await a.write(b"")
    await a.write(b"bar")
    closing = asyncio.create_task(a.close())

    first = await broker.append_requests.get()
    assert first == pb.AppendRequest(journal=JOURNAL, offset=100)
    assert await sent(broker, 3) == [b"foo", b"bar", b""]
    await expect_end(broker)
    broker.append_responses.put_nowait(committed())
    response = await closing
    assert (response.commit.begin, response.commit.end) == (100, 106)
    assert a.response is response
    assert "closed" in repr(a)


async def test_a_stream_which_breaks_as_it_ends_has_an_outcome(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ending the stream raises isn't an outcome: that of the RPC is."""
    a = appender(client)
    await a.write(b"foobar")
    call = a._call  # pyright: ignore[reportPrivateUsage] - No server has grpcio raise this.
    assert call is not None
    done_writing = call.done_writing

    async def broken() -> None:
        await done_writing()
        raise grpc.aio.InternalError("the stream is gone")

    monkeypatch.setattr(call, "done_writing", broken)
    closing = asyncio.create_task(a.close())
    assert await sent(broker, 3) == [b"", b"foobar", b""]
    await expect_end(broker)
    broker.append_responses.put_nowait(committed())
    response = await closing
    assert (response.commit.begin, response.commit.end) == (100, 106)


async def test_large_writes_are_split(broker: StubBroker, client: JournalClient) -> None:
    data = bytes(range(256)) * 2000
    journals = MemoryJournals(broker)
    async with appender(client) as a:
        await a.write(data)
        await a.write(memoryview(data)[5:77])
        await a.write(bytearray(b"tail"))
    assert journals.contents[JOURNAL] == data + data[5:77] + b"tail"

    broker.append_handler = None
    a = appender(client)
    await a.write(data)
    await broker.append_requests.get()
    sizes = [len(chunk) for chunk in await sent(broker, 4)]
    assert max(sizes) == 128 << 10
    assert sum(sizes) == len(data)

    # A broker accepts content from a network of this rate.
    flow, millis = FlowControl(FlowBalance(), max_rate=0, min_rate=1 << 16, now_millis=0), 0
    for size in sizes:
        waited = size * 1000 // 150_000
        millis += waited
        assert flow.tick(millis, waited)
        flow.chunk(size)

    broker.finish(AN_ERROR, rpc="Append")
    await a.abort()
    await _discard(broker)


async def test_nothing_written_is_a_barrier(broker: StubBroker, client: JournalClient) -> None:
    closing = asyncio.create_task(appender(client).close())
    assert await sent(broker, 2) == [b"", b""]
    await expect_end(broker)
    broker.append_responses.put_nowait(committed(100, 100, b""))
    assert (await closing).commit.end == 100


async def test_exceptions_roll_back(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with a:
            await a.write(b"foo")
            await broker.append_requests.get()
            broker.finish(AN_ERROR, rpc="Append")
            raise ZeroDivisionError
    assert a.request.journal == JOURNAL
    with pytest.raises(RuntimeError, match="reset"):
        await a.write(b"more")
    a.reset()
    assert "ready" in repr(a)
    await eventually(lambda: broker.open_rpcs == 0)
    while not broker.append_requests.empty():
        # No commit was sent: that's an empty message.
        assert broker.append_requests.get_nowait().content
    await _discard(broker)


async def test_abort_ends_without_commit(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client)
    await a.write(b"foo")
    with pytest.raises(RuntimeError, match="neither closed nor aborted"):
        a.reset()
    aborting = asyncio.create_task(a.abort())
    await broker.append_requests.get()
    assert await sent(broker, 1) == [b"foo"]
    await expect_end(broker)
    assert broker.append_requests.empty()
    broker.finish(StubError(grpc.StatusCode.UNKNOWN, "append stream: unexpected EOF"), rpc="Append")
    await aborting
    await a.abort()
    a.reset()

    MemoryJournals(broker)
    await a.write(b"foobar")
    assert (await a.close()).commit.end == 6


async def test_abort_before_anything_was_sent(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client)
    await a.write(b"")
    await a.abort()
    a.reset()
    async with a:
        await a.abort()
    # Nothing was sent so far: the first RPC is the one which commits.
    MemoryJournals(broker)
    await client.append(JOURNAL)
    assert len(broker.metadata) == 1


async def test_abort_while_it_opens(broker: StubBroker) -> None:
    journals = MemoryJournals(broker)
    asked, ready = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        asked.set()
        await ready.wait()
        return "token"

    async with connect(broker.endpoint, auth=slow) as client:
        a = appender(client)
        writing = asyncio.create_task(a.write(b"foo"))
        await asked.wait()
        await a.abort()
        ready.set()
        with pytest.raises(RuntimeError, match="closed while it opened"):
            await writing
        assert "closed" in repr(a)
        a.reset()
        await a.write(b"bar")
        await a.close()
    await eventually(lambda: broker.open_rpcs == 0)
    assert journals.contents == {JOURNAL: b"bar"}


async def test_content_counts_once_it_is_sent(broker: StubBroker) -> None:
    journals = MemoryJournals(broker)
    answers = [RuntimeError("no token yet"), "token"]

    async def token() -> str:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    async with connect(broker.endpoint, auth=token) as client:
        a = appender(client)
        with pytest.raises(RuntimeError, match="no token yet"):
            await a.write(b"foo")
        await a.write(b"bar")
        await a.close()
    assert journals.contents == {JOURNAL: b"bar"}


async def test_errors_during_writes(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client)
    await a.write(b"foo")
    broker.finish(AN_ERROR, rpc="Append")
    with pytest.raises(pb.TransportError) as raised:
        await write_until_refused(a)
    assert str(raised.value) == "UNKNOWN: an error"
    await _discard(broker)


@pytest.mark.parametrize("repeats", [True, False], ids=["repeats", "replaces"])
@pytest.mark.parametrize("writes", [True, False], ids=["content", "commit"])
async def test_a_status_which_arrives_amid_a_write_is_kept(
    broker: StubBroker,
    client: JournalClient,
    monkeypatch: pytest.MonkeyPatch,
    writes: bool,
    repeats: bool,
) -> None:
    a = appender(client)
    callbacks: list[Any] = []
    add = import_module("grpc.aio._call").StreamUnaryCall.add_done_callback

    def noted(call: Any, callback: Any) -> None:
        callbacks.append(callback)
        add(call, callback)

    monkeypatch.setattr("grpc.aio._call.StreamUnaryCall.add_done_callback", noted)
    await a.open()
    broker.finish(AN_ERROR, rpc="Append")
    masked = 0

    # What grpcio does if a write fails after the status has arrived (grpc/grpc#36066).
    async def write(call: Any, _request: bytes) -> None:
        nonlocal masked
        ended = asyncio.Event()

        def end(_call: Any) -> None:
            ended.set()

        add(call, end)
        await ended.wait()
        call._cython_call.set_internal_error("the message isn't sent")
        masked += 1
        for callback in callbacks if repeats else ():  # As older releases do.
            callback(call)
        await call._raise_for_status()

    monkeypatch.setattr("grpc.aio._call.StreamUnaryCall.write", write)
    with pytest.raises(pb.TransportError) as raised:
        await (a.write(b"foo") if writes else a.close())
    assert str(raised.value) == "UNKNOWN: an error"
    assert masked == 1
    await _discard(broker)


async def _discard(broker: StubBroker) -> None:
    await eventually(lambda: broker.open_rpcs == 0)
    for queue in (broker.append_requests, broker.read_loop_errors):
        while not queue.empty():
            queue.get_nowait()


async def test_early_refusals_are_read(broker: StubBroker, client: JournalClient) -> None:
    for _ in range(20):
        a = appender(client)
        broker.append_responses.put_nowait(
            refused(pb.Status.FRAGMENT_STORE_UNHEALTHY, "primary store is unhealthy")
        )
        with pytest.raises(pb.FragmentStoreUnhealthyError) as raised:
            await write_until_refused(a)
        text = "primary store is unhealthy: FRAGMENT_STORE_UNHEALTHY"
        assert str(raised.value) == (
            f"{text} (journal {JOURNAL} at {broker.endpoint}): "
            "the journal's first fragment store can't be used"
        )
        assert a.response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    await _discard(broker)


@pytest.mark.parametrize("answer", [refused(pb.Status.NOT_ALLOWED), AN_ERROR])
async def test_kept_errors_keep_no_connection(
    broker: StubBroker, client: JournalClient, answer: pb.AppendResponse | StubError
) -> None:
    """Tracebacks lead to RPCs, and those hold the connection even of a closed client."""
    for _ in range(20):
        a = appender(client)
        if isinstance(answer, StubError):
            await a.open()
            broker.finish(answer, rpc="Append")
        else:
            broker.append_responses.put_nowait(answer)
        with pytest.raises(pb.GazetteError) as raised:
            await write_until_refused(a)
        cause = raised.value.__cause__ or raised.value.__context__
        while cause is not None:
            assert cause.__traceback__ is None
            cause = cause.__cause__ or cause.__context__
    await _discard(broker)


@pytest.mark.parametrize(
    ("status", "text", "error", "expected"),
    [
        (pb.Status.JOURNAL_NOT_FOUND, "", pb.JournalNotFoundError, "JOURNAL_NOT_FOUND"),
        (
            pb.Status.FRAGMENT_STORE_UNHEALTHY,
            "s3: connection timeout",
            pb.FragmentStoreUnhealthyError,
            "s3: connection timeout: FRAGMENT_STORE_UNHEALTHY",
        ),
    ],
)
async def test_refused_commits(
    broker: StubBroker,
    client: JournalClient,
    status: pb.Status.ValueType,
    text: str,
    error: type[pb.BrokerStatusError],
    expected: str,
) -> None:
    MemoryJournals(broker).failures = [refused(status, text)]
    a = appender(client)
    await a.write(b"foo")
    with pytest.raises(error) as raised:
        await a.close()
    where = f"journal {JOURNAL} at {broker.endpoint}"
    explained = f": {error.explanation}" if error.explanation else ""
    assert str(raised.value) == f"{expected} ({where}){explained}"
    assert raised.value.header == header()
    assert raised.value.journal == JOURNAL
    assert a.response.status == status


async def test_register_mismatch_tells_both_sides(
    broker: StubBroker, client: JournalClient
) -> None:
    response = refused(pb.Status.REGISTER_MISMATCH)
    response.registers.CopyFrom(pb.label_set("owner", "other"))
    MemoryJournals(broker).failures = [response]
    selector = pb.LabelSelector(include=pb.label_set("owner", "me"))
    async with appender(client, check_registers=selector) as a:
        await a.write(b"foo")
        with pytest.raises(pb.RegisterMismatchError) as raised:
            await a.close()
    assert str(raised.value).startswith("selector owner=me doesn't match registers ")
    assert "other" in str(raised.value)
    assert str(raised.value).count(": REGISTER_MISMATCH (journal ")


async def test_an_invalid_response(broker: StubBroker, client: JournalClient) -> None:
    response = committed()
    response.commit.journal = ""
    MemoryJournals(broker).failures = [response]
    a = appender(client)
    with pytest.raises(pb.ValidationError) as raised:
        await a.close()
    assert str(raised.value).startswith("validating broker response.Commit.Journal: invalid length")


async def test_invalid_requests_are_not_sent(client: JournalClient) -> None:
    with pytest.raises(pb.ValidationError, match=r"^expected Request.Journal$"):
        await Appender(client, pb.AppendRequest()).write(b"foo")
    with pytest.raises(pb.ValidationError, match=r"^Request.Offset|^Request.*invalid Offset"):
        await appender(client, offset=-1).close()
    with pytest.raises(pb.ValidationError, match="unexpected Content"):
        await appender(client, content=b"content").close()


async def test_never_closing_warns(broker: StubBroker, client: JournalClient) -> None:
    a = appender(client)
    await a.write(b"foo")
    await eventually(lambda: broker.open_rpcs == 1)
    with pytest.warns(ResourceWarning, match="never closed"):
        a.__del__()
    await a.abort()
    a.__del__()  # Nothing is left to warn about.
    await _discard(broker)


async def test_an_append_which_is_left_behind_is_rolled_back(
    broker: StubBroker, client: JournalClient
) -> None:
    a = appender(client)
    await a.write(b"foo")
    await eventually(lambda: broker.open_rpcs == 1)
    with pytest.warns(ResourceWarning, match="never closed"):
        del a
    await eventually(lambda: broker.open_rpcs == 0)
    await _discard(broker)


# The retrying append.


async def test_append_retries(broker: StubBroker, client: JournalClient) -> None:
    journals = MemoryJournals(broker)
    journals.failures = [
        StubError(grpc.StatusCode.INTERNAL, "Internal error from Core"),
        StubError(grpc.StatusCode.UNAVAILABLE, "gone"),
        refused(pb.Status.NOT_JOURNAL_PRIMARY_BROKER),
        refused(pb.Status.INSUFFICIENT_JOURNAL_BROKERS),
        refused(pb.Status.NO_JOURNAL_PRIMARY_BROKER),
    ]
    response = await client.append(JOURNAL, b"con", b"tent")
    assert (response.commit.begin, response.commit.end) == (0, 7)
    assert journals.contents[JOURNAL] == b"content"
    assert journals.begun == 6


@pytest.mark.parametrize(
    "failure",
    [
        refused(pb.Status.WRONG_APPEND_OFFSET),
        refused(pb.Status.JOURNAL_NOT_FOUND),
        AN_ERROR,
        StubError(grpc.StatusCode.INTERNAL, "another error"),
    ],
    ids=["wrong offset", "not found", "unknown", "internal"],
)
async def test_append_raises_what_will_not_pass(
    broker: StubBroker, client: JournalClient, failure: StubError | pb.AppendResponse
) -> None:
    journals = MemoryJournals(broker)
    journals.failures = [failure]
    with pytest.raises((pb.BrokerStatusError, pb.TransportError)):
        await client.append(JOURNAL, b"content")
    assert journals.begun == 1


async def test_content_comes_from_the_start_again(
    broker: StubBroker, client: JournalClient
) -> None:
    journals = MemoryJournals(broker)
    journals.failures = [StubError(grpc.StatusCode.UNAVAILABLE, "gone")]
    file = io.BytesIO(b"file " * 100_000)
    file.seek(7)

    async def produce() -> AsyncIterator[bytes]:
        yield b"pro"
        yield b""
        yield b"duced "

    response = await client.append(
        pb.AppendRequest(journal=JOURNAL), file, produce, lambda: [b"from ", b"a list"], b""
    )
    expected = file.getvalue() + b"produced from a list"
    assert journals.contents[JOURNAL] == expected
    assert response.commit.end == len(expected)
    assert journals.begun == 2


async def test_failing_content_rolls_back(broker: StubBroker, client: JournalClient) -> None:
    journals = MemoryJournals(broker)
    journals.failures = [AN_ERROR]  # The answer to an append which isn't committed.

    async def fail() -> AsyncIterator[bytes]:
        yield b"some"
        raise OSError("readerAt error")

    with pytest.raises(OSError, match="readerAt error"):
        await client.append(JOURNAL, b"first", fail)
    assert journals.contents == {}


async def test_append_without_content_returns_the_head(
    broker: StubBroker, client: JournalClient
) -> None:
    MemoryJournals(broker).contents[JOURNAL] = bytearray(b"content")
    response = await client.append(JOURNAL)
    assert (response.commit.begin, response.commit.end) == (7, 7)


async def test_an_undecodable_response(broker: StubBroker, client: JournalClient) -> None:
    async def answer(requests: AsyncIterator[pb.AppendRequest]) -> Any:
        async for _ in requests:
            pass
        return Garbage()

    broker.append_handler = answer
    with pytest.raises(pb.ValidationError) as raised:
        await client.append(JOURNAL, b"foobar")
    assert "undecodable response" in str(raised.value)


@pytest.mark.parametrize("length", [0, 5, 7])
async def test_commits_of_another_length(
    broker: StubBroker, client: JournalClient, length: int
) -> None:
    async def answer(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        async for _ in requests:
            pass
        return committed(100, 100 + length, b"foobar"[:length])

    broker.append_handler = answer
    with pytest.raises(pb.ValidationError) as raised:
        await client.append(JOURNAL, b"foobar")
    assert str(raised.value).startswith("validating broker response")
    assert f"invalid length of Commit ({length}; expected 6)" in str(raised.value)


async def test_an_early_commit_is_none(broker: StubBroker, client: JournalClient) -> None:
    async def answer(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        await anext(requests)
        return committed()

    broker.append_handler = answer
    a = appender(client)
    with pytest.raises(pb.ValidationError, match="incomplete append"):
        await write_until_refused(a)


async def test_rolling_back_does_not_wait_for_the_silent(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gazette_aio.client.appends.appender.ROLLBACK_SECONDS", 0.02)
    silent = asyncio.Event()

    async def answer(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        await silent.wait()
        return committed()

    broker.append_handler = answer

    def fail() -> Any:
        yield b"foobar"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await client.append(JOURNAL, fail)
    await eventually(lambda: broker.open_rpcs == 0)


async def test_names_outside_of_the_root_are_refused(
    broker: StubBroker, client: JournalClient
) -> None:
    text = r"^Request\.Journal: cannot begin with '\.\./' \(\.\./journal\)$"
    with pytest.raises(pb.ValidationError, match=text):
        await client.append("../journal", b"content")
    with pytest.raises(pb.ValidationError, match=text):
        await client.appends.start_append("../journal")
    with pytest.raises(pb.ValidationError, match=text):
        client.appends.try_append("../journal", b"content")
    assert client.status().appends.journals == 0
    journals = MemoryJournals(broker)
    async with connect(broker.endpoint, allow_parent=True) as permissive:
        await permissive.append("../journal", b"content")
        assert permissive.appends.try_append("../journal", b", more") is not None
    assert journals.contents == {"../journal": b"content, more"}


class Spans:
    """Tracing that notes the errors of ended spans."""

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def start(self, *_: object, **__: object) -> Spans:
        return self

    def set(self, *_: object) -> None:
        pass

    def end(self, error: BaseException | None) -> None:
        self.errors.append(error)


async def test_errors_of_content_are_raised_as_they_are(
    broker: StubBroker, instant: RetryPolicy
) -> None:
    """They may be of a class that's retried, as content may be that of another journal."""
    journals, spans = MemoryJournals(broker), Spans()
    failure = pb.TransportError("UNAVAILABLE", "another broker", retryable=True)
    began: list[None] = []

    async def content() -> AsyncIterator[bytes]:
        began.append(None)
        yield b"some"
        raise failure

    tracing: Any = spans
    async with connect(broker.endpoint, retry=instant, tracing=tracing) as client:
        with pytest.raises(pb.TransportError) as raised:
            await client.append(JOURNAL, content)
    assert raised.value is failure
    assert spans.errors == [failure]
    assert len(began) == 1
    assert not journals.contents.get(JOURNAL)
