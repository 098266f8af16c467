"""Recording of an SQLite database: what is committed to its write-ahead log, and then its pages."""

from __future__ import annotations

import logging
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.stores.sqlite.databases import (
    DATABASE_NAME,
    RecordedDatabase,
    parts,
    reader_of,
)
from gazette_aio.consumer.stores.sqlite.wal import (
    HEADER_BYTES,
    WalHeader,
    find_frames,
    parse_header,
)
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

WAL_BYTES: Final = 4 << 20
"""Length of a write-ahead log from which its pages are moved to the database file."""
PART_BYTES: Final = 1 << 20
"""Most bytes of a write-ahead log to look at once."""
MAX_PINNED_BYTES: Final = 256 << 20
"""Most bytes that are added to a write-ahead log while an open statement keeps its pages there."""
_SECOND_NS: Final = 1_000_000_000

_logger = logging.getLogger(__name__)


class DatabaseCapture:
    """Records an SQLite database in write-ahead mode, of which the process has the only connection.

    After each commit, the frames that it has added to the write-ahead log are recorded. From
    time to time, its pages are moved to the database file, and recorded there.

    All of it blocks, and runs in one thread.

    Args:
        directory: Directory of the database.
        recorder: Recorder of the directory.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self._recorder = recorder
        self._path = os.fspath(directory / DATABASE_NAME)
        self._wal_path = f"{self._path}-wal"
        self._main = self._wal = -1  # Descriptors.
        self._database: RecordedDatabase | None = None
        self._wal_fnode = 0
        self._header: WalHeader | None = None
        self._wal_end = 0
        """Length of the write-ahead log that's recorded."""
        self._pages: set[int] = set()
        """Pages that the write-ahead log has, as recorded."""
        self._page_bytes = 0
        self._pinned_from: int | None = None
        """Length of the write-ahead log when its pages first couldn't be moved, or None."""
        self._has_warned = False
        self._main_time = 0
        """Time of its latest change, which it keeps until pages are moved to it."""

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
        has_wal = self._recorder.path_of(self._wal_path) in self._recorder.links()
        if os.fstat(self._wal).st_size >= HEADER_BYTES:
            self._scan(0)  # What was recovered of it, and what the opening has added.
        if not self._moved(connection):
            raise StoreError("the write-ahead log can't be moved to the database")
        self._database = RecordedDatabase(self._path, self._recorder, reader_of(self._main))
        self._database.begin(self._take_pages(), self._note_main())
        if has_wal:
            self._recorder.record_remove(self._wal_path)

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
        for offset, data in parts(reader_of(self._wal), begin, end):
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
        database = self._database
        assert database is not None
        written = self.record_frames()
        if self._wal_end >= WAL_BYTES:
            self._move(connection, database)
        database.renew(written)

    def close(self) -> None:
        """Close files. Call it after the connection is closed. Idempotent."""
        for descriptor in (self._main, self._wal):
            if descriptor >= 0:
                os.close(descriptor)
        self._main = self._wal = -1

    def _scan(self, begin: int) -> int:
        """Return the end of the last transaction in the log, and note the pages up to there."""
        if not begin:
            self._header = parse_header(os.pread(self._wal, HEADER_BYTES, 0))
        header, read = self._header, reader_of(self._wal)
        assert header is not None
        part_bytes = max(PART_BYTES // header.frame_bytes, 1) * header.frame_bytes
        end, at = begin, max(begin, HEADER_BYTES)
        open_pages: set[int] = set()
        while data := read(part_bytes, at):
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

    def _move(self, connection: sqlite3.Connection, database: RecordedDatabase) -> None:
        """Move the pages of the write-ahead log to the database, and record them there."""
        if not self._moved(connection):
            self._note_pinned()
            return
        self._pinned_from = None
        database.record(self._take_pages(), self._note_main())
        self._recorder.record_remove(self._wal_path)
        self._wal_end = 0

    def _note_pinned(self) -> None:
        """Note that pages stay in the write-ahead log, as a statement is still reading.

        Raises:
            StoreError: The log has grown too much since this began.
        """
        if self._pinned_from is None:
            self._pinned_from = self._wal_end
        grown = self._wal_end - self._pinned_from
        if grown < WAL_BYTES:
            return
        text = (
            f"the write-ahead log of {self._path} has grown to {self._wal_end >> 20} MiB, as a "
            "statement of a hook is still reading: read its rows to the end, or close its cursor"
        )
        if grown >= MAX_PINNED_BYTES:
            raise StoreError(text)
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(text)

    def _take_pages(self) -> list[tuple[int, int]]:
        """Return the ranges of the pages of the write-ahead log, and forget them."""
        pages, self._pages = self._pages, set()
        size = self._page_bytes
        return [((page - 1) * size, page * size) for page in pages]

    def _note_main(self) -> int:
        """Note the database file as nothing is left in the write-ahead log; return its length."""
        state = os.fstat(self._main)
        # Clocks of file systems are coarse: a time in the past is left by any later write.
        os.utime(self._main, ns=(state.st_atime_ns, state.st_mtime_ns - _SECOND_NS))
        self._main_time = os.fstat(self._main).st_mtime_ns
        return state.st_size

    @staticmethod
    def _moved(connection: sqlite3.Connection) -> bool:
        try:
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                return False
            raise
        return not busy
