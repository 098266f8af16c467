"""HTTP gateway of a broker: its address, its start and its end."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from gazette_aio.broker.gateway.connection import GatewayServer
from gazette_aio.broker.gateway.routes import GatewayRoutes
from gazette_aio.serving.connections import Connections
from gazette_aio.serving.listener import Listener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from gazette_aio.broker.core import BrokerCore


class HttpGateway:
    """Serves journals, diagnostics, and the JSON form of two RPCs over HTTP/1.1.

    Needs a running event loop.

    Args:
        allow_origins: Origins whose scripts may use the JSON form from a browser.
        allow_unauthenticated: Whether GET, HEAD and PUT of journals need no token though the broker
            has keys. Tokens that are sent are still checked.
    """

    def __init__(
        self,
        core: BrokerCore,
        *,
        allow_origins: Iterable[str] = (),
        allow_unauthenticated: bool = False,
    ) -> None:
        self._routes = GatewayRoutes(
            core, allow_origins=allow_origins, allow_unauthenticated=allow_unauthenticated
        )
        self._server = GatewayServer(self._routes.answer)
        self._listener: Listener | None = None

    def __repr__(self) -> str:
        if self._listener is None:
            return "<HttpGateway stopped>"
        return f"<HttpGateway connections={len(self._server)} requests={len(self._routes)}>"

    def __del__(self) -> None:
        if getattr(self, "_listener", None) is not None:
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, source=self, stacklevel=2)

    async def bind(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address, and return the port.

        Args:
            host: Address to listen on; empty is all of them.
            port: The port; zero takes any free one.
            tls: Context of HTTPS; None is plain HTTP.

        Raises:
            ListenError: The address can't be listened on.

        Cancellation: safe.
        """
        self._listener = await Listener.bound(self._server, host, port, tls)
        bound: int = self._listener.sockets[0].getsockname()[1]
        Connections(host, bound).leave_children(self._listener)
        return bound

    async def start(self) -> None:
        """Begin to answer.

        Cancellation: safe.
        """
        assert self._listener is not None, "not bound"
        await self._listener.start_serving()

    async def stop(self, grace: float) -> None:
        """Stop listening, and end requests after `grace` seconds. Idempotent.

        Cancellation: safe — call again.
        """
        if (listener := self._listener) is None:
            return
        listener.close()
        await self._routes.finish(grace)
        await self._server.end()
        await listener.wait_closed()
        self._listener = None
