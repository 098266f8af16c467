"""Reasons why an address can't be listened on, and what to do about them."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

_REMEDIES: Final = {
    errno.EADDRINUSE: "another process listens there: end it, or choose another port, such as 0 "
    "for any free one",
    errno.EADDRNOTAVAIL: "the host must be an address of this machine",
    errno.EACCES: "choose a port that this user may listen on, such as 8080",
}


def listen_failure(error: OSError) -> str:
    """Return the reason of a failed attempt to listen, and what to do about it."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{reason} ({remedy})" if remedy else reason


def probe(host: str, port: int) -> str:
    """Return why an address can't be listened on, or an empty text if it can.

    For libraries that don't say why.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(1)
    except socket.gaierror as error:
        return str(error.strerror).lower()
    except OSError as error:
        return listen_failure(error)
    return ""
