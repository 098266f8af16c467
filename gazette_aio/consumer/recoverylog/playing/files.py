"""Files of a recovery log during playback. All of it blocks, and runs in worker threads."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.recoverylog.paths import STAGING_NAME
from gazette_aio.consumer.recoverylog.playing.playback import PlaybackError
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.consumer.recoverylog.fsm import FSM

_logger = logging.getLogger(__name__)

MAX_OPEN_FILES: Final = 64
"""Files that are open at a time."""

_WAITING_BYTES: Final = 1 << 20
# Each write counts as so many bytes at least: the system takes up to 1024 buffers at a time.
_BUFFER_BYTES: Final = 1 << 10
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_REOPEN: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class _Run:
    """Writes to a file that continue each other, and weren't made yet."""

    __slots__ = ("begin", "buffers", "end")

    def __init__(self, offset: int) -> None:
        self.begin = self.end = offset
        self.buffers: list[bytes | memoryview] = []


class StagedFiles:
    """Files by fnode, which get their paths once playback is complete.

    Args:
        directory: Directory to recover.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._staging = directory / STAGING_NAME
        self._is_prepared = False
        self._open: OrderedDict[int, int] = OrderedDict()
        self._sizes: dict[int, int] = {}
        # Writes that continue each other are made together, also if others are in between.
        self._runs: dict[int, _Run] = {}
        self._room = _WAITING_BYTES

    def prepare(self, *, wipe: bool) -> None:
        """Create the directory.

        Args:
            wipe: Whether to remove what the directory has.

        Raises:
            ConfigurationError: It isn't a directory, or has entries that aren't to be removed.
            OSError: It can't be created.
        """
        directory = self._directory
        if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
            raise ConfigurationError(f"{directory} isn't a directory to recover files in")
        if directory.exists() and any(directory.iterdir()):
            if not wipe:
                raise ConfigurationError(
                    f"{directory} isn't empty: recover files in an empty or missing directory, "
                    "or with the option `wipe`"
                )
            shutil.rmtree(directory)
        self._is_prepared = True
        self._staging.mkdir(parents=True)

    def create(self, fnode: int) -> None:
        """Create an empty file.

        Raises:
            OSError: It exists, or can't be created.
        """
        self._keep(fnode, os.open(self._path(fnode), _CREATE, 0o666))
        self._sizes[fnode] = 0

    def write(self, fnode: int, offset: int, data: bytes | memoryview) -> None:
        """Write to a file, at the latest by the next `flush()`.

        Raises:
            OSError: Writing failed.
        """
        run = self._runs.get(fnode)
        if run is None or offset != run.end:
            if run is not None:
                self._write_run(fnode, run)
            run = self._runs[fnode] = _Run(offset)
        size = len(data)
        run.buffers.append(data)
        run.end += size
        self._room -= max(size, _BUFFER_BYTES)
        if self._room <= 0:
            self.flush()

    def remove(self, fnode: int) -> None:
        """Remove a file.

        Raises:
            OSError: It can't be removed.
        """
        self.flush()
        if (descriptor := self._open.pop(fnode, None)) is not None:
            os.close(descriptor)
        self._path(fnode).unlink()
        del self._sizes[fnode]

    def flush(self) -> None:
        """Complete all writes.

        Raises:
            OSError: Writing failed.
        """
        runs, self._runs = self._runs, {}
        self._room = _WAITING_BYTES
        for fnode, run in runs.items():
            self._write_run(fnode, run)

    def make_live(self, fsm: FSM) -> None:
        """Give files their paths, and check them.

        Raises:
            PlaybackError: A path can't be made, or a file isn't as it was written.
        """
        path = str(self._staging)
        try:
            self.flush()
            self._close_all()
            for fnode, node in sorted(fsm.live_nodes.items()):
                staged = self._path(fnode)
                for path in sorted(node.links):
                    os.link(staged, self._target(path), follow_symlinks=False)
                self._check(fnode, links=len(node.links) + 1)
                staged.unlink()
            path = str(self._staging)
            self._staging.rmdir()
            for path, content in sorted(fsm.properties.items()):
                descriptor = os.open(self._target(path), _CREATE, 0o666)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content.encode())
        except OSError as error:
            raise PlaybackError(f"making {path} live: {error}", log=fsm.last_log) from error

    def discard(self) -> None:
        """Close all files, and remove the directory. Failures are logged."""
        self._runs.clear()
        while self._open:
            with contextlib.suppress(OSError):
                self._close_all()
        if self._is_prepared:
            shutil.rmtree(self._directory, onerror=_warn)

    def _check(self, fnode: int, *, links: int) -> None:
        found, size = self._path(fnode).lstat(), self._sizes[fnode]
        if not stat.S_ISREG(found.st_mode) or (found.st_size, found.st_nlink) != (size, links):
            raise OSError(
                f"fnode {fnode} has {found.st_size} bytes and {found.st_nlink} links, "
                f"not {size} and {links}"
            )

    def _target(self, path: str) -> Path:
        """Return where a recorded path is, with its parents created and none of them a link."""
        target = self._directory
        *parents, name = path.split("/")[1:]
        for parent in parents:
            target /= parent
            try:
                target.mkdir()
            except FileExistsError:
                if not stat.S_ISDIR(target.lstat().st_mode):
                    raise
        return target / name

    def _path(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _descriptor(self, fnode: int) -> int:
        if (descriptor := self._open.get(fnode)) is None:
            descriptor = os.open(self._path(fnode), _REOPEN)
            self._keep(fnode, descriptor)
        else:
            self._open.move_to_end(fnode)
        return descriptor

    def _keep(self, fnode: int, descriptor: int) -> None:
        self._open[fnode] = descriptor
        while len(self._open) > MAX_OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def _write_run(self, fnode: int, run: _Run) -> None:
        descriptor, offset, end = self._descriptor(fnode), run.begin, run.end
        self._sizes[fnode] = max(self._sizes[fnode], end)
        written = os.pwritev(descriptor, run.buffers, offset)
        if offset + written < end:
            # A disk that is full, or a limit, cuts a write short. The next one tells why.
            rest = memoryview(b"".join(run.buffers))[written:]
            offset += written
            while rest:
                written = os.pwrite(descriptor, rest, offset)
                rest, offset = rest[written:], offset + written

    def _close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _warn(_function: object, path: str, error: tuple[object, BaseException, object]) -> None:
    _logger.warning("%s isn't removed after playback: %s", path, error[1])
