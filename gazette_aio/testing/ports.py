"""Free ports for servers whose port must be known before they listen."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

# Below the ephemeral ports, which systems give to clients and to servers that ask for any port. A
# client that connects to such a port before its server listens may get the port itself.
_PORTS: Final = range(18_000, 32_000)
_CHANCE: Final = random.SystemRandom()
_taken: Final[set[int]] = set()


def free_port(count: int = 1) -> int:
    """Return a free port of the loopback interface.

    While this process lives, calls in other processes of the same user return other ports.

    Args:
        count: Number of consecutive free ports, of which the first is returned.

    Raises:
        OSError: The file of locks in the directory for temporary files can't be opened.
    """
    while True:
        port = _CHANCE.choice(_PORTS)
        if all(map(_take, range(port, port + count))):
            return port


def stays_open(descriptor: int) -> bool:
    """Return whether a descriptor is the file of locks, which stays open until the process ends."""
    return bool(_locks.cache_info().currsize) and descriptor == _locks()


def _take(port: int) -> bool:
    # Race: the caller listens on the port only later.
    if port in _taken:
        return False
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    _taken.add(port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@functools.cache
def _locks() -> int:
    """Return the descriptor of a file with a byte to lock for each port, until the process ends."""
    path = Path(tempfile.gettempdir()) / f"gazette-aio-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
