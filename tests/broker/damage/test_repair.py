"""Check and repair of a damaged data directory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import gazette_aio.protocol as pb
from benchmarks.attacks.damages import damage, files_below
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.inspection import Inspection
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.cli.app import run as run_command
from gazette_aio.cli.broker import broker as command
from gazette_aio.serving.rpc_error import RpcError
from tests import extent
from tests.broker.caller import journal_spec
from tests.broker.damage.test_damage import (
    NAMES,
    Acknowledged,
    acknowledged,
    apply,
    readable,
)
from tests.broker.journal.test_crash_points import running, send

__all__ = ["acknowledged"]  # The fixture.

PARTS = 5


def outcome(*args: object) -> tuple[int, list[dict[str, object]]]:
    result = CliRunner().invoke(command, [*map(str, args), "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("part", range(PARTS))
async def test_a_repaired_broker_serves_what_is_sound(
    part: int, acknowledged: Acknowledged, tmp_path: Path
) -> None:
    for seed in extent.seeds(40, 400)[part::PARTS]:
        directory = tmp_path / f"data-{seed}"
        shutil.copytree(acknowledged.directory, directory)
        done = damage(random.Random(seed), directory)
        try:
            await check_repair(directory, acknowledged)
        except BaseException as error:
            error.add_note(f"seed {seed}: {done}")
            raise
        shutil.rmtree(directory)


async def check_repair(directory: Path, given: Acknowledged) -> None:
    before = {path: path.read_bytes() for path in files_below(directory)}
    code, checked = outcome("check", directory)
    assert {path: path.read_bytes() for path in files_below(directory)} == before
    damaged = {finding["path"] for finding in checked if finding["damage"]}
    assert (code != 0) == bool(damaged)

    code, repaired = outcome("repair", directory)
    assert code == 0
    found = {finding["path"] for finding in repaired}
    # Without heads, a check takes damaged content for torn content, and a repair doesn't.
    assert found == damaged or (found > damaged and "heads" in damaged)
    # Nothing is thrown away.
    left = {path.read_bytes() for path in files_below(directory)}
    for path, content in before.items():
        if str(path.parent.relative_to(directory)) in damaged:
            assert content in left

    async with running(directory, FileOps()) as core:
        for name in NAMES:
            if core.space.get(name) is None:
                assert "meta" in damaged
                continue
            chunks, is_refused = await readable(core, name, 0)
            assert not is_refused
            assert all(given.holds(name, chunk.offset, chunk.content) for chunk in chunks)
            response = await send(core, b"more", journal=name)
            assert response.commit.end - 4 >= given.heads[name], "an offset was given twice"
    assert outcome("check", directory)[0] == 0


class Killed(BaseException):
    """The process ended."""


class MortalFiles(FileOps):
    """File operations of a process that is killed before one of its changes.

    Its end loses nothing of the page cache, so that nothing needs to be synced.
    """

    def __init__(self, changes: int = 1 << 30) -> None:
        self.left = changes

    def datasync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""

    def _change(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            self._change()
        return super().open(path, flags)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        self._change()
        super().pwrite(descriptor, data, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        self._change()
        super().truncate(descriptor, length)

    def rename(self, source: Path, target: Path) -> None:
        self._change()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if path.exists():
            self._change()
        super().unlink(path)

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            self._change()
        super().make_directory(path)


def repair(directory: Path, files: FileOps) -> None:
    inspection = Inspection(directory, files)
    try:
        for _ in inspection.repair():
            pass
    finally:
        inspection.close()


def is_killed(directory: Path, *, after: int) -> bool:
    """Repair a directory, and return whether it was killed before the repair was complete."""
    try:
        repair(directory, MortalFiles(after))
    except Killed:
        return True
    return False


DAMAGED = (
    "journals/2-*/*.log",
    "journals/3-*/*.spool",
    "journals/4-*/*c.log",
    "meta/*.log",
    "heads",
)


@pytest.mark.parametrize("what", DAMAGED)
async def test_a_repair_which_is_killed_gives_no_offset_twice(
    what: str, acknowledged: Acknowledged, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(acknowledged.directory, damaged)
    for path in sorted(damaged.glob(what))[-3:]:
        flip(path, 0 if what == "heads" else path.stat().st_size // 2)
    whole = tmp_path / "whole"
    shutil.copytree(damaged, whole)
    repair(whole, MortalFiles())
    expected = await contents(whole, acknowledged)
    changes = 0
    while True:
        directory = tmp_path / f"killed-{changes}"
        shutil.copytree(damaged, directory)
        if not is_killed(directory, after=changes):
            break
        served = tmp_path / f"served-{changes}"
        shutil.copytree(directory, served)
        with contextlib.suppress(pb.StoreError):
            await contents(served, acknowledged)
        repair(directory, MortalFiles())
        assert await contents(directory, acknowledged) == expected
        changes += 1
    assert changes > 5


async def contents(directory: Path, given: Acknowledged) -> dict[str, list[ContentChunk]]:
    """Return what a broker serves, which gives no offset twice."""
    served: dict[str, list[ContentChunk]] = {}
    async with running(directory, MortalFiles()) as core:
        for name in NAMES:
            if core.space.get(name) is None:
                continue
            served[name], is_refused = await readable(core, name, 0)
            assert all(given.holds(name, chunk.offset, chunk.content) for chunk in served[name])
            if is_refused:
                with pytest.raises(RpcError, match="is damaged"):
                    await send(core, b"more", journal=name)
                continue
            response = await send(core, b"more", journal=name)
            assert response.commit.end - 4 >= given.heads[name], "an offset was given twice"
            assert response.registers == pb.label_set("number", "9"), "a fence was lost"
    return served


async def test_check_names_the_place(acknowledged: Acknowledged, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    (log, *_) = sorted((directory / "journals").glob("2-*/*.log"), reverse=True)
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    code, findings = outcome("check", directory)
    assert code == 1
    (damaged,) = [finding for finding in findings if finding["damage"]]
    assert damaged["journal"] == NAMES[0]
    assert log.name in str(damaged["damage"])
    assert damaged["acknowledged_end"] == given_head(acknowledged)
    assert int(str(damaged["sound_end"])) < given_head(acknowledged)


async def test_content_alone_shows_what_was_reached(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    max((directory / "journals").glob("4-*/*.log")).unlink()
    (directory / "heads").unlink()
    assert outcome("repair", directory)[0] == 0
    async with running(directory, FileOps()) as core:
        response = await send(core, b"more", journal=NAMES[2])
        assert response.commit.end - 4 == acknowledged.heads[NAMES[2]]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def logs_of_key_space(directory: Path) -> tuple[Path, Path]:
    """Return the log in use, and the one before it."""
    before, present = sorted(directory.glob("meta/*.log"))
    return present, before


async def test_a_damaged_snapshot_is_made_again_of_what_it_replaced(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    whole = tmp_path / "whole"
    shutil.copytree(directory, whole)
    async with running(whole, FileOps()) as core:
        before = [(item.name, item.spec, item.create_revision) for item in core.space]
        revision = core.space.revision
    log, _ = logs_of_key_space(directory)
    flip(log, 20)
    damaged = log.read_bytes()
    with pytest.raises(pb.StoreError, match="damaged snapshot"):
        async with running(directory, FileOps()):
            pass
    assert outcome("repair", directory)[0] == 0
    assert damaged in {path.read_bytes() for path in files_below(directory)}
    async with running(directory, FileOps()) as core:
        assert [(item.name, item.spec, item.create_revision) for item in core.space] == before
        assert core.space.revision == revision
        assert (await readable(core, NAMES[0], 0))[1] is False


@pytest.mark.parametrize("how", ["flip", "remove"])
async def test_journals_are_repaired_though_the_key_space_is_not(
    how: str, acknowledged: Acknowledged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    sound = tmp_path / "meta"
    shutil.copytree(directory / "meta", sound)
    for path in directory.glob("meta/*"):
        if how == "flip":
            flip(path, 20)
        else:
            path.unlink()
    log = max((directory / "journals").glob("2-*/*.log"))
    flip(log, log.stat().st_size // 2)
    assert run_command(["broker", "repair", str(directory)]) == 1
    told = capsys.readouterr()
    assert "the key space can't be repaired, restore its directory from a backup" in told.err
    assert ("damaged snapshot" if how == "flip" else "all logs are missing") in told.err
    assert NAMES[0] in told.out
    shutil.rmtree(directory / "meta")
    shutil.copytree(sound, directory / "meta")
    assert outcome("check", directory)[0] == 0
    served = await contents(directory, acknowledged)
    assert set(served) == set(NAMES)


async def test_a_repaired_key_space_gives_no_revision_twice(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    whole = tmp_path / "whole"
    shutil.copytree(directory, whole)
    async with running(whole, FileOps()) as core:
        reached = core.space.revision
    log, _ = logs_of_key_space(directory)
    flip(log, log.stat().st_size - 40)
    code, (finding,) = outcome("repair", directory)
    assert code == 0
    assert finding["acknowledged_end"] == reached
    async with running(directory, FileOps()) as core:
        assert core.space.revision == reached
        await apply(core, journal_spec("test/later"))
        later = core.space.get("test/later")
        assert later is not None
        assert later.create_revision == reached + 1


def given_head(given: Acknowledged) -> int:
    return given.heads[NAMES[0]]


async def test_a_directory_in_use_is_refused(
    acknowledged: Acknowledged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    async with running(directory, FileOps()):
        for name in ("check", "repair"):
            assert run_command(["broker", name, str(directory)]) != 0
            assert "in use by another broker" in capsys.readouterr().err
    assert run_command(["broker", "check", str(tmp_path)]) != 0
    assert "isn't the data directory" in capsys.readouterr().err
    assert run_command(["broker", "repair", str(directory)]) == 0
    assert capsys.readouterr().out == "nothing is damaged\n"
