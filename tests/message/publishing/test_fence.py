"""One publisher at a time: locks of intent logs on a machine, and fences across machines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import AppendService, connect
from gazette_aio.client.reads.head import head_of
from gazette_aio.message import Fence, IntentLog, Publisher, ReadCommittedIter, json_adapter
from gazette_aio.protocol.errors import FencedError, LockedError, StoreError, ValidationError
from gazette_aio.testing import create_journals, journal_spec
from tests.message import fakes
from tests.message.publishing.two_journals import JOURNALS, NDJSON, commit, committed, rows

FakeAppends: Any = fakes.FakeAppends
FENCE = Fence("fences", "etl")


@pytest.fixture
async def broker(tmp_path: Path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        yield broker


@pytest.fixture
async def client(broker: Any):
    async with connect(broker.endpoint) as client:
        await create(client, *JOURNALS, FENCE.journal)
        yield client


async def create(client: Any, *journals: Any):
    labels = {"content-type": NDJSON}
    await create_journals(client, *(journal_spec(name, labels=labels) for name in journals))


def elsewhere(log: Any):
    """Have others lock the log, as on a file system where locks don't reach other machines."""
    log.path.with_name(f"{log.path.name}.lock").unlink(missing_ok=True)


def files(path: Path):
    return sorted(file.name for file in path.iterdir() if file.is_file())


async def test_a_log_in_use_is_refused_by_name(tmp_path: Path):
    path, appends = tmp_path / "log", FakeAppends()
    first = IntentLog(path)
    await first.recover(appends)
    second = IntentLog(path)
    refused = r"log\.lock: the log is in use by process \d+"
    with pytest.raises(LockedError, match=refused):
        await second.recover(appends)
    with pytest.raises(LockedError, match=refused):
        await commit(Publisher(appends, json_adapter()), second, 1)
    with pytest.raises(LockedError, match=refused):
        await second.persist([], None)
    assert await second.load() is None  # Whoever only looks needs no lock.
    await commit(Publisher(appends, json_adapter()), first, 1)

    await first.aclose()
    await first.aclose()
    assert await second.recover(appends) == {"row": 1}
    with pytest.raises(LockedError):
        await first.recover(appends)
    await commit(Publisher(appends, json_adapter()), second, 2)
    # A log that was closed finds out what others have recorded meanwhile.
    await second.aclose()
    assert await first.recover(appends) == {"row": 2}


async def test_a_log_without_references_is_unlocked(tmp_path: Path):
    publisher = Publisher(FakeAppends(), json_adapter())
    for number in range(3):
        log = tmp_path / "log"
        async with publisher.transaction(intents=IntentLog(log)) as transaction:
            assert transaction.state == ({"row": number - 1} if number else None)
            transaction.state = {"row": number}


async def test_waiting_for_a_predecessor(tmp_path: Path):
    path, appends = tmp_path / "log", FakeAppends()
    async with IntentLog(path) as old:
        await commit(Publisher(appends, json_adapter()), old, 1)
        new = IntentLog(path, lock_timeout=60)
        waiting = asyncio.create_task(new.recover(appends))
        await commit(Publisher(appends, json_adapter()), old, 2)
        assert not waiting.done()
    assert await waiting == {"row": 2}


async def test_a_killed_process_leaves_no_lock(tmp_path: Path):
    script = (
        "import asyncio, sys\n"
        "from gazette_aio.message import IntentLog\n"
        "log = IntentLog(sys.argv[1])\n"
        "asyncio.run(log.require_recovered())\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = tmp_path / "log"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"locked\n"
    with pytest.raises(LockedError, match=f"process {process.pid}"):
        await IntentLog(path).recover(FakeAppends())
    process.kill()
    await process.communicate()
    assert await IntentLog(path).recover(FakeAppends()) is None


async def test_the_next_owner_fences_the_one_before(client: Any, tmp_path: Path):
    old = IntentLog(tmp_path / "log", fence=FENCE)
    with pytest.raises(StoreError, match="has a fence: call recover"):
        await commit(Publisher(client.appends, json_adapter()), old, 1)
    assert await old.recover(client.appends) is None
    zombie = Publisher(client.appends, json_adapter())
    await commit(zombie, old, 1)
    await commit(zombie, old, 2)
    assert files(tmp_path) == ["log.1-2", "log.lock"]

    elsewhere(old)
    new = IntentLog(tmp_path / "log", fence=FENCE)
    assert await new.recover(client.appends) == {"row": 2}
    publisher = Publisher(client.appends, json_adapter())
    with pytest.raises(FencedError, match=r"'etl' of fences was taken by epoch 2"):
        await commit(zombie, old, 3)
    await commit(publisher, new, 3)
    # What the zombie has recorded counts for nobody.
    for again in (lambda: commit(zombie, old, 4), lambda: old.recover(client.appends)):
        with pytest.raises(FencedError):
            await again()
    assert "fenced" in repr(old)
    assert await committed(client) == rows(1, 2, 3)

    await new.aclose()
    third = IntentLog(tmp_path / "log", fence=FENCE)
    assert await third.recover(client.appends) == {"row": 3}
    assert files(tmp_path) == ["log.2-1", "log.lock"]
    await commit(Publisher(client.appends, json_adapter()), third, 4)
    assert await committed(client) == rows(1, 2, 3, 4)


@pytest.mark.parametrize("step", ["persist", "decide", "append_intents", "mark_written"])
async def test_a_zombie_that_awakes_in_mid_commit(
    client: Any, tmp_path: Path, step: Any, monkeypatch: pytest.MonkeyPatch
):
    """Whatever step it paused before, each input is committed once, and it learns of its end."""
    old = IntentLog(tmp_path / "log", fence=FENCE)
    await old.recover(client.appends)
    await commit(zombie := Publisher(client.appends, json_adapter()), old, 1)
    paused, awake = asyncio.Event(), asyncio.Event()
    # Its appends are in queues of their own.
    async with AppendService(client) as appends:
        zombie = Publisher(appends, json_adapter())
        if step == "append_intents":
            holder = "gazette_aio.message.publishing.commits.append_intents"
            from gazette_aio.message.publishing.intents import append_intents as then
        else:
            holder, then = "", getattr(old, step)

        async def pause(*args: Any):
            monkeypatch.undo()
            paused.set()
            await awake.wait()
            return await then(*args)

        if holder:
            monkeypatch.setattr(holder, pause)
        else:
            monkeypatch.setattr(old, step, pause)
        sleeping = asyncio.create_task(commit(zombie, old, 2))
        await paused.wait()

        elsewhere(old)
        new = IntentLog(tmp_path / "log", fence=FENCE)
        state: Any = await new.recover(client.appends)
        is_decided = step in {"append_intents", "mark_written"}
        assert state == {"row": 2 if is_decided else 1}
        publisher = Publisher(client.appends, json_adapter())
        for number in range(state["row"] + 1, 4):
            await commit(publisher, new, number)
        awake.set()
        with pytest.raises(FencedError):
            await sleeping
        with pytest.raises(FencedError):
            await commit(zombie, old, 3)
    await commit(publisher, new, 4)
    assert await committed(client) == rows(1, 2, 3, 4)
    await new.aclose()
    assert await IntentLog(new.path, fence=FENCE).recover(client.appends) == {"row": 4}


async def test_owners_that_start_at_the_same_time(client: Any, tmp_path: Path):
    """Any number of them compete, each as if on a machine of its own. The last one wins."""

    async def run():
        log = IntentLog(tmp_path / "log", fence=FENCE)
        async with AppendService(client) as appends, log:
            publisher = Publisher(appends, json_adapter())
            try:
                while True:
                    elsewhere(log)
                    with contextlib.suppress(LockedError):
                        state: Any = await log.recover(appends)
                        break
                for row in range(state["row"] + 1 if state else 1, 31):
                    await commit(publisher, log, row)
            except FencedError:
                return False
            return True

    ended = await asyncio.gather(*(run() for _ in range(6)))
    assert ended.count(True) >= 1
    assert await committed(client) == rows(*range(1, 31))


async def test_identities_share_a_journal_and_a_process(client: Any, tmp_path: Path):
    """A fenced identity fails nothing of another one, whose appends follow its own."""
    fences = [Fence("fences", f"etl-{number}") for number in range(4)]
    logs = [IntentLog(tmp_path / fence.name, fence=fence) for fence in fences]
    for log in logs:
        await log.recover(client.appends)
    elsewhere(logs[0])
    async with AppendService(client) as appends:
        await IntentLog(logs[0].path, fence=fences[0]).recover(appends)

    async def run(log: Any):
        publisher = Publisher(client.appends, json_adapter())
        for number in range(5):
            async with publisher.transaction(intents=log) as transaction:
                transaction.state = {"row": number}

    ended = await asyncio.gather(*map(run, logs), return_exceptions=True)
    assert [type(error) for error in ended] == [FencedError, *[type(None)] * 3]


async def test_a_record_elsewhere_is_not_a_new_beginning(client: Any, tmp_path: Path):
    log = IntentLog(tmp_path / "log", fence=FENCE)
    await log.recover(client.appends)
    await commit(Publisher(client.appends, json_adapter()), log, 1)
    (tmp_path / "other").mkdir()
    other = IntentLog(tmp_path / "other" / "log", fence=FENCE)
    with pytest.raises(StoreError, match=r"log\.1-1 is missing: .* recorded elsewhere"):
        await other.recover(client.appends)
    # Its owner wasn't disturbed.
    await commit(Publisher(client.appends, json_adapter()), log, 2)


async def test_a_fence_is_added_to_a_log_and_stays(client: Any, tmp_path: Path):
    async with IntentLog(tmp_path / "log") as plain:
        await commit(Publisher(client.appends, json_adapter()), plain, 1)
    async with IntentLog(tmp_path / "log", fence=FENCE) as log:
        assert await log.recover(client.appends) == {"row": 1}
        await commit(Publisher(client.appends, json_adapter()), log, 2)
        assert (record := await log.load())
        assert record.state == {"row": 2}
    assert files(tmp_path) == ["log.1-1", "log.lock"]
    with pytest.raises(StoreError, match="is of a log with a fence"):
        await plain.recover(client.appends)
    record = await IntentLog(tmp_path / "log", fence=FENCE).load()
    assert record
    assert record.state == {"row": 2}


async def test_brokers_that_lost_the_register(client: Any, tmp_path: Path):
    """The owner goes on and sets it again; or else the newest sound record counts."""
    log = IntentLog(tmp_path / "log", fence=FENCE)
    await log.recover(client.appends)
    publisher = Publisher(client.appends, json_adapter())
    await commit(publisher, log, 1)

    async def lose():
        # The registers of a journal that is created anew are empty.
        await client.apply([pb.ApplyRequest.Change(delete="fences", expect_mod_revision=-1)])
        await create(client, "fences")

    await lose()
    await commit(publisher, log, 2)
    await lose()
    await log.aclose()
    (tmp_path / "log.1-3").write_bytes(b"torn")
    again = IntentLog(tmp_path / "log", fence=FENCE)
    assert await again.recover(client.appends) == {"row": 2}
    await commit(publisher, again, 3)
    assert await committed(client) == rows(1, 2, 3)
    assert files(tmp_path) == ["log.2-1", "log.lock"]


async def test_answers_that_were_lost(broker: Any, client: Any, tmp_path: Path):
    """Each append to the fence's journal is made, and repeated: neither one fences its owner."""
    log = IntentLog(tmp_path / "log", fence=FENCE)
    publisher = Publisher(client.appends, json_adapter())
    lost = broker.control.cut("append", journal="fences", at="after_commit", times=2)
    assert await log.recover(client.appends) is None
    await commit(publisher, log, 1)
    assert lost.hits == 2
    lost = broker.control.cut("append", journal="fences", at="after_commit", times=2)
    await commit(publisher, log, 2)
    await log.aclose()
    assert lost.hits == 2
    assert await log.recover(client.appends) == {"row": 2}
    assert await committed(client) == rows(1, 2)


@pytest.mark.parametrize("fence", [None, FENCE])
async def test_a_later_recovery_appends_nothing(client: Any, tmp_path: Path, fence: Fence | None):
    log = IntentLog(tmp_path / "log", fence=fence)
    await log.recover(client.appends)
    await commit(Publisher(client.appends, json_adapter()), log, 1)
    heads = [await head_of(client, name) for name in (*JOURNALS, FENCE.journal)]
    assert await log.recover(client.appends) == {"row": 1}
    assert [await head_of(client, name) for name in (*JOURNALS, FENCE.journal)] == heads
    await log.aclose()


async def test_repeated_acknowledgements_are_no_error(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Readers see the acknowledgements that recovery repeats as regular."""
    await client.list()
    caplog.clear()  # A busy machine may take a while to connect.
    for fence in (None, FENCE):
        path = tmp_path / repr(fence)[:4]
        log = IntentLog(path, fence=fence)
        await log.recover(client.appends)
        publisher = Publisher(client.appends, json_adapter())
        await commit(publisher, log, 1)
        for _ in range(2):
            await log.aclose()
            await log.recover(client.appends)
        await commit(publisher, log, 2)
        await log.aclose()
        await log.recover(client.appends)
    assert await committed(client) == sorted(rows(1, 2) * 2)
    source = ReadCommittedIter(list(JOURNALS), json_adapter(), client=client)
    async with source as messages:
        async for _ in messages.arrow():
            pass
    assert "exactly-once semantics" not in caplog.text
    assert not caplog.records


async def test_a_missing_journal_of_the_fence(client: Any, tmp_path: Path):
    log = IntentLog(tmp_path / "log", fence=Fence("no/such", "etl"))
    with pytest.raises(pb.JournalNotFoundError):
        await log.recover(client.appends)
    await create(client, "no/such")
    assert await log.recover(client.appends) is None


def test_names_of_fences():
    for journal, name in (("", "etl"), ("/no", "etl"), ("j", "e"), ("j", "no spaces")):
        with pytest.raises(ValidationError):
            Fence(journal, name)


async def test_a_commit_in_doubt_is_recovered_with_the_fence(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Unless another owner has taken it meanwhile, which must not lose it again."""
    log = IntentLog(tmp_path / "log", fence=FENCE)
    publisher = Publisher(client.appends, json_adapter())
    with pytest.raises(StoreError, match="has a fence: call recover"):
        await commit(publisher, log, 0)
    await log.recover(client.appends)

    async def fail_to_decide(number: int) -> None:
        async def fail(_appends: Any) -> None:
            raise StoreError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(log, "decide", fail)
            with pytest.raises(StoreError, match=r"may commit, .* decides: no answer"):
                await commit(publisher, log, number)

    await commit(publisher, log, 1)
    await fail_to_decide(2)
    await commit(publisher, log, 3)
    assert await committed(client) == rows(1, 3)
    await fail_to_decide(4)
    elsewhere(log)
    other = IntentLog(log.path, fence=FENCE)
    assert await other.recover(client.appends) == {"row": 3}
    for _ in range(2):
        with pytest.raises(FencedError):
            await commit(publisher, log, 5)
    await commit(Publisher(client.appends, json_adapter()), other, 6)
    assert await committed(client) == rows(1, 3, 6)
