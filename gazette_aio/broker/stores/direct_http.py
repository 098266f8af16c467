"""HTTP requests without redirects.

A redirect of an object server could lead the broker to addresses that only the broker can reach.
"""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any, cast

from gazette_aio.proxies import proxy_of_url

if TYPE_CHECKING:
    import http.client


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Return no request, so that a redirect is an HTTPError of its status."""


def open_url(url: str, timeout: float) -> http.client.HTTPResponse:
    """Return the response to a GET of an HTTP URL, a context manager. Blocks.

    Args:
        url: The URL.
        timeout: Seconds to wait for each part of the response.

    Raises:
        HTTPError: The status isn't a success, for example a redirect.
        OSError, HTTPException: There's no response.
    """
    proxy = proxy_of_url(url)
    proxies = {} if proxy is None else {"http": proxy.url, "https": proxy.url}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies), _NoRedirects)
    return cast("http.client.HTTPResponse", opener.open(url, timeout=timeout))
