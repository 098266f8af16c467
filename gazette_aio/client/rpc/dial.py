"""Channels to brokers, by their endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import grpc
import grpc.aio

from gazette_aio.client.options import MAX_RECEIVE_BYTES
from gazette_aio.protocol.endpoint import parse_endpoint

if TYPE_CHECKING:
    from gazette_aio.client.options import TLSOptions

_CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # A stream which isn't read can stall its connection, so that clients don't share any.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 301_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Wire: else pings end after two of them without data, and a connection of an idle watch or a
    # blocked read which is half open stays so for ever.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 20_000),
)


class Dialler:
    """Makes channels to endpoints. Files of TLS are read once, for the first `https` endpoint.

    Args:
        tls: TLS of `https` endpoints.
    """

    def __init__(self, tls: TLSOptions) -> None:
        self._tls = tls
        self._credentials: grpc.ChannelCredentials | None = None

    def __call__(self, endpoint: str) -> grpc.aio.Channel:
        """Return a new channel, which doesn't connect yet.

        Raises:
            ValidationError: It isn't an endpoint.
            ConfigurationError: The TLS files can't be read.
        """
        parsed = parse_endpoint(endpoint)
        target = parsed.grpc_target
        if parsed.scheme != "unix":
            # Wire: gRPC takes a host such as `dns` or `unix` for a scheme otherwise.
            target = f"dns:///{quote(target, safe=':')}"
        if not parsed.is_secure:
            return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        if self._credentials is None:
            self._credentials = grpc.ssl_channel_credentials(*self._tls.read())
        options = _CHANNEL_OPTIONS
        if self._tls.server_name is not None:
            options = (*options, ("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(target, self._credentials, options=options)
