"""Options of a client of Etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from gazette_aio.client.options import TLSOptions

_SCHEMES = ("http", "https", "unix")


@dataclass(frozen=True, kw_only=True)
class EtcdOptions:
    """Options of an EtcdStore.

    Raises:
        ConfigurationError: An endpoint or a number is invalid, or only one of `user` and `password`
            is given.
    """

    endpoints: tuple[str, ...] = ("http://localhost:2379",)
    """Members to call, and no others: `http://host:port`, `https://…` or `unix://…`."""
    tls: TLSOptions | None = None
    """TLS of `https` endpoints; None trusts the built-in authorities."""
    user: str = ""
    """Name of the user; empty for none."""
    password: str = field(default="", repr=False)
    """Password of the user."""
    timeout_seconds: float = 10.0
    """Time in which Etcd has to answer a request."""
    retry_seconds: float = 30.0
    """Time for which a request is repeated while Etcd is unavailable, if that is safe."""
    stalled_ttls: float = 3.0
    """Time for which a lease is kept alive though the event loop stands still, in TTLs."""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigurationError("Etcd needs an endpoint")
        for endpoint in self.endpoints:
            # The text of an endpoint may hold a password, so that errors don't show it.
            try:
                parsed = parse_endpoint(endpoint)
            except ValidationError:
                raise ConfigurationError("an endpoint of Etcd isn't a URL with a host") from None
            if "@" in endpoint and parsed.scheme != "unix":
                raise ConfigurationError("user and password of Etcd have options of their own")
            if parsed.scheme not in _SCHEMES:
                raise ConfigurationError(f"an endpoint of Etcd can't be {parsed.scheme}")
        if bool(self.user) != bool(self.password):
            raise ConfigurationError("user and password of Etcd must be given together")
        if min(self.timeout_seconds, self.stalled_ttls) <= 0 or self.retry_seconds < 0:
            raise ConfigurationError("times of Etcd must be positive")
