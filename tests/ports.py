"""Ports for those who have to know theirs before anybody listens there."""

from __future__ import annotations

import random
import socket

# Below what systems give to those who ask for any port, and to clients: whoever connects to one of
# those while nobody listens there may take it, or even meet itself.
_PORTS = range(18_000, 32_000)
_CHANCE = random.SystemRandom()


def free_port() -> int:
    """Return a port of the loopback interface where nobody listens."""
    while True:
        port = _CHANCE.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
