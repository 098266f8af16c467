"""Addresses to listen on: one port for all addresses of a host, and reasons of failures."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_BIND_ATTEMPTS: Final = 5

_REMEDIES: Final = {
    errno.EADDRINUSE: "another process listens there: end it, or choose another port, such as 0 "
    "for any free one",
    errno.EADDRNOTAVAIL: "the host must be an address of this machine",
    errno.EACCES: "choose a port that this user may listen on, such as 8080",
}


async def bound_listener(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.Server:
    """Return a server that is bound to an address, and doesn't serve yet.

    Args:
        factory: Returns the protocol of a connection.
        host: Name or address; empty is all addresses.
        port: Port; zero takes any that is free on all addresses of the host.

    Raises:
        OSError: The address can't be listened on.

    Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(factory, host, port, start_serving=False)
    attempt = 1
    # A host of several addresses gets a port of each; clients are told one.
    while len({each.getsockname()[1] for each in listener.sockets}) > 1:
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        try:
            listener = await loop.create_server(factory, host, port, start_serving=False)
        except OSError:
            if (attempt := attempt + 1) > _BIND_ATTEMPTS:
                raise
            listener = await loop.create_server(factory, host, 0, start_serving=False)
    return listener


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
