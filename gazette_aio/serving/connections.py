"""Sockets of a server of this process: ended so that clients know the outcome of each call.

The gRPC library doesn't expose its sockets. It ends a connection by cancelling the calls that it
hasn't passed on: for clients, the outcome of such a call is unknown, so that they don't repeat it.
So this module finds the sockets among the descriptors of the process, and half-closes them. The
calls of a half-closed connection end as UNAVAILABLE, after all bytes that were written to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import sys
import termios
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.forks import close_in_children

if TYPE_CHECKING:
    from collections.abc import Generator

_DESCRIPTORS: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_LOOK_SECONDS = 0.01
_QUEUES: Final = (termios.TIOCOUTQ, termios.FIONREAD)


class Connections:
    """Listening sockets of a server, and the sockets of its clients.

    Where the system doesn't list descriptors, the object has no sockets.

    Args:
        host: Host which the server listens on; a name or a wildcard stands for any address.
        port: Port of the server, or the path of its Unix socket.
    """

    def __init__(self, host: str, port: int | Path) -> None:
        self._host = _address(host)
        self._port = port

    def __repr__(self) -> str:
        return f"<Connections {self._port}>"

    def refuse(self) -> None:
        """Stop listening. The system refuses clients that weren't accepted."""
        for number, each in self._sockets():
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                # The library logs an error of a listener that's shut down, and not all systems do
                # that. A listener that's replaced ends; the library closes the one in its place.
                with contextlib.suppress(OSError), _unused_listener() as unused:
                    os.dup2(unused.fileno(), number, inheritable=False)

    def leave_children(self, server: object) -> None:
        """Have forked children close their copies of the sockets, while `server` exists.

        Otherwise the port would stay in use, and clients be connected, after the end of this
        process.
        """
        close_in_children(server, lambda _: self._close_copies())

    def _close_copies(self) -> None:
        # The child's copy of the library may close these numbers: no other file may have them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, _ in self._sockets():
            os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    async def finish(self, longest: float) -> None:
        """Half-close each connection once no bytes are in transit, and wait until all are closed.

        A client reads to the end, and closes its half. A client that noticed the end by a failed
        write would not read the answers.

        Args:
            longest: Most seconds to wait. Then the remaining connections are half-closed at once.

        Cancellation: safe — connections are left as they are.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + longest
        while self._half_close(even_busy=loop.time() >= end):
            if loop.time() >= end:
                return
            await asyncio.sleep(_LOOK_SECONDS)  # No event tells of the library's sockets.

    def _half_close(self, *, even_busy: bool) -> int:
        """Half-close connections, and return the number of open connections."""
        count = 0
        for _, each in self._sockets():
            if _has_peer(each):
                count += 1
                if even_busy or not _is_busy(each):
                    with contextlib.suppress(OSError):  # It has just ended.
                        each.shutdown(socket.SHUT_WR)
        return count

    def _sockets(self) -> Generator[tuple[int, socket.socket]]:
        """Yield descriptors and their sockets, which are duplicates of the descriptors."""
        try:
            names = os.listdir(_DESCRIPTORS)  # noqa: PTH208  # Numbers are what's wanted.
        except OSError:
            return
        for name in names:
            with contextlib.suppress(OSError):
                number = int(name)
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                # Race: the library may close the socket at any time, and another file may get its
                # number.
                with socket.socket(fileno=os.dup(number)) as each:
                    if self._is_own(each):
                        yield number, each

    def _is_own(self, each: socket.socket) -> bool:
        if each.type != socket.SOCK_STREAM:
            return False
        name = each.getsockname()
        if each.family == socket.AF_UNIX:
            return bool(name == os.fspath(self._port)) if isinstance(self._port, Path) else False
        if each.family not in (socket.AF_INET, socket.AF_INET6) or name[1] != self._port:
            return False
        return self._host is None or _address(name[0]) == self._host


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a host, or None if it's a name or a wildcard."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return None if found.is_unspecified else found


def _unused_listener() -> socket.socket:
    """Return a socket without clients, for a library that may just be accepting one."""
    unused = socket.socket(socket.AF_UNIX)
    unused.settimeout(0)
    if sys.platform == "linux":  # It gives names by itself.
        unused.bind("")
        unused.listen()
    return unused


def _has_peer(each: socket.socket) -> bool:
    try:
        each.getpeername()
    except OSError:
        return False
    return True


def _is_busy(each: socket.socket) -> bool:
    """Return whether bytes are known to be in transit in either direction."""
    try:
        return any(any(fcntl.ioctl(each, queue, bytes(4))) for queue in _QUEUES)
    except OSError:
        return False
