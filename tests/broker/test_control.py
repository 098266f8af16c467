"""Control of a broker: rules for requests, stores which fail, and time which is moved."""

from __future__ import annotations

import asyncio
import errno
import http.client
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import BrokerControl, EmbeddedBroker, ManualClock
from gazette_aio.broker.control.handles import Hold
from gazette_aio.broker.control.rules import RequestRule, RuleBook, journals_of
from gazette_aio.client import JournalClient, connect
from tests.broker.caller import Caller, calling, eventually, journal_spec

JOURNAL = "test/journal"
OTHER = "test/other"
FAILED = "failed on request of a test"


@pytest.fixture
def control(broker: EmbeddedBroker) -> BrokerControl:
    return broker.control


@pytest.fixture
async def client(broker: EmbeddedBroker, caller: Caller) -> AsyncIterator[JournalClient]:
    """A client of a broker with two journals."""
    await caller.create(journal_spec(JOURNAL), journal_spec(OTHER))
    async with connect(broker.endpoint) as client:
        yield client


def failing(code: grpc.StatusCode, text: str = FAILED) -> Any:
    return pytest.raises(
        grpc.aio.AioRpcError, check=lambda error: (error.code(), error.details()) == (code, text)
    )


async def content(client: JournalClient, journal: str = JOURNAL) -> bytes:
    """Return all there is of a journal."""
    head = (await client.append(journal)).commit.end
    if head == 0:
        return b""
    async with client.read(journal, end_offset=head) as reader:
        return b"".join([chunk async for chunk in reader])


# Rules, purely


def requests_of(name: str) -> list[tuple[Any, Any]]:
    change = pb.ApplyRequest.Change
    include = pb.LabelSelector(include=pb.label_set("name", name))
    return [
        ("apply", pb.ApplyRequest(changes=[change(delete="x"), change(delete=name)])),
        ("apply", pb.ApplyRequest(changes=[change(upsert=journal_spec(name))])),
        ("list", pb.ListRequest(selector=include)),
        ("read", pb.ReadRequest(journal=name)),
        ("read", pb.ReadRequest(journal=name + ";meta")),
        ("append", pb.AppendRequest(journal=name)),
        ("list_fragments", pb.FragmentsRequest(journal=name)),
        ("replicate", pb.ReplicateRequest(proposal=pb.Fragment(journal=name))),
    ]


@pytest.mark.parametrize(("kind", "request_"), requests_of("a/b"))
def test_rules_match_journals(kind: Any, request_: Any) -> None:
    def matches(journal: Any) -> bool:
        return RequestRule(kind, None, journal=journal).matches(kind, request_)

    assert "a/b" in journals_of(request_)
    assert matches(None)
    assert matches("a/b")
    assert matches("a/")
    assert matches(lambda name: name.endswith("/b"))
    assert not matches("a")
    assert not matches("a/b/")
    assert not matches("b/")
    assert not RequestRule("fragment_store_health", None).matches(kind, request_)
    assert not RequestRule(kind, None, where=lambda _: False).matches(kind, request_)


def test_a_predicate_may_remove_rules() -> None:
    book = RuleBook()

    def remove(*rules: RequestRule) -> Callable[[Any], bool]:
        def where(_request: Any) -> bool:
            for rule in rules:
                book.remove(rule)
            return bool(rules)

        return where

    own, later = RequestRule("read", None), RequestRule("read", None)
    own.where = remove(own, later)
    last = RequestRule("read", None)
    for rule in (own, later, last):
        book.add(rule)
    assert book.next("read", pb.ReadRequest(), 0) is last


WRONG: list[tuple[type[Exception], Callable[[BrokerControl], object]]] = [
    (ValueError, lambda control: control.once("read")),
    (ValueError, lambda control: control.once("read", fail="UNKNOWN", status=pb.Status.OK)),
    (ValueError, lambda control: control.once("read", fail="NO_SUCH_CODE")),
    (ValueError, lambda control: control.observe("no such kind")),  # type: ignore[arg-type]
    (TypeError, lambda control: control.once("read", respond=pb.ListResponse())),
    (ValueError, lambda control: control.once("apply", respond=[])),
    (ValueError, lambda control: control.delay("read", seconds=-1)),
    (ValueError, lambda control: control.cut("read")),
    (ValueError, lambda control: control.cut("read", after_bytes=1, after_messages=1)),
    (ValueError, lambda control: control.cut("read", after_bytes=-1)),
    (ValueError, lambda control: control.cut("read", after_bytes=1, times=0)),
    (ValueError, lambda control: control.cut("read", at="after_commit")),
    (ValueError, lambda control: control.cut("list", after_bytes=1)),
    (ValueError, lambda control: control.cut("apply", after_messages=1)),
    (ValueError, lambda control: control.cut("append", after_messages=1, fail=None)),
    (pb.ValidationError, lambda control: control.fail_store("not a store")),
    (ValueError, lambda control: control.clock.advance(-1)),
]


@pytest.mark.parametrize(("error", "call"), WRONG)
def test_wrong_arguments(error: type[Exception], call: Callable[[BrokerControl], object]) -> None:
    control = EmbeddedBroker().control
    with pytest.raises(error):
        call(control)
    assert control.kinds == frozenset()


# Answers


async def test_once_and_keep(control: BrokerControl, caller: Caller) -> None:
    await caller.create(journal_spec(JOURNAL), journal_spec(OTHER))
    once = control.once("append", journal=JOURNAL, fail=("ABORTED", "not today"))
    await caller.commit(b"x", OTHER)
    with failing(grpc.StatusCode.ABORTED, "not today"):
        await caller.append(b"hello")
    await caller.commit(b"hello")
    assert (once.hits, once.is_active) == (1, False)
    with control.keep("append", journal="test/", fail="INTERNAL") as keep:
        for journal in (JOURNAL, OTHER):
            for _ in range(2):
                call = caller.append_call(iter_append(journal))
                with failing(grpc.StatusCode.INTERNAL):
                    await call
        assert keep.hits == 4
    assert await caller.commit(b" world") == 5
    assert control.kinds == frozenset()
    assert await caller.read() == b"hello world"


async def iter_append(journal: str) -> AsyncIterator[pb.AppendRequest]:
    yield pb.AppendRequest(journal=journal)
    yield pb.AppendRequest(content=b"content")
    yield pb.AppendRequest()


async def test_statuses_of_all_kinds(control: BrokerControl, client: JournalClient) -> None:
    status = pb.Status.NOT_ALLOWED
    control.once("list", status=status)
    with pytest.raises(pb.NotAllowedError):
        await client.list()
    control.once("apply", status=pb.Status.ETCD_TRANSACTION_FAILED)
    with pytest.raises(pb.EtcdTransactionFailedError):
        await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/new"))])
    control.once("append", status=status)
    with pytest.raises(pb.NotAllowedError):
        await client.append(JOURNAL, b"x")
    control.once("append", status=pb.Status.REGISTER_MISMATCH)
    with pytest.raises(pb.RegisterMismatchError):
        await client.append(JOURNAL, b"x")
    control.once("read", status=status)
    with pytest.raises(pb.NotAllowedError):
        await anext(client.read(JOURNAL))
    control.once("list_fragments", status=pb.Status.JOURNAL_NOT_FOUND)
    with pytest.raises(pb.JournalNotFoundError):
        await client.list_fragments(JOURNAL)
    control.once("fragment_store_health", status=pb.Status.FRAGMENT_STORE_UNHEALTHY)
    health = await client.fragment_store_health("file:///")
    assert health.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    assert control.kinds == frozenset()
    assert (await client.append(JOURNAL, b"x")).commit.end == 1


async def test_replicate(control: BrokerControl, broker: EmbeddedBroker) -> None:
    target = broker.endpoint.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:
        replicate = channel.stream_stream("/protocol.Journal/Replicate")
        proposal = pb.ReplicateRequest(proposal=pb.Fragment(journal=JOURNAL))
        control.once("replicate", journal=JOURNAL, status=pb.Status.WRONG_ROUTE)
        response = pb.ReplicateResponse.FromString(
            await replicate(iter([proposal.SerializeToString()])).read()
        )
        assert response.status == pb.Status.WRONG_ROUTE
        pb.validate(response)


async def test_responses(control: BrokerControl, client: JournalClient) -> None:
    fragment = pb.Fragment(journal=JOURNAL, begin=0, end=100)
    fragment.sum.SetInParent()
    control.once(
        "read",
        respond=[
            pb.ReadResponse(offset=0, write_head=100, fragment=fragment),
            pb.ReadResponse(offset=0, content=b"made "),
            pb.ReadResponse(offset=5, content=b"up"),
        ],
    )
    async with client.read(JOURNAL, end_offset=7) as reader:
        assert b"".join([chunk async for chunk in reader]) == b"made up"
    listing = pb.ListResponse()
    control.once("list", respond=listing)
    assert len((await client.list()).journals) == 0
    assert not listing.HasField("header")  # It's the caller's.
    assert len((await client.list()).journals) == 2


async def test_functions_answer_or_let_pass(control: BrokerControl, client: JournalClient) -> None:
    def respond(request: pb.FragmentsRequest) -> pb.FragmentsResponse | None:
        if request.journal == OTHER:
            return None
        return pb.FragmentsResponse(status=pb.Status.NOT_ALLOWED)

    once = control.once("list_fragments", respond=respond)
    await client.list_fragments(OTHER)
    assert once.hits == 0
    with pytest.raises(pb.NotAllowedError):
        await client.list_fragments(JOURNAL)
    await client.list_fragments(JOURNAL)
    assert once.hits == 1


async def test_rules_are_applied_once_each_to_concurrent_requests(
    control: BrokerControl, caller: Caller
) -> None:
    await caller.create(journal_spec())
    rules = [control.once("list_fragments", fail="ABORTED") for _ in range(3)]
    request = pb.FragmentsRequest(journal=JOURNAL)
    calls = [caller.fragments_call(request) for _ in range(10)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(outcome, grpc.aio.AioRpcError) for outcome in outcomes) == 3
    assert [rule.hits for rule in rules] == [1, 1, 1]


async def test_where_and_clear(control: BrokerControl, caller: Caller) -> None:
    await caller.create(journal_spec())
    control.keep("read", where=lambda request: request.offset == 3, fail="ABORTED")
    control.keep("list", fail="ABORTED")
    control.fail_store("file:///")
    await caller.commit(b"hello")
    assert await caller.read(offset=2) == b"llo"
    with failing(grpc.StatusCode.ABORTED):
        await caller.read(offset=3)
    control.clear()
    assert await caller.read(offset=3) == b"lo"
    assert len(await caller.journals()) == 1
    assert "rules=0" in repr(control)


# Observing


async def test_observe(control: BrokerControl, client: JournalClient) -> None:
    observation = control.observe("append", journal=JOURNAL)
    waiting = asyncio.create_task(observation.seen(2))
    await client.append(JOURNAL, b"one")
    await client.append(OTHER, b"elsewhere")
    await client.append(pb.AppendRequest(journal=JOURNAL, offset=3), b"two")
    await waiting
    first = await anext(observation)
    assert (first.journal, first.content) == (JOURNAL, b"")
    assert [request.offset for request in observation.requests] == [0, 3]
    following = asyncio.create_task(collect(observation))
    await client.append(JOURNAL, b"three")
    observation.remove()
    observation.remove()
    await client.append(JOURNAL, b"four")
    assert [request.offset for request in await following] == [3, 0]
    assert observation.hits == 3
    with pytest.raises(RuntimeError, match="3, not 4"):
        await observation.seen(4)
    assert await content(client) == b"onetwothreefour"


async def collect(observation: Any) -> list[Any]:
    return [request async for request in observation]


async def test_a_cancelled_observer_loses_nothing(
    control: BrokerControl, client: JournalClient
) -> None:
    with control.observe("list") as observation:
        taking = asyncio.ensure_future(anext(observation))
        await asyncio.sleep(0)
        taking.cancel()
        await client.list("name=x")
        assert (await anext(observation)).selector.include.labels[0].value == "x"
    with pytest.raises(asyncio.CancelledError):
        await taking


# Holding and delaying


async def test_hold_and_release(control: BrokerControl, client: JournalClient) -> None:
    hold = control.hold("append", journal=JOURNAL)
    appends = []
    for number in range(3):
        appends.append(asyncio.create_task(client.append(JOURNAL, b"%d" % number)))
        await hold.held(number + 1)
    assert "hits=3" in repr(hold)
    assert len(hold.requests) == 3
    await client.append(OTHER, b"goes on")
    hold.release(1)
    assert (await appends[0]).commit.begin == 0
    assert not appends[1].done()
    hold.release()
    await asyncio.gather(*appends)
    await client.append(JOURNAL, b"3")  # The hold is over.
    assert sorted(await content(client)) == sorted(b"0123")
    with pytest.raises(RuntimeError, match="holds 0, not 1"):
        await hold.held()


async def test_hold_and_fail(control: BrokerControl, caller: Caller) -> None:
    await caller.create(journal_spec())
    hold = control.hold("append")
    appends = [asyncio.ensure_future(caller.append(b"x")) for _ in range(2)]
    await hold.held(2)
    hold.fail(("ABORTED", "given up"), 1)
    done, _ = await asyncio.wait(appends, return_when=asyncio.FIRST_COMPLETED)
    with failing(grpc.StatusCode.ABORTED, "given up"):
        await done.pop()
    assert hold.is_active
    hold.fail()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert sorted(error.code().name for error in outcomes) == ["ABORTED", "UNAVAILABLE"]  # type: ignore[union-attr]
    assert await caller.commit(b"x") == 0


async def test_requests_cancelled_while_held(control: BrokerControl, caller: Caller) -> None:
    await caller.create(journal_spec())
    await caller.commit(b"x")
    with control.hold("append") as hold:
        call = caller.append_call(iter_append(JOURNAL))
        await hold.held()
        call.cancel()
        await eventually(lambda: has_let_go(hold))
    await caller.commit(b"y")
    assert await caller.read() == b"xy"
    assert "waiting=0" in repr(control)


async def test_a_request_which_is_being_cancelled_is_not_released(control: BrokerControl) -> None:
    hold = control.hold("read")
    first, second = (
        asyncio.ensure_future(control.admit("read", pb.ReadRequest(journal=name)))
        for name in ("a", "b")
    )
    await hold.held(2)
    first.cancel()
    assert [request.journal for request in hold.requests] == ["b"]
    hold.release(1)  # Not spent on the first, which doesn't go on.
    async with asyncio.timeout(30):
        assert (await second).responses is None
    assert first.cancelled()


async def test_a_rule_which_raises_fails_its_request_only(
    control: BrokerControl, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    await caller.create(journal_spec())

    def broken(request: pb.AppendRequest) -> bool:
        raise LookupError(f"where is {request.journal}?")

    with control.observe("append", where=broken):
        # The client still writes: it's answered when it's done.
        sent = [pb.AppendRequest(content=b"x" * (1 << 20))] * 32
        messages = [pb.AppendRequest(journal=JOURNAL), *sent, pb.AppendRequest()]
        with failing(grpc.StatusCode.UNKNOWN, f"LookupError: where is {JOURNAL}?"):
            await caller.append_call(iter(messages))
    assert "LookupError" in caplog.text
    assert await caller.commit(b"y") == 0


async def has_let_go(hold: Hold) -> bool:
    return not hold.requests


async def test_stopping_fails_what_waits(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, fsync="off")
    hold = broker.control.hold("append")
    broker.control.delay("read", seconds=3600)
    seen = broker.control.observe("read")
    await broker.start()
    async with calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        append = caller.append_call(iter_append(JOURNAL))
        read = caller.read_call(pb.ReadRequest(journal=JOURNAL, block=True))
        reading = asyncio.ensure_future(read.read())
        await hold.held()
        await eventually(lambda: is_waiting(broker.control, 2))
        started = time.monotonic()
        await broker.stop(grace=30)
        assert time.monotonic() - started < 20
        for outcome in (append, reading):
            with failing(grpc.StatusCode.UNAVAILABLE, "broker is stopping"):
                await outcome
    assert seen.hits == 0  # It's behind the delay.
    async with broker, calling(broker.endpoint) as caller:  # Rules outlive a stop.
        append = caller.append_call(iter_append(JOURNAL))
        await hold.held()
        hold.release()
        assert (await append).commit.end == 7


async def is_waiting(control: BrokerControl, count: int) -> bool:
    return f"waiting={count}" in repr(control)


async def test_delay(control: BrokerControl, client: JournalClient) -> None:
    delay = control.delay("list", seconds=60)
    listing = asyncio.create_task(client.list())
    await eventually(lambda: is_waiting(control, 1))
    control.clock.advance(59)
    await client.append(JOURNAL, b"x")
    assert not listing.done()
    control.clock.advance(1)
    assert len((await listing).journals) == 2
    delay.remove()
    await client.list()
    with control.delay("list", seconds=0.01) as short:
        await client.list()  # Real time passes as well.
    assert short.hits == 1


async def test_rules_combine_in_order(control: BrokerControl, caller: Caller) -> None:
    seen = control.observe("list")
    hold = control.hold("list")
    listing = asyncio.create_task(caller.journals())
    await hold.held()
    assert seen.hits == 1
    control.once("list", fail="ABORTED")  # Made later, and behind the hold.
    hold.release()
    with failing(grpc.StatusCode.ABORTED):
        await listing


# Streams which break


@pytest.mark.parametrize("length", [0, 1, 5, 100_000, 200_000])
async def test_reads_cut_after_bytes(
    control: BrokerControl, caller: Caller, client: JournalClient, length: int
) -> None:
    data = bytes(range(250)) * 1200
    await caller.commit(data)
    control.cut("read", after_bytes=length, fail="DATA_LOSS")
    received = b""
    with failing(grpc.StatusCode.DATA_LOSS):
        async for response in caller.read_call(pb.ReadRequest(journal=JOURNAL)):
            received += response.content
    assert received == data[:length]
    cut = control.cut("read", after_bytes=length, fail=None)
    assert await caller.read() == data[:length]
    assert cut.hits == 1
    async with client.read(JOURNAL, end_offset=len(data)) as reader:
        control.cut("read", after_bytes=length, times=2 if length else 1)
        assert b"".join([chunk async for chunk in reader]) == data
    assert control.kinds == frozenset()


async def test_streams_cut_after_messages(control: BrokerControl, caller: Caller) -> None:
    await caller.create(*(journal_spec(f"test/{number:03}") for number in range(60)))
    control.cut("list", after_messages=2, fail=None)
    assert len(await caller.journals()) == 50
    await caller.commit(b"hello", "test/000")
    control.cut("read", after_messages=1)
    request = pb.ReadRequest(journal="test/000", block=True)
    call = caller.read_call(request)
    assert (await call.read()).write_head == 5
    with failing(grpc.StatusCode.UNAVAILABLE):
        await call.read()
    # At the head of a journal a cut doesn't wait for more.
    control.cut("read", after_messages=2, fail=None)
    assert len([response async for response in caller.read_call(request)]) == 2
    watch = caller.list_call(pb.ListRequest(watch=True))
    assert len(await caller.journals()) == 60
    watch.cancel()


@pytest.mark.parametrize(
    "where",
    [
        {"after_messages": 0},
        {"after_messages": 1},
        {"after_messages": 2},
        {"after_bytes": 3},
        {"at": "before_commit"},
    ],
)
async def test_appends_cut_before_they_commit(
    control: BrokerControl, client: JournalClient, where: dict[str, Any]
) -> None:
    cut = control.cut("append", **where)
    response = await client.append(JOURNAL, b"hello")
    assert (response.commit.begin, response.commit.end) == (0, 5)  # It was retried.
    assert cut.hits == 1
    assert await content(client) == b"hello"


async def test_an_ambiguous_failure_repeats_an_append(
    control: BrokerControl, client: JournalClient
) -> None:
    cut = control.cut("append", at="after_commit")
    response = await client.append(JOURNAL, b"twice;")
    assert response.commit.begin == 6
    assert cut.hits == 1
    assert await content(client) == b"twice;twice;"


async def test_a_refused_append_is_not_cut_after_its_commit(
    control: BrokerControl, client: JournalClient
) -> None:
    control.cut("append", at="after_commit", times=None)
    with pytest.raises(pb.WrongAppendOffsetError):
        await client.append(pb.AppendRequest(journal=JOURNAL, offset=7), b"x")


# HTTP


async def test_the_gateway_has_the_same_rules(
    broker: EmbeddedBroker, control: BrokerControl, caller: Caller
) -> None:
    await caller.create(journal_spec())

    def call(method: str, body: bytes | None = None) -> tuple[int, bytes]:
        host = broker.http_endpoint.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=30)
        try:
            connection.request(method, f"/{JOURNAL}", body=body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    with control.observe("append") as seen:
        control.once("append", fail=("RESOURCE_EXHAUSTED", "slow down"))
        assert await asyncio.to_thread(call, "PUT", b"x") == (429, b"slow down\n")
        control.cut("append", at="after_commit")
        assert (await asyncio.to_thread(call, "PUT", b"hello"))[0] == 503
        assert seen.hits == 2
    control.once("read", status=pb.Status.JOURNAL_NOT_FOUND)
    assert await asyncio.to_thread(call, "GET") == (404, b"JOURNAL_NOT_FOUND\n")
    control.cut("read", after_bytes=2)
    assert await asyncio.to_thread(call, "GET") == (206, b"he")
    assert await asyncio.to_thread(call, "GET") == (206, b"hello")


# Stores


async def test_stores_fail_until_they_are_restored(
    broker: EmbeddedBroker, control: BrokerControl, caller: Caller
) -> None:
    await caller.create(journal_spec(stores=["file:///"]))
    await caller.commit(b"hello")
    await broker.flush(JOURNAL)
    await caller.commit(b" world")
    failure = control.fail_store("file:///", "no such bucket")
    health = await caller.health_call(pb.FragmentStoreHealthRequest(fragment_store="file:///"))
    assert health.status == pb.Status.FRAGMENT_STORE_UNHEALTHY
    assert health.store_health_error == "health check PUT failed: no such bucket"
    with pytest.raises(pb.StoreError, match="no such bucket"):
        await broker.flush(JOURNAL)
    with failing(grpc.StatusCode.UNKNOWN, "no such bucket"):
        await caller.read()
    assert await caller.read(offset=5) == b" world"  # It's still local.
    assert failure.hits >= 3
    with control.fail_store("file:///", OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(OSError, match="No space left"):
            await broker.flush(JOURNAL)
    with pytest.raises(pb.StoreError, match="no such bucket"):
        await broker.flush(JOURNAL)  # The first failure is still there.
    failure.remove()
    failure.remove()
    await broker.flush(JOURNAL)
    assert await caller.read() == b"hello world"
    health = await caller.health_call(pb.FragmentStoreHealthRequest(fragment_store="file:///"))
    assert health.status == pb.Status.OK
    assert {fragment.backing_store for fragment in await caller.fragments()} == {"file:///"}


async def test_appends_wait_for_a_store(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        EmbeddedBroker(tmp_path, fsync="off", clock=clock) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=["file:///"]))
        failure = broker.control.fail_store("file:///")
        append = asyncio.ensure_future(caller.append(b"hello"))
        await eventually(lambda: has_timers(clock))
        failure.remove()  # It's noticed at once.
        assert (await append).commit.end == 5
        broker.control.fail_store("file:///")
        append = asyncio.ensure_future(caller.append(b"hello"))
        while not append.done():
            clock.advance(1)
            await asyncio.sleep(0)
        response = await append
        assert response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY


async def has_timers(clock: ManualClock) -> bool:
    return "timers=0" not in repr(clock)


async def test_stores_may_fail_from_the_start(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///"]))
    broker = EmbeddedBroker(tmp_path, fsync="off")
    failure = broker.control.fail_store("file:///", "not yet")
    async with broker, calling(broker.endpoint) as caller:
        with failing(grpc.StatusCode.UNKNOWN, "not yet"):
            await caller.fragments()
        failure.remove()
        assert await caller.fragments() == []


# Time


async def test_a_clock_is_moved() -> None:
    clock = ManualClock(1000.0)
    assert (clock(), clock.is_frozen) == (1000.0, True)
    fired: list[str] = []
    clock.call_at(clock.monotonic() + 10, lambda: fired.append("ten"))
    clock.call_at(clock.monotonic() + 5, lambda: fired.append("five"))
    clock.call_at(clock.monotonic() + 7, lambda: fired.append("never")).cancel()
    clock.call_at(clock.monotonic(), lambda: fired.append("now"))
    await asyncio.sleep(0)
    assert fired == ["now"]
    clock.advance(4)
    clock.advance(6)
    await asyncio.sleep(0)
    assert fired == ["now", "five", "ten"]
    assert clock() == 1010.0
    assert not await clock.wait(asyncio.Event(), clock.monotonic())
    event = asyncio.Event()
    event.set()
    assert await clock.wait(event, clock.monotonic() + 1)
    assert "timers=0" in repr(clock)


async def test_a_clock_follows_until_it_is_frozen() -> None:
    clock = ManualClock(follow=lambda: 500.0)
    assert not clock.is_frozen
    clock.advance(3)
    assert clock() == 503.0
    assert not await clock.wait(asyncio.Event(), clock.monotonic() + 0.01)
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), clock.monotonic() + 60))
    await asyncio.sleep(0)
    clock.freeze()
    clock.freeze()
    clock.advance(59.9)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(0.2)
    assert not await waiting
    assert clock() == pytest.approx(563.1)


async def test_time_completes_and_persists_fragments(tmp_path: Path) -> None:
    clock = ManualClock(start=1_600_000_200)
    spec = journal_spec(stores=["file:///"])
    spec.fragment.flush_interval.FromSeconds(600)
    async with (
        EmbeddedBroker(tmp_path, fsync="off", clock=clock, persist_delay=1.0) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(spec)
        await caller.commit(b"begins here")
        await broker.pulse(JOURNAL)
        await broker.flush(JOURNAL)
        await caller.commit(b"goes on")

        async def persisted() -> int:
            return sum(bool(fragment.backing_store) for fragment in await caller.fragments())

        assert await persisted() == 1
        for _ in range(9):
            clock.advance(60)
            await broker.control.settled()
        assert await persisted() == 1
        clock.advance(660)
        await broker.control.settled()
        clock.advance(1)
        await broker.control.settled()
        assert await persisted() == 2


async def test_time_ends_tokens(tmp_path: Path) -> None:
    keys = "c2VjcmV0"
    clock = ManualClock()
    async with (
        EmbeddedBroker(tmp_path, fsync="off", clock=clock, auth_keys=keys) as broker,
        calling(broker.endpoint) as caller,
    ):
        claims = pb.Claims(capability=pb.Capability.LIST)
        token = pb.KeyedAuth(keys).sign(claims, timedelta(minutes=1), clock())
        metadata = [("authorization", f"Bearer {token}")]
        watch = caller.list_call(pb.ListRequest(watch=True), metadata=metadata)
        await watch.read()
        await watch.read()
        ending = asyncio.ensure_future(watch.read())
        clock.advance(59)
        other = caller.list_call(pb.ListRequest(), metadata=metadata)
        assert await other.read() is not grpc.aio.EOF
        assert not ending.done()
        clock.advance(2)
        assert await ending is grpc.aio.EOF
        clock.advance(60)  # Tokens are taken for a little longer than they say.
        late = caller.list_call(pb.ListRequest(), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError, match="expired"):
            await late.read()


async def test_time_assigns_journals(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        EmbeddedBroker(tmp_path, fsync="off", clock=clock, assign_delay=30) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec())
        refused = await caller.append(b"x")
        assert refused.status == pb.Status.NO_JOURNAL_PRIMARY_BROKER
        assert refused.header.route.primary == -1
        clock.advance(30)
        assert await caller.commit(b"x") == 0


async def test_settled_waits_for_what_is_due(broker: EmbeddedBroker) -> None:
    scheduler = broker.core.scheduler
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await end.wait()

    scheduler.after(60.0, "work", work)
    await broker.control.settled()
    assert not begun.is_set()
    broker.control.clock.advance(60)
    settled = asyncio.ensure_future(broker.control.settled())
    await begun.wait()
    assert not settled.done()
    end.set()
    await settled
    await broker.stop()
    await broker.control.settled()
