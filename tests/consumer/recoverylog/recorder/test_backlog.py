"""Content that is recorded faster than the event loop takes it over."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import Recorder, RecorderError
from gazette_aio.consumer.recoverylog.recording import backlog
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.recorder.support import open_recorder, play

MIB = 1 << 20
MIBS = 256


def block_number(number: int) -> bytes:
    return number.to_bytes(2, "big") * (MIB // 2)


def record_blocks(recorder: Recorder, fnode: int, count: int) -> None:
    for number in range(count):
        recorder.record_write_at(fnode, block_number(number), number * MIB)


SCRIPT = """
import asyncio
import threading
from pathlib import Path

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.consumer.recoverylog import FSM, Author, Recorder
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing.specs import create_journals, journal_spec

LOG = "a/log"


def resident(name):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith(name))


async def main():
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        await create_journals(client, journal_spec(LOG))
        fsm = FSM(FSMHints(log=LOG))
        async with await Recorder.open(client, LOG, fsm, Author(1), "/strip") as recorder:
            fnode = recorder.record_create("/strip/file")
            await recorder.barrier()

            def record():
                for number in range(MIBS):
                    block = number.to_bytes(2, "big") * (512 << 10)
                    recorder.record_write_at(fnode, block, number << 20)

            before = resident("VmRSS:")
            thread = threading.Thread(target=record)
            thread.start()
            thread.join()  # It blocks the event loop.
            response = await recorder.barrier()
            assert response.commit.end > MIBS << 20
            print(resident("VmHWM:") - before)


asyncio.run(main())
"""


@pytest.mark.slow  # It's another process, which imports everything.
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from /proc")
async def test_memory_is_bounded() -> None:
    """A thread records while the event loop is blocked, and all of it is appended then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.replace("MIBS", str(MIBS)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        env=os.environ | {"GRPC_VERBOSITY": "NONE"},
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert int(output) < MIBS * MIB // 3


async def test_files_end_as_they_are_read(
    client: JournalClient, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backlog, "KEPT_BYTES", 0)
    monkeypatch.setattr(backlog, "FILE_BYTES", 2 * MIB)
    opened: list[backlog._File] = []

    class File(backlog._File):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

    monkeypatch.setattr(backlog, "_File", File)
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    hold = broker.control.hold("append")
    with recorder.atomic():
        record_blocks(recorder, fnode, 6)
        assert len(opened) == 3
        assert not any(file.file.closed for file in opened)
    barrier = recorder.barrier()
    hold.remove()
    await barrier
    await recorder.aclose()
    assert all(file.file.closed for file in opened)
    assert (await play(client)).files == {"/file": b"".join(map(block_number, range(6)))}


async def test_a_full_disk_loses_nothing(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """What can't be spooled stays in memory. Later content may find room again."""
    monkeypatch.setattr(backlog, "KEPT_BYTES", 0)
    write, calls = os.pwrite, 0

    def full_at_times(descriptor: int, data: memoryview, offset: int) -> int:
        nonlocal calls
        if threading.current_thread() is not thread:
            return write(descriptor, data, offset)  # The broker has a disk of its own.
        calls += 1
        if calls % 3 == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: MIB // 2 + 3], offset)

    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        await recorder.barrier()
        thread = threading.Thread(target=record_blocks, args=(recorder, fnode, 8))
        monkeypatch.setattr(os, "pwrite", full_at_times)
        thread.start()
        thread.join()
        await recorder.barrier()
    assert (await play(client)).files == {"/file": b"".join(map(block_number, range(8)))}
    assert "recorded content stays in memory" in caplog.text


async def test_without_a_temporary_directory(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(backlog, "KEPT_BYTES", 0)

    def fail(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    async with await open_recorder(client) as recorder:
        fnode = recorder.record_create("/strip/file")
        await recorder.barrier()
        with monkeypatch.context() as patch:
            patch.setattr(backlog.tempfile, "TemporaryFile", fail)
            await asyncio.to_thread(record_blocks, recorder, fnode, 2)
        await recorder.barrier()
    assert (await play(client)).files == {"/file": block_number(0) + block_number(1)}
    assert "no temporary file for recorded content" in caplog.text


async def test_a_file_that_is_cut_short(client: JournalClient, monkeypatch: pytest.MonkeyPatch):
    """Nothing is appended after content that is lost."""
    monkeypatch.setattr(backlog, "KEPT_BYTES", 0)
    recorder = await open_recorder(client)
    fnode = recorder.record_create("/strip/file")
    await recorder.barrier()
    with recorder.atomic():
        record_blocks(recorder, fnode, 2)
        barrier = recorder.barrier()
        os.ftruncate(recorder._appends._backlog._last.file.fileno(), MIB)
    with pytest.raises(OSError, match="a temporary file of recorded content was cut short"):
        await barrier
    with pytest.raises(RecorderError, match="was cut short"):
        recorder.record_write_at(fnode, b"later", 0)
    await recorder.aclose()
    assert (await play(client)).files == {"/file": b""}


async def test_reading_back_is_cancelled_at_each_await(
    client: JournalClient, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
):
    """By closing, which is cancelled in turn. Files are closed, and whoever waits is told."""
    monkeypatch.setattr(backlog, "KEPT_BYTES", 0)
    recorders = [await open_recorder(client)]
    barriers: list[asyncio.Future[pb.AppendResponse]] = []

    async def recorded_and_closed() -> None:
        recorder = recorders[-1]
        fnode = recorder.record_create("/strip/file")
        record_blocks(recorder, fnode, 3)
        barriers.append(recorder.barrier())
        await recorder.aclose()

    async def check() -> None:
        await recorders[-1].aclose()
        assert barriers[-1].done()
        recorders.append(await open_recorder(client, allow_branch=True))

    assert await cancel_at_every_await(recorded_and_closed, check) >= 2
    await recorders[-1].aclose()
