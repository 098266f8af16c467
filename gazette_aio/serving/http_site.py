"""Addresses that HTTP servers listen on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.serving.address import listen_address
from gazette_aio.serving.listening import listen_failure

if TYPE_CHECKING:
    import ssl

    from aiohttp.web import AppRunner


async def listen(
    runner: AppRunner, host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> int:
    """Have a server that is set up listen on an address, and return the port.

    Args:
        runner: The server. The caller cleans it up, also after an error.
        host: Address to listen on; empty is all of them.
        port: Port; zero takes any free one.
        tls: Context of HTTPS; None is plain HTTP.

    Raises:
        ConfigurationError: The address can't be listened on.

    Cancellation: safe — the caller cleans up.
    """
    site = web.TCPSite(runner, host or None, port, ssl_context=tls)
    try:
        await site.start()
    except OSError as error:
        raise pb.ConfigurationError(
            f"unable to listen on {listen_address(host, port)}: {listen_failure(error)}"
        ) from error
    bound: int = runner.addresses[0][1]
    return bound
