"""Addresses of a server: as options give them, as sockets take them, and as URLs have them."""

from __future__ import annotations

from pathlib import Path

MAX_PORT = 65535


def parse_port(text: str) -> int | Path:
    """Return the port, or the path of the Unix socket, of `8080` or `unix:///path`.

    Raises:
        ValueError: If it's neither.
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
    """Return the host of a URL by which clients reach an address that's listened on."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"[{shown}]" if ":" in shown else shown
