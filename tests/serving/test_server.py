"""A server of any service: its address, its limits, its failures, and its planned stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc._cython import cygrpc

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.service import APPLY, SERVICE_NAME, RPCMethod
from gazette_aio.serving import server as grpc_server
from gazette_aio.serving.calls import (
    CallCounts,
    Send,
    Service,
)
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.rpc_error import RpcError
from gazette_aio.serving.server import GrpcServer
from tests.broker.caller import eventually

PATH = APPLY
REFUSED = (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
Serve = Callable[[pb.Label, Send], Awaitable[pb.Label]]


class Names:
    """A service of one method, which answers a label by what `serve` makes of it."""

    def __init__(self, serve: Serve, *, streams: bool = False, **limits: Any) -> None:
        self.counts = CallCounts()
        self.serve = serve
        self.drain = Drain()
        self.headers: list[str | None] = []
        self.refusal: RpcError | None = None
        service = Service(
            SERVICE_NAME,
            {PATH: RPCMethod(PATH, pb.Label, pb.Label, server_streaming=streams)},
            {PATH: self._serve},
            authorize=self._authorize,
            counts=self.counts,
        )
        handlers = service.handlers(self.drain)
        self.server = GrpcServer([handlers], self.drain, **limits)

    def _authorize(self, header: Callable[[], str | None], capability: pb.Capability) -> pb.Claims:
        self.headers.append(header())
        if self.refusal is not None:
            raise self.refusal
        return pb.Claims(capability)

    async def _serve(self, _claims: pb.Claims, label: Any, _messages: object, send: Send) -> None:
        await send(await self.serve(label, send))


@asynccontextmanager
async def calling(target: str) -> AsyncIterator[Callable[..., Any]]:
    async with grpc.aio.insecure_channel(target) as channel:
        yield channel.unary_unary(PATH)


@asynccontextmanager
async def serving(serve: Serve, **limits: Any) -> AsyncIterator[tuple[Names, Callable[..., Any]]]:
    names = Names(serve, **limits)
    port = names.server.bind("127.0.0.1", 0)
    await names.server.start()
    try:
        async with calling(f"127.0.0.1:{port}") as call:
            yield names, call
    finally:
        await names.server.stop(0.0)


async def upper(label: pb.Label, _send: Send) -> pb.Label:
    return pb.Label(name=label.name.upper())


def label(name: str) -> bytes:
    return pb.Label(name=name).SerializeToString()


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_calls_are_answered_and_counted() -> None:
    async with serving(upper) as (names, call):
        assert "running" in repr(names.server)
        assert await call(label("a")) == label("A")
        assert (names.counts.started, names.counts.completed) == (
            {"Apply": 1},
            {("Apply", "ok"): 1},
        )
    assert "stopped" in repr(names.server)


async def test_failures_have_a_code_and_a_text(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(label: pb.Label, _send: Send) -> pb.Label:
        raise RpcError("not here", "NOT_FOUND") if label.name == "a" else ValueError("broken")

    async with serving(fail) as (names, call):
        assert await failure(call(label("a"))) == (grpc.StatusCode.NOT_FOUND, "not here")
        assert not caplog.records
        unknown = (grpc.StatusCode.UNKNOWN, "ValueError: broken")
        assert await failure(call(label("b"))) == unknown
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        code, text = await failure(call(b"\xff"))
        assert code is grpc.StatusCode.INTERNAL
        assert text.startswith("failed to unmarshal the request")
        assert names.counts.completed == {("Apply", "<error>"): 3}


async def test_tokens_are_metadata() -> None:
    async with serving(upper) as (names, call):
        await call(b"")
        metadata = (("other", "x"), ("authorization", "Bearer token"))
        await call(b"", metadata=metadata)
        assert names.headers == [None, "Bearer token"]


async def test_calls_are_authorized_before_their_requests_are_looked_at() -> None:
    async with serving(upper) as (names, call):
        names.refusal = RpcError("no token", "UNAUTHENTICATED")
        assert await failure(call(b"\xff")) == (grpc.StatusCode.UNAUTHENTICATED, "no token")


async def test_limits() -> None:
    async with serving(upper, max_receive_bytes=100) as (_, call):
        assert await call(label("a" * 90)) == label("A" * 90)
        code, _ = await failure(call(label("a" * 100)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("seconds", "is_patient"), [(600, True), (1, False)])
async def test_calls_wait_for_an_event_loop_that_is_busy(
    seconds: int, is_patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert grpc_server.MAX_PENDING_SECONDS == 600
    monkeypatch.setattr(grpc_server, "MAX_PENDING_SECONDS", seconds)
    async with serving(upper) as (_, call):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call(label("a"))  # The connection stands.
        busy, codes = 1.0, set[grpc.StatusCode]()
        while not (codes or (is_patient and busy > 1)):
            busy *= 1.5  # A slow machine may not have passed the calls on within it.
            calls = [asyncio.ensure_future(call(label("a"))) for _ in range(20)]
            await asyncio.sleep(0)
            threading.Event().wait(busy)
            ends = await asyncio.gather(*calls, return_exceptions=True)
            codes = {each.code() for each in ends if isinstance(each, grpc.aio.AioRpcError)}
    assert codes == (set() if is_patient else {grpc.StatusCode.CANCELLED})


async def test_an_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pb.ConfigurationError, match=f"listen on 127.0.0.1:{port}"):
            Names(upper).server.bind("127.0.0.1", port)


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "names.sock"
    names = Names(upper)
    await names.server.bind_socket(path, 0o600)
    await names.server.start()
    async with calling(f"unix:{path}") as call:
        assert await call(label("a")) == label("A")
    await names.server.stop(0.0)
    assert not path.exists()
    await names.server.stop(0.0)


async def test_a_stop_serves_what_is_in_progress_and_refuses_the_rest() -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    async def wait(label: pb.Label, send: Send) -> pb.Label:
        entered.set()
        await gate.wait()
        return await upper(label, send)

    async with serving(wait) as (names, call):
        first = asyncio.ensure_future(call(label("first")))
        await entered.wait()
        assert "idle, 1 calls" in repr(names.drain)
        stopping = asyncio.create_task(names.server.stop(60.0))
        await asyncio.sleep(0)
        assert await failure(call(label("late"))) == REFUSED
        assert "begun, 1 calls" in repr(names.drain)
        gate.set()
        assert await first == label("FIRST")
        await stopping
        assert "over, 0 calls" in repr(names.drain)


async def test_a_stop_serves_calls_of_other_services_too() -> None:
    gate, entered = asyncio.Event(), asyncio.Event()

    async def echo(message: bytes, _context: Any) -> bytes:
        entered.set()
        await gate.wait()
        return message

    drain = Drain()
    server = GrpcServer((), drain, others=True)
    port = server.bind("127.0.0.1", 0)
    methods = {"Apply": grpc.unary_unary_rpc_method_handler(echo)}
    server.add([grpc.method_handlers_generic_handler(SERVICE_NAME, methods)])
    await server.start()
    async with calling(f"127.0.0.1:{port}") as call:
        first = asyncio.ensure_future(call(b"first"))
        await entered.wait()
        stopping = asyncio.create_task(server.stop(60.0))
        await asyncio.sleep(0)
        assert await failure(call(b"late")) == REFUSED
        gate.set()
        assert await first == b"first"
        await stopping


async def test_what_outlasts_the_grace_of_a_stop_is_cancelled_and_refused() -> None:
    entered, unwound = asyncio.Event(), asyncio.Event()

    async def hang(_label: pb.Label, _send: Send) -> pb.Label:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            unwound.set()
        raise AssertionError

    async with serving(hang) as (names, call):
        hanging = asyncio.ensure_future(call(b""))
        await entered.wait()
        await names.server.stop(0.05)
        assert unwound.is_set()
        assert await failure(hanging) == REFUSED
        assert names.counts.completed == {("Apply", "<error>"): 1}


async def test_a_stop_under_load_loses_no_answer_and_cancels_nothing() -> None:
    served = 0
    codes: Counter[grpc.StatusCode] = Counter()

    async def count(label: pb.Label, send: Send) -> pb.Label:
        nonlocal served
        served += 1
        return await upper(label, send)

    def call_on(target: str, ended: threading.Event) -> None:
        # Without any pause: there's always a call which the server hasn't looked at.
        with grpc.insecure_channel(target) as channel:
            call: Any = channel.unary_unary(PATH)
            while not ended.is_set():
                try:
                    call(b"")
                    codes[grpc.StatusCode.OK] += 1
                except grpc.RpcError as error:
                    failed: Any = error
                    codes[failed.code()] += 1

    for _ in range(5):
        names, ended = Names(count), threading.Event()
        port = names.server.bind("127.0.0.1", 0)
        await names.server.start()
        before, target = served, f"127.0.0.1:{port}"
        clients = [asyncio.create_task(in_thread(call_on, target, ended)) for _ in range(8)]

        async def under_load(before: int = before) -> bool:
            return served > before + 100

        await eventually(under_load)
        await names.server.stop(60.0)
        ended.set()
        await asyncio.gather(*clients)
    assert codes.pop(grpc.StatusCode.OK) == served
    assert set(codes) <= {grpc.StatusCode.UNAVAILABLE}


async def test_a_stop_ends_the_connections_of_its_server_alone() -> None:
    async with serving(upper) as (stopped, call), serving(upper) as (_, other):
        assert await call(label("a")) == label("A")
        assert await other(label("a")) == label("A")
        await stopped.server.stop(60.0)
        assert (await failure(call(label("a"))))[0] is grpc.StatusCode.UNAVAILABLE
        assert await other(label("b")) == label("B")


async def test_a_client_that_never_closes_does_not_keep_a_server() -> None:
    names = Names(upper)
    port = names.server.bind("localhost", 0)
    await names.server.start()
    reader, writer = await asyncio.open_connection("localhost", port)
    assert await reader.read(1)  # It's accepted.
    await names.server.stop(60.0)
    await reader.read()
    writer.close()


async def test_a_stop_looks_for_connections_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Any] = []
    list_directory = os.listdir

    def look(path: Any = ".") -> list[str]:
        looks.append(path)
        return list_directory(path)

    names = Names(upper)
    port = names.server.bind("127.0.0.1", 0)
    await names.server.start()
    # The stop waits until a client closes, as long as it may.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read(1)
    monkeypatch.setattr(os, "listdir", look)
    await names.server.stop(60.0)
    writer.close()

    assert 1 <= len(looks) <= 3


DIES_OF_PATHS = tuple(map(int, grpc.__version__.split(".")[:2])) >= (1, 85)
"""Whether the library takes no requests after one whose path is no text."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return b"".join(
        (len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream.to_bytes(4, "big"), payload)
    )


async def call_by_a_path_that_is_no_text(path: Path | int) -> asyncio.StreamWriter:
    fields = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/test.Names\xdd/Upper"),
        (b":authority", b"server"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    )  # fmt: skip
    block = b"".join(
        bytes((0, len(name))) + name + bytes((len(value),)) + value for name, value in fields
    )
    if isinstance(path, Path):
        _, writer = await asyncio.open_unix_connection(path)
    else:
        _, writer = await asyncio.open_connection("127.0.0.1", path)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, block))
    await writer.drain()
    return writer


def test_the_library_is_built_as_we_know_it() -> None:
    """Otherwise nobody would learn that it has stopped serving."""
    assert hasattr(cygrpc.AioServer, "_server_main_loop")


@pytest.mark.parametrize("is_socket", [False, True])
async def test_a_path_that_is_no_text_ends_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_socket: bool
) -> None:
    """It ends the loop in which the library takes requests."""
    names = Names(upper)
    if is_socket:
        await names.server.bind_socket(tmp_path / "socket", 0o600)
        path: Path | int = tmp_path / "socket"
        target = f"unix:{path}"
    else:
        path = names.server.bind("127.0.0.1", 0)
        target = f"127.0.0.1:{path}"
    await names.server.start()
    message = pb.Label(name="name").SerializeToString()

    async def answers() -> bool:
        async with calling(target) as call:
            try:
                return pb.Label.FromString(await call(message, timeout=30)).name == "NAME"
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return False

    for times in (1, 2):
        writer = await call_by_a_path_that_is_no_text(path)
        if DIES_OF_PATHS:
            await eventually(lambda times=times: _is(caplog.text.count("started anew") == times))
        await eventually(answers)
        writer.transport.abort()
    # A stop waits for a start under way.
    writer = await call_by_a_path_that_is_no_text(path)
    if DIES_OF_PATHS:
        await eventually(lambda: _is(caplog.text.count("started anew") == 3))
    await names.server.stop(0.0)
    writer.transport.abort()
    if is_socket:
        assert not (tmp_path / "socket").exists()


async def test_an_address_that_is_taken_meanwhile(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(upper)
    port = names.server.bind("127.0.0.1", 0)
    await names.server.start()

    def refuse(*_: object) -> int:
        raise RuntimeError("it's taken")

    monkeypatch.setattr(type(grpc.aio.server()), "add_insecure_port", refuse)
    writer = await call_by_a_path_that_is_no_text(port)
    if DIES_OF_PATHS:
        await eventually(lambda: _is("can't be started anew" in caplog.text))
    await names.server.stop(0.0)
    writer.transport.abort()


async def test_a_write_to_a_client_that_has_left_logs_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def serve(label: pb.Label, send: Send) -> pb.Label:
        arrived.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # Race: the library learns of it by a failed write as well.
            with pytest.raises(grpc.aio.InternalError) as failed:
                await send(label)
            raise failed.value from None
        finally:
            ended.set()
        return label

    async with serving(serve, streams=True) as (names, call):
        leaving = call(pb.Label(name="first").SerializeToString())
        await arrived.wait()
        leaving.cancel()
        await ended.wait()
        await eventually(lambda: _is(names.counts.completed["Apply", "<error>"] == 1))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _is(value: bool) -> bool:
    return value
