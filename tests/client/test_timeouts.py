"""Time-outs of calls, and the log of waits for brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import pickle
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    AppendService,
    JournalClient,
    RetryPolicy,
    RetryReader,
    connect,
    get_journal,
    iter_journals,
)
from gazette_aio.client.rpc import dispatch
from gazette_aio.testing.fault_proxy import FaultProxy
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import JOURNAL, content, fragment, header, listing, metadata
from tests.waiting import eventually, turns

UNAVAILABLE = StubError(grpc.StatusCode.UNAVAILABLE, "the broker is out")
SHORT = 0.05
QUICK = RetryPolicy(backoff=lambda attempt: 0.005, jitter=0)

Call = Callable[[JournalClient, float | None], Awaitable[Any]]


async def _read(client: JournalClient, seconds: float | None) -> None:
    async with client.read(JOURNAL, timeout=seconds) as reader:
        await reader.read()


async def _blocking_read(client: JournalClient, seconds: float | None) -> None:
    async with client.read(JOURNAL, block=True, timeout=seconds) as reader:
        await reader.read()


async def _watch(client: JournalClient, seconds: float | None) -> None:
    async with client.watch(timeout=seconds) as watched:
        await watched.ready()


async def _start_append(client: JournalClient, seconds: float | None) -> None:
    service = AppendService(client, timeout=seconds, drain_timeout=0)
    try:
        async with service.append(JOURNAL) as append:
            append.write(b"content")
        await append
    finally:
        service.cancel()
        await service.aclose()


async def _iterate(client: JournalClient, seconds: float | None) -> None:
    async for _ in iter_journals(client, timeout=seconds):
        raise AssertionError


async def _flush(client: JournalClient, seconds: float | None) -> None:
    service = AppendService(client, timeout=seconds, drain_timeout=0)
    try:
        service.try_append(JOURNAL, b"content")
        await service.flush()
    finally:
        service.cancel()
        await service.aclose()


CALLS: dict[str, tuple[Call, str, bool]] = {
    "list": (lambda client, timeout: client.list(timeout=timeout), "", False),
    "iterate": (_iterate, "", False),
    "get": (lambda client, timeout: get_journal(client, JOURNAL, timeout=timeout), "", False),
    "apply": (lambda client, timeout: client.apply([], timeout=timeout), "", True),
    "append": (
        lambda client, timeout: client.append(JOURNAL, b"data", timeout=timeout),
        JOURNAL,
        True,
    ),
    "fragments": (
        lambda client, timeout: client.list_fragments(JOURNAL, timeout=timeout),
        JOURNAL,
        False,
    ),
    "health": (
        lambda client, timeout: client.fragment_store_health("file:///", timeout=timeout),
        "",
        False,
    ),
    "read": (_read, JOURNAL, False),
    "blocking read": (_blocking_read, JOURNAL, False),
    "watch": (_watch, "", False),
    "append service": (_start_append, JOURNAL, True),
    "flush": (_flush, "", True),
}


def committed(begin: int, end: int) -> pb.AppendResponse:
    return pb.AppendResponse(header=header(), commit=fragment(begin, end), registers=pb.LabelSet())


@pytest.fixture
async def nobody() -> AsyncGenerator[JournalClient]:
    """A client of a broker which is down."""
    async with connect(f"http://127.0.0.1:{free_port()}", retry=QUICK) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_ends_if_the_broker_is_down(nobody: JournalClient, name: str) -> None:
    call, journal, outcome_unknown = CALLS[name]
    error, text, seconds = None, "", 0.5
    while error is None or "Connection refused" not in text:
        seconds *= 2  # A busy machine may not hear of a refusal within it.
        with pytest.raises(pb.OperationTimeoutError) as raised:
            await call(nobody, seconds)
        error, text = raised.value, str(raised.value)
    assert isinstance(error, TimeoutError)
    assert (error.journal, error.endpoint) == (journal, nobody.endpoint)
    assert error.outcome_unknown is outcome_unknown
    assert error.retryable
    assert f"timed out after {seconds:g} s" in text
    assert nobody.endpoint in text
    assert journal in text
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == text
    assert (copy.journal, copy.operation) == (error.journal, error.operation)
    assert str(copy.last_error) == str(error.last_error)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_broker_which_never_answers_times_out_once(name: str) -> None:
    call, _, _ = CALLS[name]
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        async with connect(endpoint, retry=QUICK) as client:
            with pytest.raises(pb.OperationTimeoutError) as raised:
                await call(client, 0.3)
    assert str(raised.value).count("timed out after 0.3 s") == 1


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name not in ("append service", "flush")]
)
async def test_the_time_out_of_the_client_is_the_default(name: str) -> None:
    call, _, _ = CALLS[name]
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with connect(endpoint, retry=QUICK, timeout=SHORT) as client:
        with pytest.raises(pb.OperationTimeoutError, match=r"timed out after 0\.05 s \(broker"):
            await call(client, None)


async def test_appends_of_a_client_have_its_time_out() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with connect(endpoint, retry=QUICK, timeout=SHORT, drain_timeout=0) as client:
        async with client.appends.append(JOURNAL) as append:
            append.write(b"content")
        for _ in range(2):
            with pytest.raises(pb.OperationTimeoutError, match="still pending"):
                await append
        assert not append.done()
        assert client.status().appends.appends == 1


async def test_a_pending_append_may_be_awaited_again(broker: StubBroker) -> None:
    async with connect(broker.endpoint, timeout=SHORT) as client:
        async with client.appends.append(JOURNAL) as append:
            append.write(b"content")
        with pytest.raises(pb.OperationTimeoutError) as raised:
            await append
        assert raised.value.last_error is None
        for _ in range(3):
            await broker.append_requests.get()
        broker.append_responses.put_nowait(committed(100, 107))
        await eventually(append.done)
        assert (await append).commit.end == 107
        await broker.read_loop_errors.get()


async def test_a_time_out_of_none_and_without_limit() -> None:
    for timeout in (0, -1, math.nan):
        with pytest.raises(pb.ConfigurationError, match="timeout must be positive"):
            connect("http://localhost:1", timeout=timeout)
    with pytest.raises(TypeError, match="timeout: expected a number of seconds, not '5'"):
        connect("http://localhost:1", timeout=cast("float", "5"))
    async with (
        StubBroker() as broker,
        connect(broker.endpoint, timeout=0.001, drain_timeout=5) as client,
    ):
        with pytest.raises(pb.ConfigurationError, match="timeout must be positive"):
            await client.list(timeout=0)
        answers = asyncio.Event()

        async def answer(request: pb.ListRequest) -> pb.ListResponse:
            await answers.wait()
            return listing("a/one")

        broker.list_handler = answer
        with pytest.raises(pb.OperationTimeoutError):
            await client.list()
        unlimited = asyncio.create_task(client.list(timeout=math.inf))
        with pytest.raises(pb.OperationTimeoutError):
            await client.list(timeout=SHORT)
        answers.set()
        assert len((await unlimited).journals) == 1
        await eventually(lambda: not broker.open_rpcs)


async def test_a_cancellation_is_no_time_out(nobody: JournalClient) -> None:
    for call, _, _ in CALLS.values():
        task = asyncio.ensure_future(call(nobody, 60))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(SHORT):
            await nobody.append(JOURNAL, b"data", timeout=60)
    assert not isinstance(raised.value, pb.OperationTimeoutError)


async def test_the_last_error_is_the_cause(broker: StubBroker) -> None:
    async def refuse(requests: Any) -> pb.AppendResponse:
        raise UNAVAILABLE

    broker.append_handler = refuse
    async with connect(broker.endpoint, retry=QUICK) as client:
        error, seconds = None, 0.1
        while error is None or error.last_error is None:
            seconds *= 2  # A busy machine may not hear of a refusal within it.
            with pytest.raises(pb.OperationTimeoutError) as raised:
                await client.append(JOURNAL, b"data", timeout=seconds)
            error = raised.value
        assert "the broker is out" in str(error)
        assert isinstance(error.last_error, pb.TransportError)
        assert error.__cause__ is error.last_error


@pytest.mark.slow
async def test_a_blocking_read_of_a_connected_broker_lasts(broker: StubBroker) -> None:
    seconds = 4.0  # A busy machine connects within it.
    async with connect(broker.endpoint, timeout=seconds) as client:
        async with client.read(JOURNAL, block=True) as reader:
            reading = asyncio.create_task(reader.read())
            await broker.read_requests.get()
            await asyncio.sleep(1.1 * seconds)  # Time is the subject: the time-out passes.
            assert not reading.done()
            # Wire: a broker sends nothing, not even metadata, before there's content.
            broker.read_responses.put_nowait(metadata(0))
            broker.read_responses.put_nowait(content(0, b"data"))
            assert await reading == b"data"
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(1.1 * seconds)  # Time is the subject: the time-out passes.
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
        async with client.read(JOURNAL) as reader:
            with pytest.raises(pb.OperationTimeoutError):
                await reader.read()
        await broker.read_requests.get()


async def test_a_blocking_read_of_a_silent_broker_ends(
    broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection holds, as that of a stopped process does. No record promises a retry."""
    broker.list_handler = lambda _: listing(JOURNAL)
    async with FaultProxy(broker.endpoint) as proxy:
        async with connect(proxy.endpoint, cache_size=0) as client:
            await client.list()
            proxy.stall()
            async with client.read(JOURNAL, block=True, timeout=1) as reader:
                async with asyncio.timeout(15):  # Pings of the connection fail later.
                    with pytest.raises(pb.OperationTimeoutError):
                        await reader.read()
            proxy.heal()
    assert not caplog.records


async def test_reading_continues_after_a_time_out(broker: StubBroker) -> None:
    goes_down = asyncio.Event()

    async def answer(request: pb.ReadRequest) -> AsyncGenerator[pb.ReadResponse]:
        if request.offset and goes_down.is_set():
            raise UNAVAILABLE
        yield metadata(request.offset)
        yield content(request.offset, b"two" if request.offset else b"one")
        await goes_down.wait()

    broker.read_handler = answer
    async with (
        connect(broker.endpoint, retry=QUICK, timeout=0.2) as client,
        client.read(JOURNAL, block=True) as reader,
    ):
        assert await _read_patiently(reader) == b"one"
        goes_down.set()
        error = None
        while error is None or error.last_error is None:
            with pytest.raises(pb.OperationTimeoutError) as raised:
                await reader.read()
            error = raised.value
        assert "the broker is out" in str(error)
        goes_down.clear()
        assert await _read_patiently(reader) == b"two"
        assert reader.offset == 6
        goes_down.set()


async def _read_patiently(reader: RetryReader) -> bytes:
    """Read again after time-outs: a busy machine may not be done within one."""
    while True:
        with contextlib.suppress(pb.OperationTimeoutError):
            return await reader.read()


# The log.


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("gazette_aio")
    ]


async def test_waits_of_an_append_are_logged_once(
    broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def answer(requests: Any) -> pb.AppendResponse:
        nonlocal attempts
        async for _ in requests:
            pass
        attempts += 1
        if attempts < 20:
            raise UNAVAILABLE
        return committed(0, 4)

    broker.append_handler = answer
    async with connect(broker.endpoint, retry=RetryPolicy(backoff=lambda attempt: 0.0)) as client:
        await client.append(JOURNAL, b"data")
        begin, end = warnings_of(caplog)
        attempts = 0
        await client.appends.try_append(JOURNAL, b"data")  # type: ignore[misc]
        assert len(warnings_of(caplog)) == 4
    assert begin.startswith(f"append of journal {JOURNAL} at {broker.endpoint} fails")
    assert "the broker is out" in begin
    assert end.startswith(f"append of journal {JOURNAL} at {broker.endpoint} succeeds again")
    assert "19 failures" in end
    assert "the broker is out" in end


async def test_waits_of_a_read_are_logged_once(
    broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def answer(request: pb.ReadRequest) -> AsyncGenerator[pb.ReadResponse]:
        nonlocal attempts
        attempts += 1
        if attempts < 20:
            raise UNAVAILABLE
        yield metadata(request.offset)
        yield content(request.offset, b"two")

    broker.read_handler = answer
    async with (
        connect(broker.endpoint, retry=RetryPolicy(backoff=lambda attempt: 0.0)) as client,
        client.read(JOURNAL) as reader,
    ):
        await reader.read()
    begin, end = warnings_of(caplog)
    assert begin.startswith(f"read of journal {JOURNAL} at {broker.endpoint} fails")
    assert end.startswith(f"read of journal {JOURNAL} at {broker.endpoint} succeeds again")


async def test_a_wait_for_the_broker_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_SHORT_WAIT", SHORT)
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with connect(endpoint) as client:
        listings = [asyncio.create_task(client.list()) for _ in range(3)]
        await eventually(lambda: len(warnings_of(caplog)) == 1)
        again = StubBroker()
        await again.start(endpoint.removeprefix("http://"))
        again.list_handler = lambda request: listing("a/one")
        await asyncio.gather(*listings)
        await client.list()
    await again.aclose()
    begin, end = warnings_of(caplog)
    assert begin.startswith(f"waiting for a broker at {endpoint}: ")
    assert end.startswith(f"the broker at {endpoint} answers after ")


async def test_only_the_first_journals_of_an_iteration_are_bounded(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing("a/one", "a/two")
    async with connect(broker.endpoint, timeout=SHORT) as client:
        seen: list[str] = []
        async for journal in iter_journals(client, timeout=30):
            seen.append(journal.spec.name)
            await asyncio.sleep(2 * SHORT)  # Longer than the time-out of the client.
        assert seen == ["a/one", "a/two"]
        with pytest.raises(pb.ConfigurationError, match="timeout must be positive"):
            await anext(iter_journals(client, timeout=0))
