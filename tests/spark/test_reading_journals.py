"""Rows of tasks, of journals of a broker and the files of their fragments."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.journal_ranges import (
    FragmentInfo,
    JournalInfo,
    JournalRange,
    split_range,
)
from gazette_aio.spark.planning.summaries import plan_ranges_of_splits
from gazette_aio.spark.planning.tasks import plan_committed_tasks, plan_split_tasks, plan_tasks
from gazette_aio.spark.reading import engines as row_engines
from gazette_aio.spark.reading import partitions as reading
from gazette_aio.spark.reading.partitions import read_partition, read_task
from gazette_aio.testing import create_journals, journal_spec, no_leaks
from tests.cancellation import cancel_at_every_await
from tests.message.sequencing import sequencing
from tests.message.sequencing.sequencing import JOURNAL
from tests.spark.histories import SCHEMA, TYPES, History
from tests.waiting import eventually


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield
        await bridge.close_clients()


class Journal:
    """A journal of a history, in several fragments, of which the last one may be local."""

    def __init__(self, broker: EmbeddedBroker, client: JournalClient, root: Path) -> None:
        self.broker = broker
        self.client = client
        self.root = root

    async def create(self, history, *, codec=pb.CompressionCodec.NONE, parts=4, local=False):
        self.history = history
        spec = journal_spec(JOURNAL, labels={"content-type": TYPES[history.form]})
        spec.fragment.compression_codec = codec
        spec.fragment.stores.append("file:///")
        await create_journals(self.client, spec)
        begins = [row.begin for row in history.log]
        cuts = [begins[len(begins) * part // parts] for part in range(parts)]
        cuts.append(len(history.content))
        for part, (begin, end) in enumerate(itertools.pairwise(cuts)):
            await self.client.append(JOURNAL, history.content[begin:end])
            if part < parts - 1 or not local:
                await self.broker.flush(JOURNAL)
        await self.broker.refresh(JOURNAL)
        self.cuts = cuts
        self.info = await self.list()

    async def list(self):
        listed = await self.client.list_fragments(JOURNAL)
        fragments = tuple(
            FragmentInfo(f.spec.begin, f.spec.end, f.spec.mod_time) for f in listed.fragments
        )
        content_type = TYPES[self.history.form]
        return JournalInfo(JOURNAL, self.cuts[-1], content_type, fragments=fragments)

    @property
    def range(self):
        return JournalRange(self.info, 0, self.info.head)

    async def lose(self, *numbers):
        files = sorted(self.root.rglob("*-*-*"))
        for number in numbers:
            files[number].unlink()
        await self.broker.refresh(JOURNAL)

    def options(self, **given):
        base = {"brokers": self.broker.endpoint, "journals": JOURNAL, "fileRoot": str(self.root)}
        if given.get("io") == "broker":
            del base["fileRoot"]
        return SourceOptions.parse({**base, **given}, streaming=False)

    async def rows(self, tasks, **given):
        """Return begins and bytes of what tasks deliver."""
        found = []
        for task in tasks:
            async with aclosing(read_task(task, self.options(**given), SCHEMA)) as batches:
                async for batch in batches:
                    assert batch.num_rows
                    found += rows_of(batch)
        return found


def rows_of(batch):
    columns = (batch.column(name).to_pylist() for name in ("_begin", "_value"))
    return list(zip(*columns, strict=True))


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    async with (
        EmbeddedBroker(
            file_root=tmp_path, fsync="off", persist_delay=0.0, http_port=None
        ) as broker,
        connect(broker.endpoint, file_root=tmp_path) as client,
    ):
        yield Journal(broker, client, tmp_path)


def history_of(form="ndjson", count=300, **given):
    rng = random.Random(1)
    return History(rng, form, sequencing.well_formed(rng, count), **given)


CODECS = [
    pb.CompressionCodec.NONE,
    pb.CompressionCodec.GZIP,
    pb.CompressionCodec.SNAPPY,
    pb.CompressionCodec.ZSTANDARD,
]


@pytest.mark.parametrize("codec", CODECS, ids=pb.CompressionCodec.Name)
@pytest.mark.parametrize("io", ["auto", "broker"])
async def test_codecs_and_a_local_fragment(journal, codec, io):
    history = history_of()
    await journal.create(history, codec=codec, local=True)
    tasks = plan_tasks([journal.range], max_split_bytes=2000)
    assert len(tasks) > 4
    assert await journal.rows(tasks, io=io) == history.all()


@pytest.mark.parametrize("form", TYPES)
async def test_committed_messages(journal, form, monkeypatch):
    """In one task, in ranges one after the other, and in splits at the same time."""
    monkeypatch.setattr(
        row_engines.rows_of, "__kwdefaults__", {"step_bytes": 1000, "max_pending_bytes": 2000}
    )
    history = history_of(form)
    await journal.create(history)
    assert await journal.rows(plan_committed_tasks([journal.range])) == history.committed()
    assert await journal.rows(history.committed_tasks(journal.cuts)) == history.committed()
    splits = split_range(journal.range, 1)
    assert len(splits) == 4
    (plan,) = await plan_ranges_of_splits(journal.client, [splits], journal.options())
    rows = await journal.rows(plan_split_tasks(splits, plan))
    assert sorted(rows) == sorted(history.committed())


async def test_cuts_within_a_transaction(journal):
    """Two producers interleave, one transaction spans three ranges, and one is never committed."""
    log = sequencing.parse("A1c B1c C1c A2c B2k A3c C2c A4k B3c C3c B4k")
    history = History(random.Random(1), "ndjson", log)
    await journal.create(history, parts=len(log))
    at = [row.begin for row in history.log]
    tasks = history.committed_tasks([0, at[3], at[6], at[8], len(history.content)])
    rows = [await journal.rows([task]) for task in tasks]
    assert [[begin for begin, _ in part] for part in rows] == [
        [],
        [at[1]],
        [at[0], at[3], at[5]],
        [at[8]],
    ]


async def test_content_which_is_lost(journal):
    history = history_of()
    await journal.create(history)
    await journal.lose(0, 2)
    _, first, second, third, _ = journal.cuts
    (task,) = plan_tasks([JournalRange(replace(journal.info, fragments=()), 0, journal.cuts[-1])])
    with pytest.raises(pb.DataLossError, match=r"lost \[0, \d+\) of journal test/journal") as info:
        await journal.rows([task], fetchTimeout="0.01")
    assert info.value.missing == ((0, first),)
    rest = replace(task, begin=first, is_aligned=False)
    with pytest.raises(pb.DataLossError) as info:
        await journal.rows([rest], fetchTimeout="0.01")
    assert info.value.missing == ((second, third),)
    rows = await journal.rows([task], fetchTimeout="0.01", failOnDataLoss="false")
    assert rows == [row for row in history.all() if first <= row[0] < second or row[0] >= third]


async def test_pending_messages_which_are_lost_when_they_commit(journal):
    log = sequencing.parse("A1c A2c B1o B2o A3c A4k B3o B4o")
    history = History(random.Random(1), "ndjson", log)
    await journal.create(history)
    at = [row.begin for row in history.log]
    _, task = history.committed_tasks([0, at[4], len(history.content)])
    before = await journal.rows([task])
    assert [begin for begin, _ in before] == [at[0], at[1], at[4], at[6], at[7]]
    await journal.lose(0)
    with pytest.raises(pb.DataLossError) as info:
        await journal.rows([task], fetchTimeout="0.01")
    assert (info.value.journal, info.value.missing) == (JOURNAL, ((0, journal.cuts[1]),))
    left = await journal.rows([task], fetchTimeout="0.01", failOnDataLoss="false")
    assert left == before[2:]


async def test_splits_of_which_content_was_lost_since(journal):
    history = history_of()
    await journal.create(history)
    splits = split_range(journal.range, 1)
    (plan,) = await plan_ranges_of_splits(journal.client, [splits], journal.options())
    tasks = plan_split_tasks(splits, plan)
    await journal.lose(0)
    for fails in ("true", "false"):
        with pytest.raises(pb.DataLossError) as info:
            await journal.rows(tasks, fetchTimeout="0.01", failOnDataLoss=fails)
        assert info.value.missing == ((0, journal.cuts[1]),)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_split_of_which_content_is_lost_before_it_is_read_once_more(
    journal, monkeypatch, fails
):
    monkeypatch.setattr(
        row_engines.rows_of, "__kwdefaults__", {"step_bytes": 100, "max_pending_bytes": 100}
    )
    log = sequencing.parse("A1c A2k A3c A4c A5c B1o B2o A6c A7k B3o")
    history = History(random.Random(1), "ndjson", log)
    await journal.create(history)
    (task,) = history.split_tasks([0, len(history.content)])
    given = journal.options(fetchTimeout="0.01", failOnDataLoss=str(fails).lower())
    at = [row.begin for row in history.log]
    async with aclosing(read_task(task, given, SCHEMA)) as batches:
        first = rows_of(await anext(batches))
        assert first == history.begins([at[0], at[5], at[6]])
        await journal.lose(1)
        if fails:
            with pytest.raises(pb.DataLossError) as info:
                [batch async for batch in batches]
            assert info.value.missing == ((at[2], journal.cuts[2]),)
        else:
            rest = [row async for batch in batches for row in rows_of(batch)]
            assert rest == history.begins([at[7], at[9]])


async def test_partitions(journal):
    """Code which isn't asynchronous reads several tasks, one behind the other."""
    history = history_of()
    await journal.create(history)
    tasks = plan_tasks([journal.range], max_split_bytes=journal.info.head // 9)
    given = journal.options(batchRows="7")

    def read():
        try:
            return [
                (rows_of(batch), batch.num_rows)
                for batch in read_partition(tuple(tasks), given, SCHEMA)
            ]
        finally:
            bridge.close()

    batches = await asyncio.to_thread(read)
    assert [row for rows, _ in batches for row in rows] == history.all()
    assert max(count for _, count in batches) == 7


async def test_a_partition_which_is_left_early(journal, monkeypatch):
    """What's under way ends, and the client is used again."""
    monkeypatch.setattr(
        row_engines.rows_of, "__kwdefaults__", {"step_bytes": 500, "max_pending_bytes": 500}
    )
    history = history_of(count=2000)
    await journal.create(history)
    tasks = tuple(plan_tasks([journal.range], max_split_bytes=journal.info.head // 9))
    given = journal.options(batchRows="1")

    async def streams():
        client = await reading.spark_client(given.connection)
        await asyncio.sleep(0)
        # The loop itself runs within a task.
        others = {task for task in asyncio.all_tasks() if task.get_name() != "gazette-spark"}
        return id(client), client.status().streams, others - {asyncio.current_task()}

    def read():
        found = set()
        try:
            for _ in range(5):
                batches = read_partition(tasks, given, SCHEMA)
                assert rows_of(next(batches)) == history.all()[:1]
                batches.close()
                client, open_streams, others = bridge.run(streams())
                assert open_streams == ()
                assert not others
                found.add((client, threading.active_count()))
        finally:
            bridge.close()
        return found

    found = await asyncio.to_thread(read)
    assert len({client for client, _ in found}) == 1


@pytest.mark.parametrize("early", [False, True])
async def test_cancellation(journal, monkeypatch, early):
    """Wherever it comes, also while what's open of other tasks is closed."""
    monkeypatch.setattr(
        row_engines.rows_of, "__kwdefaults__", {"step_bytes": 400, "max_pending_bytes": 100}
    )
    history = history_of(count=20)
    await journal.create(history, parts=2)
    tasks = tuple(history.committed_tasks(journal.cuts))
    given = journal.options(io="broker")
    client = await reading.spark_client(given.connection)

    async def read():
        async with aclosing(reading.read_tasks(tasks, given, SCHEMA)) as batches:
            async for _ in batches:
                if early:
                    break

    async def check():
        # What's closed by a task which is cancelled ends by itself, in some turns of the loop.
        async with asyncio.timeout(60):
            await eventually(lambda: not client.status().streams)
        assert not [task for task in asyncio.all_tasks() if "RangeContent" in repr(task)]

    assert await cancel_at_every_await(read, check) > 5


async def test_the_loop_is_not_kept_from_its_work(journal, monkeypatch):
    """Frames are found as content is fed, and so that's done in a thread, too."""
    threads = set()
    feed = row_engines.MessageRows.feed

    def watched(engine, pieces):
        threads.add(threading.get_ident())
        feed(engine, pieces)

    monkeypatch.setattr(row_engines.MessageRows, "feed", watched)
    history = history_of("protobuf-fixed")
    await journal.create(history)
    assert await journal.rows(plan_tasks([journal.range])) == history.all()
    assert threads
    assert threading.get_ident() not in threads


async def test_files_which_can_not_be_fetched(journal):
    history = history_of()
    await journal.create(history, local=True)
    (task,) = plan_tasks([journal.range])
    given = replace(
        journal.options(io="direct"), connection=journal.options(io="broker").connection
    )
    with pytest.raises(pb.ConfigurationError, match="files of journal test/journal can't be"):
        [batch async for batch in read_task(task, given, SCHEMA)]
    assert await journal.rows([task], io="direct") == history.all()


async def test_a_file_root_which_is_not_that_of_the_brokers(journal, tmp_path_factory, caplog):
    history = history_of()
    await journal.create(history, local=True)
    tasks = plan_tasks([journal.range], max_split_bytes=journal.info.head // 4)
    root = str(tmp_path_factory.mktemp("another"))
    # As it would be no warning to be told again and again.
    assert await journal.rows(tasks, fileRoot=root) == history.all()
    assert [record.message for record in caplog.records if root in record.message] == [
        f"fragment files not found in {root}: reading through brokers"
    ]
    with pytest.raises(pb.DataLossError, match=r"lost \[0, \d+\) .*its file is gone"):
        await journal.rows(tasks, fileRoot=root, io="direct", fetchTimeout="0.01")


async def test_typed_rows(journal):
    history = history_of()
    await journal.create(history)
    (task,) = plan_tasks([journal.range])
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("_begin", pa.int64())])
    batches = [batch async for batch in read_task(task, journal.options(), schema)]
    table = pa.Table.from_batches(batches)
    assert table.schema == schema
    numbers = {row.begin: number for number, row in enumerate(history.log)}
    assert table.column("_begin").to_pylist() == [begin for begin, _ in history.all()]
    assert table.column("n").to_pylist() == [numbers[begin] for begin, _ in history.all()]


async def test_rows_which_can_not_be_made(journal):
    await journal.create(history_of("protobuf-fixed"))
    (task,) = plan_tasks([journal.range])
    schema = pa.schema([pa.field("n", pa.int64())])
    with pytest.raises(pb.ConfigurationError, match="messageType"):
        [batch async for batch in read_task(task, journal.options(), schema)]
