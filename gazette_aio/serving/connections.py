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
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_aio.aio.forks import close_in_children
from gazette_aio.aio.turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Generator

_DESCRIPTORS: Final = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_LOOK_SECONDS = 0.01
_LONGEST_LOOK_SECONDS = 0.1
_Found: TypeAlias = tuple[int, int]
"""Descriptor and inode of a connection: another file may get the descriptor."""
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

    def leave_children(self, server: object) -> None:
        """Have forked children close their copies of the sockets, while `server` exists.

        Otherwise the port would stay in use, and clients be connected, after the end of this
        process.
        """
        close_in_children(server, lambda _: self._close_copies())

    def _close_copies(self) -> None:
        # The child's copy of the library may close these numbers: no other file may have them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, each in _sockets():
            if self._is_own(each):
                os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    async def finish(self, longest: float) -> None:
        """Stop listening, half-close connections, and wait until all are closed.

        The system refuses clients that weren't accepted. A connection is half-closed once no bytes
        are in transit: its client reads to the end, and closes its half. A client that noticed the
        end by a failed write would not read the answers.

        Args:
            longest: Most seconds to wait. Then the remaining connections are half-closed at once.

        Cancellation: safe — connections are left as they are.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + longest
        await in_turns(self._refuse())
        found: list[_Found] = []
        pause = _LOOK_SECONDS
        # Race: the library may just have accepted another connection when the first look began.
        while found := (
            found or await in_turns(self._connected()) or await in_turns(self._connected())
        ):
            is_late = loop.time() >= end
            found = await in_turns(_half_close(found, even_busy=is_late))
            if is_late:
                return
            await asyncio.sleep(pause)  # No event tells of the library's sockets.
            pause = min(pause * 2, _LONGEST_LOOK_SECONDS)

    def _refuse(self) -> Generator[None]:
        for number, each in _sockets():
            if self._is_own(each) and each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                # The library logs an error of a listener that's shut down, and not all systems do
                # that. A listener that's replaced ends; the library closes the one in its place.
                with contextlib.suppress(OSError), _unused_listener() as unused:
                    os.dup2(unused.fileno(), number, inheritable=False)
            yield

    def _connected(self) -> Generator[None, None, list[_Found]]:
        found: list[_Found] = []
        for number, each in _sockets():
            if self._is_own(each) and _has_peer(each):
                found.append((number, os.fstat(each.fileno()).st_ino))
            yield
        return found

    def _is_own(self, each: socket.socket) -> bool:
        if each.type != socket.SOCK_STREAM:
            return False
        try:
            name = each.getsockname()
        except OSError:  # It has ended.
            return False
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


def _sockets() -> Generator[tuple[int, socket.socket]]:
    """Yield descriptors of the process, and their sockets, which are duplicates."""
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
            with _copy(number) as each:
                yield number, each


def _copy(number: int) -> socket.socket:
    """Return a socket of its own on the descriptor of another one."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # It's no socket any more.
        os.close(copy)
        raise


def _half_close(found: list[_Found], *, even_busy: bool) -> Generator[None, None, list[_Found]]:
    """Half-close connections, and return those that are still open."""
    left: list[_Found] = []
    for number, inode in found:
        with contextlib.suppress(OSError), _copy(number) as each:
            if os.fstat(each.fileno()).st_ino == inode and _has_peer(each):
                left.append((number, inode))
                if even_busy or not _is_busy(each):
                    each.shutdown(socket.SHUT_WR)
        yield
    return left


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
