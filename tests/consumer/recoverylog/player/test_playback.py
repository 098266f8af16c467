"""Decisions of playback, without a broker, and the files that it changes."""

from __future__ import annotations

import copy
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.consumer.recoverylog import Author, LogHole, PlaybackError, Segment
from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
from gazette_aio.consumer.recoverylog.playing.playback import Playback as Pure
from gazette_aio.consumer.recoverylog.playing.progress import PlaybackProgress, RateMeter
from gazette_aio.consumer.recoverylog.playing.ranges import LogRange, ranges_of
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.player.logs import LOG, LogWriter, described, files_of

HINTS = FSMHints(log=LOG)
FAR = READ_THROUGH_BYTES + 1


@pytest.fixture
def files(directory: Path) -> Iterator[StagedFiles]:
    files = StagedFiles(directory)
    files.prepare(wipe=False)
    yield files
    files.discard()


def begun(files: Any, head: int, hints: FSMHints = HINTS, **options: bool) -> Pure:
    playback = Pure(hints, files, **options)
    assert playback.logs == [LOG]
    playback.begin({LOG: head})
    return playback


def segment(begin: int, end: int, *, log: str = LOG) -> Segment:
    return Segment(1, begin + 1, begin, 0, begin + 1, end, log)


def test_ranges() -> None:
    other = "recovery/other"
    assert ranges_of([], LOG, LOG, 7) == [LogRange(LOG, 7, 0)]
    near, far = segment(10, 20), segment(20 + FAR, 30 + FAR)
    assert ranges_of([near], LOG, LOG, 0) == [LogRange(LOG, 10, 0)]
    assert ranges_of([near], LOG, LOG, 15) == [LogRange(LOG, 15, 0)]
    assert ranges_of([near, far], LOG, LOG, 0) == [
        LogRange(LOG, 10, 20),
        LogRange(LOG, 20 + FAR, 0),
    ]
    assert ranges_of([near, segment(20 + FAR - 1, 0)], LOG, LOG, 0) == [LogRange(LOG, 10, 0)]
    assert ranges_of([segment(0, 0), far], LOG, LOG, 0) == [LogRange(LOG, 0, 0)]
    assert ranges_of([segment(5, 9, log=other), near, far], LOG, other, 6) == [
        LogRange(other, 6, 9),
        LogRange(LOG, 10, 20),
        LogRange(LOG, 20 + FAR, 0),
    ]


def test_staged_files(files: StagedFiles, directory: Path) -> None:
    """A file survives the loss of one of two paths, and a file that exists is an error."""
    writer = LogWriter()
    both = writer.create("/a") + writer.link("/a", "/b")
    playback = begun(files, 1000)
    playback.play(0, [both])
    assert (directory / ".fnodes" / "1").exists()
    first = writer.unlink("/a")
    playback.play(playback.offset, [first])
    assert (directory / ".fnodes" / "1").exists()
    playback.play(playback.offset, [writer.unlink("/b")])
    assert not (directory / ".fnodes" / "1").exists()
    (directory / ".fnodes" / str(writer.fsm.next_seq_no)).touch()
    with pytest.raises(PlaybackError, match=r"playOperation.*File exists"):
        playback.play(playback.offset, [writer.create("/c")])


def test_writes_are_made_together(
    files: StagedFiles, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that continue each other are, also between writes to others. Later ones win."""
    made: list[list[bytes]] = []
    write = os.pwritev

    def record(descriptor: int, buffers: list[bytes], offset: int) -> int:
        made.append([bytes(each) for each in buffers])
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", record)
    for fnode in (1, 2):
        files.create(fnode)
    for offset, piece in enumerate((b"a", b"b", b"c")):
        files.write(1, offset, piece)
        files.write(2, offset, piece.upper())
    files.write(1, 1, b"x")
    files.write(1, 2, memoryview(b"yz"))
    assert made == [[b"a", b"b", b"c"]]
    files.flush()
    assert made[1:] == [[b"x", b"yz"], [b"A", b"B", b"C"]]
    files.flush()
    assert len(made) == 3
    staged = directory / ".fnodes"
    assert [(staged / name).read_bytes() for name in "12"] == [b"axyz", b"ABC"]


@pytest.mark.parametrize(("size", "most"), [(1, 1024), (4096, 256), (3 << 20, 1)])
def test_writes_that_wait_are_bounded(
    files: StagedFiles, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    """As many at most as the system takes at a time, and no more than a MiB with those before."""
    made: list[int] = []

    def count(_descriptor: int, buffers: list[bytes], _offset: int) -> int:
        made.append(len(buffers))
        return sum(map(len, buffers))

    monkeypatch.setattr(os, "pwritev", count)
    assert os.sysconf("SC_IOV_MAX") >= 1024
    files.create(1)
    files.create(2)
    data = bytes(size)
    for number in range(most - 1):
        files.write(1, number * size, data)
    files.write(2, 0, data)
    assert made == [each for each in (most - 1, 1) if each]
    for number in range(most):
        files.write(1, number * size, data)
    assert made[-1] == most


def test_a_write_that_fails_is_the_last(
    files: StagedFiles, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playback fails by it, and what waits isn't written when files are discarded."""
    writer = LogWriter()
    content = b"".join(
        [
            writer.create("/a"),
            writer.create("/b"),
            writer.write("/a", b"1"),
            writer.write("/b", b"2"),
        ]
    )
    tries: list[int] = []

    def fail(descriptor: int, _buffers: list[bytes], _offset: int) -> int:
        tries.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwritev", fail)
    playback = begun(files, len(content))
    with pytest.raises(PlaybackError, match=r"playOperation.*Input/output error"):
        playback.play(0, [content])
    files.discard()
    assert len(tries) == 1
    assert described(directory) == []
    assert not directory.exists()


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("size", [1, 11, 100, 10_000])
def test_content_of_any_author_in_pieces(
    files: StagedFiles, directory: Path, size: int, *, checksums: bool
) -> None:
    """Writes of another history are passed over, wherever chunks end."""
    writer = LogWriter(checksums=checksums)
    writer.create("/a")
    writer.write("/a", b"begin")
    other = LogWriter(fsm=copy.deepcopy(writer.fsm), author=5678, checksums=checksums)
    content = writer.content
    ours = [writer.write("/a", bytes([65 + n]) * (n * 7)) for n in range(9)]
    theirs = [other.write("/a", bytes([97 + n]) * (n * 7)) for n in range(9)]
    content += b"".join(b"".join(pair) for pair in zip(ours, theirs, strict=True))
    playback = begun(files, len(content))
    for begin in range(0, len(content), size):
        playback.play(begin, [content[begin : begin + size]])
    assert playback.content_bytes == len(writer.expected()["/a"])
    files.make_live(playback.fsm)
    assert files_of(directory) == writer.expected()


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_content_that_is_damaged_in_pieces(files: StagedFiles, cut: int) -> None:
    writer = LogWriter()
    content = writer.create("/a") + writer.write("/a", b"1234")
    damaged = content[:-1] + b"5"
    playback = begun(files, len(content))
    at = len(content) - cut
    with pytest.raises(PlaybackError, match="content of fnode 1 doesn't match its checksum"):
        playback.play(0, [damaged[:at], damaged[at:]])


def test_a_staged_file_that_is_missing(files: StagedFiles, directory: Path) -> None:
    writer = LogWriter()
    playback = begun(files, 1000)
    playback.play(0, [writer.create("/a") + writer.write("/a", b"x")])
    (directory / ".fnodes" / "1").unlink()
    with pytest.raises(PlaybackError, match=r"playOperation.*No such file"):
        playback.play(playback.offset, [writer.unlink("/a")])


@pytest.mark.parametrize("kind", ["create", "link", "unlink", "write"])
def test_hints_that_end_at_a_file_they_do_not_name(
    files: StagedFiles, directory: Path, kind: str
) -> None:
    """Recorders make no such hints. The gap after them ends the file."""
    writer = LogWriter()
    writer.create("/live")
    if kind != "create":
        writer.create("/other")
    if kind == "unlink":
        writer.link("/other", "/another")
    {
        "create": lambda: writer.create("/other"),
        "link": lambda: writer.link("/other", "/another"),
        "unlink": lambda: writer.unlink("/another"),
        "write": lambda: writer.write("/other", b"content"),
    }[kind]()
    first = writer.hints.live_nodes[0]
    first.segments[0].last_seq_no, first.segments[0].last_offset = len(writer.ops), writer.offset
    for path in [path for path in writer.fsm.links if path != "/live"]:
        writer.unlink(path)
    gap = writer.fsm.next_seq_no, writer.fsm.next_checksum, writer.offset
    writer.write("/live", b"later")
    second = writer.hints.live_nodes[0].segments[0]
    second.first_seq_no, second.first_checksum, second.first_offset = gap
    hints = FSMHints(log=LOG, live_nodes=[first])
    hints.live_nodes[0].segments.append(second)
    playback = begun(files, writer.offset, hints)
    while playback.offset < writer.offset:
        playback.play(playback.offset, [writer.content[playback.offset :]])
    files.make_live(playback.fsm)
    assert files_of(directory) == {"/live": b"later"}


def test_jumps(files: StagedFiles) -> None:
    writer = LogWriter()
    writer.create("/a")
    playback = begun(files, 10_000)
    playback.play(0, [writer.content])
    playback.jump(5_000)
    assert playback.offset == 5_000
    playback.play(5_000, [writer.content[:9]])
    with pytest.raises(
        PlaybackError, match=r"playOperation.*, 5000\): offset jumps from 5009 to 7"
    ):
        playback.jump(7_000)
    hinted = begun(files, 10_000, writer.hints)
    with pytest.raises(PlaybackError, match="offset jumps over hinted segment"):
        hinted.jump(writer.offset)
    begun(files, 10_000, writer.hints).jump(writer.offset - 1)


def test_gaps_of_other_authors(files: StagedFiles) -> None:
    """Only the history that is followed must be without gaps."""
    writer = LogWriter()
    writer.create("/a")
    zombie = LogWriter(author=666)
    first = zombie.create("/z")
    zombie.op()  # Missing in the log.
    late = zombie.op()
    new = LogWriter(fsm=writer.fsm, author=777)
    content = writer.content + first + late + new.op()
    playback = begun(files, len(content))
    playback.play(0, [content])
    assert playback.fsm.next_seq_no == new.fsm.next_seq_no


def test_directories_that_stay(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What can't be removed is logged, and the error of the playback remains."""
    files = StagedFiles(directory)
    files.discard()  # Nothing was prepared.
    files.prepare(wipe=False)
    files.create(1)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        patch.setattr(os, "rmdir", refuse)
        files.discard()
    assert described(directory) == []
    assert "isn't removed after playback" in caplog.text
    assert directory.exists()
    shutil.rmtree(directory)


def test_files_that_fail_to_close(
    files: StagedFiles, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are closed, too."""
    for fnode in (1, 2, 3):
        files.create(fnode)
    close, closed = os.close, list[int]()

    def fail(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fail)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        files.discard()
    assert len(closed) == 3
    assert described(directory) == []


def test_progress() -> None:
    assert PlaybackProgress().lag_bytes == 0
    meter = RateMeter(100.0)
    assert meter.count(5, 100.0) == 0
    first = meter.count(1000, 101.0)
    assert 0 < first < 1000
    for second in range(102, 150):
        rate = meter.count(1000, float(second))
    assert rate == pytest.approx(1000, rel=0.01)
    assert meter.count(0, 250.0) == pytest.approx(0, abs=1e-3)


def test_a_hole_that_held_operations(files: StagedFiles) -> None:
    writer = LogWriter()
    before = writer.create("/file") + writer.write("/file", b"one")
    writer.write("/file", b"two")
    end_of_hole = writer.offset
    after = writer.write("/file", b"three")
    playback = begun(files, writer.offset)
    playback.play(0, [before])
    playback.jump(end_of_hole)
    text = r"operation 4 .* doesn't continue operation 2 .*; others were in a hole at \d+-\d+ of"
    with pytest.raises(PlaybackError, match=text):
        playback.play(end_of_hole, [after])


@pytest.mark.parametrize("is_in_hole", [True, False])
def test_a_hole_within_which_another_author_took_over(files: StagedFiles, is_in_hole: bool) -> None:
    writer = LogWriter()
    zombie = LogWriter(author=666)
    dead = zombie.create("/z")
    before = writer.create("/file") + writer.write("/file", b"one") + dead
    if is_in_hole:
        writer.write("/file", b"two")
    new = LogWriter(fsm=writer.fsm, author=777)
    begin = len(before) + 100
    after = zombie.op() + zombie.op() + zombie.op() + new.write("/file", b"three")
    playback = begun(files, begin + len(after))
    playback.play(0, [before])
    playback.jump(begin)
    playback.play(begin, [after])
    if is_in_hole:
        with pytest.raises(PlaybackError, match=r"continues its history at operation 3") as caught:
            playback.check_history()
        assert (caught.value.log, caught.value.offset) == ("recovery/log", len(before))
    else:
        playback.check_history()
        assert playback.fsm.next_seq_no == new.fsm.next_seq_no


@pytest.mark.parametrize("is_same_author", [True, False])
def test_a_hole_whose_loss_is_accepted(
    files: StagedFiles, directory: Path, is_same_author: bool
) -> None:
    """The history ends there, if what follows doesn't continue it."""
    writer = LogWriter()
    before = writer.create("/file") + writer.write("/file", b"one")
    begin = len(before) + len(writer.write("/file", b"two"))
    author = writer if is_same_author else LogWriter(fsm=writer.fsm, author=777)
    after = author.write("/file", b"three") + author.write("/file", b"four")
    playback = begun(files, begin + len(after), accept_loss=True)
    playback.play(0, [before])
    playback.jump(begin)
    playback.play(begin, [after])
    assert playback.check_history() == [LogHole(LOG, len(before), begin, 3)]
    assert playback.check_history() == []
    assert playback.fsm.next_seq_no == 3
    files.make_live(playback.fsm)
    assert files_of(directory) == {"/file": b"one"}


def test_a_hole_that_held_nothing_is_no_loss(files: StagedFiles) -> None:
    writer = LogWriter()
    before = writer.create("/file")
    after = writer.write("/file", b"one")
    playback = begun(files, len(before) + 50 + len(after), accept_loss=True)
    playback.play(0, [before])
    playback.jump(len(before) + 50)
    playback.play(len(before) + 50, [after])
    assert playback.check_history() == []
    assert playback.fsm.next_seq_no == writer.fsm.next_seq_no


def test_two_holes_whose_loss_is_accepted(files: StagedFiles, directory: Path) -> None:
    """A zombie has written between them, and the second one is at the end of the log."""
    writer, zombie = LogWriter(), LogWriter(author=666)
    before = writer.create("/file") + writer.write("/file", b"one")
    between = zombie.op()
    first = LogHole(LOG, len(before), len(before) + 50, 3)
    second = LogHole(LOG, first.end + len(between), first.end + len(between) + 50, 3)
    playback = begun(files, second.end, accept_loss=True)
    playback.play(0, [before])
    playback.jump(first.end)
    playback.play(first.end, [between])
    playback.end_in_hole()
    assert playback.has_reached(second.end)
    assert playback.check_history() == [first, second]
    assert playback.check_history() == []
    files.make_live(playback.fsm)
    assert files_of(directory) == {"/file": b"one"}


def test_errors_name_each_hole_once(files: StagedFiles) -> None:
    writer, zombie = LogWriter(), LogWriter(author=666)
    before, chunks = writer.create("/file"), [zombie.op(), zombie.op()]
    first, second = len(before), len(before) + 50 + len(chunks[0])
    playback = begun(files, second + 50 + len(chunks[1]))
    playback.play(0, [before])
    for at, chunk in zip((first, second), chunks, strict=True):
        playback.jump(at + 50)
        playback.play(at + 50, [chunk])
    text = (
        rf"^no operation of {LOG} after a hole at {first}-{first + 50} of {LOG} and a hole at "
        rf"{second}-{second + 50} of {LOG} continues its history at operation 2"
    )
    with pytest.raises(PlaybackError, match=text) as caught:
        playback.check_history()
    assert caught.value.offset == first


def test_a_hole_that_is_continued_after_is_not_named(files: StagedFiles) -> None:
    writer = LogWriter()
    before, after = writer.create("/file"), writer.write("/file", b"one")
    playback = begun(files, 1_000, accept_loss=True)
    playback.play(0, [before])
    playback.jump(500)
    playback.play(500, [after])
    playback.end_in_hole()
    assert playback.check_history() == [LogHole(LOG, 500 + len(after), 1_000, 3)]


def test_a_hole_within_which_a_repeated_handoff_succeeded(files: StagedFiles) -> None:
    """Its author was passed over before, as somebody else was faster."""
    writer = LogWriter()
    before = writer.create("/file")
    late = LogWriter(fsm=copy.deepcopy(writer.fsm), author=777)
    before += writer.write("/file", b"one") + late.op()
    new = LogWriter(fsm=writer.fsm, author=777)
    begin = len(before) + len(new.op())
    after = new.write("/file", b"two")
    playback = begun(files, begin + len(after))
    playback.play(0, [before])
    playback.jump(begin)
    playback.play(begin, [after])
    with pytest.raises(PlaybackError, match=r"continues its history at operation 3"):
        playback.check_history()


@pytest.mark.parametrize("handoffs", [0, 1])
def test_a_hole_before_another_author(files: StagedFiles, handoffs: int) -> None:
    """Operations of an author who wasn't followed don't tell what the hole held."""
    writer = LogWriter()
    before = writer.create("/file") + writer.write("/file", b"one")
    writer.write("/file", b"two")
    end_of_hole = writer.offset
    other = LogWriter(end_of_hole, fsm=writer.fsm, author=777)
    other.op()
    playback = begun(files, end_of_hole + len(other.content))
    playback.play(0, [before])
    playback.check_history()
    playback.jump(end_of_hole)
    playback.play(end_of_hole, [other.content])
    for _ in range(handoffs):
        # Race: the hole is found after the end of the log was determined.
        frame = playback.handoff(Author(99))
        playback.extend(playback.offset + len(frame))
        playback.play(playback.offset, [frame])
        assert playback.is_held_by(Author(99))
    with pytest.raises(PlaybackError, match=rf"after a hole at {len(before)}-{end_of_hole} of"):
        playback.check_history()


def test_a_hole_that_another_author_continues_after(files: StagedFiles) -> None:
    """Other implementations go on after a hole. Their logs remain playable."""
    writer = LogWriter()
    before = writer.create("/file") + writer.write("/file", b"one")
    zombie = LogWriter(5_000, author=666)
    zombie.op()
    zombie.op()
    other = LogWriter(fsm=writer.fsm, author=777)
    after = zombie.op() + other.op()
    playback = begun(files, 5_000 + len(after))
    playback.play(0, [before])
    playback.jump(5_000)
    playback.play(5_000, [after])
    playback.check_history()
    assert playback.fsm.next_seq_no == 4
