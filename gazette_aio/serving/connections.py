"""Connections of a server of this process, ended so that clients know what became of their calls.

The gRPC library doesn't hand out its sockets, and ends a connection by cancelling the calls which
it hasn't passed on: to clients that's a failure of unknown outcome, which they don't repeat. So the
sockets are found among the descriptors of the process. A half-closed connection ends the calls on
it as UNAVAILABLE, after all bytes that were written to it.
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

if TYPE_CHECKING:
    from collections.abc import Generator

_DESCRIPTORS: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_LOOK_SECONDS = 0.01
_QUEUES: Final = (termios.TIOCOUTQ, termios.FIONREAD)


class Connections:
    """The sockets of a server: those it listens on, and those of its clients.

    Where the system doesn't list descriptors, there are none.

    Args:
        host: Host which the server listens on; a name or a wildcard stands for any address.
        port: Its port, or the path of its Unix socket.
    """

    def __init__(self, host: str, port: int | Path) -> None:
        self._host = _address(host)
        self._port = port

    def __repr__(self) -> str:
        return f"<Connections {self._port}>"

    def refuse(self) -> None:
        """End the listening. Clients that weren't accepted see a refused connection."""
        for number, each in self._sockets():
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                # The library logs an error of a listener that's shut down, and not all systems do
                # that. A listener that's replaced ends; the library closes the one in its place.
                with contextlib.suppress(OSError), _unused_listener() as unused:
                    os.dup2(unused.fileno(), number, inheritable=False)

    async def finish(self, longest: float) -> None:
        """Half-close each connection once no bytes are on their way, until all are gone.

        A client reads to the end, and closes its half. If it learned of the end by writing, it
        wouldn't read what was answered.

        Args:
            longest: Most seconds to wait. Then the rest is half-closed as it is.

        Cancellation: safe — connections are left as they are.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + longest
        while self._half_close(even_busy=loop.time() >= end):
            if loop.time() >= end:
                return
            await asyncio.sleep(_LOOK_SECONDS)  # No event tells of the library's sockets.

    def _half_close(self, *, even_busy: bool) -> int:
        """Half-close connections, and return how many there are."""
        count = 0
        for _, each in self._sockets():
            if _has_peer(each):
                count += 1
                if even_busy or not _is_busy(each):
                    with contextlib.suppress(OSError):  # It has just ended.
                        each.shutdown(socket.SHUT_WR)
        return count

    def _sockets(self) -> Generator[tuple[int, socket.socket]]:
        """Return descriptors and their sockets, which share all but the number."""
        try:
            names = os.listdir(_DESCRIPTORS)  # noqa: PTH208  # Numbers are what's wanted.
        except OSError:
            return
        for name in names:
            with contextlib.suppress(OSError):
                number = int(name)
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                # Race: the library may close it at any time, and its number be taken by another.
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
    """Return whether there are bytes that either side hasn't got yet, as far as is known."""
    try:
        return any(any(fcntl.ioctl(each, queue, bytes(4))) for queue in _QUEUES)
    except OSError:
        return False
