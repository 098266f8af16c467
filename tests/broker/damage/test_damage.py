"""Damaged files: acknowledged content is never gone or wrong without a word."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from benchmarks.attacks.damages import damage, files_below
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.log import scan_records
from gazette_aio.broker.host.options import BrokerOptions, FsyncMode
from gazette_aio.broker.inspection import Inspection
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.serving.rpc_error import RpcError
from tests import extent
from tests.broker.caller import journal_spec
from tests.broker.journal.test_crash_points import CLAIMS, running, send
from tests.broker.served import serve_apply, serve_read

PARTS = 10
NAMES = ("test/one", "test/two", "test/rolled")


@dataclass
class Acknowledged:
    """What a broker has acknowledged, of all journals."""

    directory: Path
    content: dict[str, dict[int, bytes]]
    """Bytes at offsets, by journal."""
    heads: dict[str, int]

    def holds(self, journal: str, begin: int, data: bytes) -> bool:
        """Return whether `data` at `begin` was acknowledged just so."""
        known = self.content[journal]
        return all(
            known.get(begin + index) == data[index : index + 1] for index in range(len(data))
        )


async def write(core: BrokerCore) -> tuple[dict[str, dict[int, bytes]], dict[str, int]]:
    """Append to journals, roll, and set registers."""
    content: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
    heads = dict.fromkeys(NAMES, 0)
    for name in NAMES:
        await apply(core, journal_spec(name, labels=pb.label_set("again", "true")))
    rng = random.Random(7)
    for number in range(12):
        for name in NAMES:
            data = rng.randbytes(rng.choice((10, 300, 5000)))
            registers = pb.label_set("number", str(number)) if number % 3 == 0 else None
            response = await send(core, data, journal=name, union_registers=registers)
            assert response.status == pb.Status.OK
            begin = response.commit.end - len(data)
            content[name].update({begin + i: data[i : i + 1] for i in range(len(data))})
            heads[name] = response.commit.end
        if number in (3, 7):
            replica = await core.replica(core.space.get("test/rolled"))
            async with replica.head.exclusive():
                await replica.roll(replica.head.offset)
    return content, heads


async def apply(core: BrokerCore, spec: pb.JournalSpec) -> None:
    request = pb.ApplyRequest()
    request.changes.add(upsert=spec, expect_mod_revision=-1)
    assert (await serve_apply(core, CLAIMS, request)).status == pb.Status.OK


@pytest.fixture(scope="module")
def acknowledged(tmp_path_factory: pytest.TempPathFactory) -> Acknowledged:
    return make(tmp_path_factory.mktemp("sound") / "data", "commit")


@pytest.fixture(scope="module", params=["interval", "off"])
def unsynced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Acknowledged:
    """Files of a broker that acknowledged all before it was durable, and was killed."""
    return make(tmp_path_factory.mktemp("unsynced") / "data", request.param)


def make(directory: Path, fsync: FsyncMode) -> Acknowledged:
    import asyncio

    async def run() -> Acknowledged:
        # The key space has a snapshot, and transactions after it.
        options: dict[str, Any] = {"fsync": fsync, "sync_interval": 3600}
        async with running(directory, FileOps(), **options) as core:
            for name in NAMES:
                await apply(core, journal_spec(name))
        async with running(directory, FileOps(), **options) as core:
            content, heads = await write(core)
            # As a killed process leaves it.
            shutil.copytree(directory, directory.with_name("killed"))
        return Acknowledged(directory.with_name("killed"), content, heads)

    return asyncio.run(run())


async def readable(core: BrokerCore, journal: str, offset: int) -> tuple[list[ContentChunk], bool]:
    """Read from an offset to the head; return the content, and whether the end was an error."""
    chunks: list[ContentChunk] = []

    async def take(response: pb.ReadResponse | ContentChunk) -> None:
        nonlocal offset
        if isinstance(response, ContentChunk):
            chunks.append(response)
            offset = response.offset + len(response.content)
        elif response.status == pb.Status.OFFSET_NOT_YET_AVAILABLE:
            raise EOFError

    try:
        while True:
            await serve_read(core, CLAIMS, pb.ReadRequest(journal=journal, offset=offset), take)
    except EOFError:
        return chunks, False
    except RpcError:
        return chunks, True


async def check_journal(core: BrokerCore, journal: str, given: Acknowledged) -> bool:
    """Check that a journal is whole, or that it says that it isn't; return whether it's whole."""
    chunks, is_refused = await readable(core, journal, 0)
    for chunk in chunks:
        assert given.holds(journal, chunk.offset, chunk.content)
    total = sum(len(chunk.content) for chunk in chunks)
    refusal = ""
    try:
        response = await send(core, b"more", journal=journal)
    except RpcError as error:
        refusal = str(error)
    if refusal:
        assert "is damaged" in refusal
        assert is_refused
        return False
    assert response.status == pb.Status.OK
    assert not is_refused
    assert total == len(given.content[journal])
    assert response.commit.end - 4 >= given.heads[journal], "an offset was given twice"
    assert response.registers == pb.label_set("number", "9")
    return True


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
async def test_nothing_acknowledged_is_gone_or_wrong_without_a_word(
    part: int, acknowledged: Acknowledged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check_damages(extent.seeds(100, 1000)[part::PARTS], acknowledged, tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
async def test_nor_if_it_was_acknowledged_before_it_was_durable(
    part: int, unsynced: Acknowledged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await check_damages(extent.seeds(30, 300)[part::2], unsynced, tmp_path, caplog)


async def check_damages(
    seeds: Sequence[int], given: Acknowledged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage a file by each seed, and check what a broker makes of it."""
    for seed in seeds:
        directory = tmp_path / f"data-{seed}"
        shutil.copytree(given.directory, directory)
        done = damage(random.Random(seed), directory)
        caplog.clear()
        try:
            await check(directory, given, done, caplog)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {done}")
            raise
        shutil.rmtree(directory)


async def check(
    directory: Path, given: Acknowledged, done: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that a broker refuses to start, refuses what is damaged, or has all."""
    before = {path: path.read_bytes() for path in files_below(directory / "journals")}
    refusal = ""
    try:
        async with running(directory, FileOps()) as core:
            whole = [name for name in NAMES if await check_journal(core, name, given)]
    except (pb.StoreError, pb.ConfigurationError) as error:
        refusal = str(error)
    if refusal:
        assert str(directory) in refusal
        assert any(part in done for part in ("meta", "heads", "CLUSTER", "swap"))
        return
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for name in set(NAMES) - set(whole):
        assert any(f"journal {name} is damaged" in text for text in told)
        prefix = f"{NAMES.index(name) + 2}-"  # Journals are named by the revision of their begin.
        for path, content in before.items():
            if path.parent.name.startswith(prefix):
                assert path.read_bytes() == content, "a damaged journal was changed"


async def test_journals_of_a_missing_log_of_the_key_space_keep_their_files(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    max((directory / "meta").iterdir()).unlink()
    before = {path: path.read_bytes() for path in files_below(directory / "journals")}
    with pytest.raises(pb.StoreError, match="transactions are damaged, or missing"):
        await BrokerCore.open(BrokerOptions(), directory)
    assert {path: path.read_bytes() for path in before} == before


async def test_a_transaction_missing_within_a_log_is_damage(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    log = max((directory / "meta").iterdir())
    data = log.read_bytes()
    records, end = scan_records(data)
    assert end == len(data)
    for record in records[1:-1]:
        log.write_bytes(data[: record.offset] + data[record.end :])
        with pytest.raises(pb.StoreError, match=rf"missing at offset {record.offset}"):
            await BrokerCore.open(BrokerOptions(), directory)


async def test_heads_that_are_lost_are_told_and_made_again(
    acknowledged: Acknowledged, tmp_path: Path
) -> None:
    """Without them, a torn end can't be told from damage: nothing of it is cut."""
    directory = tmp_path / "data"
    shutil.copytree(acknowledged.directory, directory)
    (directory / "heads").unlink()
    log = max((directory / "journals").glob("2-*/*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(pb.StoreError, match=r"heads is damaged or missing.*broker repair"):
        await BrokerCore.open(BrokerOptions(), directory)
    inspection = Inspection(directory)
    try:
        repaired = [finding.path for finding in inspection.repair()]
    finally:
        inspection.close()
    assert repaired == ["heads", f"journals/{log.parent.name}"]
    async with running(directory, FileOps()) as core:
        for name in NAMES:
            response = await send(core, b"more", journal=name)
            assert response.commit.begin >= acknowledged.heads[name], "an offset was given twice"
