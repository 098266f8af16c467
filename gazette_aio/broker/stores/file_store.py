"""Fragment stores in local directories."""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
import stat as file_stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import FileOps, opened
from gazette_aio.broker.stores.below import (
    LocalFile,
    directory_below,
    open_below,
    shown_error,
    status_below,
    unlink_below,
)
from gazette_aio.broker.stores.fragment_store import Listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_KNOWN_DIRECTORIES = 4096
_PARTIAL = ".partial-"
_PARTIAL_SECONDS = 3600.0
"""Seconds of age from which a partial file was left by a killed broker."""
_CLOCK_SECONDS = 0.1
"""Seconds by which times of files may lag behind the clock."""


class FileFragmentStore:
    """A directory below the file root of the broker. Symbolic links below the root aren't followed.

    Args:
        root: File root of the broker.
        url: URL of the store.
        sync: Whether files are made durable before they appear.
        owned_since: Unix time since which only this broker writes below the root; zero if others
            may.

    Raises:
        StoreError: The URL has unknown arguments.
    """

    def __init__(
        self, files: FileOps, root: Path, url: str, *, sync: bool, owned_since: float = 0.0
    ) -> None:
        parsed = pb.parse_fragment_store(url)
        self.url = url
        self._files = files
        self._sync = sync
        self._owned_since = owned_since
        self._parsed = parsed
        self._root = Path(os.path.normpath(root))
        self._durable: set[Path] = set()
        try:
            parsed._replace(scheme="file").validate_arguments()
        except pb.ValidationError as error:
            raise pb.StoreError(str(error)) from None

    def __repr__(self) -> str:
        return f"<FileFragmentStore {self._parsed.path}>"

    def put(
        self,
        path: str,
        pieces: Iterable[bytes],
        *,
        gzipped: bool = False,  # noqa: ARG002 - Files have no content encoding.
    ) -> None:
        """Write a file atomically."""
        base = self._base()
        try:
            with directory_below(self._root, base):
                pass
        except OSError as error:
            text = f"invalid file store directory {'/'.join(base) or '.'}"
            raise pb.StoreError(f"{text}: {shown_error(error, 'stat', base)}") from error
        target = self._target(path)
        temporary = target.with_name(f"{_PARTIAL}{target.name[:180]}{secrets.token_hex(5)}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with opened(self._files, temporary, flags) as descriptor:
                position = 0
                for piece in pieces:
                    self._files.pwrite(descriptor, piece, position)
                    position += len(piece)
                if self._sync:
                    self._files.datasync(descriptor)
            self._files.rename(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise
        if self._sync:
            self._sync_names(target)

    def make_durable(self, path: str) -> None:
        """Make an existing file durable."""
        if not self._sync:
            return
        target = self._target(path)
        with opened(self._files, target, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
            self._files.datasync(descriptor)
        self._sync_names(target)

    def stat(self, path: str) -> int | None:
        """Return the modification time of a file, or None if it doesn't exist.

        An empty file doesn't count: a crash may keep a file's name, and lose its content.
        """
        parts = self._parts(path)
        try:
            status = status_below(self._root, parts)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not file_stat.S_ISREG(status.st_mode):
            raise pb.StoreError(f"{'/'.join(parts)} is not a file")
        return int(status.st_mtime) if status.st_size else None

    def open(self, path: str) -> LocalFile:
        """Open a file for reading.

        Raises:
            StoreError: The file can't be opened.
        """
        parts = self._parts(path)
        try:
            return open_below(self._root, parts)
        except OSError as error:
            raise pb.StoreError(shown_error(error, "open", parts)) from error

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        """List all files below a directory, which may be missing. Links aren't listed.

        Partial files that a killed broker left are removed.
        """
        stale = max(time.time() - _PARTIAL_SECONDS, self._owned_since - _CLOCK_SECONDS)
        base = self._parts(prefix)
        pending = [""]
        while pending:
            relative = pending.pop()
            parts = (*base, *relative.split("/")[:-1])
            with contextlib.ExitStack() as stack:
                try:
                    directory = stack.enter_context(directory_below(self._root, parts))
                except (FileNotFoundError, NotADirectoryError):
                    continue  # There's none, or it was removed meanwhile.
                for entry in stack.enter_context(os.scandir(directory)):
                    path = relative + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if path not in skip:
                            pending.append(path + "/")
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # Removed meanwhile.
                    # Opening a pipe would wait forever.
                    if not file_stat.S_ISREG(status.st_mode):
                        continue
                    if entry.name.startswith(_PARTIAL):
                        if status.st_mtime < stale:
                            with contextlib.suppress(OSError):
                                os.unlink(entry.name, dir_fd=directory)
                    else:
                        yield Listed(path, int(status.st_mtime))

    def remove(self, path: str) -> None:
        """Remove a file."""
        unlink_below(self._root, self._parts(path))

    def sign_get(self, path: str, seconds: float = 60.0) -> str:  # noqa: ARG002
        """Return the URL of a file, relative to the file root of the broker."""
        return "file:///" + self._key(path)

    def _sync_names(self, target: Path) -> None:
        """Make the names of a file and of its directories durable."""
        self._files.sync_directory(target.parent)
        fresh: list[Path] = []
        for directory in target.parents:
            if directory == self._root or directory in self._durable:
                break
            self._files.sync_directory(directory.parent)
            fresh.append(directory)
        if len(self._durable) >= _MAX_KNOWN_DIRECTORIES:
            self._durable.clear()
        self._durable.update(fresh)

    def _key(self, path: str) -> str:
        # Invariant: names of journals may begin with `../`, and must not lead out of the store.
        try:
            return self._parsed.object_key(path)
        except pb.ValidationError as error:
            raise pb.StoreError(str(error)) from None

    def _parts(self, path: str) -> tuple[str, ...]:
        """Return the names of the directories and the file below the root."""
        return Path(posixpath.normpath(self._key(path))).parts

    def _target(self, path: str) -> Path:
        """Return the path of a file to write, in an existing directory without links."""
        parts = self._parts(path)
        target = self._root.joinpath(*parts)
        try:
            with directory_below(self._root, parts[:-1]):
                return target
        except FileNotFoundError:
            self._durable.clear()  # What was known may have been removed.
            self._files.make_directory(target.parent)
        # Race: a link may have taken the place of a directory meanwhile.
        with directory_below(self._root, parts[:-1]):
            return target

    def _base(self) -> tuple[str, ...]:
        try:
            return Path(pb.join_below("", self._parsed.path.strip("/"))).parts
        except pb.ValidationError as error:
            raise pb.StoreError(str(error)) from None
