"""HTTP gateway of a broker: its address, its start and its end."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING

from gazette_aio.serving.connections import Connections
from gazette_aio.serving.listener import Listener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.gateway.connection import GatewayServer
    from gazette_aio.broker.gateway.routes import GatewayRoutes

_CONNECTION = "gazette_aio.broker.gateway.connection"
_ROUTES = "gazette_aio.broker.gateway.routes"


class HttpGateway:
    """Serves journals, diagnostics, and the JSON form of two RPCs over HTTP/1.1.

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
        self._core = core
        self._allow_origins = tuple(allow_origins)
        self._allow_unauthenticated = allow_unauthenticated
        self._listener: Listener | None = None
        self._server: GatewayServer | None = None
        self._routes: GatewayRoutes | None = None

    def __repr__(self) -> str:
        if self._listener is None or self._server is None or self._routes is None:
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
        if not {_CONNECTION, _ROUTES} <= sys.modules.keys():
            # Imported here, because brokers without a gateway needn't wait for the import.
            await self._core.runtime.io.run(importlib.import_module, _ROUTES)
        routes = self._routes = importlib.import_module(_ROUTES).GatewayRoutes(
            self._core,
            allow_origins=self._allow_origins,
            allow_unauthenticated=self._allow_unauthenticated,
        )
        server = self._server = importlib.import_module(_CONNECTION).GatewayServer(routes.answer)
        self._listener = await Listener.bound(server, host, port, tls)
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
        assert self._server is not None
        assert self._routes is not None
        listener.close()
        await self._routes.finish(grace)
        await self._server.end()
        await listener.wait_closed()
        self._listener = None
