"""Journals whose whole directory was lost, or all that it held: none begins anew in silence."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import gazette_aio.protocol as pb
from benchmarks.attacks.damages import files_below
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.heads import Heads
from gazette_aio.broker.keyspace.meta_log import HEAD_NAME
from gazette_aio.cli.app import run as run_command
from gazette_aio.cli.broker import broker as command
from tests.broker.caller import calling, journal_spec
from tests.broker.journal.faulty_files import BootedFiles

LOST, OTHER = "test/journal", "test/other"


def outcome(*args: object) -> tuple[int, list[dict[str, object]]]:
    result = CliRunner().invoke(command, [*map(str, args), "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(params=["commit", "off"])
async def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The data directory of a stopped broker, which acknowledged content of two journals."""
    data = tmp_path / "data"
    async with (
        EmbeddedBroker(data, fsync=request.param) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(LOST), journal_spec(OTHER))
        await caller.commit(b"lost", LOST)
        await caller.commit(b"other", OTHER)
    return data


def directory_of(data: Path, journal: str) -> Path:
    (log,) = (log for log in data.glob("journals/*/*.log") if journal.encode() in log.read_bytes())
    return log.parent


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_files(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("lose", [remove_directory, remove_files])
async def test_it_is_refused(
    directory: Path, lose: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    lose(directory_of(directory, LOST))
    for _ in range(2):  # Nothing forgets it.
        caplog.clear()
        async with EmbeddedBroker(directory) as broker, calling(broker.endpoint) as caller:
            with pytest.raises(Exception, match="content was acknowledged") as raised:
                await caller.commit(b"anew", LOST)
            assert "DATA_LOSS" in str(raised.value)
            await caller.commit(b" goes on", OTHER)
            errors = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert any(LOST in each.getMessage() for each in errors)


async def test_no_repair_guesses_where_it_ended(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_directory(directory_of(directory, LOST))
    code, found = outcome("check", directory)
    assert code != 0
    (lost,) = (each for each in found if each["damage"])
    assert lost["journal"] == LOST
    assert run_command(["broker", "repair", str(directory)]) == 1
    assert "nothing tells where journals ended" in capsys.readouterr().err
    assert outcome("check", directory) == (code, found)


async def test_a_repair_goes_on_after_content_whose_log_and_head_are_lost(directory: Path) -> None:
    where = directory_of(directory, LOST)
    for path in where.iterdir():
        if path.suffix != ".spool":
            path.unlink()
    heads = Heads(FileOps(), directory / "heads")
    assert heads.load()
    heads.remove(where.name)
    heads.close()
    with where.joinpath(f"{4:016x}.log").open("wb") as log:
        log.write(b"damaged")
    code, repaired = outcome("repair", directory)
    assert code == 0
    assert [each["journal"] for each in repaired] == [LOST]
    async with EmbeddedBroker(directory) as broker, calling(broker.endpoint) as caller:
        response = await caller.append(b"after", LOST)
        assert response.commit.begin == len(b"lost")


async def test_it_begins_anew_once_it_is_created_again(directory: Path) -> None:
    remove_directory(directory_of(directory, LOST))
    async with EmbeddedBroker(directory) as broker, calling(broker.endpoint) as caller:
        deleted = pb.ApplyRequest.Change(delete=LOST, expect_mod_revision=-1)
        await caller.apply_call(pb.ApplyRequest(changes=[deleted]))
        await caller.create(journal_spec(LOST))
        response = await caller.append(b"anew", LOST)
        assert response.commit.begin == 0
    async with EmbeddedBroker(directory) as broker, calling(broker.endpoint) as caller:
        assert await caller.read(LOST) == b"anew"
    assert outcome("check", directory)[0] == 0
    heads = Heads(FileOps(), directory / "heads")
    assert heads.load()
    assert len(heads.names - {HEAD_NAME}) == 2


async def test_a_new_identity_of_a_key_space_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not [each for each in caplog.messages if "CLUSTER" in each], "it was fresh"
    (directory / "CLUSTER").unlink()
    async with EmbeddedBroker(directory):
        pass
    (told,) = (each for each in caplog.messages if "CLUSTER" in each)
    assert told.endswith("CLUSTER is missing beside a key space, which gets another cluster ID")


async def test_a_directory_of_an_earlier_form_is_refused(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    identity = {**json.loads((directory / "CLUSTER").read_bytes()), "format": 1}
    (directory / "CLUSTER").write_text(json.dumps(identity))
    before = files_below(directory)
    text = f"{directory} is of an earlier form (1; expected 2): use an empty directory, or the"
    with pytest.raises(pb.ConfigurationError, match=re.escape(text)):
        await EmbeddedBroker(directory).start()
    for name in ("check", "repair"):
        assert run_command(["broker", name, str(directory)]) != 0
        assert text in capsys.readouterr().err
    assert files_below(directory) == before


async def test_a_key_space_that_was_lost_is_refused(directory: Path) -> None:
    remove_files(directory / "meta")
    with pytest.raises(pb.StoreError, match="transactions are damaged, or missing"):
        await EmbeddedBroker(directory, fsync="off").start()
    code, found = outcome("check", directory)
    assert code == 1
    assert {each["path"] for each in found if each["damage"]} >= {"meta"}


async def test_evidence_of_what_was_not_durable_ends_with_the_machine(tmp_path: Path) -> None:
    for boot, content in (("first", b""), ("second", b""), ("second", b"anew")):
        files = BootedFiles(boot)
        async with (
            EmbeddedBroker(tmp_path, fsync="off", files=files) as broker,
            calling(broker.endpoint) as caller,
        ):
            if boot == "first":
                await caller.create(journal_spec(LOST))
            assert await caller.read(LOST) == content
            response = await caller.append(b"anew", LOST)
            assert response.commit.begin == len(content)
        if boot == "first":
            where = directory_of(tmp_path, LOST)
            remove_directory(where)  # As a power loss may.
    remove_directory(where)
    async with (
        EmbeddedBroker(tmp_path, fsync="off", files=BootedFiles("second")) as broker,
        calling(broker.endpoint) as caller,
    ):
        with pytest.raises(Exception, match="content was acknowledged"):
            await caller.read(LOST)
