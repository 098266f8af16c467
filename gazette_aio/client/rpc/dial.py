"""Channels to brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import grpc
import grpc.aio

from gazette_aio.client.options import MAX_RECEIVE_BYTES
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.proxies import proxy_of_endpoint

if TYPE_CHECKING:
    from gazette_aio.client.options import TLSOptions

_CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # A stream that isn't read can stall its connection, so clients don't share connections.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 301_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Wire: by default pings end after two without data. A half-open connection of an idle watch or
    # a blocked read would remain so for ever.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 20_000),
)


class Dialler:
    """Makes channels to endpoints. TLS files are read once, for the first `https` endpoint.

    Args:
        tls: TLS of `https` endpoints.
        options: Options of the channels.
    """

    def __init__(
        self, tls: TLSOptions, options: tuple[tuple[str, Any], ...] = _CHANNEL_OPTIONS
    ) -> None:
        self._tls = tls
        self._options = options
        self._credentials: grpc.ChannelCredentials | None = None

    def __call__(self, endpoint: str) -> grpc.aio.Channel:
        """Return a new channel to an endpoint. It doesn't connect yet.

        Raises:
            ValidationError: The endpoint is invalid.
            ConfigurationError: The TLS files can't be read.
        """
        target, credentials, options = self._parts(endpoint)
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, credentials, options=options)

    def blocking(self, endpoint: str) -> grpc.Channel:
        """Return a new channel to an endpoint, for threads without an event loop.

        Raises:
            ValidationError: The endpoint is invalid.
            ConfigurationError: The TLS files can't be read.
        """
        target, credentials, options = self._parts(endpoint)
        if credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, credentials, options=options)

    def _parts(
        self, endpoint: str
    ) -> tuple[str, grpc.ChannelCredentials | None, tuple[tuple[str, Any], ...]]:
        """Return the target of a channel, its credentials if it's secure, and its options."""
        parsed = parse_endpoint(endpoint)
        target = parsed.grpc_target
        # gRPC's own rule knows no loopback, and NO_PROXY only in small letters.
        proxy = proxy_of_endpoint(endpoint)
        by = ("grpc.enable_http_proxy", 0) if proxy is None else ("grpc.http_proxy", proxy.url)
        options = (*self._options, by)
        if parsed.scheme != "unix":
            # Wire: otherwise gRPC takes a host such as `dns` or `unix` for a scheme.
            target = f"dns:///{quote(target, safe=':')}"
        if not parsed.is_secure:
            return target, None, options
        if self._credentials is None:
            self._credentials = grpc.ssl_channel_credentials(*self._tls.read())
        if self._tls.server_name is None:
            return target, self._credentials, options
        override = ("grpc.ssl_target_name_override", self._tls.server_name)
        return target, self._credentials, (*options, override)
