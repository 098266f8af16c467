"""What a journal holds after its files were torn, damaged, or lost."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.fragments.commit_log import Begin, Commit, Persisted, encode_entry
from gazette_aio.broker.fragments.recovery import Damage, RecoveredJournal, recover_journal
from gazette_aio.broker.fragments.spool import Spool
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.heads import Head, Heads
from gazette_aio.broker.host.log import encode_record
from tests.broker.caller import calling, journal_spec
from tests.broker.journal.faulty_files import BootedFiles

NAME = "test/journal"
FILES = FileOps()


@pytest.fixture
def heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heads]:
    heads = Heads(FILES, tmp_path_factory.mktemp("heads") / "heads")
    heads.create({}, sync=False)
    yield heads
    heads.close()


def _recover(heads: Heads, directory: Path, *, sync: bool = False) -> RecoveredJournal:
    return recover_journal(FILES, heads, directory, NAME, sync=sync)


def _spool(directory: Path, begin: int = 0, previous_end: int = 0) -> Spool:
    spool = Spool(
        FILES,
        directory,
        journal=NAME,
        begin=begin,
        codec=pb.CompressionCodec.NONE,
        registers=pb.label_set("begin", str(begin)),
        previous_end=previous_end,
    )
    spool.create()
    return spool


def _append(spool: Spool, content: bytes, registers: pb.LabelSet | None = None) -> None:
    spool.open()
    spool.begin_append()
    spool.write(content)
    spool.commit(registers, 1_700_000_000.0)


def _content(heads: Heads, directory: Path) -> tuple[bytes, pb.LabelSet]:
    recovered = _recover(heads, directory)
    assert recovered.spool is not None
    data = b""
    for fragment in recovered.complete:
        path = directory / f"{fragment.begin:016x}.spool"
        data += path.read_bytes()[: fragment.end - fragment.begin]
    spool = recovered.spool
    tail = spool.content.path.read_bytes()
    assert len(tail) == spool.end - spool.begin, "the file is cut at the end of its content"
    return data + tail, spool.registers


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of three appends; the last one changes the registers."""
    directory = tmp_path / "journal"
    spool = _spool(directory)
    _append(spool, b"first ")
    _append(spool, b"second ")
    _append(spool, b"third", pb.label_set("last", "third"))
    spool.close()
    return directory


LOG, SPOOL = f"{0:016x}.log", f"{0:016x}.spool"


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _damage_of(heads: Heads, directory: Path) -> Damage:
    """Recover a damaged journal, which changes no file; return the damage."""
    before = _files(directory)
    recovered = _recover(heads, directory, sync=True)
    assert recovered.damage is not None
    assert _files(directory) == before
    return recovered.damage


def test_a_flipped_byte_of_what_was_acknowledged_is_damage(
    heads: Heads, journal: Path, tmp_path: Path
) -> None:
    recovered = _recover(heads, journal, sync=True)  # Records all of it.
    assert recovered.damage is None
    ends = (0, len(b"first "), len(b"first second "))
    for name in (LOG, SPOOL):
        size = (journal / name).stat().st_size
        for position in range(size):
            copy = _copy(journal, tmp_path)
            data = bytearray((copy / name).read_bytes())
            data[position] ^= 0x40
            (copy / name).write_bytes(data)
            damage = _damage_of(heads, copy)
            assert damage.offset in ends
            if name == SPOOL:
                assert damage.offset <= position


def test_a_repeated_record_counts_once(heads: Heads, journal: Path) -> None:
    whole = (journal / LOG).read_bytes()
    ends = [0, *_record_ends(whole)]
    for begin, end in itertools.pairwise(ends):
        (journal / LOG).write_bytes(whole[:end] + whole[begin:end] + whole[end:])
        assert _content(heads, journal)[0] == b"first second third"


def _rolled(directory: Path) -> None:
    old = _spool(directory)
    _append(old, b"0123456789")
    new = _spool(directory, 10, previous_end=10)
    _append(new, b"abc")
    old.close()
    new.close()


def test_a_missing_fragment_is_damage(heads: Heads, tmp_path: Path) -> None:
    for begin in (0, 10):
        directory = tmp_path / str(begin)
        _rolled(directory)
        _recover(heads, directory, sync=True)
        for name in (f"{begin:016x}.log", f"{begin:016x}.spool"):
            (directory / name).unlink()
        if begin == 0:
            # It may have been persisted: what the stores hold decides.
            assert _recover(heads, directory).damage is None
        else:
            assert _damage_of(heads, directory).offset == 10


@pytest.mark.parametrize("other", ["another/journal", NAME])
def test_the_log_of_a_persisted_fragment_that_belongs_elsewhere_is_damage(
    heads: Heads, tmp_path: Path, other: str
) -> None:
    begin = 50 if other == NAME else 0
    entries = (
        Begin(other, begin, begin, pb.CompressionCodec.NONE, b""),
        Commit(
            begin + 90, 90, bytes(20), 1.0, pb.label_set("register", "value").SerializeToString()
        ),
        Persisted(begin + 90),
    )
    (tmp_path / LOG).write_bytes(b"".join(encode_record(encode_entry(each)) for each in entries))
    heads.record(tmp_path.name, Head(0, 90, 100), durable=True)
    damage = _damage_of(heads, tmp_path)
    assert (damage.file, damage.offset) == (LOG, 0)
    assert "belongs elsewhere" in damage.reason


@pytest.mark.parametrize("place", ["begin", "commit"])
def test_registers_which_are_no_labels_make_an_unknown_record(
    heads: Heads, tmp_path: Path, place: str
) -> None:
    unknown = b"\x0a\x7f"  # A message cut off.
    begin, commit = (b"", unknown) if place == "commit" else (unknown, b"")
    entries = (
        Begin(NAME, 0, 0, pb.CompressionCodec.NONE, begin),
        Commit(4, 4, bytes(20), 1.0, commit),
    )
    (tmp_path / LOG).write_bytes(b"".join(encode_record(encode_entry(each)) for each in entries))
    with pytest.raises(pb.StoreError, match="unknown record at offset"):
        _recover(heads, tmp_path)


def test_an_empty_fragment_left_by_a_failed_roll_is_passed_over(
    heads: Heads, tmp_path: Path
) -> None:
    spool = _spool(tmp_path)
    _append(spool, b"0123456789")
    _spool(tmp_path, 10, previous_end=10).close()
    _append(spool, b"more")
    newest = _spool(tmp_path, 14, previous_end=14)
    _append(newest, b"new")
    spool.close()
    newest.close()
    assert _content(heads, tmp_path)[0] == b"0123456789morenew"


def test_a_journal_may_skip_ahead(heads: Heads, tmp_path: Path) -> None:
    spool = _spool(tmp_path)
    _append(spool, b"abc")
    spool.close()
    _spool(tmp_path, 1024, previous_end=3).close()
    recovered = _recover(heads, tmp_path)
    assert recovered.spool is not None
    assert (recovered.spool.begin, recovered.spool.end) == (1024, 1024)
    assert len(recovered.complete) == 1


# The key space


async def _with_journals(path: Path, files: FileOps | None = None) -> int:
    async with (
        EmbeddedBroker(path, fsync="off", files=files or FileOps()) as broker,
        calling(broker.endpoint) as caller,
    ):
        response = pb.ApplyResponse()
        for number in range(3):
            response = await caller.create(journal_spec(f"test/journal-{number}"))
        revision = response.header.etcd.revision
        # As after a kill: the log isn't replaced by a snapshot.
        shutil.copytree(path, path.with_name("killed"))
    return revision


async def _names(path: Path, files: FileOps | None = None) -> tuple[list[str], int]:
    async with (
        EmbeddedBroker(path, fsync="off", files=files or FileOps()) as broker,
        calling(broker.endpoint) as caller,
    ):
        response = await caller.apply_call(pb.ApplyRequest())
        return [j.spec.name for j in await caller.journals()], response.header.etcd.revision


async def test_a_torn_transaction_is_cut(tmp_path: Path) -> None:
    await _with_journals(tmp_path / "data", BootedFiles("first"))
    (log,) = (tmp_path / "killed" / "meta").iterdir()
    whole = log.read_bytes()
    log.write_bytes(whole[:-3])
    # A killed process loses nothing of what it wrote, and a machine does.
    with pytest.raises(pb.StoreError, match=r"log: bad record at .*: transactions are damaged"):
        await _names(tmp_path / "killed", BootedFiles("first"))
    names, _ = await _names(tmp_path / "killed", BootedFiles("second"))
    assert names == ["test/journal-0", "test/journal-1"]


async def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    await _with_journals(tmp_path / "data")
    (log,) = (tmp_path / "killed" / "meta").iterdir()
    data = bytearray(log.read_bytes())
    snapshot, first, *_ = _record_ends(bytes(data))
    for position in (snapshot + 2, first + 1, first + 20):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        log.write_bytes(damaged)
        at = snapshot if position < first else first
        with pytest.raises(pb.StoreError, match=rf"{log.name}: bad record at offset {at}"):
            await EmbeddedBroker(tmp_path / "killed", fsync="off").start()
    log.write_bytes(data)
    assert len((await _names(tmp_path / "killed"))[0]) == 3


def _record_ends(data: bytes) -> list[int]:
    ends: list[int] = []
    while not ends or ends[-1] < len(data):
        start = ends[-1] if ends else 0
        ends.append(start + 8 + int.from_bytes(data[start : start + 4], "little"))
    return ends


def _copy(journal: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy" / journal.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(journal, copy)
    return copy


@pytest.mark.parametrize("lost", ["nothing", "content", "both"])
def test_a_crash_while_a_persisted_fragment_is_removed(
    heads: Heads, tmp_path: Path, lost: str
) -> None:
    _rolled(tmp_path)
    record = encode_record(encode_entry(Persisted(10)))
    with (tmp_path / LOG).open("ab") as file:
        file.write(record)
    if lost != "nothing":
        (tmp_path / SPOOL).unlink()
    if lost == "both":
        (tmp_path / LOG).unlink()
    recovered = _recover(heads, tmp_path)
    assert recovered.complete == []
    assert recovered.spool is not None
    assert (recovered.spool.begin, recovered.spool.end) == (10, 13)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{10:016x}.log",
        f"{10:016x}.spool",
    ]


def test_content_without_any_log_or_head_is_put_aside(heads: Heads, tmp_path: Path) -> None:
    """Either nothing of it was acknowledged, or all that tells so was lost."""
    directory = tmp_path / "journal"
    spool = _spool(directory)
    _append(spool, b"content")
    spool.close()
    spool.log.path.unlink()
    recovered = _recover(heads, directory)
    assert recovered.damage is None
    assert recovered.spool is None
    (aside,) = directory.iterdir()
    assert aside.name == f"{0:016x}.spool.orphan"
    assert aside.read_bytes() == b"content"
    again = _spool(directory)
    _append(again, b"other content")
    again.close()
    assert _content(heads, directory)[0] == b"other content"
    assert aside.read_bytes() == b"content"
