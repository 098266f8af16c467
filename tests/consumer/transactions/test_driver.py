"""Transactions on an embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.listing.calls import get_journal
from gazette_aio.message import (
    ACK_TXN,
    Publisher,
    ReadCommittedIter,
    ReadUncommittedIter,
    SequencerCheckpoint,
    json_adapter,
)
from gazette_aio.protocol.errors import TransactionError
from tests import extent
from tests.consumer.transactions.world import (
    NDJSON,
    OUT,
    SOURCES,
    Counter,
    Disk,
    Member,
    MemoryStore,
    heads,
    journal_change,
    publish,
    read_through,
    shard_spec,
    to_out,
)
from tests.head_checks import hasten_head_checks
from tests.waiting import eventually, turns


async def echoed(client: Any) -> list[int]:
    source = ReadCommittedIter(OUT, json_adapter(), client=client, skip_acks=True)
    async with source as messages:
        return [env.message["v"] async for env in messages]


async def test_messages_are_consumed_and_echoed(client: Any):
    disk = Disk()
    async with Member(client, disk, spec=shard_spec(*SOURCES, min_ms=1, max_ms=10)) as member:
        await publish(client, SOURCES[0], 1, 2, 3)
        await publish(client, SOURCES[1], 4)
        await member.through(await heads(client, *SOURCES))
        assert disk.state == {SOURCES[0]: [1, 2, 3], SOURCES[1]: [4]}
        assert sorted(await echoed(client)) == [1, 2, 3, 4]
    async with Member(client, disk, spec=shard_spec(*SOURCES)) as member:
        await publish(client, SOURCES[0], 5)
        await member.through(await heads(client, *SOURCES))
        assert disk.state == {SOURCES[0]: [1, 2, 3, 5], SOURCES[1]: [4]}
        assert sorted(await echoed(client)) == [1, 2, 3, 4, 5]
        assert member.progress.progress.publish_at[OUT] == (await heads(client, OUT))[OUT]


class PlainItems(Counter):
    """Consumes items by a plain hook."""

    def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:  # type: ignore[override]
        if env.flags != ACK_TXN:
            store.state.setdefault(env.journal, []).append(env.message["v"])
            publisher.publish_uncommitted_nowait(to_out, {"v": env.message["v"]})


class Batches(PlainItems):
    """Consumes batches, and leaves messages beyond the third for the next transaction."""

    def consume_batch(self, shard: Any, store: Any, envelopes: Any, publisher: Any) -> int:
        for env in envelopes[:3]:
            self.consume_message(shard, store, env, publisher)
        return len(envelopes[:3])


class AsyncBatches(Batches):
    async def consume_batch(self, *args: Any) -> int:  # type: ignore[override]
        return super().consume_batch(*args)


class ThreadBatches(Batches):
    """Works in a thread, and publishes the results."""

    async def consume_batch(  # type: ignore[override]
        self, shard: Any, store: Any, envelopes: Any, publisher: Any
    ) -> int:
        values = await asyncio.to_thread(self.work, envelopes[:3])
        for journal, value in values:
            store.state.setdefault(journal, []).append(value)
        results = [{"v": value} for _, value in values]
        appends = await publisher.publish_uncommitted_batch(to_out, results)
        assert list(appends) == [OUT] * bool(values)
        return len(envelopes[:3])

    def work(self, envelopes: Any) -> list[tuple[str, int]]:
        assert threading.current_thread() is not threading.main_thread()
        return [(each.journal, each.message["v"]) for each in envelopes if each.flags != ACK_TXN]


FORMS = [Counter, PlainItems, Batches, AsyncBatches, ThreadBatches]


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_of_the_hook_consumes_each_message_once(client: Any, form: type[Counter]):
    disk, application = Disk(), form()
    async with Member(client, disk, application) as member:
        await publish(client, SOURCES[0], *range(10))
        await publish(client, SOURCES[0], *range(10, 12))
        await member.through(await heads(client))
        assert disk.state == {SOURCES[0]: list(range(12))}
        assert await echoed(client) == list(range(12))
        if isinstance(application, Batches):
            assert len(disk.commits) > 3


async def commits_of(disk: Disk, count: int) -> None:
    await eventually(lambda: len(disk.commits) >= count)


async def test_a_replay_is_interrupted_by_the_end_of_the_assignment(client: Any):
    disk = Disk()
    spec = shard_spec(ring_buffer_size=3)
    await publish(client, SOURCES[0], *range(50))
    while not disk.state or disk.state[SOURCES[0]][-1] < 49:
        async with Member(client, disk, Batches(), spec) as member:
            await commits_of(disk, 1 + len(disk.commits))
        assert disk.state[SOURCES[0]] == list(range(len(disk.state[SOURCES[0]])))
    async with Member(client, disk, spec=spec) as member:
        await publish(client, SOURCES[0], 50)
        await member.through(await heads(client))
    assert disk.state == {SOURCES[0]: list(range(51))}
    assert await echoed(client) == list(range(51))


async def test_reading_begins_at_the_checkpoint_or_the_least_offset(client: Any):
    for source in SOURCES:
        await publish(client, source, 1, 2)
    after = await heads(client, *SOURCES)
    for source in SOURCES:
        await publish(client, source, 3)
    disk = Disk()
    disk.checkpoint = SequencerCheckpoint(
        {SOURCES[1]: after[SOURCES[1]], "gone/source": 7}
    ).to_proto()
    spec = shard_spec(*SOURCES)
    spec.sources[0].min_offset = after[SOURCES[0]]
    async with Member(client, disk, spec=spec) as member:
        await member.through(await heads(client, *SOURCES))
        assert disk.state == {SOURCES[0]: [3], SOURCES[1]: [3]}
        assert member.loop.sources == frozenset(SOURCES)
        # Journals which aren't sources any more stay in checkpoints.
        assert read_through(disk.checkpoint)["gone/source"] == 7
        assert member.progress.progress.read_through["gone/source"] == 7


async def test_a_suffix_is_part_of_the_name_of_a_source(client: Any):
    disk = Disk()
    sources = [f"{SOURCES[0]};one", f"{SOURCES[0]};two"]
    await publish(client, SOURCES[0], 1)
    async with Member(client, disk, spec=shard_spec(*sources)) as member:
        head = (await heads(client))[SOURCES[0]]
        await member.through(dict.fromkeys(sources, head))
        assert disk.state == {key: [1] for key in sources}
        assert read_through(disk.checkpoint) == dict.fromkeys(sources, head)


async def failure_of(member: Member) -> str:
    async with member:
        with pytest.raises(TransactionError) as raised:
            await member.task
    return str(raised.value)


async def test_a_source_with_less_content_than_was_read_fails_the_shard(
    client: Any, monkeypatch: pytest.MonkeyPatch
):
    hasten_head_checks(monkeypatch)
    await publish(client, SOURCES[0], 1)
    head = (await heads(client))[SOURCES[0]]
    disk = Disk()
    disk.checkpoint.sources[SOURCES[0]].read_through = 5000
    assert (await failure_of(Member(client, disk))).startswith(
        "reading source/A at offset 5000: OffsetBeyondHeadError: offset 5000 is beyond the "
        f"write head {head} of journal {SOURCES[0]}, which was deleted and created again, or "
        f"restored with less content: read from an offset up to {head}, and reset the checkpoint"
    )


async def test_a_suspended_source_is_waited_for(tmp_path: Path):
    async with (
        EmbeddedBroker(tmp_path, fsync="off") as broker,
        connect(broker.endpoint) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        await client.apply([journal_change(name) for name in (SOURCES[0], OUT)])
        await publish(client, SOURCES[0], 1)
        disk = Disk()
        with broker.control.keep("read", status=pb.Status.SUSPENDED) as suspended:
            member = Member(client, disk)
            await stack.enter_async_context(member)
            await eventually(lambda: suspended.hits >= 2 or member.task.done())
            assert not member.task.done()
        await member.through(await heads(client))
        assert disk.state == {SOURCES[0]: [1]}


async def test_a_replay_of_a_suspended_source(tmp_path: Path):
    """Its content is read from the store of its fragments, and nobody else has to append."""
    source = SOURCES[0]
    (tmp_path / "fragments").mkdir()
    change = journal_change(source)
    change.upsert.fragment.stores.append("file:///fragments/")
    async with (
        EmbeddedBroker(tmp_path / "broker", file_root=tmp_path, fsync="off") as broker,
        connect(broker.endpoint, file_root=str(tmp_path)) as client,
    ):
        await client.apply([change, journal_change(OUT)])
        with broker.control.hold("read", where=lambda request: request.end_offset > 0) as held:
            async with Member(client, Disk(), spec=shard_spec(ring_buffer_size=3)) as member:
                await publish(client, source, *range(50))
                through = await heads(client)
                await held.held()
                await broker.flush(source)
                listed = await get_journal(client, source)
                listed.spec.suspend.level = pb.JournalSpec.Suspend.Level.FULL
                listed.spec.suspend.offset = through[source]
                suspended = pb.ApplyRequest.Change(
                    upsert=listed.spec, expect_mod_revision=listed.mod_revision
                )
                await client.apply([suspended])
                held.remove()
                await member.through(through)
                assert member.store.disk.state == {source: list(range(50))}


async def test_a_shard_without_sources_ends_when_cancelled(client: Any):
    spec = shard_spec()
    del spec.sources[:]
    async with Member(client, Disk(), spec=spec) as member:
        await turns()
        assert not member.task.done()
    assert member.task.cancelled()


class Restarting(Counter):
    """Reads up to the write head, and then ends reading; begins anew when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read = asyncio.Semaphore(0)
        self.readings = 0

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        await self.may_read.acquire()
        self.readings += 1
        offsets = read_through(checkpoint)
        source = ReadUncommittedIter(SOURCES[0], json_adapter(), client=shard.client, start=offsets)
        async with source as messages:
            async for batch in messages.batches():
                await sink.send(batch)

    def replay_range(self, shard: Any, store: Any, journal: str, begin: int, end: int) -> Any:
        raise NotImplementedError

    def read_through(self, shard: Any, store: Any, offsets: Any) -> Any:
        return offsets


async def test_acknowledgements_of_a_restart_roll_nothing_back(client: Any):
    disk, application = Disk(), Restarting()
    async with Member(client, disk, application) as member:
        for number in range(5):
            await publish(client, SOURCES[0], 3 * number, 3 * number + 1, 3 * number + 2)
            application.may_read.release()
            await member.through(await heads(client))
        assert application.readings == 5
        assert disk.state == {SOURCES[0]: list(range(15))}
        assert await echoed(client) == list(range(15))


async def test_the_first_error_tells_why_a_shard_fails(client: Any, caplog: Any):
    class Failing(Restarting):
        async def replay_range(self, *_: Any) -> Any:
            reading = ReadUncommittedIter(SOURCES[0], json_adapter(), client=client)
            try:
                async with reading as messages:
                    yield await anext(aiter(messages))
            finally:
                raise ValueError("not to be closed")

        def consume_message(self, *_: Any) -> None:  # type: ignore[override]
            raise ValueError("not to be consumed")

    application = Failing()
    application.may_read.release()
    await publish(client, SOURCES[0], *range(50))
    text = await failure_of(Member(client, Disk(), application, shard_spec(ring_buffer_size=3)))
    assert text.endswith(": consume_message(): ValueError: not to be consumed")
    assert "not to be closed" in caplog.text


async def test_members_that_are_replaced_at_random(client: Any):
    """Members end at any moment, gracefully or not, while messages are published."""
    rng = random.Random(extent.seed())
    disk, published = Disk(), {source: list[int]() for source in SOURCES}
    numbers = itertools.count()
    is_over = asyncio.Event()

    async def publish_always(source: str) -> None:
        publisher: Publisher[Any] = Publisher(client.appends, json_adapter())
        while not is_over.is_set():
            async with publisher.transaction():
                for number in itertools.islice(numbers, rng.choice([1, 3, 40])):
                    await publisher.publish_uncommitted(lambda _: (source, NDJSON), {"v": number})
                    published[source].append(number)
            # Time is the subject: members end after random times, at any step of a transaction.
            await asyncio.sleep(rng.random() / 50)

    publishers = [asyncio.create_task(publish_always(source)) for source in SOURCES]
    for _ in range(extent.of(40, 400)):
        member = replaced_member(client, disk, rng)
        async with member:
            await asyncio.wait((member.task,), timeout=rng.choice([0, 0.01, 0.05, 0.1]))
            assert not member.task.done()
            if rng.random() < 0.5:
                member.shard.appends.cancel()
                await turns(rng.randrange(5))
    is_over.set()
    await asyncio.gather(*publishers)
    async with Member(client, disk, spec=shard_spec(*SOURCES, max_ms=50)) as member:
        for source in SOURCES:
            await publish(client, source, -1)
            published[source].append(-1)
        await member.through(await heads(client, *SOURCES))
    assert disk.state == published
    everything = itertools.chain(*published.values())
    assert sorted(await echoed(client)) == sorted(everything)


def replaced_member(client: Any, disk: Disk, rng: random.Random) -> Member:
    spec = shard_spec(
        *SOURCES,
        min_ms=rng.choice([0, 5]),
        max_ms=rng.choice([2, 20, 200]),
        ring_buffer_size=rng.choice([1, 10, 0]),
        read_channel_size=rng.choice([1, 10, 0]),
    )
    return Member(client, disk, rng.choice(FORMS)(), spec)


async def failing(client: Any, application: Any, store: MemoryStore | None = None) -> str:
    """Return the text that a message fails the shard with, which has committed nothing."""
    disk = Disk()
    await publish(client, SOURCES[0], 1)
    member = Member(client, disk, application)
    if store is not None:
        member.store = store
        member.loop = member.primary()
    text = await failure_of(member)
    assert disk.commits == []
    return text


class Returning(Batches):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def consume_batch(self, *_: Any) -> int:
        return self.count


@pytest.mark.parametrize("count", [1000, True])
async def test_a_batch_hook_has_to_return_a_number(client: Any, count: int):
    text = await failing(client, Returning(count))
    assert f"consume_batch(): of 2 messages it returned {count}" in text


async def test_the_error_of_a_hook_that_empties_its_batch_says_where(client: Any):
    class Emptying(Batches):
        def consume_batch(self, shard: Any, store: Any, envelopes: Any, publisher: Any) -> int:
            envelopes.clear()
            raise ValueError("it's too much")

    text = await failing(client, Emptying())
    end = (await heads(client))[SOURCES[0]]
    assert text == f"source/A from offset 0 to {end}: consume_batch(): ValueError: it's too much"


class Panic(BaseException):
    """As extension modules in Rust raise it."""


class BadAdapter(Counter):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def adapter(self, spec: Any) -> Any:
        raise self.error


class BadReader(Restarting):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def read_messages(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no schema"), "ValueError: no schema"),
        (Panic("no schema"), "RuntimeError: Panic('no schema')"),
        (asyncio.CancelledError(), "RuntimeError: it was cancelled"),
    ],
)
@pytest.mark.parametrize(
    ("form", "place"), [(BadAdapter, "adapter() of source/A"), (BadReader, "read_messages()")]
)
async def test_reading_that_fails_panics_or_is_cancelled_fails_the_shard(
    client: Any, form: Any, place: str, error: BaseException, text: str
):
    assert await failing(client, form(error)) == f"{place}: {text}"


class Elsewhere(Counter):
    """Appends to a journal that doesn't exist."""

    async def consume_message(self, shard: Any, store: Any, env: Any, publisher: Any) -> None:
        async with shard.appends.append("no/such/journal") as append:
            append.write(b"content")


class Cancelling(Counter):
    async def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        shard.appends.cancel()
        await eventually(lambda: not shard.appends.status().batches)


@pytest.mark.parametrize(
    ("application", "text"),
    [
        (Elsewhere, "commit of the store: JournalNotFoundError: JOURNAL_NOT_FOUND"),
        (Cancelling, "CANCELLED: the append service was cancelled"),
    ],
)
async def test_appends_that_fail_or_are_cancelled_fail_the_commit(
    client: Any, application: type[Counter], text: str
):
    assert text in await failing(client, application())


async def test_a_commit_that_is_a_cancelled_task_fails_the_shard(client: Any):
    class Cancelled(MemoryStore):
        def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
            task = asyncio.create_task(asyncio.sleep(0))
            asyncio.get_running_loop().call_soon(task.cancel)
            return task

    text = await failing(client, Counter(), Cancelled(Disk()))
    assert text == "commit of the store: StoreError: the commit was cancelled"


async def test_a_commit_that_is_a_task_outlives_hooks_that_wait_for_it(client: Any):
    class Impatient(Counter):
        def begin_txn(self, shard: Any, store: Any) -> None:
            pass

        async def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(commit, 0.001)
            store.may_commit.set()

    class ByTask(MemoryStore):
        def __init__(self, disk: Disk) -> None:
            super().__init__(disk)
            self.may_commit = asyncio.Event()

        def start_commit(self, *args: Any) -> Any:
            return asyncio.ensure_future(self.waited(super().start_commit(*args)))

        async def waited(self, commit: Any) -> None:
            await self.may_commit.wait()
            await commit

    disk = Disk()
    await publish(client, SOURCES[0], 1)
    member = Member(client, disk, Impatient())
    member.store = ByTask(disk)
    member.loop = member.primary()
    async with member:
        await member.through(await heads(client))
    assert disk.state == {SOURCES[0]: [1]}
