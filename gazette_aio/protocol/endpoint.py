"""Endpoints of processes."""

from __future__ import annotations

from typing import NamedTuple

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.url import parse_url


class Endpoint(NamedTuple):
    """Address at which a process serves."""

    scheme: str
    """`http`, `https` or `unix`; other schemes are valid, but can't be dialled."""
    host: str
    """Host, with its port if the URL has one."""
    path: str
    """Path of the socket, if the scheme is `unix`."""
    port: str
    """Port, or empty."""

    @property
    def grpc_target(self) -> str:
        """Address to dial by gRPC: `host:port`, or `unix:///path`."""
        if self.scheme == "unix":
            # The host only informs people.
            return f"unix://{self.path}"
        default = {"http": ":80", "https": ":443"}.get(self.scheme, "")
        return self.host if self.port else self.host + default

    @property
    def is_secure(self) -> bool:
        """Whether the endpoint uses TLS."""
        return self.scheme == "https"


def parse_endpoint(text: str) -> Endpoint:
    """Parse the URL of an endpoint.

    Raises:
        ValidationError: The text isn't an absolute URL with a host.
    """
    url = parse_url(text)
    if not url.scheme:
        raise ValidationError(f"not absolute: {text}")
    if not url.host:
        raise ValidationError(f"missing host: {text}")
    return Endpoint(url.scheme, url.host, url.path, url.port)
