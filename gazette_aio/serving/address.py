"""Addresses of a server, in the forms of options, sockets and URLs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MAX_PORT = 65535

# Strict, so that no other parser of URLs takes another host from the same text.
_HTTP_URL: Final = re.compile(
    r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[a-z0-9._~/-]*)?",
    re.ASCII | re.IGNORECASE,
)
_HTTP_PORTS: Final = {"http": 80, "https": 443}


def parse_port(text: str) -> int | Path:
    """Return the port, or the path of the Unix socket, of `8080` or `unix:///path`.

    Raises:
        ValueError: The text is neither.
    """
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        if not path.startswith("/"):
            raise ValueError("expected unix:///path")
        return Path(path)
    port = int(text)
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"expected a port of 0 to {MAX_PORT}")
    return port


def listen_address(host: str, port: int) -> str:
    """Return the text of an address to listen on."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_host(host: str) -> str:
    """Return the host for a URL of a listening address."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{shown}]" if ":" in shown else shown


def http_origin(url: str, *, bare: bool = False) -> str:
    """Return the origin of a plain HTTP URL: its scheme, host and port, in one spelling.

    Args:
        url: URL without user, query, fragment and escapes.
        bare: Whether the URL must not have a path either.

    Raises:
        ValueError: The text isn't such a URL.
    """
    match = _HTTP_URL.fullmatch(url)
    if match is None or (bare and match[4] not in (None, "/")):
        raise ValueError("expected http://host:port or https://host:port")
    scheme = match[1].lower()
    port = int(match[3]) if match[3] else _HTTP_PORTS[scheme]
    return f"{scheme}://{match[2].lower()}:{port}"
