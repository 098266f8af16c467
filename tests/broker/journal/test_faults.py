"""Full disks, I/O errors, and power losses."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.log import scan_records
from tests.broker.caller import WRITE_FAILURES, Caller, calling, journal_spec
from tests.broker.journal.faulty_files import FaultyFiles, LosingFiles

TEXTS = {
    errno.ENOSPC: "the broker's disk is full (no space left on device)",
    errno.EIO: "input/output error",
    errno.EROFS: "read-only file system",
}


async def _send(caller: Caller, chunks: tuple[bytes, ...]) -> None:
    call = caller.append_call()
    # Race: a call which is answered already takes no more, and the answer tells why.
    with contextlib.suppress(*WRITE_FAILURES):
        await call.write(pb.AppendRequest(journal="test/journal"))
        for chunk in chunks:
            await call.write(pb.AppendRequest(content=chunk))
    await call


async def _refused(caller: Caller, *chunks: bytes) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (_send(caller, chunks) if chunks else caller.append(b"lost"))
    assert raised.value.code() is grpc.StatusCode.UNKNOWN
    return raised.value.details() or ""


@pytest.mark.parametrize("size", [4, 3 << 20])
@pytest.mark.parametrize("error", TEXTS)
async def test_content_which_cannot_be_written_is_rolled_back(
    tmp_path: Path, error: int, size: int
) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="off", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            assert await caller.commit(b"kept") == 0
            files.fail("pwrite", ".spool", error)
            refused = await _refused(caller, *([b"x" * size] * (1 if size < 1 << 20 else 3)))
            assert refused == f"append stream: {TEXTS[error]}"
            assert files.failed
            files.heal()
            assert await caller.commit(b"more") == 4
            assert await caller.read() == b"keptmore"
            assert broker.stats()["gazette_spool_commits_total"] == 2


@pytest.mark.parametrize("fsync", ["off", "commit"])
@pytest.mark.parametrize("error", TEXTS)
@pytest.mark.parametrize("is_cut_at_once", [True, False])
async def test_appends_whose_log_entries_cannot_be_written_are_rolled_back(
    tmp_path: Path, fsync: str, error: int, is_cut_at_once: bool
) -> None:
    """The journal continues by itself, and nobody finds a part of them, also after a crash."""
    files = FaultyFiles()
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with EmbeddedBroker(data, fsync=fsync, files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            await caller.commit(b"ke")
            await caller.commit(b"pt")
            [log] = (data / "journals").rglob(f"{2:016x}.log")
            length = log.stat().st_size
            files.fail("pwrite", ".log", error)
            if not is_cut_at_once:
                files.fail("truncate", ".log")
            for expected in (error, error if is_cut_at_once else errno.ENOSPC):
                assert await _refused(caller) == f"append stream: {TEXTS[expected]}"
                with contextlib.suppress(OSError):  # The log can't be cut before a roll, either.
                    await broker.flush("test/journal")
            assert (log.stat().st_size == length) == is_cut_at_once
            assert await caller.read() == b"kept"
            files.heal()
            assert await caller.commit(b"more") == 4
            await broker.flush("test/journal")
            assert await caller.commit(b"still") == 8
            assert await caller.read() == b"keptmorestill"
            for each in (data / "journals").rglob("*.log"):
                assert scan_records(each.read_bytes())[1] == each.stat().st_size, "nothing is torn"
            shutil.copytree(data, copy)  # As a crash would leave it.
    for path in (copy, data):
        async with EmbeddedBroker(path) as broker, calling(broker.endpoint) as caller:
            assert await caller.read() == b"keptmorestill"


async def _told(broker: EmbeddedBroker) -> tuple[int, str, int]:
    """Return status and text of the probe, and the metric of stores that fail."""
    async with aiohttp.ClientSession(broker.http_endpoint) as session:
        async with session.get("/debug/ready") as probe, session.get("/debug/metrics") as metrics:
            ready, text = await probe.text(), await metrics.text()
    [count] = re.findall(r"^gazette_failing_stores (\d+)$", text, re.MULTILINE)
    return probe.status, ready, int(count)


@pytest.mark.parametrize("part", [".spool", "/meta/"], ids=["append", "apply"])
async def test_a_full_disk_is_told_to_probes_until_it_has_space(tmp_path: Path, part: str) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="off", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            assert await _told(broker) == (200, "", 0)
            files.fail("pwrite", part)
            applies = part == "/meta/"
            with pytest.raises(grpc.aio.AioRpcError, match="the broker's disk is full"):
                await (caller.create(journal_spec("test/b")) if applies else caller.append(b"lost"))
            text = "the broker's disk is full (no space left on device)"
            text = f"key space: {text}" if applies else text
            assert await _told(broker) == (200, f"the data directory fails: {text}\n", 1)
            assert broker.stats()["gazette_failing_stores"] == {"data directory": text}
            files.heal()
            await (caller.create(journal_spec("test/b")) if applies else caller.append(b"more"))
            assert await _told(broker) == (200, "", 0)


async def test_a_refused_change_is_told_until_something_is_written(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="off", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            files.fail("pwrite", "/meta/")
            with pytest.raises(grpc.aio.AioRpcError, match="the broker's disk is full"):
                await caller.create(journal_spec("test/b"))
            files.heal()
            assert (await _told(broker))[2] == 1
            await caller.append(b"written")
            assert await _told(broker) == (200, "", 0)


async def test_a_journal_whose_sync_fails_accepts_nothing_until_a_restart(tmp_path: Path) -> None:
    files = FaultyFiles()
    broker = EmbeddedBroker(tmp_path, fsync="commit", files=files)
    async with broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(), journal_spec("test/other"))
        await caller.commit(b"ke")
        await caller.commit(b"pt")
        await caller.commit(b"other", "test/other")
        files.fail("datasync", f"{2:016x}.log", errno.EIO)
        assert await _refused(caller) == "append stream: input/output error"
        files.heal()
        assert await _refused(caller) == "append stream: input/output error"
        assert await caller.read() == b"kept"
        assert await caller.commit(b"fine", "test/other") == 5
        # Probes are told of it, but not which journal it is.
        assert await _told(broker) == (200, "the data directory fails: input/output error\n", 1)
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        async with calling(broker.endpoint) as caller:
            # An append whose outcome was unknown may be there, as a whole.
            content = await caller.read()
            assert content in (b"kept", b"keptlost")
            assert await caller.commit(b"again") == len(content)


@pytest.mark.parametrize("operation", ["open", "pwrite", "make_directory", "datasync"])
async def test_a_journal_which_cannot_be_begun_can_be_begun_later(
    tmp_path: Path, operation: str
) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            files.fail(operation, "/journals/")
            assert await _refused(caller) == f"append stream: {TEXTS[errno.ENOSPC]}"
            assert await caller.read() == b""
    async with EmbeddedBroker(tmp_path, fsync="off") as broker:
        async with calling(broker.endpoint) as caller:
            content = await caller.read()
            assert content == b"" or operation == "datasync"
            assert await caller.commit(b"now") == len(content)


@pytest.mark.parametrize("operation", ["open", "pwrite", "datasync", "sync_directory"])
async def test_a_failed_roll_leaves_the_fragment(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            await caller.commit(b"first")
            part = "/journals/" if operation == "sync_directory" else f"{5:016x}"
            files.fail(operation, part)
            assert await _refused(caller) == f"append stream: {TEXTS[errno.ENOSPC]}"
            files.heal()
            assert await caller.commit(b"second") == 5
            assert await caller.read() == b"firstsecond"
    async with EmbeddedBroker(tmp_path) as broker, calling(broker.endpoint) as caller:
        assert await caller.read() == b"firstsecond"


@pytest.mark.parametrize(
    ("operation", "error"),
    [("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("datasync", errno.ENOSPC)],
)
@pytest.mark.parametrize("is_rolled_back_at_once", [True, False])
async def test_a_key_space_is_written_again_once_there_is_room(
    tmp_path: Path, operation: str, error: int, is_rolled_back_at_once: bool
) -> None:
    files = FaultyFiles()
    names = ["test/first", "test/last"]
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with EmbeddedBroker(data, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec("test/first"))
            [log] = (data / "meta").glob("*.log")
            length = log.stat().st_size
            files.fail(operation, "/meta/", error)
            if not is_rolled_back_at_once:
                files.fail("truncate", "/meta/")
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError, match="key space: "):
                    await caller.create(journal_spec("test/refused-with-a-long-name"))
            assert (log.stat().st_size == length) == is_rolled_back_at_once
            files.heal()
            assert [journal.spec.name for journal in await caller.journals()] == names[:1]
            await caller.create(journal_spec("test/last"))
            assert [journal.spec.name for journal in await caller.journals()] == names
            assert scan_records(log.read_bytes())[1] == log.stat().st_size, "nothing is torn"
            shutil.copytree(data, copy)  # As a crash would leave it.
    for path in (copy, data):
        async with EmbeddedBroker(path) as broker, calling(broker.endpoint) as caller:
            assert [journal.spec.name for journal in await caller.journals()] == names


async def test_what_a_key_space_refused_does_not_outlive_a_snapshot(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            files.fail("datasync", ".log")
            files.fail("truncate", ".log")
            with pytest.raises(grpc.aio.AioRpcError, match="key space: "):
                await caller.create(journal_spec("test/refused"))
            files.heal()
            files.fail("rename", ".log")  # The end of the broker has no snapshot.
    assert len(list((tmp_path / "meta").glob("*.log"))) == 1
    async with EmbeddedBroker(tmp_path) as broker, calling(broker.endpoint) as caller:
        assert [journal.spec.name for journal in await caller.journals()] == ["test/journal"]


async def test_a_key_space_which_cannot_be_synced_is_read_only(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(tmp_path, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            files.fail("datasync", "/meta/", errno.EIO)
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError, match="key space: input/output error"):
                    await caller.create(journal_spec("test/refused"))
                files.heal()
            assert [journal.spec.name for journal in await caller.journals()] == ["test/journal"]
            assert await caller.commit(b"works") == 0
    async with EmbeddedBroker(tmp_path) as broker, calling(broker.endpoint) as caller:
        assert "test/journal" in [journal.spec.name for journal in await caller.journals()]
        assert await caller.read() == b"works"


@pytest.mark.parametrize("operation", ["open", "pwrite", "rename", "make_directory"])
async def test_persisting_is_tried_again(tmp_path: Path, operation: str) -> None:
    files = FaultyFiles()
    async with EmbeddedBroker(
        tmp_path, fsync="off", files=files, persist_delay=0.0, persist_retry=0.01
    ) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///"]))
            await caller.commit(b"content")
            files.fail(operation, "fragments/test/journal")
            with pytest.raises(OSError, match="No space left on device"):
                await broker.flush("test/journal")
            assert await caller.read() == b"content"
            assert not list((tmp_path / "fragments" / "test").rglob("*content*"))
            files.heal()
            await broker.flush("test/journal")
            assert [f.backing_store for f in await caller.fragments()] == ["file:///"]
            assert await caller.read() == b"content"
            left = [p.name for p in (tmp_path / "fragments" / "test").rglob("*") if p.is_file()]
            assert [name.partition("-")[0] for name in left] == [f"{0:016x}"]


async def test_a_persisted_fragment_is_recorded_again_if_that_fails(tmp_path: Path) -> None:
    files = FaultyFiles()
    options: dict[str, Any] = {"persist_delay": 3600.0, "persist_retry": 3600.0}
    async with EmbeddedBroker(tmp_path, fsync="commit", files=files, **options) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(stores=["file:///"]))
            await caller.commit(b"content")
            files.fail("open", "fragments/test/journal")
            with pytest.raises(OSError, match="No space left on device"):
                await broker.flush("test/journal")
            files.heal()
            files.fail("datasync", f"{0:016x}.log", errno.EIO)
            for _ in range(2):
                with pytest.raises(OSError, match="Input/output error"):
                    await broker.flush("test/journal")
            files.heal()
            await broker.flush("test/journal")
            assert [f.backing_store for f in await caller.fragments()] == ["file:///"]
            assert await caller.commit(b" goes on") == 7
    async with EmbeddedBroker(tmp_path) as broker, calling(broker.endpoint) as caller:
        assert await caller.read() == b"content goes on"


async def test_acknowledged_appends_survive_a_power_loss(tmp_path: Path) -> None:
    files = LosingFiles()
    path = tmp_path / "data"
    async with EmbeddedBroker(path, fsync="commit", files=files) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec(length=1024))
            expected = b""
            for number in range(12):
                content = f"{number:03},".encode() * 40
                registers = pb.label_set("last", str(number))
                assert await caller.commit(content, union_registers=registers) == len(expected)
                expected += content
            await caller.create(journal_spec("test/second"))
            # One more is under way as the power goes.
            call = caller.append_call()
            await call.write(pb.AppendRequest(journal="test/journal"))
            await call.write(pb.AppendRequest(content=b"never acknowledged" * 5000))
            await caller.read()
            shutil.copytree(path, tmp_path / "copy")
            files.frozen = True
            call.cancel()
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    files.lose_power(path)
    async with EmbeddedBroker(path, fsync="commit") as broker:
        async with calling(broker.endpoint) as caller:
            assert [j.spec.name for j in await caller.journals()] == ["test/journal", "test/second"]
            assert await caller.read() == expected
            selector = pb.LabelSelector(include=pb.label_set("last", "11"))
            assert await caller.commit(b"!", check_registers=selector) == len(expected)


async def test_without_syncs_a_power_loss_leaves_a_beginning(tmp_path: Path) -> None:
    files = LosingFiles()
    path = tmp_path / "data"
    async with EmbeddedBroker(path, fsync="interval", files=files, sync_interval=60) as broker:
        async with calling(broker.endpoint) as caller:
            await caller.create(journal_spec())
            await caller.commit(b"first ")
            await broker.flush("test/journal")  # A roll syncs what is before it.
            await caller.commit(b"second")
            shutil.copytree(path, tmp_path / "copy")
            files.frozen = True
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    files.lose_power(path)
    async with EmbeddedBroker(path) as broker, calling(broker.endpoint) as caller:
        assert await caller.read() == b"first "
        assert await caller.commit(b"2nd") == 6
