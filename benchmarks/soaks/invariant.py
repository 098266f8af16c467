"""What the suites have in common."""

from __future__ import annotations

import socket


class BrokenInvariantError(Exception):
    """Something happened which must not happen, whatever fails."""


def require(condition: object, text: str) -> None:
    """Raise BrokenInvariantError with `text` unless `condition` holds."""
    if not condition:
        raise BrokenInvariantError(text)


def free_port() -> int:
    """Return a port which nobody listens on, for a broker which keeps its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
