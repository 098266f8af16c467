"""Marks of what is acknowledged: never ahead of the truth."""

from __future__ import annotations

import itertools
from pathlib import Path

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.marks import Mark, MarkFile
from tests.broker.caller import journal_spec
from tests.broker.journal.test_crash_points import CLAIMS, read, running, send
from tests.broker.served import serve_apply
from tests.cancellation import cancel_at

NAME = "test/journal"


def test_the_newest_sound_slot_counts(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    written = MarkFile(FileOps(), path)
    assert written.read() is None
    marks = [Mark(0, 10, 50), Mark(0, 20, 90), Mark(20, 20, 40)]
    for mark in marks:
        written.write(mark)
        assert MarkFile(FileOps(), path).read() == mark
    whole = path.read_bytes()
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1
        path.write_bytes(data)
        # The file has the two last marks. Between slots there is nothing to damage.
        assert MarkFile(FileOps(), path).read() in marks[1:]
    path.write_bytes(b"")
    assert MarkFile(FileOps(), path).read() is None


def test_a_mark_never_goes_back(tmp_path: Path) -> None:
    mark_file = MarkFile(FileOps(), tmp_path / "mark")
    mark_file.write(Mark(100, 120, 80))
    for older in (Mark(100, 110, 60), Mark(0, 100, 900)):
        mark_file.write(older)
    assert MarkFile(FileOps(), tmp_path / "mark").read() == Mark(100, 120, 80)


class CountingFiles(FileOps):
    """Counts the files that are opened, and those that are open."""

    def __init__(self) -> None:
        self.opened = 0
        self.open_now = 0

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self.opened += 1
        self.open_now += 1
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self.open_now -= 1


def test_a_file_that_stays_open_is_closed_by_its_user(tmp_path: Path) -> None:
    files = CountingFiles()
    mark_file = MarkFile(files, tmp_path / "mark", stays_open=True)
    for end in (10, 20, 30):
        mark_file.write(Mark(0, end, end))
        assert MarkFile(FileOps(), tmp_path / "mark").read() == Mark(0, end, end)
    assert (files.opened, files.open_now) == (1, 1)
    for _ in range(2):
        mark_file.close()
        assert files.open_now == 0
    mark_file.write(Mark(0, 40, 40))
    assert (files.opened, files.open_now) == (2, 1)
    mark_file.close()
    assert MarkFile(FileOps(), tmp_path / "mark").read() == Mark(0, 40, 40)


async def test_a_cancelled_roll_is_no_damage(tmp_path: Path) -> None:
    """The fragment which it had made is given up, and its mark with it."""
    for number in itertools.count():
        directory = tmp_path / str(number)
        async with running(directory, FileOps()) as core:
            request = pb.ApplyRequest()
            request.changes.add(upsert=journal_spec(NAME))
            await serve_apply(core, CLAIMS, request)
            await send(core, b"content", journal=NAME)
            replica = await core.replica(core.space.get(NAME))
            was_cancelled = await cancel_at(replica.head.roll(replica.head.offset), number)
        async with running(directory, FileOps()) as core:
            assert await read(core, NAME, 0, 7) == b"content"
            assert (await send(core, b"!", journal=NAME)).commit.end == 8
        if not was_cancelled:
            assert number > 0
            return
