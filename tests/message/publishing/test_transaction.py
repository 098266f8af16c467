"""What transactions promise, whatever the moment of a crash, a cancellation or a failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.message import (
    Clock,
    IntentLog,
    Publisher,
    get_clock,
    json_adapter,
    parse_uuid,
)
from gazette_aio.message.publishing import commits, intents
from gazette_aio.protocol.errors import StoreError, TransactionError
from tests.message import fakes
from tests.message.publishing.by_hand import acknowledge
from tests.message.publishing.two_journals import (
    JOURNALS,
    NDJSON,
    ONE,
    TWO,
    commit,
    committed,
    rows,
    to,
)
from tests.waiting import eventually, turns

FakeAppends: Any = fakes.FakeAppends
FakeClient: Any = fakes.FakeClient
POINTS = 60
"""More suspensions than a transaction has."""


async def steps(task: Any, count: Any):
    await turns(count)
    return task.done()


@pytest.mark.parametrize("fast", [True, False])
async def test_a_crash_at_every_suspension(tmp_path: Path, threads: Any, fast: bool):
    outcomes: set[Any] = set()
    for point in range(POINTS):
        path = tmp_path / str(point)
        client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
        appends = FakeAppends(client, fast=fast)
        publisher, log = Publisher(appends, json_adapter()), IntentLog(path)
        await commit(publisher, log, 1)
        task = asyncio.create_task(commit(publisher, log, 2))
        done = await steps(task, point)
        # What a crash leaves: a file, and journals.
        crashed = tmp_path / f"{point} crashed"
        crashed.write_bytes(path.read_bytes())
        after = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
        after.journals.update({name: bytearray(data) for name, data in client.journals.items()})
        await task

        appends = FakeAppends(after, fast=fast)
        recovered = IntentLog(crashed)
        state: Any = await recovered.recover(appends)
        wanted = {1: rows(1), 2: rows(1, 2)}[state["row"]]
        assert await committed(after) == wanted, point
        await recovered.aclose()
        again = IntentLog(crashed)
        assert await again.recover(appends) == state
        await commit(Publisher(appends, json_adapter()), again, 3)
        assert await committed(after) == sorted(wanted + rows(3)), point
        outcomes.add((state["row"], done))
    assert outcomes == {(1, False), (2, False), (2, True)}


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("fast", [True, False])
async def test_a_cancellation_at_every_suspension(
    tmp_path: Path, threads: Any, fast: bool, by_hand: bool
):
    outcomes: set[Any] = set()
    for point in range(POINTS):
        client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
        appends = FakeAppends(client, fast=fast)
        publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / str(point))
        await commit(publisher, log, 1)
        task = asyncio.create_task(commit(publisher, log, 2))
        if not await steps(task, point):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        in_doubt = log.in_doubt
        if by_hand:
            await log.recover(appends)
        else:
            async with publisher.transaction(intents=log):
                pass
        assert not log.in_doubt
        state: Any = log.state
        wanted = {1: rows(1), 2: rows(1, 2)}[state["row"]]
        assert await committed(client) == wanted, point
        # The same Publisher goes on, and nothing given up comes along.
        await commit(publisher, log, 3)
        assert await committed(client) == sorted(wanted + rows(3)), point
        outcomes.add((state["row"], in_doubt))
    assert outcomes == {(1, False), (2, True), (2, False)}


async def broken(*_args: Any) -> None:
    raise OSError("broker is gone")


@pytest.mark.parametrize("reopen", [False, True])
async def test_an_empty_transaction_recovers_the_one_before(
    tmp_path: Path, reopen: bool, monkeypatch: pytest.MonkeyPatch
):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = FakeAppends(client)
    publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / "log")
    monkeypatch.setattr(commits, "append_intents", broken)
    with pytest.raises(TransactionError, match=r"may commit, .*broker is gone"):
        await commit(publisher, log, 1)
    if reopen:
        await log.aclose()
        log = IntentLog(log.path)
    with pytest.raises(StoreError, match="not written"):
        await log.persist([], None)
    assert await committed(client) == []
    monkeypatch.setattr(intents, "append_intents", broken)
    with pytest.raises(TransactionError, match="log of intents isn't ready: broker is gone"):
        async with publisher.transaction(intents=log):
            raise AssertionError
    monkeypatch.undo()
    async with publisher.transaction(intents=log) as transaction:
        assert transaction.state == {"row": 1}
    assert await committed(client) == rows(1)
    assert not log.in_doubt
    await log.aclose()


async def test_state_may_be_modified_in_place(tmp_path: Path):
    publisher, log = Publisher(FakeAppends(), json_adapter()), IntentLog(tmp_path / "log")
    async with publisher.transaction(intents=log) as transaction:
        transaction.state = {"row": 1}
    state = transaction.state
    stale = publisher.transaction(intents=log)
    async with publisher.transaction(intents=log) as transaction:
        assert isinstance(transaction.state, dict)
        transaction.state["row"] = 2
    async with stale as transaction:
        assert transaction.state == {"row": 2}
    await log.aclose()
    assert await IntentLog(log.path).recover(FakeAppends()) == {"row": 2}
    assert state == {"row": 1}
    # A log which wasn't recovered goes on from its state, too.
    async with publisher.transaction(intents=IntentLog(log.path)) as transaction:
        assert transaction.state == {"row": 2}


async def test_recovering_again_leaves_pending_messages_alone(tmp_path: Path):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = FakeAppends(client)
    publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / "log")
    for _ in range(3):
        await log.recover(appends)
    await commit(publisher, log, 1)
    async with publisher.transaction(intents=log):
        await (await publisher.publish_uncommitted(to(ONE), {"v": 2}))
        assert await log.recover(appends) == {"row": 1}
    assert await committed(client) == [(ONE, 1), (ONE, 2), (TWO, 1)]
    size = log.path.stat().st_size
    await log.aclose()
    assert await IntentLog(log.path).recover(appends) == {"row": 1}
    assert log.path.stat().st_size == size


async def test_files_which_are_not_records_are_left_alone(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"somebody's notes\n")
    publisher = Publisher(FakeAppends(), json_adapter())
    with pytest.raises(StoreError, match="damaged"):
        await commit(publisher, IntentLog(path), 1)
    with pytest.raises(StoreError, match="damaged"):
        await IntentLog(path).persist([], None)
    assert path.read_bytes() == b"somebody's notes\n"
    log = IntentLog(tmp_path / "another")
    await log.persist([], {"row": 1})
    log.path.unlink()
    with pytest.raises(StoreError):
        await log.mark_written()
    assert not log.path.exists()


async def test_messages_that_wait_while_their_transaction_is_abandoned_are_refused():
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = FakeAppends(client)
    publisher = Publisher(appends, json_adapter())
    held = await appends.start_append(ONE)
    waiting: Any = None
    with pytest.raises(KeyError):  # noqa: PT012
        async with publisher.transaction(exclusive=True):
            await publisher.publish_uncommitted(to(TWO), {"v": 1})
            waiting = asyncio.create_task(publisher.publish_uncommitted(to(ONE), {"v": 2}))
            await asyncio.sleep(0)
            raise KeyError
    held.release()
    with pytest.raises(TransactionError, match="abandoned before the message"):
        await waiting
    async with publisher.transaction():
        await publisher.publish_uncommitted(to(ONE), {"v": 3})
    assert await committed(client) == [(ONE, 3)]


@pytest.mark.parametrize("broken", ["acknowledgement", "append"])
async def test_messages_are_abandoned_even_if_they_can_t_be_rolled_back(
    broken: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends, adapter = FakeAppends(client), json_adapter()
    publisher = Publisher(appends, adapter)

    def fail(*_args: Any):
        raise RuntimeError("broken")

    with caplog.at_level(logging.WARNING), pytest.raises(KeyError):  # noqa: PT012
        async with publisher.transaction(exclusive=True):
            await publisher.publish_uncommitted(to(ONE), {"v": 1})
            if broken == "append":
                monkeypatch.setattr(appends, "try_append", fail)
            else:
                monkeypatch.setattr(adapter, "acknowledgement", fail)
            raise KeyError
    assert "can't roll back" in caplog.text
    monkeypatch.undo()
    async with publisher.transaction():
        await publisher.publish_uncommitted(to(ONE), {"v": 2})
    assert await committed(client) == [(ONE, 2)]


async def test_no_acknowledgement_has_a_zero_clock():
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    publisher = Publisher(FakeAppends(client), json_adapter(), clock=Clock(tick=1))
    await publisher.publish_uncommitted(to(ONE), {"v": 1})
    publisher.abandon()
    (line,) = client.journals[ONE].splitlines()
    assert get_clock(parse_uuid(json.loads(line)["_meta"]["uuid"])) == 1


async def test_recovery_leaves_messages_alone_which_follow_a_transaction_in_doubt(tmp_path: Path):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = FakeAppends(client)
    publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / "log")
    mark = log.mark_written

    async def fail():
        raise StoreError("disk is full")

    log.mark_written = fail
    with pytest.raises(StoreError, match="disk is full"):
        await commit(publisher, log, 1)
    log.mark_written = mark
    async with publisher.transaction(intents=log):
        await publisher.publish_uncommitted(to(ONE), {"v": 2})
        assert await log.recover(appends) == {"row": 1}
    assert await committed(client) == sorted([*rows(1), (ONE, 2)])


@pytest.mark.parametrize("is_early", [False, True])
async def test_clearing_an_error_hides_no_missing_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_early: Any
):
    """A transaction fails if a message of it is missing, whoever let later ones proceed."""
    from gazette_aio.client import StrictAppendService, connect
    from gazette_aio.protocol import DependencyError, JournalNotFoundError, Status
    from gazette_aio.testing import StubBroker
    from tests.client.support import MemoryJournals, refused

    async with (
        StubBroker() as broker,
        connect(broker.endpoint) as client,
        StrictAppendService(client) as appends,
    ):
        memory = MemoryJournals(broker)
        publisher = Publisher(appends, json_adapter())
        log = IntentLog(tmp_path / "intents")
        memory.failures = [refused(Status.JOURNAL_NOT_FOUND)]
        with pytest.raises(DependencyError, match="may be missing") as raised:  # noqa: PT012
            async with publisher.transaction(intents=log):
                if is_early:
                    # It fails already when the transaction begins to publish.
                    async with appends.append("first/journal") as append:
                        append.write(b"{}\n")
                    with pytest.raises(JournalNotFoundError):
                        await append
                lost = await publisher.publish_uncommitted(to("first/journal"), {"v": 1})
                with pytest.raises(JournalNotFoundError):
                    await lost
                assert isinstance(appends.clear_error("first/journal"), JournalNotFoundError)
                await publisher.publish_uncommitted(to("first/journal"), {"v": 2})
        assert isinstance(raised.value.__cause__, JournalNotFoundError)
        async with publisher.transaction(intents=log):
            await publisher.publish_uncommitted(to("first/journal"), {"v": 3})
    texts = [
        json.loads(line)["v"]
        for line in memory.contents["first/journal"].splitlines()
        if b'"v"' in line
    ]
    assert texts == [2, 3]


@pytest.mark.parametrize("kind", ["single", "batch", "nowait"])
async def test_a_message_that_is_tried_afresh_hides_no_missing_one(tmp_path: Path, kind: str):
    """A journal that was missing is created amid a transaction: nothing of it becomes visible."""
    from gazette_aio.broker import EmbeddedBroker
    from gazette_aio.client import connect
    from gazette_aio.message import ReadCommittedIter
    from gazette_aio.protocol import DependencyError, JournalNotFoundError
    from tests.consumer.transactions.world import journal_change

    name = "late/journal"
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint) as client,
    ):
        publisher = Publisher(client.appends, json_adapter())
        log = IntentLog(tmp_path / "intents")

        async def publish(value: int) -> None:
            if kind == "single":
                await publisher.publish_uncommitted(to(name), {"v": value})
            elif kind == "batch":
                await publisher.publish_uncommitted_batch(to(name), [{"v": value}])
            else:
                publisher.publish_uncommitted_nowait(to(name), {"v": value})
                await publisher.drain()

        with pytest.raises(DependencyError, match="may be missing") as raised:  # noqa: PT012
            async with publisher.transaction(intents=log):
                lost = await publisher.publish_uncommitted(to(name), {"v": 1})
                with pytest.raises(JournalNotFoundError):
                    await lost
                await client.apply([journal_change(name)])
                await publish(2)
        assert isinstance(raised.value.__cause__, JournalNotFoundError)
        for value in (3, 4):
            async with publisher.transaction(intents=log):
                await publish(value)
        reader = ReadCommittedIter(name, json_adapter(), client=client, skip_acks=True)
        async with reader:
            assert [envelope.message["v"] async for envelope in reader] == [3, 4]
        await log.aclose()


@pytest.mark.parametrize("kind", ["single", "batch", "nowait"])
async def test_a_first_message_that_fails_in_line_is_missed(tmp_path: Path, kind: str):
    """Another append was tried afresh before the message, which fails, got its turn."""
    from gazette_aio.client import connect
    from gazette_aio.protocol import DependencyError, JournalNotFoundError, Status
    from gazette_aio.testing import StubBroker
    from tests.client.appends.support import write
    from tests.client.support import MemoryJournals, refused

    async with StubBroker() as broker, connect(broker.endpoint) as client:
        memory, name = MemoryJournals(broker), "first/journal"
        memory.gate.clear()
        memory.failures = [refused(Status.JOURNAL_NOT_FOUND)]
        publisher = Publisher(client.appends, json_adapter())
        first = await write(client.appends, name, b"{}\n")
        await eventually(lambda: memory.begun)
        held = await client.appends.start_append(name)
        with pytest.raises(DependencyError, match="may be missing"):  # noqa: PT012
            log = IntentLog(tmp_path / "intents")
            async with publisher.transaction(intents=log, exclusive=True):
                call: Any = None
                if kind == "single":
                    call = publisher.publish_uncommitted(to(name), {"v": 1})
                elif kind == "batch":
                    call = publisher.publish_uncommitted_batch(to(name), [{"v": 1}])
                else:
                    publisher.publish_uncommitted_nowait(to(name), {"v": 1})
                    call = publisher.drain()
                publishing = asyncio.ensure_future(call)
                await turns(5)
                memory.gate.set()
                with pytest.raises(JournalNotFoundError):
                    await first
                afresh = asyncio.create_task(write(client.appends, name, b"{}\n"))
                await turns(3)
                held.release()
                await publishing
                await (await afresh)
                await publisher.publish_uncommitted(to(name), {"v": 2})
        assert b'"v":1' not in memory.contents[name]


async def test_the_first_message_after_a_refusal_commits(tmp_path: Path):
    """A transaction that begins after the failure doesn't pay for it."""
    from gazette_aio.client import connect
    from gazette_aio.protocol import JournalNotFoundError, Status
    from gazette_aio.testing import StubBroker
    from tests.client.support import MemoryJournals, refused

    async with StubBroker() as broker, connect(broker.endpoint) as client:
        memory = MemoryJournals(broker)
        publisher = Publisher(client.appends, json_adapter())
        for method in ("publish_uncommitted", "publish_uncommitted_batch"):
            memory.failures = [refused(Status.JOURNAL_NOT_FOUND)]
            with pytest.raises(JournalNotFoundError):
                await (await publisher.publish_committed(to("first/journal"), {"v": 1}))
            message: Any = {"v": 2} if method == "publish_uncommitted" else [{"v": 2}]
            async with publisher.transaction(intents=IntentLog(tmp_path / method)):
                await getattr(publisher, method)(to("first/journal"), message)
    assert memory.contents["first/journal"].count(b'"v":2') == 2


@pytest.mark.parametrize(
    "method",
    [
        "publish_uncommitted",
        "publish_committed",
        "publish_uncommitted_batch",
        "publish_committed_batch",
    ],
)
async def test_a_publish_that_was_not_awaited_fails_the_transaction(tmp_path: Path, method: str):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = FakeAppends(client)
    publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / "log")
    await commit(publisher, log, 1)
    message: Any = [{"v": 2}] if method.endswith("batch") else {"v": 2}
    call: Any = None
    with pytest.raises(RuntimeError, match="calls to publish were not awaited"):  # noqa: PT012
        async with publisher.transaction(intents=log) as transaction:
            await publisher.publish_uncommitted(to(ONE), {"v": 2})
            call = getattr(publisher, method)(to(TWO), message)
            transaction.state = {"row": 2}
    call.close()
    assert not log.in_doubt
    assert log.state == {"row": 1}
    await commit(publisher, log, 3)
    assert await committed(client) == rows(1, 3)


async def test_tasks_that_publish_are_part_of_the_transaction():
    """They begin before it commits, even if nobody awaits them yet."""
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    publisher = Publisher(FakeAppends(client), json_adapter())
    async with publisher.transaction():
        await asyncio.gather(
            *(publisher.publish_uncommitted(to(ONE), {"v": number}) for number in range(3))
        )
        task = asyncio.create_task(publisher.publish_uncommitted(to(TWO), {"v": 3}))
    await task
    assert await committed(client) == [(ONE, 0), (ONE, 1), (ONE, 2), (TWO, 3)]


async def test_dropped_calls_fail_the_transaction_however_many_follow():
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    publisher = Publisher(FakeAppends(client), json_adapter())
    dropped = []
    with pytest.raises(RuntimeError, match="calls to publish were not awaited"):  # noqa: PT012
        async with publisher.transaction():
            dropped.append(publisher.publish_uncommitted(to(TWO), {"v": 0}))
            for number in range(100):
                calls = [publisher.publish_uncommitted(to(ONE), {"v": number}) for _ in range(3)]
                await asyncio.gather(*calls)
    for call in dropped:
        call.close()
    assert await committed(client) == []


@pytest.mark.parametrize("outcome", ["commits", "raises"])
async def test_calls_of_others_need_not_have_begun(outcome: str):
    """Only calls which were made in the block, or by tasks started there, are of it."""
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    publisher, other = (Publisher(FakeAppends(client), json_adapter()) for _ in range(2))
    made, begun, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def bystander():
        await begun.wait()
        async with publisher.transaction():
            calls = [publisher.publish_uncommitted(to(TWO), {"v": number}) for number in range(3)]
            made.set()
            await go_on.wait()
            for call in calls:
                await call

    before = publisher.publish_uncommitted(to(TWO), {"v": 3})
    task = asyncio.create_task(bystander())
    with contextlib.suppress(KeyError):
        async with publisher.transaction():
            begun.set()
            await made.wait()
            elsewhere = other.publish_uncommitted(to(TWO), {"v": 4})
            await publisher.publish_uncommitted(to(ONE), {"v": 5})
            if outcome == "raises":
                raise KeyError
    go_on.set()
    await task
    with pytest.raises(TransactionError, match="belong to the block"):
        await before
    await elsewhere
    await acknowledge(other)
    expected = [(ONE, 5)] if outcome == "commits" else []
    found = sorted(await committed(client))
    assert found == expected + [(TWO, number) for number in (0, 1, 2, 4)]


async def test_a_task_cancelled_before_its_call_began_fails_no_transaction():
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    publisher = Publisher(FakeAppends(client), json_adapter())
    async with publisher.transaction():
        await publisher.publish_uncommitted(to(ONE), {"v": 1})
        tasks = [
            asyncio.create_task(publisher.publish_uncommitted(to(TWO), {"v": number}))
            for number in range(3)
        ]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert await committed(client) == [(ONE, 1)]


async def test_calls_in_transactions_of_two_publishers_are_of_either():
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    outer, inner = (Publisher(FakeAppends(client), json_adapter()) for _ in range(2))
    calls = []
    with pytest.raises(RuntimeError, match="calls to publish were not awaited"):  # noqa: PT012
        async with outer.transaction():
            async with inner.transaction():
                await inner.publish_uncommitted(to(ONE), {"v": 1})
                calls.append(outer.publish_uncommitted(to(TWO), {"v": 2}))
            await outer.publish_uncommitted(to(ONE), {"v": 3})
    calls[0].close()
    assert await committed(client) == [(ONE, 1)]
