"""Recording of an SQLite database: what is committed to its write-ahead log, and then its pages."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.consumer.stores.sqlite.wal import (
    HEADER_BYTES,
    WalHeader,
    find_frames,
    parse_header,
)
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gazette_aio.consumer.stores.recorder import DirectoryRecorder

DATABASE_NAME: Final = "primary.db"
"""Name of the database file."""

WAL_BYTES: Final = 4 << 20
"""Length of a write-ahead log from which its pages are moved to the database file."""
PART_BYTES: Final = 1 << 20
"""Most bytes to read at once."""
COPIED_BYTES: Final = 64 << 10
"""Least bytes that a commit adds to the copy of a database."""
COPIED_FACTOR: Final = 8
"""Bytes that a commit adds to the copy of a database, for each byte that it has written itself."""
SLACK_BYTES: Final = 8 << 20
"""Bytes to be played, beside 1.5 times the database, from which it's recorded anew."""
_SECOND_NS: Final = 1_000_000_000


class _Copy(NamedTuple):
    """The database as another file, which is being recorded."""

    fnode: int
    copied: int
    """Length of what is recorded."""


class DatabaseCapture:
    """Records an SQLite database in write-ahead mode, of which the process has the only connection.

    After each commit, the frames which that has added to the write-ahead log are recorded. From
    time to time, its pages are moved to the database file, and recorded there. Playback needs the
    log since the database was created: once that's much longer than the database, the database is
    recorded as another file, bit by bit with the commits, which then takes its place. The local
    file stays as it is.

    All of it blocks, and runs in one thread.

    Args:
        directory: Directory of the database.
        recorder: Recorder of the directory.
    """

    def __init__(self, directory: Path, recorder: DirectoryRecorder) -> None:
        self._recorder = recorder
        self._path = os.fspath(directory / DATABASE_NAME)
        self._wal_path = f"{self._path}-wal"
        self._copy_path = f"{self._path}.tmp"
        self._main = self._wal = -1  # Descriptors.
        self._fnode = self._wal_fnode = 0
        self._header: WalHeader | None = None
        self._wal_end = 0
        """Length of the write-ahead log that's recorded."""
        self._pages: set[int] = set()
        """Pages that the write-ahead log has, as recorded."""
        self._page_bytes = 0
        self._size = 0
        """Length of the database file."""
        self._main_time = 0
        """Time of its latest change, which it keeps until pages are moved to it."""
        self._copy: _Copy | None = None

    def prepare(self) -> None:
        """Forget a copy that a former member hasn't finished. Call it before the database is open.

        Raises:
            StoreError: Recording has failed.
        """
        if self._recorder.path_of(self._copy_path) in self._recorder.links():
            self._recorder.record_remove(self._copy_path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._copy_path)  # noqa: PTH108 - Paths are texts here.

    def begin(self, connection: sqlite3.Connection) -> None:
        """Record the database as it is. Nothing is recorded twice that was recovered.

        Call it within `recorder.atomic()`, once the database is in write-ahead mode.

        Raises:
            StoreError: It can't be recorded.
            OSError: A file can't be read.
        """
        # Wire: closing a file that SQLite has locked would end its lock. They're closed after it.
        self._main = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._wal = os.open(self._wal_path, os.O_RDONLY | os.O_CLOEXEC)
        (self._page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        links = self._recorder.links()
        fnode = links.get(self._recorder.path_of(self._path))
        has_wal = self._recorder.path_of(self._wal_path) in links
        if os.fstat(self._wal).st_size >= HEADER_BYTES:
            self._scan(0)  # What was recovered of it, and what the opening has added.
        if not self._moved(connection):
            raise StoreError("the write-ahead log can't be moved to the database")
        self._note_main()
        if fnode is None:
            self._fnode = self._recorder.record_create(self._path)
            for offset, data in self._parts(0, self._size):
                self._recorder.record_write_at(self._fnode, data, offset)
        else:
            self._fnode = fnode
            self._record_pages()
        if has_wal:
            self._recorder.record_remove(self._wal_path)
        self._pages.clear()

    def record_frames(self) -> int:
        """Record the frames that were committed since the last call, and return their length.

        Raises:
            StoreError: They can't be recorded.
            OSError: A file can't be read.
        """
        begin = self._wal_end
        size = os.fstat(self._wal).st_size
        is_moved = os.fstat(self._main).st_mtime_ns != self._main_time
        if is_moved or (
            begin
            and (size < begin or parse_header(os.pread(self._wal, HEADER_BYTES, 0)) != self._header)
        ):
            raise StoreError("somebody else has moved the write-ahead log to the database")
        if size <= max(begin, HEADER_BYTES):
            return 0
        end = self._scan(begin)
        if end <= begin:
            return 0
        if not begin:
            self._wal_fnode = self._recorder.record_create(self._wal_path)
        for offset, data in self._read(self._wal, begin, end):
            self._recorder.record_write_at(self._wal_fnode, data, offset)
        self._wal_end = end
        return end - begin

    def capture(self, connection: sqlite3.Connection) -> None:
        """Record what was committed since the last call. There's no open transaction.

        Call it within `recorder.atomic()`.

        Raises:
            StoreError: It can't be recorded.
            OSError: A file can't be read.
        """
        written = self.record_frames()
        if self._copy is not None:
            self._go_on(self._copy, max(COPIED_BYTES, COPIED_FACTOR * written))
        if self._wal_end >= WAL_BYTES:
            self._move(connection)
        if self._copy is None and self._is_old():
            self._copy = _Copy(self._recorder.record_create(self._copy_path), 0)

    def close(self) -> None:
        """Close files. Call it after the connection is closed. Idempotent."""
        for descriptor in (self._main, self._wal):
            if descriptor >= 0:
                os.close(descriptor)
        self._main = self._wal = -1

    def _is_old(self) -> bool:
        return self._recorder.age_bytes(self._fnode) > self._size * 3 // 2 + SLACK_BYTES

    def _scan(self, begin: int) -> int:
        """Return the end of the last transaction in the log, and note the pages up to there."""
        if not begin:
            self._header = parse_header(os.pread(self._wal, HEADER_BYTES, 0))
        header = self._header
        assert header is not None
        part_bytes = max(PART_BYTES // header.frame_bytes, 1) * header.frame_bytes
        end, at = begin, max(begin, HEADER_BYTES)
        open_pages: set[int] = set()
        while data := _pread(self._wal, part_bytes, at):
            frames = find_frames(data, header)
            if frames.committed:
                end = at + frames.committed
                self._pages |= open_pages | frames.pages
                open_pages.clear()
            open_pages |= frames.following
            if frames.is_end or frames.length < part_bytes:
                break
            at += frames.length
        return end

    def _move(self, connection: sqlite3.Connection) -> None:
        """Move the pages of the write-ahead log to the database, and record them there."""
        if not self._moved(connection):
            return  # A statement is still reading: later.
        self._note_main()
        self._record_pages()
        self._recorder.record_remove(self._wal_path)
        self._wal_end = 0
        self._pages.clear()

    def _note_main(self) -> None:
        """Note the database file as it is, once nothing is left in the write-ahead log."""
        state = os.fstat(self._main)
        self._size = state.st_size
        # Clocks of file systems are coarse: a time in the past is left by any later write.
        os.utime(self._main, ns=(state.st_atime_ns, state.st_mtime_ns - _SECOND_NS))
        self._main_time = os.fstat(self._main).st_mtime_ns

    @staticmethod
    def _moved(connection: sqlite3.Connection) -> bool:
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                return False
            raise
        return not busy

    def _record_pages(self) -> None:
        recorder, copy = self._recorder, self._copy
        for begin, end in _runs(self._pages, self._page_bytes, self._size):
            for offset, data in self._parts(begin, end):
                recorder.record_write_at(self._fnode, data, offset)
                if copy is not None and offset < copy.copied:
                    recorder.record_write_at(copy.fnode, data[: copy.copied - offset], offset)

    def _go_on(self, copy: _Copy, length: int) -> None:
        """Copy some more of the database, and put the copy in its place once it's whole."""
        end = min(copy.copied + length, self._size)
        for offset, data in self._parts(copy.copied, end):
            self._recorder.record_write_at(copy.fnode, data, offset)
        if end < self._size:
            self._copy = copy._replace(copied=end)
            return
        self._recorder.record_rename(self._copy_path, self._path)
        self._fnode, self._copy = copy.fnode, None

    def _parts(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        return self._read(self._main, begin, end)

    @staticmethod
    def _read(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield a range of a file, in parts, with their offsets.

        Raises:
            StoreError: The file is shorter.
        """
        while begin < end:
            data = _pread(descriptor, min(PART_BYTES, end - begin), begin)
            if not data:
                raise StoreError("a file of the database is shorter than it was")
            yield begin, data
            begin += len(data)


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    """Read as much as there is, up to a length."""
    data = os.pread(descriptor, length, offset)
    while 0 < len(data) < length and (
        more := os.pread(descriptor, length - len(data), offset + len(data))
    ):
        data += more
    return data


def _runs(pages: Iterable[int], page_bytes: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of pages within a database of some size, in their order."""
    begin = end = 0
    for page in sorted(pages):
        offset = (page - 1) * page_bytes
        if offset >= size:
            break
        if offset != end:
            if end > begin:
                yield begin, end
            begin = offset
        end = offset + page_bytes
    if end > begin:
        yield begin, min(end, size)
