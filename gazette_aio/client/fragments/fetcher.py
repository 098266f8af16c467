"""Fetcher of fragment files by HTTP, and the protocol of fetchers."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote, urljoin

import gazette_aio.protocol as pb
from gazette_aio.aio.task import start_task
from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.url import redacted
from gazette_aio.proxies import proxy_of_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import aiohttp

CONNECT_TIMEOUT: Final = 30.0
_MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUFFER_BYTES: Final = 256 << 10
# What may stand in a URL as it is. Others are escaped.
_URL_SAFE: Final = "%!#$&'()*+,/:;=?@[]~"


class FragmentBody(Protocol):
    """Response to a request for a fragment file."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def reason(self) -> str:
        """Phrase of the status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, with names in any case."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate the raw bytes of the body, which must not be decompressed.

        Raises:
            TransportError, OSError: Reading failed.
        """
        ...

    async def aclose(self) -> None:
        """End the response. Idempotent.

        Cancellation: safe — must leave nothing open.
        """
        ...


class FragmentFetcher(Protocol):
    """Fetcher of fragment files. A user's own may go through a proxy, for example.

    It must not decompress bodies, and must not put queries of URLs into the texts of errors: they
    hold signatures.
    """

    async def open(self, url: str, headers: Mapping[str, str]) -> FragmentBody:
        """Get a URL, and return the response, whatever its status.

        Raises:
            TransportError, OSError: There is no response.
            ConfigurationError: The fetcher doesn't support such URLs; a broker is read instead.

        Cancellation: aborts — must leave nothing open.
        """
        ...

    async def aclose(self) -> None:
        """Close connections that are kept between requests. Idempotent.

        Cancellation: safe — it may be called again.
        """
        ...


class HTTPFragmentFetcher:
    """Fetcher by HTTP/1.1, which keeps connections for a while.

    Redirects are followed unless they lead to another scheme. Proxies of the environment are used,
    except for addresses of loopback and of NO_PROXY. There are no limits on the time and
    size of a body, nor on the number of connections: each open reader has its own.

    Args:
        connect_timeout: Seconds within which to connect, TLS included; 30 by default.
    """

    def __init__(self, *, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._connect_timeout = connect_timeout
        self._session: aiohttp.ClientSession | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self, url: str, headers: Mapping[str, str]) -> FragmentBody:
        """Get a URL, and return the response.

        Raises:
            TransportError: There is no response, or it redirects too often or to another scheme.
            ConfigurationError: aiohttp refuses the URL.
            UsageError: The fetcher is closed.

        Cancellation: aborts.
        """
        target, status, why = url, 0, "redirects too often"
        for _ in range(_MAX_REDIRECTS):
            response = await self._get(target, headers)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return _HTTPBody(response, redacted(url))
            response.close()
            target, status = _redirected(target, location), response.status
            if _scheme(target) != _scheme(url):
                why = "redirects to another scheme"
                break
        raise pb.TransportError("", f'"{redacted(url)}" {why}', http_status=status)

    async def _get(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        if self._session is None:
            # Importing takes a while, and reads certificates.
            await in_thread(importlib.import_module, "aiohttp")
        import aiohttp  # noqa: PLC0415
        import yarl  # noqa: PLC0415

        if self._closed:
            raise pb.UsageError("the fetcher of fragments is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_BUFFER_BYTES,
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout),
            )
        try:
            # Wire: a signature covers the URL as it's spelled.
            where = yarl.URL(quote(url, safe=_URL_SAFE), encoded=True)
            return await self._session.get(
                where,
                headers=headers,
                allow_redirects=False,
                proxy=proxy.url if (proxy := proxy_of_url(url)) else None,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = _failure(error, redacted(url))
        # Invariant: raised here, since errors of aiohttp show the URL, and would be the context.
        raise failure

    async def aclose(self) -> None:
        """Close idle connections. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        if self._session is not None:
            # Invariant: aiohttp doesn't continue a close that was broken off.
            if self._closing is None:
                self._closing = start_task(self._session.close(), "gazette end of a session")
            await asyncio.shield(self._closing)
            self._session = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ready" if self._session is None else "open"
        return f"<HTTPFragmentFetcher, {state}>"


class _HTTPBody:
    def __init__(self, response: aiohttp.ClientResponse, where: str) -> None:
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._where = where

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        import aiohttp  # noqa: PLC0415

        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            failure = _failure(error, self._where)
        else:
            if not data:
                raise StopAsyncIteration
            return data
        raise failure

    async def aclose(self) -> None:
        # A connection whose body was read to its end is kept for further requests.
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


def _redirected(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _failure(error: Exception, where: str) -> pb.GazetteError:
    """Return the exception of a failure of aiohttp, without secrets in its text."""
    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return pb.ConfigurationError(f'invalid URL "{where}"')
    details = f'fetching "{where}": {type(error).__name__}'
    if isinstance(error, OSError) and error.strerror:
        details += f" ({error.strerror})"
    # An invalid certificate remains so.
    return pb.TransportError("UNAVAILABLE", details, retryable=not isinstance(error, ValueError))
