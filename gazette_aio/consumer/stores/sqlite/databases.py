"""Database files in a recovery log, recorded anew from time to time so that little is played."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

    Range = tuple[int, int]
    """Begin and end in a file."""
    Read = Callable[[int, int], bytes]
    """Returns as many bytes (first argument) from an offset, and less only at the end of a file."""

DATABASE_NAME: Final = "primary.db"
"""Name of the main database file."""

PART_BYTES: Final = 1 << 20
"""Most bytes to read at once."""
COPIED_BYTES: Final = 64 << 10
"""Least bytes that a commit adds to the copy of a database."""
COPIED_FACTOR: Final = 8
"""Bytes that a commit adds to the copy of a database, for each byte that it has written itself."""
SLACK_BYTES: Final = 8 << 20
"""Bytes to be played, beside 1.5 times the database, from which it's recorded anew."""
COPY_SUFFIX: Final = ".gazette-copy"
"""Suffix of the paths of copies in the log, which no database may have."""


class _Copy(NamedTuple):
    """The database as another file, which is being recorded."""

    fnode: int
    copied: int
    """Length of what is recorded."""


class RecordedDatabase:
    """A database file, as the log has it.

    Playback needs the log since the file was created: once that's much longer than the file, the
    file is recorded as another one, bit by bit with the commits, which then takes its place. The
    local file stays as it is.

    Args:
        path: Path of the file.
        recorder: Recorder of its directory.
        read: Reads the file.
    """

    def __init__(self, path: str, recorder: Recorder, read: Read) -> None:
        self._path = path
        self._copy_path = path + COPY_SUFFIX
        self._recorder = recorder
        self._read = read
        self._fnode = 0
        self._size = 0
        self._copy: _Copy | None = None

    def begin(self, changed: Iterable[Range], size: int) -> None:
        """Record the file as it is: all of it, or what has changed if the log has it.

        Raises:
            StoreError: It can't be recorded.
            OSError: It can't be read.
        """
        fnode = self._recorder.links().get(self._recorder.path_of(self._path))
        self._fnode = self._recorder.record_create(self._path) if fnode is None else fnode
        self.record([(0, size)] if fnode is None else changed, size)

    def record(self, changed: Iterable[Range], size: int) -> int:
        """Record ranges of the file, and return their length.

        Args:
            changed: The ranges, in any order.
            size: Length of the file.

        Raises:
            StoreError: They can't be recorded.
            OSError: The file can't be read.
        """
        self._size = size
        recorder, copy = self._recorder, self._copy
        length = 0
        for begin, end in merged(changed, size):
            for offset, data in parts(self._read, begin, end):
                recorder.record_write_at(self._fnode, data, offset)
                if copy is not None and offset < copy.copied:
                    recorder.record_write_at(copy.fnode, data[: copy.copied - offset], offset)
            length += end - begin
        return length

    def renew(self, written: int) -> None:
        """Continue the copy, or begin one if the log is much longer than the file.

        Args:
            written: Length of what the commit has recorded itself.

        Raises:
            StoreError: It can't be recorded.
            OSError: The file can't be read.
        """
        recorder = self._recorder
        if (copy := self._copy) is not None:
            self._go_on(copy, max(COPIED_BYTES, COPIED_FACTOR * written))
        if (
            self._copy is None
            and recorder.age_bytes(self._fnode) > self._size * 3 // 2 + SLACK_BYTES
        ):
            self._copy = _Copy(recorder.record_create(self._copy_path), 0)

    def _go_on(self, copy: _Copy, length: int) -> None:
        """Copy some more of the database, and put the copy in its place once it's whole."""
        end = min(copy.copied + length, self._size)
        for offset, data in parts(self._read, copy.copied, end):
            self._recorder.record_write_at(copy.fnode, data, offset)
        if end < self._size:
            self._copy = copy._replace(copied=end)
            return
        self._recorder.record_rename(self._copy_path, self._path)
        self._fnode, self._copy = copy.fnode, None


def forget_copies(recorder: Recorder) -> None:
    """Forget copies that a former member hasn't finished. Call it before databases are open.

    Raises:
        StoreError: Recording has failed.
    """
    for path in recorder.links():
        if path.endswith(COPY_SUFFIX):
            local = f"{recorder.directory}{path}"
            recorder.record_remove(local)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(local)  # noqa: PTH108 - Paths are texts here.


def merged(ranges: Iterable[Range], size: int) -> Iterator[Range]:
    """Yield ranges of a file of some size in order, and those that touch as one."""
    begin = end = 0
    for first, last in sorted(ranges):
        if first >= size:
            break
        if first > end:
            if end > begin:
                yield begin, end
            begin = first
        end = max(end, last)
    if end > begin:
        yield begin, min(end, size)


def parts(read: Read, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield a range of a file, in parts, with their offsets.

    Raises:
        StoreError: The file is shorter.
        OSError: It can't be read.
    """
    while begin < end:
        data = read(min(PART_BYTES, end - begin), begin)
        if not data:
            raise StoreError("a file of the database is shorter than it was")
        yield begin, data
        begin += len(data)


def reader_of(descriptor: int) -> Read:
    """Return a reader of an open file."""

    def read(length: int, offset: int) -> bytes:
        data = os.pread(descriptor, length, offset)
        while 0 < len(data) < length and (
            more := os.pread(descriptor, length - len(data), offset + len(data))
        ):
            data += more
        return data

    return read
