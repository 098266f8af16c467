"""Check and repair of a damaged data directory."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.attacks.damages import damage, files_below
from gazette_aio.broker.host.files import FileOps
from gazette_aio.cli.app import run as run_command
from gazette_aio.cli.broker import broker as command
from tests import extent
from tests.broker.damage.test_damage import NAMES, Acknowledged, acknowledged, readable
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
    assert {finding["path"] for finding in repaired} == damaged
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
    (log, *_) = sorted((directory / "journals").glob("4-*/*.log"), reverse=True)
    log.unlink()
    log.parent.joinpath("acknowledged").unlink()
    assert outcome("repair", directory)[0] == 0
    async with running(directory, FileOps()) as core:
        response = await send(core, b"more", journal=NAMES[2])
        assert response.commit.end - 4 == acknowledged.heads[NAMES[2]]


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
