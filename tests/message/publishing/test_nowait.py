"""Publishing without waiting, which queues while journals are busy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from gazette_aio.message import (
    ACK_TXN,
    OUTSIDE_TXN,
    Clock,
    IntentLog,
    Publisher,
    ReadCommittedIter,
    csv_adapter,
    get_clock,
    get_flags,
    json_adapter,
    parse_uuid,
    protobuf_adapter,
)
from gazette_aio.message.mapping import ListedTarget
from gazette_aio.message.publishing import backlog
from gazette_aio.protocol.errors import (
    DependencyError,
    QueueFullError,
    StoreError,
    TransactionError,
    UnrecognizedContentTypeError,
    UsageError,
    ValidationError,
)
from tests.message import fakes
from tests.message.publishing import batch_fakes
from tests.message.publishing.by_hand import acknowledge

FakeClient: Any = fakes.FakeClient
BatchAppends: Any = batch_fakes.BatchAppends
NDJSON = "application/x-ndjson"
JOURNALS = ["part/0", "part/1", "part/2"]


def to(number: int) -> Any:
    target = ListedTarget((JOURNALS[number], NDJSON))
    return lambda _message: target


def service() -> tuple[Any, Any]:
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    appends = BatchAppends(client)
    for journal in JOURNALS:
        appends.locks[journal] = asyncio.Lock()
    return client, appends


def lines(appends: Any, journal: str) -> list[Any]:
    return [json.loads(line) for line in bytes(appends.journals[journal]).splitlines()]


def values(appends: Any, number: int) -> list[Any]:
    return [line["v"] for line in lines(appends, JOURNALS[number]) if "v" in line]


def clocks(appends: Any, journal: str) -> list[int]:
    return [get_clock(parse_uuid(line["_meta"]["uuid"])) for line in lines(appends, journal)]


async def committed(client: Any) -> list[Any]:
    source = ReadCommittedIter(JOURNALS, json_adapter(), client=client, skip_acks=True, block=False)
    async with source as messages:
        return sorted([envelope.message["v"] async for envelope in messages])


async def test_a_free_journal_is_appended_to_at_once():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    publisher.publish_uncommitted_nowait(to(0), {"v": 1})
    assert values(appends, 0) == [1]
    assert len(publisher.build_ack_intents()) == 1


async def test_messages_queue_in_the_order_of_calls_while_their_journal_is_busy():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    view = publisher.view(json_adapter())
    await appends.locks["part/0"].acquire()
    for number in range(6):
        (publisher if number % 3 else view).publish_uncommitted_nowait(
            to(number % 2), {"v": number}
        )
    later = asyncio.create_task(publisher.publish_uncommitted(to(1), {"v": 6}))
    batch = asyncio.create_task(
        view.publish_uncommitted_batch((JOURNALS[1], NDJSON), [{"v": 7}, {"v": 8}])
    )
    for _ in range(5):
        await asyncio.sleep(0)
    assert values(appends, 0) == values(appends, 1) == []
    with pytest.raises(UsageError, match="messages are queued"):
        publisher.build_ack_intents()
    appends.locks["part/0"].release()
    await publisher.drain()
    await asyncio.gather(later, batch)
    assert (values(appends, 0), values(appends, 1)) == ([0, 2, 4], [1, 3, 5, 6, 7, 8])
    for journal in JOURNALS[:2]:
        assert clocks(appends, journal) == sorted(set(clocks(appends, journal)))
    assert [intent.journal for intent in publisher.build_ack_intents()] == JOURNALS[:2]


@pytest.mark.parametrize("seed", range(10))
async def test_as_if_each_message_had_been_awaited(seed: int):
    """Whoever publishes in whichever way, journals are as if every call had been carried out."""
    rng = random.Random(seed)
    client, appends = service()
    publisher = Publisher(appends, json_adapter(), clock=Clock(1 << 60))
    publishers = [publisher, publisher.view(json_adapter()), publisher.view(json_adapter())]
    expected: list[list[int]] = [[], [], []]
    kept: list[int] = []

    async def hold():
        while True:
            async with appends.locks[rng.choice(JOURNALS)]:
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    holders = [asyncio.create_task(hold()) for _ in range(2)]
    number = 0
    for _ in range(20):
        outcome, mine = rng.random() < 0.8, []
        with contextlib.suppress(KeyError):
            async with publisher.transaction(exclusive=rng.random() < 0.5):
                for _ in range(rng.randrange(30)):
                    kind, index = rng.random(), rng.randrange(3)
                    chosen = rng.choice(publishers)
                    if kind < 0.7:
                        chosen.publish_uncommitted_nowait(to(index), {"v": number})
                    elif kind < 0.8:
                        await chosen.publish_uncommitted(to(index), {"v": number})
                    elif kind < 0.9:
                        pair = (JOURNALS[index], NDJSON)
                        await chosen.publish_uncommitted_batch(pair, [{"v": number}])
                    else:
                        await asyncio.sleep(0)
                        continue
                    mine.append(number)
                    expected[index].append(number)
                    number += 1
                if not outcome:
                    raise KeyError
        if outcome:
            kept += mine
    for task in holders:
        task.cancel()
    await asyncio.wait(holders)
    assert await committed(client) == kept
    there = set(kept)
    for index, journal in enumerate(JOURNALS):
        assert [value for value in values(appends, index) if value in there] == [
            value for value in expected[index] if value in there
        ]
        stamped = [
            get_clock(uuid)
            for line in lines(appends, journal)
            if get_flags(uuid := parse_uuid(line["_meta"]["uuid"])) not in {ACK_TXN, OUTSIDE_TXN}
        ]
        assert stamped == sorted(set(stamped))
    assert [task.get_name() for task in asyncio.all_tasks()].count("gazette publisher") == 0


class Unsplit:
    """An adapter which encodes one message at a time."""

    def __init__(self) -> None:
        inner = json_adapter()
        self.decode, self.encode, self.uuid = inner.decode, inner.encode, inner.uuid
        self.acknowledgement = inner.acknowledgement


def with_own_uuid(number: int) -> Any:
    """Return a message; every third has a member for the UUID, which the stamp goes into."""
    return {"v": number} if number % 3 else {"v": number, "_meta": {"uuid": "", "a": 1}, "w": "é"}


@pytest.mark.parametrize(
    ("adapter", "content_type", "message"),
    [
        (json_adapter(), NDJSON, lambda number: {"v": number}),
        (json_adapter(), NDJSON, with_own_uuid),
        (json_adapter(bytes), NDJSON, lambda number: json.dumps(with_own_uuid(number)).encode()),
        (Unsplit(), NDJSON, with_own_uuid),
        (csv_adapter(columns=3, uuid_column=1), "text/csv", lambda n: ["a,b", "", str(n)]),
        (
            protobuf_adapter(BytesValue, "value"),
            "application/x-protobuf-fixed",
            lambda _number: BytesValue(),
        ),
    ],
    ids=["json", "own uuid", "raw", "unsplit", "csv", "protobuf"],
)
async def test_queued_messages_have_the_bytes_of_awaited_ones(
    adapter: Any, content_type: str, message: Any
):
    rng = random.Random(7)
    calls = [(rng.choice(JOURNALS), message(number)) for number in range(60)]
    # More than one run of the queue, all of one journal.
    calls += [(JOURNALS[1], message(number)) for number in range(1200)]

    def publisher(appends: Any) -> Any:
        return Publisher(appends, adapter, producer=b"\1" * 6, clock=Clock(1 << 60))

    _, awaited = service()
    one_by_one = publisher(awaited)
    for journal, value in calls:
        await one_by_one.publish_uncommitted(lambda _, to=journal: (to, content_type), value)

    _, queued = service()
    without_waiting = publisher(queued)
    for journal in JOURNALS:
        await queued.locks[journal].acquire()
    for journal, value in calls:
        without_waiting.publish_uncommitted_nowait(lambda _, to=journal: (to, content_type), value)
    assert not any(map(queued.journals.get, JOURNALS))
    for journal in JOURNALS:
        queued.locks[journal].release()
    await without_waiting.drain()
    assert queued.journals == awaited.journals
    assert without_waiting.build_ack_intents() == one_by_one.build_ack_intents()


@pytest.mark.parametrize("message", [{"v": "é"}, {"v": 1, "_meta": {"uuid": ""}}])
async def test_the_queue_counts_the_bytes_of_frames(
    monkeypatch: pytest.MonkeyPatch, message: dict[str, Any]
):
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    publisher.publish_uncommitted_nowait(to(0), message)
    frame = len(appends.journals[JOURNALS[0]])
    await appends.locks[JOURNALS[0]].acquire()
    monkeypatch.setattr(backlog, "MAX_BYTES", 3 * frame)
    for _ in range(3):
        publisher.publish_uncommitted_nowait(to(0), message)
    with pytest.raises(QueueFullError, match=f"^{3 * frame} bytes"):
        publisher.publish_uncommitted_nowait(to(0), message)
    appends.locks[JOURNALS[0]].release()
    await publisher.drain()
    assert len(appends.journals[JOURNALS[0]]) == 4 * frame


async def test_a_transaction_commits_what_is_queued():
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    lock = appends.locks["part/0"]
    await lock.acquire()
    async with publisher.transaction(exclusive=True):
        for number in range(2000):
            publisher.publish_uncommitted_nowait(to(0), {"v": number})
        asyncio.get_running_loop().call_soon(lock.release)
    assert await committed(client) == list(range(2000))


async def test_a_message_is_encoded_at_the_call():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    await appends.locks["part/0"].acquire()
    message: Any = {"v": 1}
    publisher.publish_uncommitted_nowait(to(0), message)
    message["v"] = 2
    appends.locks["part/0"].release()
    await publisher.flush()
    assert values(appends, 0) == [1]


@pytest.mark.parametrize("busy", [False, True])
async def test_what_is_wrong_is_raised_by_the_call(busy: bool):
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    if busy:
        await appends.locks["part/0"].acquire()

    async def mapping(_message: Any) -> tuple[str, str]:
        raise NotImplementedError

    def wrong(_message: Any) -> Any:
        return "part/0"

    for given, error in (
        (mapping, TypeError),
        (wrong, TypeError),
        (lambda _message: ("part/0", "text/none"), UnrecognizedContentTypeError),
    ):
        with pytest.raises(error):
            publisher.publish_uncommitted_nowait(given, {"v": 1})
    with pytest.raises(ValidationError):
        publisher.publish_uncommitted_nowait(to(0), {"v": object()})
    if busy:
        publisher.publish_uncommitted_nowait(to(0), {"v": 1})
        with pytest.raises(ValidationError):
            publisher.publish_uncommitted_nowait(lambda _message: ("no//name", NDJSON), {"v": 1})
        appends.locks["part/0"].release()
        await publisher.drain()
    assert values(appends, 0) == [1] * busy


async def test_what_is_queued_is_bounded():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    await appends.locks["part/0"].acquire()
    message = {"v": "x" * (5 << 20)}
    for _ in range(3):
        publisher.publish_uncommitted_nowait(to(0), message)
    with pytest.raises(QueueFullError, match="await drain"):
        publisher.publish_uncommitted_nowait(to(0), message)
    appends.locks["part/0"].release()
    await publisher.drain()
    publisher.publish_uncommitted_nowait(to(0), message)
    assert len(values(appends, 0)) == 4


@pytest.mark.parametrize("how", ["raises", "cancelled"])
async def test_abandoning_a_transaction_drops_what_is_queued(how: str):
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    await appends.locks["part/0"].acquire()
    left = asyncio.Event()

    async def work():
        async with publisher.transaction(exclusive=True):
            publisher.publish_uncommitted_nowait(to(1), {"v": 0})
            publisher.publish_uncommitted_nowait(to(0), {"v": 1})
            publisher.publish_uncommitted_nowait(to(1), {"v": 2})
            left.set()
            if how == "raises":
                await asyncio.sleep(0)
                raise KeyError

    task = asyncio.create_task(work())
    await left.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    if how == "cancelled":
        task.cancel()
    assert isinstance(
        (await asyncio.gather(task, return_exceptions=True))[0], (KeyError, asyncio.CancelledError)
    )
    with pytest.raises(TransactionError, match="belong to the block"):
        publisher.publish_uncommitted_nowait(to(0), {"v": 3})
    appends.locks["part/0"].release()
    async with publisher.transaction():
        publisher.publish_uncommitted_nowait(to(1), {"v": 4})
    assert await committed(client) == [4]
    assert (values(appends, 0), values(appends, 1)) == ([], [0, 4])


async def test_abandoning_what_waits_for_a_commit_as_that_ends():
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    block = publisher.block()
    block.begin()
    await block.seal()
    publisher.publish_uncommitted_nowait(to(0), {"v": 1})
    for _ in range(5):
        await asyncio.sleep(0)
    block.reopen()
    publisher.abandon()
    for _ in range(5):
        await asyncio.sleep(0)
    publisher.publish_uncommitted_nowait(to(0), {"v": 2})
    await block.seal()
    await acknowledge(publisher)
    block.end()
    assert await committed(client) == [2]
    assert values(appends, 0) == [2]


async def test_cancelling_a_drain_leaves_the_queue():
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    await appends.locks["part/0"].acquire()
    publisher.publish_uncommitted_nowait(to(0), {"v": 1})
    task = asyncio.create_task(publisher.drain())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    appends.locks["part/0"].release()
    await acknowledge(publisher)
    assert await committed(client) == [1]


async def test_nothing_is_queued_for_the_next_transaction_while_one_commits(tmp_path: Path):
    client, appends = service()
    publisher, log = Publisher(appends, json_adapter()), IntentLog(tmp_path / "log")
    persist, refused = log.persist, 0

    async def publish_meanwhile(*record: Any) -> None:
        nonlocal refused
        with pytest.raises(TransactionError, match="has ended"):
            publisher.publish_uncommitted_nowait(to(0), {"v": 2})
        refused += 1
        await persist(*record)

    log.persist = publish_meanwhile
    for exclusive in (False, True):
        async with publisher.transaction(intents=log, exclusive=exclusive):
            publisher.publish_uncommitted_nowait(to(0), {"v": 1})
    await publisher.drain()
    assert refused == 2
    assert await committed(client) == [1, 1]
    await log.aclose()


@pytest.mark.parametrize("how", ["fails", "cancelled"])
async def test_failure_to_append_fails_the_transaction(how: str):
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    lock, start = appends.locks["part/0"], appends.start_append
    await lock.acquire()

    async def start_append(journal: str, dependencies: Any = ()) -> Any:
        async with lock:
            raise RuntimeError("the append service is closed")

    if how == "fails":
        appends.start_append = start_append

    with pytest.raises(DependencyError, match="queued messages could not be published"):  # noqa: PT012
        async with publisher.transaction(exclusive=True):
            publisher.publish_uncommitted_nowait(to(0), {"v": 1})
            publisher.publish_uncommitted_nowait(to(1), {"v": 2})
            await asyncio.sleep(0)
            if how == "fails":
                lock.release()
            else:
                (task,) = (
                    task for task in asyncio.all_tasks() if task.get_name() == "gazette publisher"
                )
                task.cancel()
            with pytest.raises(DependencyError):
                await publisher.drain()
            with pytest.raises(DependencyError):
                publisher.publish_uncommitted_nowait(to(1), {"v": 3})
            with pytest.raises(TransactionError, match="is open"):
                publisher.build_ack_intents()
    if how == "cancelled":
        lock.release()
    appends.start_append = start
    async with publisher.transaction():
        publisher.publish_uncommitted_nowait(to(0), {"v": 4})
        await publisher.publish_uncommitted(to(1), {"v": 5})
    assert await committed(client) == [4, 5]


async def test_failure_of_a_journal_fails_the_transaction():
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    await appends.locks["part/0"].acquire()
    appends.failures["part/0"] = StoreError("the journal is gone")
    with pytest.raises(StoreError):  # noqa: PT012
        async with publisher.transaction(exclusive=True):
            publisher.publish_uncommitted_nowait(to(0), {"v": 1})
            appends.locks["part/0"].release()
    appends.failures.clear()
    async with publisher.transaction():
        publisher.publish_uncommitted_nowait(to(0), {"v": 2})
    assert await committed(client) == [2]
