"""Fragment stores in local directories."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

import gazette_aio.protocol as pb
from gazette_aio.broker.files import FileOps, os_error_text
from gazette_aio.broker.stores.base import Listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ARGUMENTS = frozenset({"find", "replace"})


class FileStore:
    """A directory below the file root of the broker.

    Args:
        files: File operations.
        root: File root of the broker.
        url: URL of the store.
        sync: Whether files are made durable before they appear.

    Raises:
        StoreError: If the URL has arguments which aren't known.
    """

    def __init__(self, files: FileOps, root: Path, url: str, *, sync: bool) -> None:
        parsed = pb.parse_fragment_store(url)
        self._url = url
        self._files = files
        self._sync = sync
        self._prefix = parsed.path
        self._root = Path(os.path.normpath(root))
        arguments = parsed.arguments
        for name in arguments:
            if name not in _ARGUMENTS:
                raise pb.StoreError(f'parsing store URL arguments: schema: invalid path "{name}"')
        self._find = arguments.get("find", "")
        self._replace = arguments.get("replace", "")

    def __repr__(self) -> str:
        return f"<FileStore {self._prefix}>"

    @property
    def url(self) -> str:
        """URL by which specs name the store."""
        return self._url

    def put(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file as a whole."""
        base = self._local(self._prefix)
        try:
            base.stat()
        except OSError as error:
            raise pb.StoreError(
                f"invalid file store directory {base}: {os_error_text(error, 'stat', base)}"
            ) from error
        target = self._local(self._rewrite(path))
        self._files.make_directory(target.parent)
        temporary = target.with_name(f".partial-{target.name[:180]}{secrets.token_hex(5)}")
        try:
            descriptor = self._files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                position = 0
                for piece in pieces:
                    self._files.pwrite(descriptor, piece, position)
                    position += len(piece)
                if self._sync:
                    self._files.datasync(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.rename(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise
        if self._sync:
            self._files.sync_directory(target.parent)

    def stat(self, path: str) -> int | None:
        """Return the modification time of a file, or None if it doesn't exist."""
        try:
            return int(self._local(self._rewrite(path)).stat().st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            StoreError: If it can't be opened.
        """
        target = self._local(self._rewrite(path))
        try:
            return target.open("rb", buffering=0)
        except OSError as error:
            raise pb.StoreError(os_error_text(error, "open", target)) from error

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        """List all files below a directory, which may be missing."""
        base = self._local(self._rewrite(prefix))
        if not base.is_dir():
            return
        pending = [(base, "")]
        while pending:
            directory, relative = pending.pop()
            with os.scandir(directory) as entries:
                for entry in entries:
                    path = relative + entry.name
                    # Invariant: links to directories aren't followed: they may be circular.
                    if entry.is_dir(follow_symlinks=False):
                        if path not in skip:
                            pending.append((directory / entry.name, path + "/"))
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield Listed(path, int(entry.stat().st_mtime))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._local(self._rewrite(path)).unlink()

    def sign_get(self, path: str) -> str:
        """Return the URL of a file, relative to the file root of the broker."""
        return "file://" + self._rewrite(path)

    def _rewrite(self, path: str) -> str:
        if self._find:
            path = path.replace(self._find, self._replace, 1)
        return self._prefix + path

    def _local(self, path: str) -> Path:
        # Invariant: names of journals may begin with `../`, and must not lead out of the root.
        relative = os.path.normpath(PurePosixPath(path.lstrip("/")))
        if relative == ".." or relative.startswith("../") or "\0" in relative:
            raise pb.StoreError(f"path {path} leads out of the file root")
        return self._root / relative
