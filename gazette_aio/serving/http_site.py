"""Addresses that HTTP servers listen on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.serving.address import listen_address
from gazette_aio.serving.connections import Connections
from gazette_aio.serving.listening import bound_listener, listen_failure

if TYPE_CHECKING:
    import socket
    import ssl

    from aiohttp.web import AppRunner


async def listen(
    runner: AppRunner, host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> int:
    """Have a server that is set up listen on an address, and return the port.

    Args:
        runner: The server. The caller cleans it up, also after an error.
        host: Address to listen on; empty is all of them.
        port: Port; zero takes any that is free on all of the host's addresses.
        tls: Context of HTTPS; None is plain HTTP.

    Raises:
        ConfigurationError: The address can't be listened on.

    Cancellation: safe — the caller cleans up.
    """
    sockets: list[socket.socket] = []
    try:
        listener = await bound_listener(asyncio.Protocol, host, port)
        sockets = [each.dup() for each in listener.sockets]
        listener.close()
        bound: int = sockets[0].getsockname()[1]
        while sockets:
            await web.SockSite(runner, sockets[-1], ssl_context=tls).start()
            sockets.pop()  # The runner closes it.
        Connections(host, bound).leave_children(runner.server)
    except OSError as error:
        raise pb.ConfigurationError(
            f"unable to listen on {listen_address(host, port)}: {listen_failure(error)}"
        ) from error
    finally:
        for each in sockets:
            each.close()
    return bound
