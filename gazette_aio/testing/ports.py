"""Ports for those who have to know theirs before anybody listens there."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

# Below what systems give to those who ask for any port, and to clients: whoever connects to one of
# those while nobody listens there may take it, or even meet itself.
_PORTS: Final = range(18_000, 32_000)
_CHANCE: Final = random.SystemRandom()
_taken: Final[set[int]] = set()


def free_port(count: int = 1) -> int:
    """Return a port of the loopback interface where nobody listens.

    The same user's other processes aren't given it while this process lives.

    Args:
        count: Ports which have to be free: this one and those that follow it.

    Raises:
        OSError: The file of locks in the directory for temporary files can't be opened.
    """
    while True:
        port = _CHANCE.choice(_PORTS)
        if all(map(_take, range(port, port + count))):
            return port


def stays_open(descriptor: int) -> bool:
    """Return whether a descriptor is that of the file of locks, which lives as long as ports do."""
    return bool(_locks.cache_info().currsize) and descriptor == _locks()


def _take(port: int) -> bool:
    # Race: whoever gets a port listens there only seconds later.
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
    """Descriptor of a file of which each port has a byte to lock. Locks end with their process."""
    path = Path(tempfile.gettempdir()) / f"gazette-aio-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
