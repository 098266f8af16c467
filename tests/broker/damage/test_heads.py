"""Heads, which show what is acknowledged: never ahead of the truth."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.heads import Head, Heads
from gazette_aio.broker.host.options import BrokerOptions
from gazette_aio.broker.inspection import Inspection
from gazette_aio.serving.rpc_error import RpcError
from tests.broker.caller import journal_spec
from tests.broker.journal.crash_files import Disk, Loss, RecordingFiles, write_tree
from tests.broker.journal.faulty_files import BootedFiles
from tests.broker.journal.test_crash_points import CLAIMS, read, running, send
from tests.broker.served import serve_apply
from tests.cancellation import cancel_at

NAME = "test/journal"


@pytest.fixture
def heads(tmp_path: Path) -> Iterator[Heads]:
    heads = Heads(BootedFiles("now"), tmp_path / "heads")
    heads.create({}, sync=False)
    yield heads
    heads.close()


def loaded(tmp_path: Path, boot: str = "now") -> Heads:
    heads = Heads(BootedFiles(boot), tmp_path / "heads")
    assert heads.load()
    return heads


def test_the_newest_sound_half_counts(heads: Heads, tmp_path: Path) -> None:
    written = [Head(0, 10, 50), Head(0, 20, 90), Head(20, 20, 40)]
    for head in written:
        heads.record("1-a", head, durable=True)
        assert loaded(tmp_path).get("1-a") == head
    heads.record("2-b", Head(0, 1, 2), durable=True)
    whole = heads.path.read_bytes()
    for position in range(256, 512):
        data = bytearray(whole)
        data[position] ^= 1
        heads.path.write_bytes(data)
        found = loaded(tmp_path)
        assert found.get("1-a") in written[1:]
        assert found.get("2-b") == Head(0, 1, 2)


def test_a_head_never_goes_back(heads: Heads, tmp_path: Path) -> None:
    heads.record("1-a", Head(100, 120, 80), durable=True)
    for older in (Head(100, 110, 60), Head(0, 100, 900)):
        heads.record("1-a", older, durable=True)
        assert loaded(tmp_path).get("1-a") == heads.get("1-a") == Head(100, 120, 80)
    heads.restart("1-a", Head(100, 110, 60))
    assert loaded(tmp_path).get("1-a") == heads.get("1-a") == Head(100, 110, 60)


def test_a_head_of_a_boot_counts_until_the_next_one(heads: Heads, tmp_path: Path) -> None:
    heads.record("1-a", Head(0, 10, 50), durable=True)
    heads.record("1-a", Head(0, 20, 90), durable=False)
    heads.record("2-b", Head(0, 1, 2), durable=False)
    assert loaded(tmp_path).get("1-a") == heads.get("1-a") == Head(0, 20, 90)
    later = loaded(tmp_path, "later")
    assert (later.get("1-a"), later.names) == (Head(0, 10, 50), {"1-a"})
    unknown = loaded(tmp_path, "")
    assert unknown.get("1-a") == Head(0, 10, 50)
    unknown.record("1-a", Head(0, 20, 90), durable=False)
    assert unknown.get("1-a") == Head(0, 10, 50)


def test_slots_are_used_again(heads: Heads, tmp_path: Path) -> None:
    for number in range(50):
        name = f"{number}-a"
        heads.record(name, Head(0, number, 1), durable=True)
        heads.record(name, Head(0, number, 2), durable=False)
        assert loaded(tmp_path).names == {"0-a", name}
        if number:
            heads.remove(name)
            assert heads.get(name) is None
    found = loaded(tmp_path, "later")
    for number in range(3):
        found.record(f"{number}-b", Head(1, 1, 1), durable=False)
    found.close()
    assert loaded(tmp_path).get("0-a") == Head(0, 0, 1)
    assert heads.path.stat().st_size <= 256 * 5


async def test_files_are_closed(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    async with running(tmp_path / "data", files) as core:
        request = pb.ApplyRequest()
        request.changes.add(upsert=journal_spec(NAME))
        await serve_apply(core, CLAIMS, request)
        await send(core, b"content", journal=NAME)
        opened = files.open_files
        await send(core, b"content", journal=NAME)
        assert files.open_files == opened
    assert files.open_files == 0


@pytest.mark.parametrize("restored", ["heads", "journals", "meta"])
async def test_a_part_of_a_backup_never_gives_an_offset_twice(
    tmp_path: Path, restored: str
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    for name, content in ((NAME, b"first "), ("test/later", b"second")):
        async with running(data, FileOps()) as core:
            request = pb.ApplyRequest()
            request.changes.add(upsert=journal_spec(name))
            await serve_apply(core, CLAIMS, request)
            await send(core, content, journal=NAME)
        if name == NAME:
            shutil.copytree(data, backup)
    if restored == "heads":
        shutil.copy(backup / "heads", data / "heads")
    else:
        shutil.rmtree(data / restored)
        shutil.copytree(backup / restored, data / restored)
    if restored == "meta":
        with pytest.raises(pb.StoreError, match="revision 3 was acknowledged"):
            await BrokerCore.open(BrokerOptions(), data)
        return
    async with running(data, FileOps()) as core:
        if restored == "journals":
            with pytest.raises(RpcError, match="content was acknowledged up to 12"):
                await send(core, b"!", journal=NAME)
        else:
            assert await read(core, NAME, 0, 12) == b"first second"
            assert (await send(core, b"!", journal=NAME)).commit.begin == 12


async def test_a_cancelled_roll_is_no_damage(tmp_path: Path) -> None:
    """The fragment which it had made is given up, and has no head."""
    for number in itertools.count():
        directory = tmp_path / str(number)
        async with running(directory, FileOps()) as core:
            request = pb.ApplyRequest()
            request.changes.add(upsert=journal_spec(NAME))
            await serve_apply(core, CLAIMS, request)
            await send(core, b"content", journal=NAME)
            replica = await core.replica(core.space.get(NAME))
            was_cancelled = await cancel_at(replica.roll(replica.head.offset), number)
        async with running(directory, FileOps()) as core:
            assert await read(core, NAME, 0, 7) == b"content"
            assert (await send(core, b"!", journal=NAME)).commit.end == 8
        if not was_cancelled:
            assert number > 0
            return


async def test_a_cancelled_roll_that_a_power_loss_brings_back_is_no_damage(tmp_path: Path) -> None:
    """The names of its files were durable, and their removal wasn't."""
    for number in itertools.count():
        directory = tmp_path / str(number)
        directory.mkdir()
        files = RecordingFiles(directory)
        async with running(directory / "data", files) as core:
            request = pb.ApplyRequest()
            request.changes.add(upsert=journal_spec(NAME))
            await serve_apply(core, CLAIMS, request)
            await send(core, b"con", journal=NAME)
            await send(core, b"tent", journal=NAME)
            replica = await core.replica(core.space.get(NAME))
            was_cancelled = await cancel_at(replica.roll(100), number)
            begin = (await send(core, b"!", journal=NAME)).commit.begin
            steps = files.steps[:]
        assert begin == (7 if was_cancelled else 100)
        disk = Disk()
        for step in steps:
            step(disk)
        write_tree(directory, disk.after(Loss.ALL, random.Random(number)))
        async with running(directory / "data", FileOps()) as core:
            assert await read(core, NAME, begin, begin + 1) == b"!"
            assert (await send(core, b"!", journal=NAME)).commit.begin == begin + 1
        if not was_cancelled:
            assert number > 0
            return


async def test_heads_of_a_broker_that_never_synced_are_synced_by_one_that_does(
    tmp_path: Path,
) -> None:
    live, crashed = tmp_path / "live", tmp_path / "crashed"
    live.mkdir()
    files = RecordingFiles(live)
    async with running(live, files, "off"):
        pass
    async with running(live, files, "commit") as core:
        request = pb.ApplyRequest()
        request.changes.add(upsert=journal_spec(NAME))
        await serve_apply(core, CLAIMS, request)
        await send(core, b"content", journal=NAME)
        steps = files.steps[:]
    disk = Disk()
    for step in steps:
        step(disk)
    write_tree(crashed, disk.after(Loss.ALL, random.Random(0)))
    async with running(crashed, FileOps()) as core:
        assert await read(core, NAME, 0, 7) == b"content"


async def test_a_start_records_again_what_a_key_space_has(tmp_path: Path) -> None:
    async with running(tmp_path, FileOps()) as core:
        request = pb.ApplyRequest()
        request.changes.add(upsert=journal_spec(NAME))
        await serve_apply(core, CLAIMS, request)
    (tmp_path / "heads").unlink()
    inspection = Inspection(tmp_path)
    assert [finding.path for finding in inspection.repair()] == ["heads"]
    inspection.close()
    async with running(tmp_path, FileOps()) as core:
        assert core.space.revision == 2
    for path in (tmp_path / "meta").iterdir():
        path.unlink()
    with pytest.raises(pb.StoreError, match="revision 2 was acknowledged"):
        await BrokerCore.open(BrokerOptions(), tmp_path)
