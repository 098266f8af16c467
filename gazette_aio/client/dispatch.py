"""Which channel an RPC takes, and the life of channels."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.client.options import MAX_RECEIVE_BYTES, TLSOptions

_CHANNEL_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # A stream which isn't read can stall its connection, so that clients don't share any.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 301_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


_SCHEMES: Final = frozenset({"http", "https", "unix"})


class Dispatcher:
    """Dials the broker when it's first needed, and hands out the channel for each RPC.

    Args:
        address: Endpoint of the broker: `http`, `https` or `unix`.
        tls: TLS of `https` endpoints.
        connect_timeout: Seconds within which a broker must answer for calls that wait for it.

    Raises:
        ValidationError: `address` isn't an endpoint.
    """

    def __init__(self, address: str, tls: TLSOptions, *, connect_timeout: float) -> None:
        self._target = pb.grpc_target(address)
        if urlsplit(address).scheme.lower() not in _SCHEMES:
            raise pb.ValidationError(f"unsupported scheme of endpoint ({address})")
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0
        self._closed = False
        self.endpoint = address

    @property
    def is_dialled(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None

    @property
    def state(self) -> str:
        """State of the connection: `idle`, `connecting`, `ready`, `transient_failure`, `closed`."""
        if self._closed:
            return "closed"
        if self._channel is None:
            return "idle"
        return self._channel.get_state().name.lower()

    def check(self) -> None:
        """Refuse to work after `aclose()`, after a fork, and in another event loop.

        Raises:
            RuntimeError: What was done wrong.
        """
        if self._closed:
            raise RuntimeError(f"the client of {self.endpoint} is closed")
        if self._loop is None:
            return
        if self._process != os.getpid():
            raise RuntimeError(
                f"the client of {self.endpoint} was used before this process was forked; "
                "connect anew in each process"
            )
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError(
                f"the client of {self.endpoint} belongs to another event loop; "
                "connect anew in each event loop"
            )

    def channel(self) -> grpc.aio.Channel:
        """Return the channel to use for an RPC.

        Raises:
            RuntimeError: The client is closed, was forked, or belongs to another event loop.
            ConfigurationError: The TLS files can't be read.
        """
        self.check()
        if self._channel is None:
            self._loop = asyncio.get_running_loop()
            self._process = os.getpid()
            self._channel = self._dial()
        return self._channel

    async def ready(self) -> grpc.aio.Channel:
        """Wait for the broker to answer, and return its channel.

        Cancellation: safe.

        Raises:
            TransportError: It didn't within the connect time-out.
        """
        channel = self.channel()
        if channel.get_state() is grpc.ChannelConnectivity.READY:
            return channel
        try:
            async with asyncio.timeout(self._connect_timeout):
                await channel.channel_ready()
        except TimeoutError:
            raise pb.TransportError(
                "UNAVAILABLE",
                f"no broker answers at {self.endpoint} (waited {self._connect_timeout:g} s)",
                retryable=True,
            ) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            self.check()  # Closed while we waited.
            raise
        return channel

    async def aclose(self) -> None:
        """Close the channel, which ends its RPCs. Idempotent."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None and self._process == os.getpid():
            await channel.close()

    def _dial(self) -> grpc.aio.Channel:
        if urlsplit(self.endpoint).scheme.lower() != "https":
            return grpc.aio.insecure_channel(self._target, options=_CHANNEL_OPTIONS)
        ca, key, certificate = self._tls.read()
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        options = _CHANNEL_OPTIONS
        if self._tls.server_name is not None:
            options = (*options, ("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(self._target, credentials, options=options)

    def __repr__(self) -> str:
        return f"<Dispatcher of {self.endpoint}, {self.state}>"
