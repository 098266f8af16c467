"""Capture of what happens in the directory of a RocksDB, so that it can be recorded.

RocksDB tells nobody what it writes, and its own threads write at any time. But its files are only
appended to, or replaced as a whole, and these rules hold:

* A table (`*.sst`, `*.blob`) is complete before the manifest names it. It, and a log of writes
  (`*.log`), is removed only after the manifest has dropped it.
* `CURRENT` names the manifest. It's replaced when there's another one.
* The manifest names a table before RocksDB's own list of live files does. So tables are found by
  listing the directory.

So files are recorded in an order in which each prefix of the recorded changes is a database: first
what the manifest may name, then the manifest up to the length that it had before the files were
listed, then `CURRENT`, and then the removal of files. Between two captures, the files on disk
and those that are recorded differ, and nothing else depends on what is in between.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.consumer.stores.recorder import recorded_as_a_whole
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder

_CURRENT: Final = "CURRENT"
_REPLACED: Final = ("rocksdict-config.json", "IDENTITY", _CURRENT)
"""Small files that are replaced as a whole, in the order in which they're recorded."""
_TEMPORARY: Final = "000000.dbtmp"
"""Path of a file that is to replace another one. RocksDB removes it if it's left over."""
_APPENDED: Final = re.compile(r"\d+\.(?:sst|blob|log)|OPTIONS-\d+")
_PIECE_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _File:
    """A file as it is recorded."""

    fnode: int
    inode: int
    size: int
    """Bytes that are recorded."""


class _Grown(NamedTuple):
    """A file that has more content than is recorded."""

    name: str
    descriptor: int
    inode: int
    size: int


class DirectoryCapture:
    """Records what has happened in the directory of a RocksDB since the last capture.

    Make it after the directory was recovered, and before the database is opened. All methods block,
    and may be called by any thread.

    Args:
        directory: The directory.
        recorder: Recorder of the directory, or of one above.

    Raises:
        OSError: The directory can't be read.
    """

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self._directory = directory
        self._recorder = recorder
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._contents: dict[str, bytes] = {}
        self._log: tuple[str, int] | None = None
        self._manifest: tuple[str, int] | None = None
        self._seen: tuple[int, int] | None = None
        self._log_bytes = 0
        prefix = recorder.path_of(str(directory / _CURRENT)).removesuffix(_CURRENT)
        recorded = {**recorder.links(), **dict.fromkeys(recorder.properties(), 0)}
        for path, fnode in recorded.items():
            name = path.removeprefix(prefix)
            if not path.startswith(prefix) or "/" in name:
                continue
            status = (directory / name).stat()
            self._files[name] = _File(fnode, status.st_ino, status.st_size)
            if name in _REPLACED:
                self._contents[name] = (directory / name).read_bytes()

    @property
    def live_log_bytes(self) -> int:
        """Length of the recorded logs of writes that aren't in tables yet. It may block."""
        with self._lock:
            return sum(file.size for name, file in self._files.items() if name.endswith(".log"))

    def commit(self, write: Callable[[], None]) -> None:
        """Write to the database, and record everything up to that.

        Args:
            write: Writes one batch, and returns when the log of writes has it.

        Raises:
            StoreError: The batch isn't in the log of writes, or recording has failed before.
            OSError: A file can't be read.
        """
        with self._lock:
            before = self._log_bytes
            write()
            with recorded_as_a_whole(self._recorder):
                # Hot: most writes only extend the latest log.
                if self._log is not None and self._is_as_seen():
                    self._record_log(*self._log)
                if self._log_bytes == before:
                    self._capture()
            if self._log_bytes == before:
                raise StoreError("a commit isn't in the write-ahead log: is it disabled?")

    def capture(self, change: Callable[[], None] | None = None) -> None:
        """Record everything that has happened.

        Args:
            change: Called first, without any other capture at the same time.

        Raises:
            StoreError: Recording has failed before.
            OSError: A file can't be read.
        """
        with self._lock:
            if change is not None:
                change()
            with recorded_as_a_whole(self._recorder):
                self._capture()

    def close(self) -> None:
        """Close files. Idempotent."""
        with self._lock:
            self._log = self._keep(self._log, None)
            self._manifest = self._keep(self._manifest, None)

    def _is_as_seen(self) -> bool:
        """Return whether no file has changed but the latest log.

        Race: times of files are coarse, so that a change may go unseen. What is recorded without it
        is an earlier state of the other files, which has all writes in its logs.
        """
        if self._manifest is None:
            return False
        modified = self._directory.stat().st_mtime_ns
        return (modified, os.fstat(self._manifest[1]).st_size) == self._seen

    def _record_log(self, name: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._extend(_Grown(name, descriptor, status.st_ino, status.st_size))

    def _capture(self) -> None:
        while not self._try_capture():
            pass

    def _try_capture(self) -> bool:
        """Record all changes, unless files change meanwhile."""
        directory = self._directory
        modified = directory.stat().st_mtime_ns
        current = (directory / _CURRENT).read_bytes()
        manifest = current.decode().strip()
        with ExitStack() as opened:
            try:
                length = (directory / manifest).stat().st_size
                names = {path.name for path in directory.iterdir()}
                statuses = {
                    name: (directory / name).stat() for name in filter(_APPENDED.fullmatch, names)
                }
                grown = self._grown(statuses, opened)
                contents = {
                    name: (directory / name).read_bytes() for name in _REPLACED if name in names
                }
                followed = os.open(directory / manifest, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, followed)
                status = os.fstat(followed)
            except FileNotFoundError:
                return False  # It was removed after it had been named or listed.
            # Race: a table of which the manifest knew may have been removed before it was listed.
            if status.st_size != length or contents.get(_CURRENT) != current:
                return False
            links = self._links(statuses)
            for each in grown:
                if each.name in links:
                    self._link(links[each.name], each)
                else:
                    self._extend(each)
            self._extend(_Grown(manifest, followed, status.st_ino, length))
            for replaced, content in contents.items():
                self._replace(replaced, content)
            for gone in self._files.keys() - names:
                self._remove(gone)
            self._follow(grown, manifest, followed)
        self._seen = modified, length
        return True

    def _grown(self, statuses: dict[str, os.stat_result], opened: ExitStack) -> list[_Grown]:
        """Open the files that are to be recorded: tables first, then logs by their numbers."""
        grown: list[_Grown] = []
        for name in sorted(statuses, key=_order):
            file, status = self._files.get(name), statuses[name]
            if file is not None and (file.inode, file.size) == (status.st_ino, status.st_size):
                continue
            descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            grown.append(_Grown(name, descriptor, status.st_ino, status.st_size))
        return grown

    def _links(self, statuses: dict[str, os.stat_result]) -> dict[str, str]:
        """Return further paths of recorded files, and the path by which each is recorded."""
        new = statuses.keys() - self._files.keys()
        if not new:
            return {}
        # Race: the inode of a file that's gone may have been given to a new one.
        recorded = {
            file.inode: name
            for name, file in self._files.items()
            if name in statuses and statuses[name].st_ino == file.inode
        }
        return {
            name: source
            for name in new
            if (source := recorded.get(statuses[name].st_ino)) is not None
        }

    def _link(self, source: str, grown: _Grown) -> None:
        file = self._files[source]
        self._recorder.record_link(self._path(source), self._path(grown.name))
        self._files[grown.name] = _File(file.fnode, file.inode, file.size)
        self._extend(grown)

    def _extend(self, grown: _Grown) -> None:
        """Record the content that a file has in addition, or a new file."""
        name, descriptor, inode, size = grown
        file = self._files.get(name)
        if file is None or file.inode != inode or file.size > size:
            file = _File(self._recorder.record_create(self._path(name)), inode, 0)
            self._files[name] = file
        begin = file.size
        while file.size < size:
            data = os.pread(descriptor, min(_PIECE_BYTES, size - file.size), file.size)
            if not data:
                raise StoreError(f"{name} has become shorter while it was read")
            self._recorder.record_write_at(file.fnode, data, file.size)
            file.size += len(data)
        if name.endswith(".log"):
            self._log_bytes += file.size - begin

    def _replace(self, name: str, content: bytes) -> None:
        if self._contents.get(name) == content:
            return
        temporary = self._path(_TEMPORARY)
        fnode = self._recorder.record_create(temporary)
        self._recorder.record_write_at(fnode, content, 0)
        self._recorder.record_rename(temporary, self._path(name))
        # A former member may have left a file of that name.
        self._files.pop(_TEMPORARY, None)
        self._files[name] = _File(fnode, 0, len(content))
        self._contents[name] = content

    def _remove(self, name: str) -> None:
        if name not in _REPLACED:
            self._recorder.record_remove(self._path(name))
        del self._files[name]

    def _follow(self, grown: Iterable[_Grown], manifest: str, descriptor: int) -> None:
        """Keep the manifest open, and the latest log, for the next commit."""
        self._manifest = self._keep(self._manifest, (manifest, descriptor))
        logs = [each for each in grown if each.name.endswith(".log")]
        if logs:
            self._log = self._keep(self._log, (logs[-1].name, logs[-1].descriptor))
        elif self._log is not None and self._log[0] not in self._files:
            self._log = self._keep(self._log, None)

    def _keep(
        self, former: tuple[str, int] | None, latest: tuple[str, int] | None
    ) -> tuple[str, int] | None:
        if former is not None:
            os.close(former[1])
        return None if latest is None else (latest[0], os.dup(latest[1]))

    def _path(self, name: str) -> str:
        return str(self._directory / name)


def _order(name: str) -> tuple[bool, int, str]:
    """Return the key by which files are recorded: logs come last, in the order of their writes."""
    is_log = name.endswith(".log")
    return is_log, int(name.removesuffix(".log")) if is_log else 0, name
