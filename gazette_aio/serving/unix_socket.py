"""File of a Unix socket: created unless a server listens on the path, and removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.file_lock import locked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Bytes of a socket's address which are its path, without the zero at the end.
_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_ATTEMPTS = 200
_PAUSE_SECONDS = 0.01


class UnixSocket:
    """A path to listen on. The constructor does nothing.

    Args:
        path: Absolute path of the socket.
        mode: Permissions of its file: who may write to it may connect.
    """

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        self._mode = mode
        self._file: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<UnixSocket {self.path} {'bound' if self._file else 'unbound'}>"

    async def bind(self, listen: Callable[[], object]) -> None:
        """Call `listen` if no server listens on the path. A stale file is removed first.

        Raises:
            ConfigurationError: A server listens, or the path isn't a socket or can't be used.

        Cancellation: safe.
        """
        for _ in range(_ATTEMPTS):
            try:
                # Race: of two servers which find the same stale file, the second would remove the
                # new socket of the first. The lock leaves no file behind.
                with locked(lambda: os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)):
                    self._clear()
                    listen()
                    self.path.chmod(self._mode)
                    self._file = _identity(self.path)
            except BlockingIOError:
                await asyncio.sleep(_PAUSE_SECONDS)
            except OSError as error:
                raise self._error(error.strerror or str(error)) from error
            else:
                return
        raise self._error("its directory is locked")

    def remove(self) -> None:
        """Remove the file, unless it belongs to another server. Idempotent."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None and _identity(self.path) == file:
                self.path.unlink()

    def _clear(self) -> None:
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise self._error("the file exists, and isn't a socket")
        if _is_listened_on(self.path):
            raise self._error("another server listens on it")
        self.path.unlink()

    def _error(self, reason: str) -> pb.ConfigurationError:
        return pb.ConfigurationError(f"unable to listen on unix://{self.path}: {reason}")


def check_socket_path(path: str) -> None:
    """Check the path of a socket.

    Raises:
        ConfigurationError: The path isn't absolute, is too long, or can't be part of a URL.
    """
    if not path.startswith("/"):
        raise pb.ConfigurationError(f"socket must be an absolute path (not {path})")
    # Wire: it's part of the endpoint, as it is, of which clients make the address to dial.
    if not path.isprintable() or any(char in path for char in "%?#,"):
        raise pb.ConfigurationError(f"socket path can't be part of a URL: {path!r}")
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise pb.ConfigurationError(
            f"socket is longer than the {_PATH_BYTES} bytes of such paths: {path}"
        )


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # Its queue is full, it's of another type, or not for us.
    return True


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino
