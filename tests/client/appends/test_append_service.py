from __future__ import annotations

import array
import asyncio
import contextlib
import gc
import logging
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    AppendService,
    AsyncAppend,
    AsyncOperation,
    JournalClient,
    RetryPolicy,
    StrictAppendService,
    connect,
)
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.appends.spool_files import SpoolFiles, full_disk, unlimited
from tests.client.appends.support import write
from tests.client.support import JOURNAL, MemoryJournals, committed, refused
from tests.waiting import eventually, turns

UNAVAILABLE = StubError(grpc.StatusCode.UNAVAILABLE, "gone")
OTHER = "b/journal"


async def test_a_basic_append(journals: MemoryJournals, service: AppendService) -> None:
    journals.failures = [UNAVAILABLE, StubError(grpc.StatusCode.UNKNOWN, "an error")]
    journals.gate.clear()
    append = await service.start_append(JOURNAL)
    assert append.request == pb.AppendRequest(journal=JOURNAL)
    assert append.write(b"hello, ") == 7
    append.writer.write(bytearray(b"world"))
    assert not append.done()
    append.release()

    await eventually(lambda: journals.begun)
    assert service.status().pending_bytes == 12
    (barrier,) = service.pending_except("")
    assert not barrier.done()
    assert service.pending_except(JOURNAL) == set()
    assert not append.done()
    with pytest.raises(asyncio.InvalidStateError):
        _ = append.response
    with pytest.raises(asyncio.InvalidStateError):
        append.exception()

    journals.gate.set()
    response = await append
    await barrier
    assert append.response is response
    assert append.exception() is None
    assert (response.commit.begin, response.commit.end) == (0, 12)
    assert append.commit_range == (0, 12)
    assert journals.begun == 3
    assert journals.contents[JOURNAL] == b"hello, world"
    assert await append is response
    await eventually(lambda: service.status().journals == 0)
    assert service.pending_except("") == set()


async def test_a_pipeline_with_roll_backs(journals: MemoryJournals, service: AppendService) -> None:
    class PotatoError(Exception):
        pass

    def rolled_back(append: AsyncAppend, data: bytes) -> None:
        append.write(data)
        error = PotatoError("whoops")
        assert append.require(None).require(error).require(PotatoError("later")) is append
        with pytest.raises(PotatoError, match="whoops"):
            append.release()
        assert append.done()
        assert append.exception() is error

    rolled_back(await service.start_append(JOURNAL), b"aborted first write")
    one = await write(service, JOURNAL, b"write one")
    rolled_back(await service.start_append(JOURNAL), b"ABT")
    two = await write(service, JOURNAL, b" write two")
    rolled = await service.start_append(JOURNAL)
    rolled_back(rolled, b"ABORT ABORT")

    assert one.batch is two.batch is rolled.batch
    assert (await one) is (await two)
    assert journals.appended == [(JOURNAL, b"write one write two")]
    assert one.commit_range == (0, 9)
    assert two.commit_range == (9, 19)
    with pytest.raises(PotatoError):
        await rolled


async def test_as_a_context(journals: MemoryJournals, service: AppendService) -> None:
    async with service.append(JOURNAL) as kept:
        kept.write(b"kept")
    dropped: AsyncAppend | None = None
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with service.append(JOURNAL) as append:
            dropped = append
            append.write(b"dropped")
            raise ZeroDivisionError
    with pytest.raises(OSError, match="required"):  # noqa: PT012
        async with service.append(JOURNAL) as required:
            required.write(b"dropped, too")
            required.require(OSError("required"))
    with pytest.raises(asyncio.CancelledError):  # noqa: PT012
        async with service.append(JOURNAL) as cancelled:
            cancelled.write(b"and this")
            raise asyncio.CancelledError
    await kept
    assert dropped is not None
    assert dropped.done()
    assert journals.contents[JOURNAL] == b"kept"


async def test_long_batches_are_followed_by_others(
    journals: MemoryJournals, client: JournalClient
) -> None:
    async with AppendService(client, cutoff_bytes=8) as service:
        appends = [await write(service, JOURNAL, b"hello, world") for _ in range(3)]
        assert len({id(append.batch) for append in appends}) == 3
        quick = [service.try_append(JOURNAL, b"quick fox") for _ in range(2)]
        await asyncio.gather(*appends)
    assert journals.appended == [(JOURNAL, b"hello, world")] * 3 + [(JOURNAL, b"quick fox")] * 2
    assert [append.commit_range for append in appends] == [(0, 12), (12, 24), (24, 36)]
    assert all(append is not None and append.done() for append in quick)


async def test_other_requests_are_not_mixed(
    journals: MemoryJournals, service: AppendService
) -> None:
    request = pb.AppendRequest(journal=JOURNAL, union_registers=pb.label_set("a-label", "1"))
    one = await write(service, request, b"one")
    same = await write(service, request, b"same")
    request.union_registers.labels[0].value = "2"
    other = await write(service, request, b"other")
    plain = await write(service, JOURNAL, b"plain")
    spelled = await write(service, pb.AppendRequest(journal=JOURNAL), b"spelled")
    assert one.batch is same.batch
    assert one.batch is not other.batch
    assert one.request.union_registers.labels[0].value == "1"
    assert plain.batch is spelled.batch
    await spelled
    assert [data for _, data in journals.appended] == [b"onesame", b"other", b"plainspelled"]


async def test_appends_gather_while_one_is_under_way(
    journals: MemoryJournals, service: AppendService
) -> None:
    journals.gate.clear()
    first = await write(service, JOURNAL, b"first")
    await eventually(lambda: journals.begun)
    rest = [await write(service, JOURNAL, b"%d" % i) for i in range(10)]
    assert len(service.pending_except("")) == 1
    journals.gate.set()
    await asyncio.gather(first, *rest)
    assert journals.appended == [(JOURNAL, b"first"), (JOURNAL, b"0123456789")]
    assert rest[3].commit_range == (8, 9)


async def test_an_append_races_the_end_of_the_worker(
    journals: MemoryJournals, service: AppendService
) -> None:
    for number in range(20):
        append = await write(service, JOURNAL, b"x")
        appended = asyncio.ensure_future(append)
        await turns(number)
        await (await write(service, JOURNAL, b"y"))
        await appended
    assert journals.contents[JOURNAL].count(b"x") == 20
    assert len(journals.contents[JOURNAL]) == 40


async def test_one_holder_at_a_time(journals: MemoryJournals, service: AppendService) -> None:
    held = await service.start_append(JOURNAL)
    assert service.try_append(JOURNAL, b"no") is None
    order: list[int] = []

    async def next_in_line(number: int) -> None:
        async with service.append(JOURNAL) as append:
            order.append(number)
            append.write(b"%d" % number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(next_in_line(number)) for number in range(5)]
    await turns()
    assert order == []
    tasks[2].cancel()
    await asyncio.wait((tasks[2],))
    held.write(b"held ")
    await (await write(service, OTHER, b"later"))
    assert journals.begun == 1
    held.release()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    await service.flush()
    assert journals.contents[JOURNAL] == b"held 0134"


async def test_release_and_misuse(service: AppendService, journals: MemoryJournals) -> None:
    append = await service.start_append(JOURNAL)
    assert "held" in repr(append)
    with pytest.raises(RuntimeError, match="must be released"):
        await append
    append.release()
    for misuse in (
        lambda: append.release(),
        lambda: append.write(b"late"),
        lambda: append.require(None),
        lambda: append.writer,
    ):
        with pytest.raises(RuntimeError, match="that was released"):
            misuse()
    await append
    assert "committed" in repr(append)


async def test_cancelling_the_service(
    broker: StubBroker, journals: MemoryJournals, service: AppendService
) -> None:
    journals.gate.clear()
    first = await write(service, JOURNAL, b"first")
    dependent = await write(service, OTHER, b"dependent", service.pending_except(OTHER))
    held = await service.start_append("c/journal")
    await eventually(lambda: journals.begun)
    service.cancel()
    service.cancel()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await first
    with pytest.raises((pb.DependencyError, pb.TransportError)):
        await dependent
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await service.start_append(JOURNAL)
    assert service.try_append(JOURNAL, b"no") is None
    held.write(b"no")
    held.release()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await held
    # The appends are forgotten, but no barrier succeeds.
    [barrier] = service.pending_except("")
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await barrier
    journals.gate.set()
    await eventually(lambda: broker.open_rpcs == 0)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (pb.Status.FRAGMENT_STORE_UNHEALTHY, "no disk", pb.FragmentStoreUnhealthyError),
        (pb.Status.JOURNAL_NOT_FOUND, "", pb.JournalNotFoundError),
        (pb.Status.REGISTER_MISMATCH, "", pb.RegisterMismatchError),
    ],
)
async def test_final_statuses(
    journals: MemoryJournals,
    strict_service: StrictAppendService,
    status: pb.Status.ValueType,
    text: str,
    error: type[pb.BrokerStatusError],
) -> None:
    service = strict_service
    journals.failures = [refused(status, text)]
    request = pb.AppendRequest(
        journal=JOURNAL, check_registers=pb.LabelSelector(include=pb.label_set("a-label", "1"))
    )
    append = await write(service, request, b"content")
    with pytest.raises(error) as raised:
        await append
    assert str(raised.value).startswith(text)
    assert journals.begun == 1

    # All that follows fails without an RPC, until the error is cleared.
    assert service.try_append(JOURNAL, b"later") is None
    later = await write(service, JOURNAL, b"later")
    with pytest.raises(error):
        await later
    (failed,) = service.pending_except("")
    assert isinstance(failed.exception(), error)
    with pytest.raises(error):
        await service.flush()
    assert service.status().failed_journals == 1
    assert journals.begun == 1

    assert isinstance(service.clear_error(JOURNAL), error)
    assert service.clear_error(JOURNAL) is None
    await (await write(service, JOURNAL, b"again"))
    assert journals.contents[JOURNAL] == b"again"


async def test_appends_are_given_up(
    journals: MemoryJournals, strict_service: StrictAppendService
) -> None:
    service, log, owned = strict_service, "the/log", "owned/journal"
    for journal, status in (
        (JOURNAL, pb.Status.JOURNAL_NOT_FOUND),
        (log, pb.Status.JOURNAL_NOT_FOUND),
        (owned, pb.Status.REGISTER_MISMATCH),
    ):
        journals.failures = [refused(status)]
        with pytest.raises(pb.BrokerStatusError):
            await (await write(service, journal, b"content"))
    journals.failures = [refused(pb.Status.NOT_ALLOWED)]
    pending = await write(service, OTHER, b"content")
    await service.give_up(log)
    assert isinstance(pending.exception(), pb.NotAllowedError)
    for journal in (JOURNAL, OTHER):
        await (await write(service, journal, b"again"))
    for journal, error in (log, pb.JournalNotFoundError), (owned, pb.RegisterMismatchError):
        with pytest.raises(error):
            await (await write(service, journal, b"again"))


async def test_order_along_a_cycle_of_dependencies(
    journals: MemoryJournals, service: AppendService
) -> None:
    journals.gate.clear()
    appends: list[AsyncAppend] = []
    for journal in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa", "cccc"):
        dependencies = service.pending_except(journal)
        first = await write(service, journal, journal[:1].encode(), dependencies)
        second = await write(service, journal, b"!", dependencies)
        assert first.batch is second.batch
        appends += [first, second]
    journals.gate.set()
    await asyncio.gather(*appends)
    assert journals.appended == [
        (journal, journal[:1].encode() + b"!")
        for journal in ("aaaa", "bbbb", "cccc", "bbbb", "aaaa", "cccc")
    ]


async def test_failing_dependencies(journals: MemoryJournals, service: AppendService) -> None:
    one, two = AsyncOperation(), AsyncOperation()
    first = await write(service, JOURNAL, b"first", {one})
    second = await write(service, JOURNAL, b"second", {two})
    assert first.batch is not second.batch
    cause = OSError("an error")
    one.resolve(cause)
    for append in (first, second):
        with pytest.raises(pb.DependencyError, match=r"^dependency failed: an error$") as raised:
            await append
        assert raised.value.__cause__ is cause
    assert all(failed.exception() for failed in service.pending_except(""))
    assert journals.begun == 0
    with pytest.raises(asyncio.InvalidStateError):
        one.resolve()


async def test_dependencies_are_awaited(journals: MemoryJournals, service: AppendService) -> None:
    one, two = AsyncOperation(), AsyncOperation()
    append = await write(service, JOURNAL, b"content", {one, two})
    joined = await write(service, JOURNAL, b" joined", {one})
    free = await write(service, JOURNAL, b" free")
    assert append.batch is joined.batch is free.batch
    one.resolve()
    await (await write(service, OTHER, b"later"))
    assert journals.begun == 1
    two.resolve()
    await append
    assert journals.contents[JOURNAL] == b"content joined free"


async def test_handles_are_dependencies(journals: MemoryJournals, service: AppendService) -> None:
    journals.gate.clear()
    one = await write(service, JOURNAL, b"one")
    two = await write(service, OTHER, b"two", {one})
    follower = await write(service, JOURNAL, b"follower", {one})
    assert follower.batch is not one.batch
    journals.gate.set()
    await asyncio.gather(one, two, follower)
    assert journals.appended.index((JOURNAL, b"one")) < journals.appended.index((OTHER, b"two"))

    rolled_back = await service.start_append(JOURNAL)
    rolled_back.require(OSError("rolled back"))
    with pytest.raises(OSError, match="rolled back"):
        rolled_back.release()
    with pytest.raises(pb.DependencyError, match="rolled back"):
        await (await write(service, OTHER, b"three", {rolled_back}))


async def test_a_sole_roll_back_needs_no_rpc(
    journals: MemoryJournals, service: AppendService
) -> None:
    append = await service.start_append(
        pb.AppendRequest(journal=JOURNAL, union_registers=pb.label_set("a-label", "1"))
    )
    append.write(b"content")
    (barrier,) = service.pending_except("")
    append.require(OSError("no"))
    with pytest.raises(OSError, match="no"):
        append.release()
    await barrier
    await eventually(lambda: service.status().journals == 0)
    assert journals.begun == 0
    with pytest.raises(OSError, match="no"):
        await append
    with pytest.raises(asyncio.InvalidStateError):
        _ = append.response


async def test_an_empty_append_is_a_barrier(
    journals: MemoryJournals, service: AppendService
) -> None:
    append = await service.start_append(JOURNAL)
    append.release()
    response = await append
    assert (response.commit.begin, response.commit.end) == (0, 0)
    assert journals.appended == [(JOURNAL, b"")]
    quick = service.try_append(JOURNAL, b"")
    assert quick is not None
    await quick
    assert journals.begun == 2


async def test_failures_nobody_awaits_are_quiet(
    journals: MemoryJournals, service: AppendService, caplog: pytest.LogCaptureFixture
) -> None:
    journals.failures = [refused(pb.Status.JOURNAL_NOT_FOUND)]
    service.try_append(JOURNAL, b"content")
    await eventually(lambda: service.pending_except(JOURNAL))
    assert [r.levelno for r in caplog.records if "gazette" in r.name] == [logging.WARNING]
    assert not [r for r in caplog.records if r.name == "asyncio"]


async def test_quick_appends(journals: MemoryJournals, service: AppendService) -> None:
    appends = [service.try_append(JOURNAL, b"%03d" % number) for number in range(1000)]
    assert all(append is not None and not append.done() for append in appends)
    slow = await write(service, JOURNAL, b"slow")
    await slow
    for number in (0, 1, 500, 999):
        append = appends[number]
        assert append is not None
        assert append.commit_range == (3 * number, 3 * number + 3)
        assert (await append) is slow.response
    assert journals.contents[JOURNAL] == b"".join(b"%03d" % n for n in range(1000)) + b"slow"
    assert journals.begun == 1
    with pytest.raises(pb.ValidationError, match="Journal"):
        service.try_append("/bad", b"content")
    with pytest.raises(pb.ValidationError, match="Journal"):
        await service.start_append("/bad")
    with pytest.raises(pb.ValidationError, match="unexpected Content"):
        await service.start_append(pb.AppendRequest(journal=JOURNAL, content=b"content"))
    await eventually(lambda: service.status().journals == 0)


async def test_a_try_in_another_thread_leaves_nothing_behind(
    journals: MemoryJournals, service: AppendService
) -> None:
    # It raises, as no event loop runs there. The journal's appends go on.
    with pytest.raises(RuntimeError, match="no running event loop"):
        await asyncio.to_thread(service.try_append, JOURNAL, b"lost")
    append = service.try_append(JOURNAL, b"content")
    assert append is not None
    await append
    assert journals.contents[JOURNAL] == b"content"


@pytest.mark.parametrize("memory", [0, 32 << 20])
async def test_quick_appends_make_way(
    journals: MemoryJournals, client: JournalClient, service: AppendService, memory: int
) -> None:
    """Without suspension content can't be sent, or move out of memory, so that there's a limit."""
    client.context.append_memory.free_bytes = memory
    piece = bytes(64 << 10)
    count = 0
    while service.try_append(JOURNAL, piece) is not None:
        count += 1
        assert count < 100
    assert 16 <= count <= 40
    await write(service, JOURNAL, b"awaited")
    await asyncio.sleep(0)
    assert service.try_append(JOURNAL, piece) is not None
    await service.flush()
    assert len(journals.contents[JOURNAL]) == (count + 1) * len(piece) + 7


async def test_appends_without_end_leave_turns_to_others(
    journals: MemoryJournals, service: AppendService
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        piece = bytes(64 << 10)
        for _ in range(160):
            if service.try_append(JOURNAL, piece) is None:
                await write(service, JOURNAL, piece)
        for _ in range(160):
            await write(service, JOURNAL, piece)
        counting.cancel()
    assert 40 <= turns <= 100
    await service.flush()
    assert len(journals.contents[JOURNAL]) == 320 * len(piece)


@pytest.mark.usefixtures("journals")
async def test_tasks_that_append_at_once_don_t_get_in_line(service: AppendService) -> None:
    await (await write(service, JOURNAL, b"the first"))
    piece = bytes(16 << 10)
    tasks = [asyncio.create_task(write(service, JOURNAL, piece)) for _ in range(50)]
    await turns(3)
    assert all(task.done() for task in tasks)
    await service.flush()


async def test_content_stays_in_memory_as_long_as_some_is_left(
    journals: MemoryJournals,
    client: JournalClient,
    service: AppendService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SpoolFiles(monkeypatch)
    memory = client.context.append_memory
    piece = bytes(range(256)) * 1200
    memory.free_bytes = 8 * len(piece)
    journals.failures = [UNAVAILABLE]
    journals.gate.clear()
    await write(service, JOURNAL, b"first")
    await eventually(lambda: journals.begun)
    for _ in range(6):
        await write(service, JOURNAL, piece)
    rolled_back = await service.start_append(JOURNAL)
    rolled_back.write(piece * 2)
    await rolled_back.drain()
    assert memory.free_bytes == 0
    rolled_back.roll_back(OSError("no"))
    assert memory.free_bytes == 2 * len(piece)

    # The memory is that of all journals, and of all services of the client.
    async with AppendService(client) as another:
        for _ in range(2):
            await write(another, OTHER, piece)
        assert (memory.free_bytes, files.calls) == (0, [])
        await write(another, OTHER, piece)
        await write(another, OTHER, b"")  # It moves what's before out of memory.
        assert files.calls.count("write") == 1
        await write(service, JOURNAL, piece)
        await write(service, JOURNAL, b"")
        assert files.calls.count("write") == 2
        journals.gate.set()
        await service.flush()
    assert journals.contents == {JOURNAL: b"first" + piece * 7, OTHER: piece * 3}
    assert memory.free_bytes == 8 * len(piece)


async def test_failed_appends_need_no_memory(
    journals: MemoryJournals, client: JournalClient
) -> None:
    before = client.context.append_memory.free_bytes
    async with AppendService(client) as service:
        journals.gate.clear()
        await write(service, JOURNAL, bytes(300 << 10))
        await eventually(lambda: journals.begun)
        held = await service.start_append(JOURNAL)
        held.write(bytes(300 << 10))
        await held.drain()
        assert client.context.append_memory.free_bytes == before - (600 << 10)
        service.cancel()
        await eventually(lambda: not service.status().batches)
        assert client.context.append_memory.free_bytes == before
        with contextlib.suppress(pb.TransportError):
            held.release()


@pytest.mark.usefixtures("no_memory")
async def test_a_full_disk_only_delays(
    journals: MemoryJournals, service: AppendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SpoolFiles(monkeypatch, full_disk)
    journals.gate.clear()
    await write(service, JOURNAL, b"first")
    await eventually(lambda: journals.begun)
    for _ in range(6):
        await write(service, JOURNAL, bytes(200 << 10))
    waiting = asyncio.create_task(write(service, JOURNAL, b"last"))
    before = len(files.calls)
    await eventually(lambda: len(files.calls) > before + 5)
    assert not waiting.done()
    files.seam = unlimited
    await waiting
    journals.gate.set()
    await service.flush()
    assert journals.contents[JOURNAL] == b"first" + bytes(1200 << 10) + b"last"


@pytest.mark.usefixtures("no_memory")
async def test_draining_waits_while_the_disk_is_full(
    journals: MemoryJournals, service: AppendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SpoolFiles(monkeypatch, full_disk)
    async with service.append(JOURNAL) as append:
        append.write(bytes(2 << 20))
        draining = asyncio.create_task(append.drain())
        await eventually(lambda: draining.done() or len(files.calls) > 5)
        assert not draining.done()
        files.seam = unlimited
        await draining
        assert append.batch.buffer.filed == 2 << 20
    await service.flush()
    assert journals.contents[JOURNAL] == bytes(2 << 20)


@pytest.mark.usefixtures("no_memory")
async def test_a_full_disk_does_not_stop_appends(
    journals: MemoryJournals, service: AppendService, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpoolFiles(monkeypatch, full_disk)
    for _ in range(20):
        await write(service, JOURNAL, bytes(200 << 10))
    await service.flush()
    assert journals.contents[JOURNAL] == bytes(20 * (200 << 10))


async def test_full_batches_hold_up_appends(
    journals: MemoryJournals, client: JournalClient
) -> None:
    async with AppendService(client, cutoff_bytes=10, max_pending_bytes=30) as service:
        journals.gate.clear()
        for _ in range(3):
            await write(service, JOURNAL, b"hello, world")
        assert service.try_append(JOURNAL, b"no") is None
        waiting = asyncio.create_task(write(service, JOURNAL, b"waited"))
        elsewhere = await write(service, OTHER, b"not full")
        await turns()
        assert not waiting.done()
        journals.gate.set()
        await (await waiting)
        await elsewhere
    assert journals.contents[JOURNAL] == b"hello, world" * 3 + b"waited"


async def test_closing_drains(journals: MemoryJournals, client: JournalClient) -> None:
    async with AppendService(client) as service:
        append = service.try_append(JOURNAL, b"content")
    assert append is not None
    assert append.commit_range == (0, 7)
    with pytest.raises(RuntimeError, match="closed"):
        await service.start_append(JOURNAL)
    assert service.try_append(JOURNAL, b"late") is None
    await service.aclose()


async def test_closing_is_bounded(
    broker: StubBroker, journals: MemoryJournals, client: JournalClient
) -> None:
    journals.gate.clear()
    service = AppendService(client, drain_timeout=0.02)
    append = await write(service, JOURNAL, b"content")
    await service.aclose()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await append
    journals.gate.set()
    await eventually(lambda: broker.open_rpcs == 0)


async def test_journals_without_pending_appends_cost_nothing(
    journals: MemoryJournals, service: AppendService
) -> None:
    before = len(asyncio.all_tasks())
    for number in range(100):
        service.try_append(f"many/{number:04}", b"content")
    assert service.status().journals == 100
    await service.flush()
    await eventually(lambda: service.status().journals == 0)
    await eventually(lambda: len(asyncio.all_tasks()) <= before)  # Those of the broker end, too.
    assert len(journals.contents) == 100


async def test_an_unclosed_service_warns(journals: MemoryJournals, client: JournalClient) -> None:
    service = AppendService(client)
    journals.gate.clear()
    append = service.try_append(JOURNAL, b"content")
    assert "7 pending bytes in 1 batches of 1 journals" in repr(service)
    with pytest.warns(ResourceWarning, match="never closed"):
        service.__del__()
    journals.gate.set()
    await service.aclose()
    assert append is not None


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_service_which_is_left_behind_ends(
    journals: MemoryJournals,
    client: JournalClient,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = asyncio.all_tasks()

    async def leave_behind() -> None:
        service = AppendService(client, spool_directory=str(tmp_path))
        append = await service.start_append(JOURNAL)  # Which nobody releases.
        append.write(bytes(4 << 20))
        await append.drain()
        await asyncio.sleep(0)  # The task waits for the append.
        del append, service
        gc.collect()

    descriptors = _open_descriptors()
    # The collector may take the spool before the service, and then warns of it as well.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await leave_behind()
        await eventually(lambda: asyncio.all_tasks() <= before)
        await eventually(lambda: _open_descriptors() <= descriptors)
    assert any("never closed" in str(warning.message) for warning in caught)
    assert JOURNAL not in journals.contents
    await eventually(lambda: "were started by now fail" in caplog.text)
    # The collector closes the coroutine of the task as well, which can't be cancelled then.
    assert "broke off" not in caplog.text
    assert "already awaited" not in caplog.text


async def test_it_needs_nothing_before_its_first_use() -> None:
    client = JournalClient("http://127.0.0.1:1")
    assert client.status().connection == "idle"
    assert client.status().appends.journals == 0
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await client.append(JOURNAL, b"content")
    with pytest.raises(RuntimeError, match="closed"):
        await client.appends.start_append(JOURNAL)


async def test_invalid_responses_are_not_asked_for_without_end(
    broker: StubBroker, service: AppendService
) -> None:
    rpcs = 0

    async def answer(requests: AsyncIterator[pb.AppendRequest]) -> pb.AppendResponse:
        nonlocal rpcs
        rpcs += 1
        async for _ in requests:
            pass
        return committed(100, 107)

    broker.append_handler = answer
    append = await write(service, JOURNAL, b"foobar")
    with pytest.raises(pb.ValidationError, match="validating broker response"):
        await append
    assert rpcs == 4


async def test_registers_are_not_modified_by_nothing(
    journals: MemoryJournals, service: AppendService
) -> None:
    request = pb.AppendRequest(journal=JOURNAL, union_registers=pb.label_set("name", "1"))
    append = await write(service, request, b"")
    with pytest.raises(pb.ValidationError, match="requires non-empty Append"):
        await append
    assert journals.begun == 0
    service.clear_error(JOURNAL)
    await (await write(service, request, b"content"))
    assert journals.contents[JOURNAL] == b"content"


@pytest.mark.usefixtures("no_memory")
@pytest.mark.slow
async def test_a_full_disk_does_not_split_a_journal(
    journals: MemoryJournals,
    client: JournalClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One who waits for a full disk may find that the journal had nothing pending meanwhile."""
    SpoolFiles(monkeypatch, full_disk)
    attempts: list[int] = []

    def backoff(attempt: int) -> float:
        attempts.append(attempt)
        return 5.0  # A busy machine sends the batch meanwhile.

    policy = RetryPolicy(backoff=backoff)
    async with AppendService(client, retry_policy=policy) as service:
        dependency = AsyncOperation()
        await write(service, JOURNAL, bytes(2 << 20), {dependency})
        attempts.clear()
        waiting = asyncio.create_task(service.start_append(JOURNAL))
        await eventually(lambda: attempts)
        dependency.resolve()
        await eventually(lambda: service.status().journals == 0)
        assert not waiting.done()
        journals.gate.clear()
        first = service.try_append(JOURNAL, b"first")
        assert first is not None
        second = await waiting
        second.write(b"second")
        second.release()
        assert (service.status().journals, service.status().batches) == (1, 2)
        journals.gate.set()
        await second
    assert journals.contents[JOURNAL][-11:] == b"firstsecond"


async def test_appends_do_not_keep_what_went_before_them(
    journals: MemoryJournals, service: AppendService
) -> None:
    before = await write(service, JOURNAL, b"before")
    await before
    append = await write(service, JOURNAL, b"behind", {before})
    assert append.batch.dependencies == {before}
    await append
    assert not append.batch.dependencies


async def test_what_is_missing_is_not_appended_behind(
    journals: MemoryJournals, broker: StubBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it's missing because of something unforeseen."""
    tokens: list[Any] = [ZeroDivisionError("no token"), "token"]

    def source() -> str:
        token = tokens.pop(0)
        if isinstance(token, Exception):
            raise token
        assert isinstance(token, str)
        return token

    async with connect(broker.endpoint, auth=source) as client:
        first = await write(client.appends, JOURNAL, b"first")
        with pytest.raises(ZeroDivisionError):
            await first
        with pytest.raises(ZeroDivisionError):
            await client.appends.flush()
        assert isinstance(client.appends.clear_error(JOURNAL), ZeroDivisionError)
        await (await write(client.appends, JOURNAL, b"third"))
    assert journals.contents[JOURNAL] == b"third"
    assert "broke off" in caplog.text


async def test_beginning_anew_upon_failure(
    journals: MemoryJournals, service: AppendService
) -> None:
    """What a callback appends when the task of a journal died isn't part of that failure."""
    journals.gate.clear()
    append = await write(service, JOURNAL, b"first")
    again: list[AsyncAppend | None] = []

    def begin_anew() -> None:
        service.clear_error(JOURNAL)
        again.append(service.try_append(JOURNAL, b"again"))

    append.operation.when_done(begin_anew)
    await eventually(lambda: journals.begun)
    (worker,) = (t for t in asyncio.all_tasks() if t.get_name() == f"gazette append {JOURNAL}")
    worker.cancel()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await append
    journals.gate.set()
    (second,) = again
    assert second is not None
    await second
    assert journals.contents[JOURNAL].endswith(b"again")


@pytest.mark.parametrize("is_held", [False, True])
async def test_what_waits_behind_a_failure_fails_even_if_it_is_cleared(
    journals: MemoryJournals, service: AppendService, is_held: bool
) -> None:
    journals.gate.clear()
    journals.failures = [refused(pb.Status.NOT_ALLOWED)]
    first = await write(service, JOURNAL, b"first")
    await eventually(lambda: journals.begun)
    behind = await write(service, JOURNAL, b"behind")
    registers = pb.AppendRequest(journal=JOURNAL, union_registers=pb.label_set("name", "1"))
    last = await write(service, registers, b"last")
    held = await service.start_append(registers) if is_held else None
    again: list[AsyncAppend | None] = []

    def begin_anew() -> None:
        assert isinstance(service.clear_error(JOURNAL), pb.NotAllowedError)
        if not is_held:
            again.append(service.try_append(JOURNAL, b"again"))

    first.operation.when_done(begin_anew)
    journals.gate.set()
    for append in (first, behind, last):
        with pytest.raises(pb.NotAllowedError):
            await append
    if held is not None:
        held.write(b"held")
        held.release()
        with pytest.raises(pb.NotAllowedError):
            await held
        again.append(await write(service, JOURNAL, b"again"))
    (anew,) = again
    assert anew is not None
    await anew
    assert anew.commit_range == (0, 5)
    assert journals.contents[JOURNAL] == b"again"
    assert journals.begun == 2
    await eventually(lambda: service.status().journals == 0)


async def test_contexts_do_not_mask_exceptions(
    journals: MemoryJournals, service: AppendService
) -> None:
    async def fail(act: Callable[[AsyncAppend], object]) -> AsyncAppend:
        append: AsyncAppend | None = None
        with contextlib.suppress(ZeroDivisionError):
            async with service.append(JOURNAL) as append:
                append.write(b"content")
                act(append)
                raise ZeroDivisionError
            raise AssertionError("it was swallowed")
        assert append is not None
        return append

    released = await fail(lambda append: append.release())
    await released
    other = await fail(lambda append: append.require(pb.StoreError("no")))
    with pytest.raises(pb.StoreError):
        await other
    with pytest.raises(pb.StoreError, match="no"):
        async with service.append(JOURNAL) as third:
            third.require(pb.StoreError("no"))
    await (await write(service, JOURNAL, b", kept"))
    assert journals.contents[JOURNAL] == b"content, kept"


async def test_lengths_are_in_bytes(journals: MemoryJournals, service: AppendService) -> None:
    async with service.append(JOURNAL) as append:
        assert append.write(memoryview(array.array("I", [1, 2]))) == 8
    assert (await append).commit.end == 8


async def test_a_closed_service_does_not_warn_of_who_holds_on(
    journals: MemoryJournals, client: JournalClient
) -> None:
    service = AppendService(client, drain_timeout=0.01)
    held = await service.start_append(JOURNAL)
    await service.aclose()
    service.__del__()
    held.write(b"late")
    held.release()
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await held
    assert service.status().journals == 0


async def test_it_belongs_to_one_event_loop_also_with_appends_pending(
    journals: MemoryJournals, client: JournalClient
) -> None:
    journals.gate.clear()
    append = await write(client.appends, JOURNAL, b"content")
    await eventually(lambda: journals.begun)
    request = pb.AppendRequest(journal=JOURNAL)

    def elsewhere() -> None:
        asyncio.run(client.appends.start_append(request))  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
    journals.gate.set()
    await append
