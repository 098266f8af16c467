"""Batches which meet others: tasks which publish, transactions, and callers who change their mind."""

from __future__ import annotations

import asyncio
import json
import random

import msgspec
import pytest

from gazette_aio.message import (
    ACK_TXN,
    IntentLog,
    Publisher,
    ReadCommittedIter,
    get_clock,
    get_flags,
    get_producer_id,
    json_adapter,
    parse_uuid,
)
from gazette_aio.protocol.errors import (
    DependencyError,
    MixedTransactionError,
    ValidationError,
)
from tests.message.fakes import FakeClient
from tests.message.publishing.batch_fakes import BatchAppends

NDJSON, FIXED = "application/x-ndjson", "application/x-protobuf-fixed"
ONE = ("part/0", NDJSON)
JOURNALS = [f"part/{number}" for number in range(3)]


def numbered(count):
    return [{"v": number} for number in range(count)]


def by_remainder(message):
    return JOURNALS[message["v"] % 3], NDJSON


def stamps(appends, journal):
    """Return the clocks of messages by their producers, in the order of bytes."""
    found = {}
    for line in bytes(appends.journals.get(journal, b"")).splitlines():
        uuid = parse_uuid(json.loads(line)["_meta"]["uuid"])
        if get_flags(uuid) != ACK_TXN:
            found.setdefault(get_producer_id(uuid), []).append(get_clock(uuid))
    return found


def count(appends):
    return sum(len(clocks) for name in JOURNALS for clocks in stamps(appends, name).values())


async def committed(client):
    async with ReadCommittedIter(
        JOURNALS, json_adapter(), client=client, skip_acks=True, block=False
    ) as messages:
        return [envelope.message["v"] async for envelope in messages]


def service(**options):
    client = FakeClient(dict.fromkeys(JOURNALS, NDJSON))
    return client, BatchAppends(client, **options)


@pytest.mark.parametrize("seed", range(3))
async def test_many_tasks(tmp_path, seed):
    """Clocks rise in the order of bytes, and what commits of a batch is all of it, once."""
    rng = random.Random(seed)
    client, appends = service(cutoff_bytes=1500)
    publisher = Publisher(appends, json_adapter())
    log = IntentLog(tmp_path / "log")
    done, given_up, in_doubt, begun = [], [], [], 0

    def fresh(count):
        nonlocal begun
        begun += count
        return [{"v": number} for number in range(begun - count, begun)]

    async def publish():
        if rng.random() < 0.4:
            for message in (messages := fresh(3)):
                await publisher.publish_uncommitted(by_remainder, message)
        else:
            messages = fresh(rng.randint(1, 40))
            await publisher.publish_uncommitted_batch(by_remainder, messages)
        return [message["v"] for message in messages]

    async def work():
        for _ in range(5):
            values = []

            async def transact(values=values):
                async with publisher.transaction(intents=log, exclusive=rng.random() < 0.2):
                    values += await publish()
                    if rng.random() < 0.3:
                        await publisher.flush()
                    values += await publish()
                    if rng.random() < 0.2:
                        raise KeyError

            task = asyncio.create_task(transact())
            if rng.random() < 0.3:
                for _ in range(rng.randint(0, 20)):
                    await asyncio.sleep(0)
                task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            if outcome is None:
                done.append(values)
            else:
                assert isinstance(outcome, (asyncio.CancelledError, KeyError)), outcome
                (given_up if isinstance(outcome, KeyError) else in_doubt).append(values)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(work())
    await log.recover(appends)
    await log.aclose()
    for journal in JOURNALS:
        for clocks in stamps(appends, journal).values():
            assert clocks == sorted(set(clocks))
    values = await committed(client)
    assert len(values) == len(set(values)) > 0
    there = set(values)
    assert all(there.issuperset(values) for values in done)
    assert all(there.isdisjoint(values) for values in given_up)
    assert all(len(there.intersection(values)) in {0, len(values)} for values in in_doubt)
    assert done
    assert given_up
    assert in_doubt


@pytest.mark.parametrize("journals", [1, 2])
async def test_a_batch_which_is_abandoned_in_part_ends(journals):
    """Its rest isn't published, so that a later transaction doesn't commit it alone."""
    client, appends = service(cutoff_bytes=100 if journals == 1 else 1 << 20)
    publisher = Publisher(appends, json_adapter())
    start = appends.start_append

    async def start_append(journal, dependencies=()):
        append = await start(journal, dependencies)
        if appends.started == 2:
            publisher.abandon()
        return append

    appends.start_append = start_append
    with pytest.raises(DependencyError, match="abandoned"):
        await publisher.publish_uncommitted_batch(
            lambda message: (JOURNALS[message["v"] % journals], NDJSON), numbered(100)
        )
    assert not any(lock.locked() for lock in appends.locks.values())
    appends.start_append = start
    async with publisher.transaction():
        await publisher.publish_uncommitted_batch(ONE, [{"v": "next"}])
    assert await committed(client) == ["next"]


async def test_committed_messages_have_no_need_of_one_producer():
    client, appends = service()
    publisher = Publisher(appends, json_adapter())
    start = appends.start_append

    async def start_append(journal, dependencies=()):
        append = await start(journal, dependencies)
        if appends.started == 2:
            publisher.abandon()
        return append

    appends.start_append = start_append
    await publisher.publish_committed_batch(by_remainder, numbered(30))
    assert sorted(await committed(client)) == list(range(30))


@pytest.mark.parametrize("kind", ["generator", "iterator", "tuple", "list"])
async def test_messages_of_any_iterable(kind):
    messages = numbered(10_000)
    given = {
        "generator": (message for message in messages),
        "iterator": iter(messages),
        "tuple": tuple(messages),
        "list": messages,
    }[kind]
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    await publisher.publish_committed_batch(by_remainder, given)
    assert count(appends) == 10_000


async def test_what_yields_messages_may_fail():
    def messages():
        yield from numbered(5000)
        raise KeyError("no more")

    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    with pytest.raises(KeyError, match="no more"):
        await publisher.publish_committed_batch(ONE, messages())
    assert appends.started == 0


async def test_a_list_may_change_while_its_batch_is_under_way():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    messages = numbered(100)

    async def mapping(message):
        messages.clear()
        await asyncio.sleep(0)
        return by_remainder(message)

    await publisher.publish_committed_batch(mapping, messages)
    assert count(appends) == 100


async def test_a_journal_of_two_content_types():
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    with pytest.raises(ValidationError, match="is of content type"):
        await publisher.publish_committed_batch(
            lambda message: ("part/0", FIXED if message["v"] else NDJSON), numbered(2)
        )
    assert appends.started == 0
    await publisher.publish_uncommitted(lambda _message: ONE, {"v": 1})
    # Another framing has to wait for the acknowledgement, which is framed as the messages are.
    with pytest.raises(ValidationError, match="has uncommitted messages of content type"):
        await publisher.publish_uncommitted(lambda _message: ("part/0", FIXED), {"v": 2})
    assert [intent.journal for intent in publisher.build_ack_intents()] == ["part/0"]
    await publisher.publish_uncommitted(lambda _message: ("part/0", FIXED), {"v": 2})
    with pytest.raises(MixedTransactionError):
        await publisher.publish_committed(lambda _message: ("part/0", FIXED), {"v": 3})
    with pytest.raises(ValidationError, match="has uncommitted messages of content type"):
        await publisher.publish_committed_batch(ONE, [{"v": 3}])
    assert [intent.journal for intent in publisher.build_ack_intents()] == ["part/0"]
    await publisher.publish_uncommitted(lambda _message: ONE, {"v": 4})
    assert len(publisher.build_ack_intents()) == 1


@pytest.mark.parametrize("bad", [0, 1, 777, 1499])
async def test_the_first_bad_message_is_found(bad):
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    messages = [{"v": number, "x": msgspec.Raw(b"1")} for number in range(1500)]
    for index in {bad, 1499}:
        messages[index]["x"] = msgspec.Raw(b"[1,\n2]")
    with pytest.raises(ValidationError, match="one line") as raised:
        await publisher.publish_committed_batch(ONE, messages)
    assert f"message {bad} of" in raised.value.__notes__[0]
    assert appends.started == 0


async def test_long_messages_leave_the_event_loop_its_turns():
    """Slices begin small: whatever the length of messages, few of them are encoded at a time."""
    _, appends = service()
    publisher = Publisher(appends, json_adapter())
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    await publisher.publish_uncommitted_batch(ONE, [{"x": "é" * 500_000}] * 64)
    task.cancel()
    assert turns >= 10
