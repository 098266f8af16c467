"""Fragment files in local directories, such as those of a mounted file system.

URLs of the scheme `file` are relative to the file root of the broker. Its directory here is that of
the client, else the one that was installed last.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.url import parse_url, redacted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import BinaryIO

_READ_BYTES: Final = 1 << 20
_MISSING: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
)


class FileTransport:
    """Fetcher of files below a root directory, with the responses of a web server.

    Neither a path nor a symbolic link leads out of the root.

    Args:
        root: The directory. It needn't exist before the first use.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root: str = os.path.abspath(root)  # noqa: PTH100 - Links aren't resolved yet.
        """The directory."""

    async def open(self, url: str, headers: Mapping[str, str]) -> FileBody:
        """Open the file of a URL.

        Raises:
            ConfigurationError: The URL isn't that of a local file, or leads out of the root.
            OSError: Opening failed for another reason than a missing file or permission.

        Cancellation: aborts.
        """
        opened: list[FileBody] = []
        try:
            await in_thread(lambda: opened.append(self._open(url, headers)))
        except BaseException:
            for body in opened:
                body.close()
            raise
        return opened[0]

    def _open(self, url: str, headers: Mapping[str, str]) -> FileBody:
        path = file_path(url)
        root = os.path.realpath(self.root)
        try:
            target = os.path.realpath(os.path.join(root, path), strict=True)  # noqa: PTH118
            if os.path.commonpath((root, target)) != root:
                raise _outside(url)
            file = _open_below(root, Path(target).relative_to(root).parts)
        except OSError as error:
            if error.errno in _MISSING:
                return FileBody(HTTPStatus.NOT_FOUND)
            if isinstance(error, PermissionError):
                return FileBody(HTTPStatus.FORBIDDEN)
            raise
        size = os.fstat(file.fileno()).st_size
        begin = int(headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if not begin:
            return FileBody(HTTPStatus.OK, {"Content-Length": str(size)}, file)
        if begin >= size:
            file.close()
            return FileBody(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
        file.seek(begin)
        answered = {
            "Content-Length": str(size - begin),
            "Content-Range": f"bytes {begin}-{size - 1}/{size}",
        }
        return FileBody(HTTPStatus.PARTIAL_CONTENT, answered, file)

    async def aclose(self) -> None:
        """Do nothing: bodies own their files.

        Cancellation: safe.
        """

    def __repr__(self) -> str:
        return f"<FileTransport of {self.root}>"


class FileBody:
    """An open file, or the status of a failure."""

    def __init__(
        self,
        status: HTTPStatus,
        headers: Mapping[str, str] | None = None,
        file: BinaryIO | io.FileIO | None = None,
    ) -> None:
        self.status: int = status.value
        self.reason: str = status.phrase
        self.headers: Mapping[str, str] = headers or {}
        self._file = file

    def read_blocking(self, limit: int = _READ_BYTES) -> bytes:
        """Return the next bytes of the file, up to `limit`, or none at its end.

        Raises:
            OSError: Reading failed.
        """
        return (self._file.read(limit) or b"") if self._file is not None else b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate the bytes of the file, read in a thread."""
        while data := await in_thread(self.read_blocking):
            yield data

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    async def aclose(self) -> None:
        """Close the file. Idempotent.

        Cancellation: safe — the file is closed without waiting.
        """
        self.close()


def file_path(url: str) -> str:
    """Return the path of a `file` URL, relative to the root.

    Raises:
        ConfigurationError: The URL isn't that of a local file, or leads out of the root.
    """
    try:
        parsed = parse_url(url)
        if parsed.scheme == "file" and parsed.host in ("", "localhost") and parsed.path:
            return pb.join_below("", parsed.path.lstrip("/"))
    except pb.ValidationError:
        pass
    raise _outside(url)


def _outside(url: str) -> pb.ConfigurationError:
    return pb.ConfigurationError(f'"{redacted(url)}" leads out of the file root')


def _open_below(root: str, names: tuple[str, ...]) -> io.FileIO:
    """Open a regular file by the names of its directories, none of which may be a link.

    Race: a link that appears after the path was resolved isn't followed.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.ExitStack() as stack:
        directory = os.open(root, flags | os.O_DIRECTORY)
        stack.callback(os.close, directory)
        for name in names[:-1]:
            directory = os.open(name, flags | os.O_DIRECTORY, dir_fd=directory)
            stack.callback(os.close, directory)
        # O_NONBLOCK, since opening a pipe would wait. It has no effect on files.
        descriptor = os.open(names[-1] if names else ".", flags, dir_fd=directory)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return io.FileIO(descriptor)
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file")


class InstalledFileTransport:
    """An installed file transport. Calling it, or leaving its context, removes it."""

    def __init__(self, transport: FileTransport) -> None:
        self._transport = transport

    def __call__(self) -> None:
        """Remove the transport; the one installed before it applies again. Idempotent."""
        # Invariant: removed by identity, in any order.
        if self._transport in _installed:
            _installed.remove(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self()

    def __repr__(self) -> str:
        state = "installed" if self._transport in _installed else "removed"
        return f"<InstalledFileTransport of {self._transport.root}, {state}>"


_installed: list[FileTransport] = []


def install_file_transport(root: str | os.PathLike[str]) -> InstalledFileTransport:
    """Open `file` URLs of all clients of this process below a directory.

    A client with a `file_root` of its own uses that.

    Args:
        root: File root of the brokers, as it's mounted here.

    Returns:
        A function, and context manager, that removes the transport again.

    Example:
        with install_file_transport("/mnt/fragments"):
            ...
    """
    transport = FileTransport(root)
    _installed.append(transport)
    return InstalledFileTransport(transport)


def installed_file_transport() -> FileTransport | None:
    """Return the transport that was installed last, if there is one."""
    return _installed[-1] if _installed else None
