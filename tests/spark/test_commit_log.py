"""Batches which drivers decide by a commit journal."""

from __future__ import annotations

import asyncio
import json
import random
import time
from functools import partial

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy, connect
from gazette_aio.message.uuid import ACK_TXN, ProducerID
from gazette_aio.spark.sink import answers, commit_tail
from gazette_aio.spark.sink.commit_log import CommitLog
from gazette_aio.spark.sink.commit_records import (
    HEADER,
    CommitKind,
    SinkKey,
    commit_record,
    decode_line,
    encode_record,
)
from gazette_aio.spark.sink.producers import ProducerPool
from tests import extent
from tests.broker.caller import eventually
from tests.spark.journals import JOURNALS, KEY, LOG, Journals, committed, line, publish

ONCE = RetryPolicy(max_attempts=1)
QUICK = RetryPolicy(backoff=lambda attempt: 0.0, max_attempts=5)


@pytest.fixture
async def broker(tmp_path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        yield broker


@pytest.fixture
async def client(broker):
    async with connect(broker.endpoint) as client:
        changes = []
        for name in (LOG, *JOURNALS):
            change = pb.ApplyRequest.Change()
            change.upsert.name, change.upsert.replication = name, 1
            change.upsert.labels.labels.add(name="content-type", value="application/x-ndjson")
            change.upsert.fragment.length = 1 << 24
            change.upsert.fragment.compression_codec = pb.CompressionCodec.NONE
            change.upsert.fragment.refresh_interval.seconds = 60
            changes.append(change)
        await client.apply(changes)
        yield client


@pytest.fixture
def pool():
    return ProducerPool()


def log_of(client, key=KEY, **options):
    return CommitLog(client, LOG, key, **{"retry_policy": QUICK, **options})


async def content(client, journal):
    head = (await client.append(journal)).commit.end
    data = b""
    if head:
        async with client.read(journal, end_offset=head) as reader:
            while chunk := await reader.read():
                data += chunk
    return data


async def delivered(client):
    rows = [row for journal in JOURNALS for row in await committed_of(client, journal)]
    return sorted(rows)


async def records(client):
    return [decode_line(part) for part in (await content(client, LOG)).splitlines()[1:]]


async def kinds(client):
    return [str(record.kind) for record in await records(client)]


async def publish_batch(client, log, batch, rows, pool, tasks=2):
    plan = await log.plan()
    return [await publish(client, plan, batch, rows[n::tasks], pool) for n in range(tasks)]


async def run_batch(client, log, batch, rows, pool):
    messages = await publish_batch(client, log, batch, rows, pool)
    await log.decide(batch, messages)
    return {message.producer for message in messages}


async def test_batches_are_committed_and_producers_used_again(client, pool):
    log = log_of(client, run="run")
    used = [
        await run_batch(client, log, batch, range(batch * 10, batch * 10 + 10), pool)
        for batch in range(3)
    ]
    assert used[0] == used[1] == used[2]
    assert await delivered(client) == list(range(30))
    assert (await content(client, LOG)).startswith(HEADER)
    assert await kinds(client) == ["commit"] * 3
    assert {record.run for record in await records(client)} == {"run"}


async def test_nothing_is_visible_before_the_batch_is_decided(client, pool):
    log = log_of(client)
    await publish_batch(client, log, 0, range(10), pool)
    assert await delivered(client) == []


async def test_an_empty_batch_needs_no_record(client):
    log = log_of(client)
    assert await log.decide(0, []) is None
    assert await content(client, LOG) == HEADER


async def test_a_batch_which_is_run_again_finishes_the_recorded_one(client, broker, pool):
    """Its driver dies behind the record, and behind none, one or all of the acknowledgements."""
    for batch, acknowledged in enumerate((0, 1, 3)):
        rows = range(batch * 9, batch * 9 + 9)
        log = log_of(client)
        before = await publish_batch(client, log, batch, rows, pool)
        record = commit_record(KEY, batch, before, nonce="of the dead")
        await client.append(LOG, encode_record(record))
        for journal in sorted(record.journals)[:acknowledged]:
            await client.append(journal, record.acknowledgements()[journal])

        log = log_of(client)  # The query is started anew, beside the same workers.
        again = await publish_batch(client, log, batch, rows, pool, tasks=3)
        assert await log.decide(batch, again) == record
        assert await delivered(client) == list(range(batch * 9 + 9))
        plan = await log.plan()
        assert not plan.clean
    assert await kinds(client) == ["commit", "retire"] * 3
    assert (await records(client))[-1].producers == {message.producer for message in before}
    # Run once more, it's not retired again.
    assert await log.decide(batch, again) == record
    assert (await kinds(client)).count("retire") == 3
    # Neither those of the record nor those of the attempt which lost are used again.
    used = await run_batch(client, log, 3, range(27, 30), pool)
    assert used.isdisjoint({message.producer for message in before + again})


async def test_a_batch_behind_the_latest_does_nothing(client, pool):
    log = log_of(client)
    early = await publish_batch(client, log, 0, range(3), pool)
    await run_batch(client, log_of(client), 1, range(3, 6), pool)
    assert await log.decide(0, early) is None
    assert await delivered(client) == [3, 4, 5]


async def test_two_drivers_race_for_one_batch(client, broker):
    logs = [log_of(client), log_of(client)]
    messages = [await publish_batch(client, log, 0, range(9), ProducerPool()) for log in logs]
    with broker.control.hold("append", journal=LOG, where=lambda r: r.offset > 0) as hold:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(log.decide(0, of)) for log, of in zip(logs, messages, strict=True)
            ]
            await hold.held(2)
            hold.remove()
    first, second = (task.result() for task in tasks)
    assert first == second
    assert await delivered(client) == list(range(9))
    assert await kinds(client) == ["commit", "retire"]


async def test_the_record_is_appended_but_not_answered(client, broker, pool):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    cut = broker.control.cut("append", journal=LOG, where=lambda r: r.offset > 0, at="after_commit")
    await log.decide(0, messages)
    assert cut.hits == 1
    assert await delivered(client) == list(range(9))
    # It was this call which decided it: its producers remain.
    assert await kinds(client) == ["commit"]
    assert set((await log.plan()).clean) == {message.producer for message in messages}


@pytest.mark.parametrize("policy", [QUICK, ONCE])
@pytest.mark.parametrize("at", ["before_commit", "after_commit"])
async def test_appends_of_records_fail(client, broker, pool, policy, at):
    log = log_of(client, retry_policy=policy)
    messages = await publish_batch(client, log, 0, range(9), pool)
    broker.control.cut("append", journal=LOG, where=lambda r: r.offset > 0, at=at)
    await log.decide(0, messages)
    assert await delivered(client) == list(range(9))
    assert await kinds(client) == ["commit"]


async def test_the_commit_journal_is_unavailable(client, broker, pool):
    log = log_of(client, retry_policy=ONCE)
    messages = await publish_batch(client, log, 0, range(9), pool)
    for where in (lambda r: r.offset > 0, lambda r: True):
        with broker.control.keep("append", journal=LOG, where=where, fail="UNAVAILABLE"):
            with pytest.raises(pb.TransportError, match="UNAVAILABLE"):
                await log.decide(0, messages)
    assert await delivered(client) == []
    await log.decide(0, messages)
    assert await delivered(client) == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize(("call", "journal", "what"), [
    ("append", LOG, "append of journal commits/of-query timed out after 6 s"),
    ("read", LOG, "read of journal commits/of-query timed out after 6 s"),
    ("append", JOURNALS[1], "append of journal topic/part-001 timed out after 6 s"),
])  # fmt: skip
async def test_a_broker_which_never_answers(client, broker, pool, monkeypatch, call, journal, what):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    monkeypatch.setattr(answers, "ANSWER_SECONDS", 6)  # A busy machine answers the others.
    async with asyncio.timeout(60):
        with broker.control.hold(call, journal=journal):
            with pytest.raises(pb.OperationTimeoutError, match=what):
                await log_of(client).decide(0, messages)
            await log_of(client).abort(0, messages)
    monkeypatch.undo()
    log = log_of(client)
    await log.decide(0, messages)
    assert await delivered(client) == list(range(9))
    # The acknowledgement may arrive still: its producers aren't used again.
    assert not (await log.plan()).clean or journal == LOG


async def test_a_broker_which_refuses_the_offset_that_it_tells(client, broker, pool):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    refused = {"where": lambda r: r.offset > 0, "status": pb.Status.WRONG_APPEND_OFFSET}
    with broker.control.keep("append", journal=LOG, **refused) as refusals:
        async with asyncio.timeout(60):
            with pytest.raises(pb.WrongAppendOffsetError):
                await log.decide(0, messages)
        assert refusals.hits == 3
    await log.decide(0, messages)
    assert await delivered(client) == list(range(9))


async def test_an_acknowledgement_which_needs_a_second_attempt_retires_its_producers(
    client, broker, pool
):
    log = log_of(client)
    plan = await log.plan()
    messages = [
        await publish(client, plan, 0, [0, 3], pool),
        await publish(client, plan, 0, [1, 4], pool),
    ]
    cut = broker.control.cut("append", journal=JOURNALS[1], at="after_commit")
    await log.decide(0, messages)
    assert cut.hits == 1
    commit, retire = await records(client)
    assert (commit.kind, retire.kind) == (CommitKind.COMMIT, CommitKind.RETIRE)
    assert retire.producers == {messages[1].producer}
    assert set((await log.plan()).clean) == {messages[0].producer}
    assert await delivered(client) == [0, 1, 3, 4]


async def test_a_journal_which_is_gone(client, broker, pool):
    missing = {"journal": JOURNALS[1], "status": pb.Status.JOURNAL_NOT_FOUND}
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    with broker.control.keep("append", **missing):
        with pytest.raises(pb.JournalNotFoundError):
            await log.decide(0, messages)
        # All others were acknowledged nevertheless.
        assert sorted(await committed_of(client, JOURNALS[0])) == [0, 3, 6]
        assert sorted(await committed_of(client, JOURNALS[2])) == [2, 5, 8]
        await log_of(client, on_missing_journal="ignore").decide(0, messages)
    assert await committed_of(client, JOURNALS[1]) == []


async def committed_of(client, journal):
    return committed(journal, await content(client, journal))


async def test_messages_of_a_retired_producer_are_refused(client, pool):
    log, other = log_of(client), log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    await log.decide(0, messages)
    late = await publish_batch(client, log, 1, range(9, 18), pool)
    # A driver which was started anew acknowledges the batch before once more.
    await other.decide(0, messages)
    with pytest.raises(pb.FencedError, match=late[0].producer.hex()):
        await log.decide(1, late)
    await log.abort(1, late)
    assert await delivered(client) == list(range(9))
    await run_batch(client, log, 1, range(9, 18), pool)
    assert await delivered(client) == list(range(18))


async def test_a_late_copy_of_an_acknowledgement_would_lose_messages(client):
    """Why producers are retired: the copy rolls back what is pending behind it."""
    producer = ProducerID(b"\x01alone")
    frames = [line(producer, clock, clock) for clock in (10, 12, 13)]
    acks = {clock: line(producer, clock, None, ACK_TXN) for clock in (11, 14)}
    lossy = [frames[0], acks[11], frames[1], acks[11], frames[2], acks[14]]
    assert committed(JOURNALS[0], b"".join(lossy)) == [10, 13]
    # Directly behind the first one it does no harm.
    harmless = [frames[0], acks[11], acks[11], *frames[1:], acks[14]]
    assert committed(JOURNALS[0], b"".join(harmless)) == [10, 12, 13]


async def test_abort_leaves_a_batch_which_is_decided(client, broker, pool):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    with broker.control.keep("append", journal=JOURNALS[1], fail="INTERNAL"):
        with pytest.raises(pb.TransportError):
            await log.decide(0, messages)
        await log.abort(0, messages)
    assert "abort" not in await kinds(client)
    await log_of(client).decide(0, [])
    assert await delivered(client) == list(range(9))


async def test_abort_keeps_a_late_record_from_landing(client, broker, pool):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    with broker.control.hold("append", journal=LOG, where=lambda r: r.offset > 0) as hold:
        deciding = asyncio.create_task(log.decide(0, messages))
        await hold.held()
        refused = hold.requests[0]
        deciding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding

        async def is_gone():
            return not hold.requests

        # Else the record lands, if the broker hears of the cancellation after the hold.
        await eventually(is_gone)
    await log_of(client).abort(0, [*messages, None])
    assert await kinds(client) == ["abort"]
    with pytest.raises(pb.WrongAppendOffsetError):
        await client.append(refused, encode_record(commit_record(KEY, 0, messages)))
    # Even if it were decided upon now, these messages are rolled back.
    with pytest.raises(pb.FencedError):
        await log.decide(0, messages)
    await run_batch(client, log, 0, range(9), pool)
    assert await delivered(client) == list(range(9))


async def test_abort_never_fails(client, broker, pool, caplog):
    log = log_of(client, retry_policy=ONCE)
    messages = await publish_batch(client, log, 0, range(3), pool)
    with broker.control.keep("append", fail="INTERNAL"):
        await log.abort(0, messages)
    assert "remain pending" in caplog.text
    await log_of(client, None).abort(0, messages)
    await log.abort(0, [None])
    await log.abort(0, [])
    assert await kinds(client) == []
    with broker.control.keep("append", journal="topic/", fail="INTERNAL"):
        await log.abort(0, messages)
    assert await kinds(client) == ["abort"]


@pytest.mark.parametrize("where", ["record", "acknowledgement"])
async def test_cancelled_decisions_can_be_made_again(client, broker, pool, where):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    rule = {"journal": LOG, "where": lambda r: r.offset > 0}
    if where == "acknowledgement":
        rule = {"journal": JOURNALS[2]}
    with broker.control.hold("append", **rule) as hold:
        deciding = asyncio.create_task(log.decide(0, messages))
        await hold.held()
        deciding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deciding
    await log.decide(0, messages)
    assert await delivered(client) == list(range(9))


async def test_recovery_finishes_all_sinks_once(client, pool):
    other = SinkKey("another", "sink")
    expected = []
    for number, key in enumerate((KEY, other)):
        log = log_of(client, key)
        plan = await log.plan()
        messages = [await publish(client, plan, 0, range(number * 9, number * 9 + 9), pool)]
        expected.append(commit_record(key, 0, messages))
        await client.append(LOG, encode_record(expected[-1]))
    journal = min(expected[0].journals)
    await client.append(journal, expected[0].acknowledgements()[journal])

    assert await CommitLog(client, LOG, retry_policy=QUICK).recover() == expected
    assert await delivered(client) == list(range(18))
    size = [len(await content(client, name)) for name in (LOG, *JOURNALS)]
    assert await CommitLog(client, LOG, retry_policy=QUICK).recover() == []
    assert size == [len(await content(client, name)) for name in (LOG, *JOURNALS)]
    # A driver which comes back finds the batch done.
    assert await log_of(client).decide(0, []) is None


async def test_recovery_of_one_sink_goes_on_where_another_fails(client, broker, pool):
    other = SinkKey("another", "sink")
    for key, rows in ((KEY, [1]), (other, [2])):
        plan = await log_of(client, key).plan()
        message = await publish(client, plan, 0, rows, pool)
        await client.append(LOG, encode_record(commit_record(key, 0, [message])))
    log = CommitLog(client, LOG, retry_policy=ONCE)
    with broker.control.keep("append", journal=JOURNALS[1], fail="INTERNAL"):
        with pytest.raises(pb.TransportError):
            await log.recover()
    assert await delivered(client) == [2]
    assert [record.key for record in await log.recover()] == [KEY]
    assert await delivered(client) == [1, 2]


async def test_foreign_lines_and_lines_which_are_left_open(client, pool):
    log = log_of(client)
    await log.refresh()
    await client.append(LOG, b"who wrote\n\nthis", b"?")
    await run_batch(client, log, 0, range(9), pool)
    assert (await log_of(client).refresh()).decided == 0
    assert b"this?\n{" in await content(client, LOG)
    assert "CommitLog of <CommitTail of 'commits/of-query'" in repr(log)


async def test_records_of_a_later_version_stop_the_sink(client, pool):
    log = log_of(client)
    messages = await publish_batch(client, log, 0, range(9), pool)
    document = {"v": 2, "t": "commit", "q": KEY.query, "s": KEY.sink}
    await client.append(LOG, json.dumps(document).encode() + b"\n")
    with pytest.raises(pb.StoreError, match="version 2"):
        await log.decide(0, messages)
    assert (await log_of(client, SinkKey("another", "sink")).refresh()).decided == -1


async def test_long_logs_are_read_in_threads(client, pool):
    log = log_of(client)
    await run_batch(client, log, 0, range(9), pool)
    filler = b'{"v":1,"t":"note","text":"' + b"x" * 600_000 + b'"}\n'
    await client.append(LOG, filler)
    await run_batch(client, log, 1, range(9, 18), pool)
    assert (await log_of(client).refresh()).decided == 1
    await client.append(LOG, b"x" * (5 << 20))
    with pytest.raises(pb.StoreError, match="a line of more than"):
        await log.refresh()


async def test_records_of_another_query_stop_it_alone(client, pool):
    other = SinkKey("another", KEY.sink)
    for key in (KEY, other):
        await run_batch(client, log_of(client, key), 0, range(3), pool)
    document = {"v": 2, "t": "commit", "q": other.query, "s": other.sink}
    await client.append(LOG, json.dumps(document).encode() + b"\n")
    log = log_of(client, None)
    assert list(await log.plans(KEY.sink)) == [KEY]
    await client.append(LOG, b'{"v":2}\n')
    with pytest.raises(pb.StoreError):
        await log.plans(KEY.sink)


async def test_a_commit_journal_which_was_replaced(client, broker, pool):
    log = log_of(client)
    await run_batch(client, log, 0, range(9), pool)
    spec = (await client.list(f"name={LOG}")).journals[0].spec
    delete = pb.ApplyRequest.Change(delete=LOG, expect_mod_revision=-1)
    await client.apply([delete])
    await client.apply([pb.ApplyRequest.Change(upsert=spec)])
    with pytest.raises(pb.DataLossError, match="was replaced"):
        await log.refresh()


async def move_head(client, offset):
    """Have the commit journal go on at an offset, without the content before it."""
    listed = (await client.list(f"name={LOG}")).journals[0]
    change = pb.ApplyRequest.Change(expect_mod_revision=listed.mod_revision)
    change.upsert.CopyFrom(listed.spec)
    change.upsert.suspend.offset = offset
    await client.apply([change])


async def test_records_which_expired(client, broker, pool, caplog, monkeypatch):
    monkeypatch.setattr(commit_tail, "LISTINGS", 0.0)
    await move_head(client, 1000)
    log = log_of(client)
    assert (await log.refresh()).decided == -1
    await run_batch(client, log, 0, range(9), pool)
    assert (await log_of(client).refresh()).decided == 0
    assert caplog.text.count("have expired") == 2
    await move_head(client, 3000)
    await client.append(LOG, b"\n")
    # It isn't the first of them which is missing: what's in the hole may be what counts.
    with pytest.raises(pb.OffsetNotYetAvailableError):
        await log.refresh()
    jump = pb.ReadResponse(offset=3000, write_head=3001)
    jump.fragment.journal, jump.fragment.begin, jump.fragment.end = LOG, 3000, 3001
    jump.fragment.compression_codec = pb.CompressionCodec.NONE
    broker.control.once("read", journal=LOG, respond=jump)
    with pytest.raises(pb.DataLossError, match="lost records") as raised:
        await log.refresh()
    assert raised.value.missing[0][1] == 3000


@pytest.mark.parametrize("before", [0, 1])
async def test_records_which_a_broker_does_not_know_of_yet(
    client, broker, pool, before, monkeypatch
):
    """It took the journal over while the fragment of the one before was on its way to the store."""
    monkeypatch.setattr(commit_tail, "POLL_SECONDS", 0.0)
    log = log_of(client)
    if before:
        await log.refresh()
    other = log_of(client)
    await run_batch(client, other, 0, range(9), pool)
    begin = len(await content(client, LOG))
    await run_batch(client, other, 1, range(9, 18), pool)
    head = len(await content(client, LOG))
    jump = pb.ReadResponse(offset=begin, write_head=head)
    jump.fragment.journal, jump.fragment.begin, jump.fragment.end = LOG, begin, head
    jump.fragment.compression_codec = pb.CompressionCodec.NONE
    missed = broker.control.once("read", journal=LOG, respond=jump)
    state = await log.refresh()
    assert missed.hits == 1
    assert [record.batch for record in state.recent] == [0, 1]


async def test_what_is_before_an_old_fragment_is_not_waited_for(client, broker, pool):
    await move_head(client, 1000)
    old = pb.FragmentsResponse()
    for begin, days in ((1000, 3), (2000, 2)):
        fragment = old.fragments.add().spec
        fragment.journal, fragment.begin, fragment.end = LOG, begin, begin + 1000
        fragment.compression_codec = pb.CompressionCodec.NONE
        fragment.mod_time, fragment.backing_store = int(time.time()) - days * 86400, "file:///"
    with broker.control.keep("list_fragments", journal=LOG, respond=old):
        await run_batch(client, log_of(client), 0, range(9), pool)
        assert (await log_of(client).refresh()).decided == 0


async def test_a_log_of_no_sink_decides_nothing(client):
    log = CommitLog(client, LOG)
    for call in (log.refresh, log.plan, partial(log.decide, 0, [])):
        with pytest.raises(pb.ConfigurationError):
            await call()


# Random histories


class Query:
    """A query which two drivers run at the same time, on one checkpoint."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.journals = Journals(self.rng, faults=self.rng.choice((0.0, 0.1, 0.3)))
        self.pools = [ProducerPool() for _ in range(2)]
        self.batches = [
            range(n * 10, n * 10 + self.rng.randrange(1, 10))
            for n in range(self.rng.randrange(2, 7))
        ]
        self.done = -1  # Latest batch which Spark took down as committed.
        self.zombies = set()
        self.drivers = self.rng.choice((1, 2, 2))
        self.targets = JOURNALS[: self.rng.randrange(1, 3)]
        self.pace = self.rng.choice((0.03, 0.1))

    async def task(self, plan, batch, rows):
        pool = self.rng.choice(self.pools)
        return await publish(
            self.journals,
            plan,
            batch,
            rows,
            pool,
            lambda row: self.targets[row % len(self.targets)],
        )

    async def attempt(self, log, batch):
        plan = await log.plan()
        rows, count = list(self.batches[batch]), self.rng.randrange(1, 4)
        self.rng.shuffle(rows)
        if self.rng.random() < 0.3:  # Another attempt, whose message isn't taken.
            work = self.task(plan, batch, rows[:2])
            self.zombies.add(asyncio.get_running_loop().create_task(work))
        messages = [await self.task(plan, batch, rows[n::count]) for n in range(count)]
        try:
            await log.decide(batch, messages)
        except pb.GazetteError:
            if self.rng.random() < 0.7:
                await log.abort(batch, messages)
            raise

    async def drive(self):
        log = CommitLog(self.journals, LOG, KEY)
        while (batch := self.done + 1) < len(self.batches):
            try:
                await self.attempt(log, batch)
            except pb.GazetteError:
                if self.rng.random() < 0.5:
                    log = CommitLog(self.journals, LOG, KEY)
                continue
            # The other driver may have come first, and Spark may die before it takes that down.
            if self.rng.random() < 0.8:
                self.done = max(self.done, batch)

    async def run(self):
        drivers = [asyncio.create_task(self.drive()) for _ in range(self.drivers)]
        steps = 0
        while self.done + 1 < len(self.batches):
            await settle()
            steps += 1
            assert steps < 40_000, "no progress"
            draw = self.rng.random()
            if self.journals.late and draw < self.pace:
                self.journals.land()
            elif self.pace <= draw < self.pace + 0.004:
                crashed = self.rng.randrange(self.drivers)
                await end(drivers[crashed])
                drivers[crashed] = asyncio.create_task(self.drive())
            else:
                self.turn()
        for task in (*drivers, *self.zombies):
            await end(task)
        while self.journals.late:
            self.journals.land()

    def turn(self):
        turns = self.journals.turns = [turn for turn in self.journals.turns if not turn.done()]
        if turns:
            turns.pop(self.rng.randrange(len(turns))).set_result(None)


async def settle():
    for _ in range(6):
        await asyncio.sleep(0)


async def end(task):
    task.cancel()
    await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, pb.GazetteError):
        raise error


@pytest.mark.parametrize("number", range(10))
async def test_every_input_is_delivered_exactly_once(number):
    """Two drivers, crashes, zombies, and appends which fail or land late."""
    for seed in extent.seeds(20)[number::10]:
        print(f"seed {seed}")  # noqa: T201 - shown if it fails.
        query = Query(seed)
        await query.run()
        rows = [
            row
            for journal, data in query.journals.content.items()
            if journal != LOG
            for row in committed(journal, bytes(data))
        ]
        assert sorted(rows) == sorted(row for batch in query.batches for row in batch), seed
