"""Ports for those who have to know theirs before anybody listens there."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below what systems give to those who ask for any port, and to clients: whoever connects to one of
# those while nobody listens there may take it, or even meet itself.
_PORTS: Final = range(18_000, 32_000)
_CHANCE: Final = random.SystemRandom()


def free_port(count: int = 1) -> int:
    """Return a port of the loopback interface where nobody listens.

    Args:
        count: Ports which have to be free: this one and those that follow it.
    """
    while True:
        port = _CHANCE.choice(_PORTS)
        if all(map(_is_free, range(port, port + count))):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
