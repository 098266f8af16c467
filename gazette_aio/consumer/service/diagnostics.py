"""Diagnostics of a member by HTTP: whether it's ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.serving.http_site import SiteRunner, cors_headers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection


class Diagnostics(Owner):
    """Server of `/debug/ready` and `/debug/metrics`.

    The former is answered by 200 while the member is ready, else by 503; the latter by metrics in
    the text format of Prometheus.

    Args:
        ready: Tells whether the member is ready.
        metrics: Returns the metrics and their content type, or None if there are none.
        allow_origin: Origins whose scripts may read the answers in a browser.
    """

    def __init__(
        self,
        ready: Callable[[], bool],
        metrics: Callable[[], tuple[bytes, str]] | None,
        *,
        allow_origin: Collection[str] = (),
    ) -> None:
        self._ready = ready
        self._metrics = metrics
        self._allow_origin = allow_origin
        self._runner: SiteRunner | None = None

    def __repr__(self) -> str:
        return f"<Diagnostics {'serving' if self._runner is not None else 'stopped'}>"

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Begin to serve, and return the port.

        Args:
            host: Address to listen on; empty is all of them.
            port: The port; zero takes any free one.
            tls: Context of HTTPS; None is plain HTTP.

        Raises:
            ConfigurationError: The address can't be listened on.

        Cancellation: safe — call `aclose()`.
        """
        app = web.Application()
        app.on_response_prepare.append(self._add_headers)
        app.router.add_get("/debug/ready", self._answer_ready)
        app.router.add_get("/debug/metrics", self._answer_metrics)
        runner = self._runner = SiteRunner(app)
        try:
            return await runner.listen(host, port, tls=tls)
        except ConfigurationError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop to serve. Idempotent.

        Cancellation: safe — takes effect when it's done.
        """
        if (runner := self._runner) is not None:
            self._runner = None
            await finish(runner.cleanup())

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(cors_headers(request, self._allow_origin))

    async def _answer_ready(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready\n")

    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        if self._metrics is None:
            text = "metrics need prometheus-client: pip install 'gazette-aio[metrics]'\n"
            return web.Response(status=501, text=text)
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})
