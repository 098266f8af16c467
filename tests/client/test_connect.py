from __future__ import annotations

import asyncio
import base64
import datetime as dt
import gc
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    ClientOptions,
    JournalClient,
    RetryPolicy,
    auth_from_environment,
    connect,
)
from gazette_aio.client.context import ClientContext
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import (
    JOURNAL,
    MemoryJournals,
    content,
    header,
    listing,
    metadata,
    script_read,
)
from tests.waiting import eventually

KEY = base64.b64encode(b"a very secret key").decode()


def test_constructing_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = connect()
    assert client.endpoint == "http://localhost:8080"
    assert client.context.zone == "local"
    assert client.status().connection == "idle"
    monkeypatch.setenv("BROKER_ADDRESS", "https://broker.example:1234")
    monkeypatch.setenv("ZONE", "a-zone")
    client = connect()
    assert client.endpoint == "https://broker.example:1234"
    assert client.context.zone == "a-zone"
    assert connect("http://other:1", zone="other").context.zone == "other"
    assert connect("http://other:1").endpoint == "http://other:1"
    assert "idle" in repr(client)


@pytest.mark.parametrize("address", ["localhost:8080", "ftp://host/", "http://"])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(pb.ValidationError):
        connect(address)


async def test_a_broker_that_is_down_at_start() -> None:
    port = free_port()
    async with connect(f"http://127.0.0.1:{port}", connect_timeout=0.05) as client:
        text = f"UNAVAILABLE: no broker answers at http://127.0.0.1:{port} (waited 0.05 s)"
        while True:  # A slow machine needs longer to know why.
            with pytest.raises(pb.TransportError) as raised:
                await client.list()
            if str(raised.value) != text:
                break
        assert str(raised.value).startswith(f"{text}: failed to ")
        assert "Connection refused" in str(raised.value)
        assert raised.value.retryable
    async with connect(
        f"http://127.0.0.1:{port}", retry=RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)
    ) as client:
        with pytest.raises(pb.TransportError, match=f"broker http://127.0.0.1:{port}") as raised:
            await client.append(JOURNAL, b"content")
        assert raised.value.attempt == 1


async def test_a_broker_that_comes_up_late() -> None:
    port = free_port()
    broker = StubBroker()
    broker.list_handler = lambda request: listing("a/one")
    async with connect(f"http://127.0.0.1:{port}") as client:
        asked = asyncio.create_task(client.list())
        states = ("connecting", "transient_failure")
        await eventually(lambda: client.status().connection in states)
        await broker.start(f"127.0.0.1:{port}")
        assert len((await asked).journals) == 1
        assert client.status().connection == "ready"
    await broker.aclose()
    assert client.status().connection == "closed"


async def test_a_broker_which_goes_away_is_not_waited_for(
    broker: StubBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by an RPC which begins at that moment."""
    async with connect(broker.endpoint) as client:
        ready = client.context.dispatcher.ready

        async def was_ready() -> Any:
            connection = await ready()
            await broker.stop()
            await eventually(lambda: client.status().connection == "idle")
            return connection

        monkeypatch.setattr(client.context.dispatcher, "ready", was_ready)
        stream = await client.context.rpc.list(pb.ListRequest())
        with pytest.raises(pb.TransportError, match="UNAVAILABLE"):
            await stream.receive()
        await stream.aclose()
        await broker.start(broker.endpoint.removeprefix("http://"))
        with pytest.raises(pb.TransportError, match="UNAVAILABLE"):
            await client.context.rpc.apply(pb.ApplyRequest())


async def test_hosts_which_are_schemes_of_grpc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A host named `unix` isn't a socket of this machine."""
    monkeypatch.chdir(tmp_path)
    stub = StubBroker()
    MemoryJournals(stub)
    await stub.start("unix:8080")
    policy = RetryPolicy(max_attempts=1)
    async with connect("http://unix:8080", retry=policy, auth=lambda: "secret") as client:
        with pytest.raises(pb.TransportError, match="UNAVAILABLE"):
            await client.append(JOURNAL, b"content")
    assert stub.metadata == []
    await stub.aclose()


async def test_ipv6(instant: RetryPolicy) -> None:
    broker = StubBroker()
    try:
        await broker.start("[::1]:0")
    except OSError as error:
        pytest.skip(f"no IPv6 ({error})")
    broker.list_handler = lambda request: listing("a/one")
    async with connect(broker.endpoint, retry=instant) as client:
        assert len((await client.list()).journals) == 1
    await broker.aclose()


# Authorization.


def claims_of(metadata: dict[str, str]) -> pb.Claims:
    auth = pb.KeyedAuth(KEY)
    return auth.verify(metadata.get("authorization"), pb.Capability(0), time.time())


async def test_every_rpc_carries_the_least_claims(broker: StubBroker) -> None:
    MemoryJournals(broker)
    broker.list_handler = lambda request: listing()
    broker.apply_handler = lambda request: pb.ApplyResponse(header=header())
    broker.fragments_handler = lambda request: pb.FragmentsResponse(header=header())
    broker.health_handler = lambda request: pb.FragmentStoreHealthResponse(header=header())
    script_read(broker, 0, b"ab")
    async with connect(broker.endpoint, auth=pb.KeyedAuth(KEY)) as client:
        await client.list("foo=bar")
        await client.apply([])
        async with client.read(f"{JOURNAL};meta") as reader:
            await reader.read()
        await client.append(f"{JOURNAL};meta", b"content")
        await client.list_fragments(JOURNAL)
        await client.fragment_store_health("file:///store/")
    await broker.read_requests.get()

    seen: list[tuple[str, int, str]] = []
    for method, sent in broker.metadata:
        claims = claims_of(sent)
        seen.append((method, claims.capability, pb.format_label_selector(claims.selector)))
        assert claims.expires_at is not None
        assert claims.issued_at is not None
        lasts = claims.expires_at - claims.issued_at
        assert lasts == (60 if method == "Apply" else 3600)
    can = pb.Capability
    assert seen == [
        ("List", can.LIST, "foo=bar"),
        ("Apply", can.APPLY, ""),
        ("Read", can.READ, f"name={JOURNAL}"),
        ("Append", can.APPEND, f"name={JOURNAL}"),
        ("ListFragments", can.READ, f"name={JOURNAL}"),
        ("FragmentStoreHealth", can.READ, ""),
    ]


async def test_claims_of_the_context(broker: StubBroker) -> None:
    MemoryJournals(broker)
    wide = pb.Claims(pb.Capability.APPEND | pb.Capability.READ)
    async with connect(broker.endpoint, auth=pb.KeyedAuth(KEY)) as client:
        with pb.with_claims(wide):
            await client.append(JOURNAL, b"content")
            # The service works for all, not just for who happens to come first.
            append = client.appends.try_append(JOURNAL, b"content")
            assert append is not None
            await append
    first, second = (claims_of(metadata) for _, metadata in broker.metadata)
    assert first.capability == wide.capability
    assert second.capability == pb.Capability.APPEND
    assert pb.format_label_selector(second.selector) == f"name={JOURNAL}"


async def test_tokens_from_elsewhere(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()
    tokens = iter(["one", "two"])

    async def fresh() -> str:
        await asyncio.sleep(0)
        return next(tokens)

    class Asking:
        async def authorize(self, claims: pb.Claims, lifetime: dt.timedelta) -> pb.Metadata:
            return (("authorization", f"Bearer asked-{claims.capability:d}"),)

    for auth, times in (
        (pb.BearerAuth("fixed"), 1),
        (fresh, 2),
        (lambda: "plain", 1),
        (Asking(), 1),
        (pb.NoopAuth(), 1),
    ):
        async with connect(broker.endpoint, auth=auth) as client:
            for _ in range(times):
                await client.list()
    assert [metadata.get("authorization") for _, metadata in broker.metadata] == [
        "Bearer fixed",
        "Bearer one",
        "Bearer two",
        "Bearer plain",
        "Bearer asked-2",
        None,
    ]
    with pytest.raises(pb.ConfigurationError, match="can't authorize by a int"):
        connect(broker.endpoint, auth=7)  # type: ignore[arg-type]
    with pytest.raises(pb.ConfigurationError, match="can't authorize by the class NoopAuth"):
        connect(broker.endpoint, auth=pb.NoopAuth)  # type: ignore[arg-type]


async def test_rpcs_wait_for_their_token(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()
    MemoryJournals(broker)
    ready = asyncio.Event()
    asked = 0

    async def slow() -> str:
        nonlocal asked
        asked += 1
        await ready.wait()
        return "ready"

    async with connect(broker.endpoint, auth=slow) as client:
        waiting = [asyncio.create_task(client.append(JOURNAL, b"content")) for _ in range(2)]
        waiting.append(asyncio.create_task(client.list()))  # type: ignore[arg-type]
        await eventually(lambda: asked == 3)
        assert broker.metadata == []
        ready.set()
        await asyncio.gather(*waiting)
    assert [sent["authorization"] for _, sent in broker.metadata] == ["Bearer ready"] * 3


async def test_expired_tokens_are_renewed(broker: StubBroker, instant: RetryPolicy) -> None:
    """What expires on its way is refused, and the next attempt carries a fresh token."""
    journals = MemoryJournals(broker)
    valid = ""

    def check() -> None:
        if broker.metadata[-1][1]["authorization"] != f"Bearer {valid}":
            raise StubError(grpc.StatusCode.UNAUTHENTICATED, "token is expired")

    async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        check()
        yield metadata(request.offset)
        yield content(request.offset, b"c")

    async def append(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        check()
        return await journals.answer(requests)

    def list_(request: pb.ListRequest) -> pb.ListResponse:
        check()
        return listing()

    broker.read_handler, broker.append_handler, broker.list_handler = read, append, list_
    current = ""

    async def source() -> str:
        nonlocal current
        given, current = current, valid  # It learns of the expiry too late.
        return given

    async with connect(broker.endpoint, auth=source, retry=instant) as client:
        async with client.read(JOURNAL) as reader:
            valid = "first"
            assert await reader.read() == b"c"
            valid = "second"
            assert await reader.read() == b"c"
        valid = "third"
        await client.append(JOURNAL, b"content")
        valid = "fourth"
        await client.list()
        valid = "fifth"
        append_ = client.appends.try_append(JOURNAL, b"content")
        assert append_ is not None
        await append_
    codes = [sent["authorization"] for _, sent in broker.metadata]
    assert codes == [
        *("Bearer ", "Bearer first", "Bearer first", "Bearer second"),
        *("Bearer second", "Bearer third", "Bearer third", "Bearer fourth"),
        *("Bearer fourth", "Bearer fifth"),
    ]


def test_authorization_by_the_environment() -> None:
    assert isinstance(auth_from_environment({}), pb.NoopAuth)
    assert isinstance(auth_from_environment({"BROKER_AUTH_TOKEN": "token"}), pb.BearerAuth)
    both = {"BROKER_AUTH_TOKEN": "token", "BROKER_AUTH_KEYS": KEY}
    assert isinstance(auth_from_environment(both), pb.KeyedAuth)
    with pytest.raises(pb.ConfigurationError):
        auth_from_environment({"BROKER_AUTH_KEYS": "not base64!"})


async def test_secrets_do_not_show(broker: StubBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    policy = RetryPolicy(max_attempts=2, backoff=lambda _: 0.0)
    for auth in (pb.KeyedAuth(KEY), pb.BearerAuth("secret-token"), lambda: "secret-token"):
        broker.finish()
        broker.finish()
        async with connect(broker.endpoint, auth=auth, retry=policy) as client:
            reader = client.read(JOURNAL)
            with pytest.raises(pb.GazetteError) as raised:
                await reader.read()
            shown = (
                f"{client!r} {reader!r} {client.context.rpc!r} {raised.value!r} {client.status()}"
            )
            await reader.aclose()
        assert "secret" not in shown
        assert KEY not in shown
    assert "secret-token" not in caplog.text
    assert KEY not in caplog.text
    while not broker.read_requests.empty():
        await broker.read_requests.get()


# Where a client may be used.


async def test_it_belongs_to_one_event_loop(broker: StubBroker, client: JournalClient) -> None:
    broker.list_handler = lambda request: listing()
    await client.list()
    errors: list[BaseException] = []

    def elsewhere() -> None:
        async def use() -> None:
            for use in (
                client.list(),
                client.append(JOURNAL, b"content"),
                client.appends.start_append(JOURNAL),
            ):
                try:
                    await use
                except RuntimeError as error:
                    errors.append(error)

        asyncio.run(use())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(errors) == 3
    assert all("belongs to another event loop" in str(error) for error in errors)


async def test_it_belongs_to_one_process(
    broker: StubBroker, client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.list_handler = lambda request: listing()
    await client.list()
    own = os.getpid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(RuntimeError, match="before this process was forked"):
            await client.appends.start_append(JOURNAL)
    await client.list()


_FORKING = """
import asyncio, os, signal, sys
from gazette_aio.client import connect

def first_step(coroutine):
    try:
        coroutine.send(None)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    coroutine.close()
    return "it went on"

async def main():
    async with connect(sys.argv[1]) as client:
        await client.list()
        child = os.fork()
        if not child:
            told = [first_step(use) for use in (
                client.list(), client.append("a/journal", b"content"), client.list_fragments("a/journal"),
            )]
            try:
                client.appends.try_append("a/journal", b"content")
            except RuntimeError as error:
                told.append(f"{type(error).__name__}: {error}")
            # What isn't its own is left alone; whatever waits for it, waits for ever.
            signal.alarm(5)
            told.append(first_step(client.aclose()))
            print("\\n".join(told), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        await client.list()  # The parent isn't harmed.
        print("parent", flush=True)

asyncio.run(main())
"""


async def test_forked_processes_are_told(broker: StubBroker) -> None:
    """Takes a process of its own, as a fork of this one might do harm."""
    broker.list_handler = lambda request: listing()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _FORKING, broker.endpoint, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    *told, closed, parent = output.decode().splitlines()
    assert len(told) == 4, told
    assert all(line.startswith("UsageError: the client of ") for line in told), told
    assert all("before this process was forked" in line for line in told)
    assert closed == "StopIteration: "
    assert parent == "parent"


async def test_it_warns_when_it_was_never_closed(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()
    client = connect(broker.endpoint)
    await client.list()
    with pytest.warns(ResourceWarning, match="JournalClient of .* was never closed"):
        client.__del__()
    await client.aclose()
    await client.aclose()
    with pytest.raises(RuntimeError, match="is closed"):
        await client.list()
    with pytest.raises(RuntimeError, match="closed"):
        await client.append(JOURNAL)


async def test_the_connections_of_a_client_which_is_left_behind_end(broker: StubBroker) -> None:
    broker.list_handler = lambda request: listing()

    async def leave_behind() -> ClientContext:
        client = connect(broker.endpoint)
        await client.list()
        return client.context  # As readers hold it, which may outlive the client.

    with pytest.warns(ResourceWarning, match="JournalClient of .* was never closed"):
        context = await _collected(leave_behind())
    assert context.status().connection == "ready"
    dispatcher = context.dispatcher
    del context
    gc.collect()
    await eventually(lambda: dispatcher.state == "closed" and not dispatcher.is_dialled)


async def _collected(work: Awaitable[ClientContext]) -> ClientContext:
    context = await work
    gc.collect()
    return context


@pytest.mark.parametrize("token", ["secret\n", "s\u00e9cret", None, b"secret"])
async def test_what_is_not_a_token_is_not_sent(broker: StubBroker, token: object) -> None:
    source: Any = lambda: token  # noqa: E731
    async with connect(broker.endpoint, auth=source) as client:
        with pytest.raises(pb.ConfigurationError, match="token") as raised:
            await client.append(JOURNAL, b"content")
    assert "cret" not in str(raised.value)
    assert broker.metadata == []


def test_options_are_documented_and_checked() -> None:
    documented = inspect.getdoc(connect) or ""
    for name in ClientOptions.__annotations__:
        assert f"\n    {name}: " in documented
    with pytest.raises(TypeError, match=r"no option zones: did you mean 'zone'\?"):
        connect("http://127.0.0.1:1", zones="a")  # type: ignore[call-arg]
