"""Proxies that the environment of this process names. The rule is in `protocol/proxy.py`."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.proxy import choose_proxy

if TYPE_CHECKING:
    from gazette_aio.protocol.proxy import Proxy

_logger = logging.getLogger(__name__)


def proxy_of(client: Literal["grpc", "https", "http"], address: str) -> Proxy | None:
    """Return the proxy through which to dial an address, or None to dial directly.

    The environment is read at each call. Each invalid entry is logged once.

    Args:
        client: Client of gRPC, or scheme of a URL.
        address: Host, with or without a port.
    """
    choice = choose_proxy(client, address, os.environ)
    for problem in choice.ignored:
        _warn(problem)
    return choice.proxy


def proxy_of_endpoint(endpoint: str) -> Proxy | None:
    """Return the proxy of a gRPC endpoint, or None to dial it directly. See `proxy_of()`.

    Raises:
        ValidationError: The endpoint is invalid.
    """
    parsed = parse_endpoint(endpoint)
    return None if parsed.scheme == "unix" else proxy_of("grpc", parsed.grpc_target)


def proxy_of_url(url: str) -> Proxy | None:
    """Return the proxy of an HTTP URL, or None to request it directly. See `proxy_of()`.

    An invalid URL has no proxy.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return proxy_of("https" if parts.scheme == "https" else "http", parts.netloc.rpartition("@")[2])


@functools.lru_cache(maxsize=64)
def _warn(problem: str) -> None:
    _logger.warning("an entry of the environment is ignored: %s", problem)
