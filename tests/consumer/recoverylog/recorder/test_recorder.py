"""Recording of changes, and what playback makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.consumer.recoverylog import (
    FSM,
    Barrier,
    Recorder,
    RecorderError,
    decode_hints,
    encode_hints,
)
from gazette_aio.consumer.recoverylog.recording import recorder as recording
from gazette_aio.consumer.recoverylog.recording.encoder import MAX_WRITE_BYTES
from gazette_aio.consumer.recoverylog.recording.recorder import HAND_OVER_BYTES
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing.specs import create_journals, journal_spec
from tests.consumer.recoverylog.recorder.support import (
    FIRST,
    LOG,
    OTHER_LOG,
    SECOND,
    close,
    kinds,
    open_recorder,
    play,
    read_log,
)
from tests.waiting import eventually

BLOCKS = 20


async def test_two_creates(client: JournalClient, broker: EmbeddedBroker):
    appends = broker.control.observe("append")
    async with await open_recorder(client) as recorder:
        first = recorder.record_create("/strip/path/one")
        response = await recorder.barrier()
        second = recorder.record_create("/strip/path/two")
        hints = await recorder.build_hints()
    played = await play(client)
    assert kinds(played.ops) == ["no-op", "create", "create"]
    assert [op.create.path for op in played.ops[1:]] == ["/path/one", "/path/two"]
    assert [op.seq_no for op in played.ops[1:]] == [first, second] == [2, 3]
    assert [node.fnode for node in hints.live_nodes] == [2, 3]
    segments = [node.segments[0] for node in hints.live_nodes]
    for segment, op in zip(segments, played.ops[1:], strict=True):
        assert (segment.first_offset, segment.last_offset) == (op.first_offset, op.last_offset)
        assert segment.first_checksum == op.checksum
    assert response.commit.end == segments[0].last_offset
    checks = [request.check_registers for request in appends.requests if request.journal]
    assert [len(check.include.labels) for check in checks] == [0, 0, 1, 1]
    assert checks[-1].include == FIRST.fence()


async def test_create_and_remove(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/path")
        recorder.record_remove("/strip/path")
        assert await recorder.build_hints() == FSMHints(log=LOG)
    assert kinds((await play(client)).ops) == ["no-op", "create", "unlink"]


async def test_a_second_create_makes_another_file(client: JournalClient):
    async with await open_recorder(client) as recorder:
        old = recorder.record_create("/strip/path")
        recorder.record_write_at(old, b"old", 0)
        new = recorder.record_create("/strip/path")
        assert not recorder.is_live(old)
        recorder.record_write_at(new, b"n", 0)
        hints = await recorder.build_hints()
    assert [node.fnode for node in hints.live_nodes] == [new]
    assert (await play(client, hints)).files == {"/path": b"n"}


async def test_links(client: JournalClient):
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/path")
        recorder.record_link("/strip/path", "/strip/other")
        recorder.record_write_at(fnode, b"content", 0)
        assert recorder.links() == {"/path": fnode, "/other": fnode}
        hints = await recorder.build_hints()
    assert (await play(client, hints)).files == {"/path": b"content", "/other": b"content"}


async def test_renames(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip//target/path")
        fnode = recorder.record_create("/strip//source/path")
        await recorder.barrier()
        recorder.record_rename("/strip//source/path", "/strip/target/path")
        recorder.record_rename("/strip/target/path", "/strip/target/./path")
        recorder.record_link("/strip/target/path", "/strip/second")
        recorder.record_rename("/strip/second", "/strip/target/path")
        hints = await recorder.build_hints()
        assert recorder.links() == {"/target/path": fnode, "/second": fnode}
    played = await play(client, hints)
    assert kinds(played.ops) == [
        "no-op",
        "create",
        "create",
        "unlink",
        "link",
        "unlink",
        "link",
    ]
    assert played.files == {"/target/path": b"", "/second": b""}


async def test_writes(client: JournalClient):
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/path")
        recorder.record_write_at(fnode, b"first-write", 0)
        recorder.record_write_at(fnode, b"", 11)
        recorder.record_write_at(fnode, bytearray(b"second-write"), 11)
        recorder.record_write_at(fnode, memoryview(b"F"), 0)
        hints = await recorder.build_hints()
        with pytest.raises(ValueError, match="negative"):
            recorder.record_write_at(fnode, b"", -1)
    played = await play(client, hints)
    assert [op.write.length for op in played.ops[2:]] == [11, 0, 12, 1]
    assert played.files == {"/path": b"First-writesecond-write"}


async def test_properties(client: JournalClient, tmp_path: Path):
    directory = tmp_path / "recorded"
    (directory / "sub").mkdir(parents=True)
    async with await open_recorder(client, directory=directory) as recorder:
        for path in (directory, directory / "sub"):
            (path / "IDENTITY").write_text("value")
            recorder.record_create(path / "temporary")
            recorder.record_rename(path / "temporary", path / "IDENTITY")
        assert recorder.properties() == {"/IDENTITY": "value"}
        hints = await recorder.build_hints()
    played = await play(client, hints)
    assert kinds(played.ops)[2:4] == ["property", "unlink"]
    assert played.files == {"/IDENTITY": b"value", "/sub/IDENTITY": b""}


@pytest.mark.parametrize("content", [b"\xff", None])
async def test_a_property_that_cannot_be_read(
    client: JournalClient, tmp_path: Path, content: bytes | None
):
    """The file was renamed, and the history doesn't have it: nothing may follow."""
    async with await open_recorder(client, directory=tmp_path) as recorder:
        if content is not None:
            (tmp_path / "IDENTITY").write_bytes(content)
        recorder.record_create(tmp_path / "temporary")
        await recorder.barrier()
        with pytest.raises((UnicodeDecodeError, FileNotFoundError)) as caught:
            recorder.record_rename(tmp_path / "temporary", tmp_path / "IDENTITY")
        with pytest.raises(RecorderError, match=r"IDENTITY' can't be read"):
            recorder.record_create(tmp_path / "other")
        with pytest.raises(RecorderError, match="can't be read"):
            await recorder.barrier()
        assert str(caught.value) in str(recorder.error)
    assert (await play(client)).files == {"/temporary": b""}


@pytest.mark.parametrize(
    "path", ["relative", "/strip", "/strip/", "/stripped/file", "/strip/../file", "/strip/\udcff"]
)
async def test_paths_elsewhere(client: JournalClient, path: str):
    async with await open_recorder(client) as recorder:
        with pytest.raises(ValueError, match=r"isn't below|utf-8"):
            recorder.record_create(path)
        recorder.record_create("/strip/file")
        await recorder.barrier()


@pytest.mark.parametrize("directory", ["relative", "/not/./clean", "/unclean/"])
async def test_directories(client: JournalClient, directory: str):
    with pytest.raises(
        pb.ConfigurationError, match=r"recorder\.Dir is not an absolute, clean path"
    ):
        await open_recorder(client, directory=directory)


async def test_misuse_poisons(client: JournalClient):
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    committed = recorder.barrier()
    with pytest.raises(RecorderError, match="delete of unknown path '/other'"):
        recorder.record_remove("/strip/other")
    for call in (
        lambda: recorder.record_write_at(fnode, b"", 0),
        lambda: recorder.record_create("/strip/another"),
        lambda: recorder.atomic().__enter__(),
        recorder.barrier().result,
    ):
        with pytest.raises(RecorderError, match="records nothing further: delete of unknown path"):
            call()
    await committed
    await close(recorder)
    assert isinstance(recorder.error, RecorderError)


async def test_a_write_to_a_dead_file_poisons(client: JournalClient):
    recorder = await open_recorder(client)
    with pytest.raises(RecorderError, match="recorder FSM error: fnode not tracked"):
        recorder.record_write_at(99, b"content", 0)
    with pytest.raises(RecorderError, match="records nothing further"):
        recorder.record_write_at(99, b"content", 0)
    await close(recorder)


async def test_many_bytes_are_appended_without_a_barrier(
    client: JournalClient, broker: EmbeddedBroker
):
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        head = (await recorder.barrier()).commit.end
        appends = broker.control.observe("append", journal=LOG)
        page = bytes(4096)
        for number in range(HAND_OVER_BYTES // len(page)):
            recorder.record_write_at(fnode, page, number * len(page))
        await eventually(lambda: appends.requests)
        assert recorder.recorded_bytes > HAND_OVER_BYTES
        await eventually(lambda: _head_is_beyond(client, head + HAND_OVER_BYTES))


async def _head_is_beyond(client: JournalClient, offset: int) -> bool:
    return len(await read_log(client)) > offset


async def test_a_long_write_is_recorded_in_parts(client: JournalClient):
    content = bytes(range(256)) * (3 * MAX_WRITE_BYTES // 256) + b"end"
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        recorder.record_write_at(fnode, content, 0)
        await recorder.barrier()
    played = await play(client)
    assert [op.write.length for op in played.ops[2:]] == [MAX_WRITE_BYTES] * 3 + [3]
    assert played.files == {"/file": content}


async def test_an_atomic_block_is_one_append(client: JournalClient, broker: EmbeddedBroker):
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        await recorder.barrier()
        appends = broker.control.observe("append", journal=LOG)
        part = bytes(HAND_OVER_BYTES - 100)
        with recorder.atomic():
            for number in range(5):
                recorder.record_write_at(fnode, part, number * len(part))
            within = recorder.barrier()
            with recorder.atomic():
                recorder.record_link("/strip/file", "/strip/other")
            with pytest.raises(RuntimeError, match=r"within atomic\(\)"):
                recorder.barrier([asyncio.get_running_loop().create_future()])
            for _ in range(100):
                await asyncio.sleep(0)
            assert not within.done()
            head = len(await read_log(client))
        committed = await within
        assert len(appends.requests) == 1
        assert committed.commit.begin == head
        assert recorder.links() == {"/file": fnode, "/other": fnode}
    assert (await play(client)).files == dict.fromkeys(("/file", "/other"), part * 5)


async def test_a_long_atomic_block_is_appended_at_its_end(client: JournalClient):
    async with await open_recorder(client) as recorder:
        with recorder.atomic():
            fnode = recorder.record_create("/strip/file")
            recorder.record_write_at(fnode, bytes(3 * HAND_OVER_BYTES), 0)
        await eventually(lambda: _head_is_beyond(client, 3 * HAND_OVER_BYTES))


async def test_what_precedes_a_long_atomic_block_is_committed_amid_it(
    client: JournalClient, broker: EmbeddedBroker
):
    recorder = await open_recorder(client)
    hold = broker.control.hold("append", journal=LOG)
    recorder.record_create("/strip/sent")
    sent = recorder.barrier()
    await hold.held()
    recorder.record_create("/strip/before")
    before = recorder.barrier()
    with recorder.atomic():
        fnode = recorder.record_create("/strip/within")
        recorder.record_write_at(fnode, bytes(HAND_OVER_BYTES), 0)
        # The content is to be appended before the others are.
        for _ in range(1000):
            await asyncio.sleep(0)
        hold.remove()
        await sent
        await before
        assert (await play(client)).files == {"/sent": b"", "/before": b""}
    await recorder.barrier()
    assert set((await play(client)).files) == {"/sent", "/before", "/within"}
    await close(recorder)


async def test_an_atomic_block_that_raises_keeps_what_is_recorded(client: JournalClient):
    async with await open_recorder(client) as recorder:
        with contextlib.suppress(KeyError), recorder.atomic():
            recorder.record_create("/strip/file")
            raise KeyError
        await recorder.barrier()
        assert (await play(client)).files == {"/file": b""}


async def test_waiting_within_an_atomic_block(client: JournalClient):
    """It would be for ever, as the block ends after it. Others may wait meanwhile."""

    async def wait() -> None:
        await barrier

    async with await open_recorder(client) as recorder:
        with recorder.atomic(), recorder.atomic():
            recorder.record_create("/strip/task")
            barrier = recorder.barrier()
            with pytest.raises(RuntimeError, match="end of the atomic"):
                await barrier
            with pytest.raises(RuntimeError, match="end of the atomic"):
                await recorder.build_hints()
            with pytest.raises(RuntimeError, match="can't wait for futures"):
                recorder.barrier([barrier])
            other = asyncio.create_task(wait())
            await asyncio.sleep(0)
            assert not other.done()
        await other
        await barrier
        assert recorder.error is None
    assert (await play(client)).files == {"/task": b""}


async def test_misuse_within_an_atomic_block_drops_it(
    client: JournalClient, broker: EmbeddedBroker
):
    recorder = await open_recorder(client, drain_timeout=10_000)
    recorder.record_create("/strip/before")
    before = recorder.barrier()
    with contextlib.suppress(RecorderError), recorder.atomic():
        fnode = recorder.record_create("/strip/within")
        within = recorder.barrier()
        recorder.record_write_at(fnode, bytes(HAND_OVER_BYTES), 0)
        recorder.record_remove("/strip/unknown")
    with pytest.raises(RecorderError, match="delete of unknown path"):
        await within
    await before
    # The append that the block held is given up. Otherwise this would wait for it.
    await recorder.aclose()
    assert (await play(client)).files == {"/before": b""}


async def test_a_barrier_waits_for_futures(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/before")
        dependency: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        barrier = recorder.barrier([dependency])
        recorder.record_create("/strip/after")
        later = recorder.barrier()
        await eventually(lambda: _head_is_beyond(client, recorder.recorded_bytes // 2))
        assert (await play(client)).files == {"/before": b""}
        assert not barrier.done()
        assert not later.done()
        dependency.set_result(None)
        await later
        assert barrier.done()
        assert (await play(client)).files == {"/before": b"", "/after": b""}
        with pytest.raises(TypeError, match="expected futures"):
            recorder.barrier([object()])  # type: ignore[list-item]


@pytest.mark.parametrize("size", [1, 3 * HAND_OVER_BYTES])
@pytest.mark.parametrize("end", ["success", "failure", "cancellation", "close"])
async def test_a_barrier_waits_for_futures_amid_a_block_of_another_thread(
    client: JournalClient, size: int, end: str
):
    """What the block records after it waits, too, and so all of the block does."""
    begun, may_end = threading.Event(), threading.Event()

    def block() -> None:
        with recorder.atomic():
            fnode = recorder.record_create("/strip/before")
            recorder.record_write_at(fnode, bytes(size), 0)
            begun.set()
            may_end.wait()
            recorder.record_create("/strip/within")

    recorder = await open_recorder(client, drain_timeout=10_000 if end != "close" else 0.01)
    thread = asyncio.create_task(asyncio.to_thread(block))
    await asyncio.to_thread(begun.wait)
    dependency: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        barrier = recorder.barrier([dependency])
    finally:
        may_end.set()
        await thread
    recorder.record_create("/strip/after")
    later = recorder.barrier()
    for _ in range(10):
        await client.append(OTHER_LOG, b"content")
    assert (await play(client)).files == {}
    assert not barrier.done()
    files: dict[str, bytes] = {}
    if end == "success":
        dependency.set_result(None)
        await later
        assert barrier.done()
        files = {"/before": bytes(size), "/within": b"", "/after": b""}
    elif end == "failure":
        dependency.set_exception(KeyError("lost"))
        with pytest.raises(pb.DependencyError, match="dependency failed: 'lost'"):
            await barrier
        with pytest.raises((RecorderError, pb.DependencyError)):
            await later
    else:
        if end == "cancellation":
            recorder.cancel()
        else:
            await recorder.aclose()
        for each in (barrier, later):
            with pytest.raises(pb.TransportError, match="CANCELLED"):
                await each
    await close(recorder)
    assert (await play(client)).files == files


async def test_a_failed_dependency(client: JournalClient):
    recorder = await open_recorder(client)
    dependency: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    barrier = recorder.barrier([dependency])
    recorder.record_create("/strip/after")
    dependency.set_exception(KeyError("lost"))
    with pytest.raises(pb.DependencyError, match="lost"):
        await barrier
    with pytest.raises(RecorderError, match="records nothing further: dependency failed"):
        recorder.record_create("/strip/another")
    with pytest.raises(RecorderError):
        await recorder.barrier()
    await close(recorder)
    assert (await play(client)).files == {}


async def test_a_fresh_history_on_a_used_log(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/file")
    with pytest.raises(pb.RecoveryError, match="has content up to"):
        await open_recorder(client, author=SECOND)
    assert (await play(client)).files == {"/file": b""}


async def test_remaining_hints(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/file")
        hints = await recorder.build_hints()
    with pytest.raises(pb.RecoveryError, match="has remaining hints"):
        await open_recorder(client, fsm=FSM(hints), author=SECOND)


async def test_a_fork(client: JournalClient):
    async with await open_recorder(client) as recorder:
        recorder.record_create("/strip/file1")
        hints = await recorder.build_hints()
    played = await play(client, hints)
    async with await open_recorder(client, log=OTHER_LOG, fsm=played.fsm, author=SECOND) as fork:
        with pytest.raises(pb.RecoveryError, match="to equal the last Segment Log"):
            await fork.build_hints()
        fork.record_create("/strip/file2")
        forked = await fork.build_hints()
    assert forked.log == OTHER_LOG
    first, second = forked.live_nodes
    assert (first.segments[0].log, second.segments[0].log) == (LOG, "")
    ops = (await play(client, log=OTHER_LOG, hints=None)).ops
    assert kinds(ops) == ["no-op", "create"]
    assert second.fnode == ops[1].seq_no
    assert second.segments[0].first_offset == ops[1].first_offset
    FSM(forked)


async def test_hints_load_and_stay_within_a_budget(client: JournalClient):
    async with await open_recorder(client) as recorder:
        fnodes = [recorder.record_create(f"/strip/{number}") for number in range(20)]
        gap = bytes(5 << 20)
        for number in range(3):
            short_lived = recorder.record_create("/strip/short-lived")
            recorder.record_write_at(short_lived, gap, 0)
            recorder.record_remove("/strip/short-lived")
            for fnode in fnodes:
                recorder.record_write_at(fnode, b"%d" % number, number)
        newest = recorder.record_create("/strip/newest")
        split = await recorder.build_hints()
        assert {len(node.segments) for node in split.live_nodes} == {4, 1}
        assert split.live_nodes[-1].fnode == newest
        joined = await recorder.build_hints(budget_bytes=6000)
        assert sum(len(node.segments) for node in joined.live_nodes) < 81
        await recorder.build_hints(budget_bytes=1)
    assert len(encode_hints(joined)) <= 6000
    assert decode_hints(encode_hints(split)) == split
    expected = {f"/{number}": b"012" for number in range(20)} | {"/newest": b""}
    for hints in (split, joined):
        played = await play(client, hints)
        assert played.files == expected
        # Playback of joined segments reads what lies in their gaps, and passes over it.
        assert gap not in played.contents.values()
        assert len(played.applied) == 81


async def test_offsets_of_hints_hold_where_others_append(client: JournalClient):
    async with await open_recorder(client) as recorder:
        for name in ("a", "b", "c", "d"):
            await client.append(LOG, b"... garbage data ...")
            fnode = recorder.record_create(f"/strip/{name}")
            recorder.record_create(f"/strip/{name}-alone")
            await recorder.barrier()
            await client.append(LOG, b"... more of it ...")
            recorder.record_write_at(fnode, b"content", 0)
            hints = await recorder.build_hints()
    played = await play(client, hints)
    assert played.files == {
        f"/{name}{suffix}": content
        for name in ("a", "b", "c", "d")
        for suffix, content in (("", b"content"), ("-alone", b""))
    }
    assert len(hints.live_nodes) == 8
    for node in hints.live_nodes:
        (segment,) = node.segments
        ops = [op for op in played.ops if node.fnode in (op.write.fnode, op.seq_no)]
        assert segment.first_offset == ops[0].first_offset
        assert segment.last_offset == ops[-1].last_offset


async def test_threads_hammer_one_recorder(client: JournalClient):
    files, rounds = 6, 40
    async with await open_recorder(client) as recorder:
        barriers = []

        def hammer(number: int) -> None:
            path = f"/strip/{number}"
            fnode = recorder.record_create(path)
            for step in range(rounds):
                with recorder.atomic():
                    recorder.record_write_at(fnode, b"%02d" % step * 5000, 0)
                    recorder.record_write_at(fnode, b"%02d" % step, 10000)
                recorder.record_link(path, f"{path}-linked")
                recorder.record_remove(f"{path}-linked")
                barriers.append(recorder.barrier())

        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(files)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        hints = await recorder.build_hints()
    last = b"%02d" % (rounds - 1)
    played = await play(client, hints)
    assert played.files == {f"/{number}": last * 5001 for number in range(files)}


def record_blocks(recorder: Recorder, fnode: int, done: threading.Semaphore) -> None:
    for number in range(BLOCKS):
        recorder.record_write_at(fnode, bytes([number]) * HAND_OVER_BYTES, number * HAND_OVER_BYTES)
        done.release()


async def test_a_thread_waits_for_the_event_loop(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
):
    """Memory is bounded, however slow brokers are; the event loop itself doesn't wait."""
    monkeypatch.setattr(recording, "STALL_SECONDS", 10_000)
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        done = threading.Semaphore(0)
        thread = threading.Thread(target=record_blocks, args=(recorder, fnode, done))
        thread.start()
        for _ in range(recording.QUEUED_BYTES // HAND_OVER_BYTES):
            done.acquire()  # It blocks the event loop.
        assert not done.acquire(timeout=0.1)
        recorder.record_create("/strip/other")
        await asyncio.to_thread(thread.join)
        await recorder.barrier()
    files = (await play(client)).files
    assert files["/file"] == b"".join(bytes([number]) * HAND_OVER_BYTES for number in range(BLOCKS))


async def test_a_thread_that_the_event_loop_waits_for_goes_on(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recording, "STALL_SECONDS", 0.001)
    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        done = threading.Semaphore(0)
        thread = threading.Thread(target=record_blocks, args=(recorder, fnode, done))
        thread.start()
        thread.join()  # It blocks the event loop.
        await recorder.barrier()
    assert len((await play(client)).files["/file"]) == BLOCKS * HAND_OVER_BYTES


async def test_a_thread_that_waits_goes_on_after_a_cancellation(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recording, "STALL_SECONDS", 10_000)
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    barrier = recorder.barrier([never])
    with recorder.atomic():
        done = threading.Semaphore(0)
        thread = asyncio.create_task(asyncio.to_thread(record_blocks, recorder, fnode, done))
        await asyncio.to_thread(done.acquire)
        recorder.cancel()
        await thread
    with pytest.raises(pb.TransportError, match="CANCELLED"):
        await barrier
    await recorder.aclose()


async def test_after_closing(client: JournalClient):
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    await recorder.aclose()
    await recorder.aclose()
    assert (await play(client)).files == {"/file": b""}
    with pytest.raises(RecorderError, match="it was closed"):
        recorder.record_write_at(fnode, b"", 0)
    with pytest.raises(RecorderError, match="it was closed"):
        await recorder.barrier()
    assert "it was closed" in repr(recorder)


@pytest.mark.parametrize("length", [1, 3 * HAND_OVER_BYTES])
async def test_closing_commits_no_part_of_an_atomic_block(client: JournalClient, length: int):
    recorder = await open_recorder(client)
    recorder.record_create("/strip/before")
    await recorder.barrier()
    with recorder.atomic():
        fnode = recorder.record_create("/strip/file")
        for _ in range(3):
            recorder.record_write_at(fnode, bytes(length), 0)
            await asyncio.sleep(0)
        barrier = recorder.barrier()
        await recorder.aclose()
        with pytest.raises(RecorderError, match="closed within an atomic block"):
            await barrier
        with pytest.raises(RecorderError, match="closed within an atomic block"):
            recorder.record_write_at(fnode, b"more", 0)
    assert (await play(client)).files == {"/before": b""}


def test_a_closed_event_loop(tmp_path: Path):
    """Threads that outlive the event loop aren't blocked, and their barriers fail."""
    recorder: Recorder | None = None

    async def run() -> None:
        nonlocal recorder
        async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
            async with connect(broker.endpoint) as client:
                await create_journals(client, journal_spec(LOG))
                recorder = await open_recorder(client)
                recorder.cancel()
                await recorder.aclose()

    asyncio.run(run())
    assert recorder is not None
    recorder.record_create("/strip/file")
    assert isinstance(recorder.barrier().exception(), pb.TransportError)


async def test_barriers_at_any_moment(client: JournalClient):
    """Tasks make barriers also between the end of an append's task and the callbacks of that."""

    async def make_barriers(begin: int) -> None:
        for turns in range(begin, begin + 100):
            for _ in range(turns % 12):
                await asyncio.sleep(0)
            barriers.append(recorder.barrier())

    barriers: list[Barrier] = []
    async with await open_recorder(client) as recorder:
        await asyncio.gather(make_barriers(0), make_barriers(5))
        await asyncio.gather(*barriers)
        assert recorder.error is None


@pytest.mark.parametrize("path", ["/strip/.fnodes", "/strip/.fnodes/file", "/strip/nul\0"])
async def test_paths_that_playback_refuses(client: JournalClient, path: str):
    async with await open_recorder(client) as recorder:
        with pytest.raises(ValueError, match="can't be recovered"):
            recorder.record_create(path)
        assert recorder.error is None
