"""Connection of a command to a broker: options, time-out and errors."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

import click

import gazette_aio.protocol as pb
from gazette_aio.cli.failures import InputError, UnreachableError
from gazette_aio.client import JournalClient, RetryPolicy, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

DEFAULT_ADDRESS = "http://localhost:8080"
_SCHEMES = ("http", "https", "unix")
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """Address, credentials and time-out of a command's client.

    Args:
        address: URL of the broker.
        timeout: Seconds for which an unreachable broker is retried.
        auth_keys: Base64 keys which sign requests, or empty.
        auth_token: Bearer token of requests, or empty.
    """

    address: str = DEFAULT_ADDRESS
    timeout: float = 10.0
    auth_keys: str = dataclasses.field(default="", repr=False)
    auth_token: str = dataclasses.field(default="", repr=False)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[JournalClient, None]:
        """Yield a client, which dials at its first use.

        Raises:
            InputError: The address or the keys are invalid.
            UnreachableError: No broker answered within `timeout` seconds.

        Cancellation: aborts — calls are cancelled.
        """
        if urlsplit(self.address).scheme not in _SCHEMES:
            schemes = ", ".join(_SCHEMES)
            raise InputError(f"broker address {self.address!r}: expected a URL of {schemes}")
        policy = RetryPolicy(max_elapsed=self.timeout, backoff=_backoff)
        try:
            client = connect(
                self.address, auth=self._auth(), retry=policy, connect_timeout=self.timeout
            )
        except pb.ValidationError as error:
            raise InputError(f"broker address {self.address!r}: {error}") from None
        try:
            async with client:
                yield client
        except pb.TransportError as error:
            if error.code != "UNAVAILABLE":
                raise
            raise UnreachableError(self.address, self.timeout, error.details) from None

    def _auth(self) -> pb.KeyedAuth | pb.BearerAuth | None:
        if self.auth_keys:
            try:
                return pb.KeyedAuth(self.auth_keys)
            except pb.GazetteError as error:
                raise InputError(f"authorization keys: {error}") from None
        return pb.BearerAuth(self.auth_token) if self.auth_token else None


def _backoff(attempt: int) -> float:
    if attempt < 0:
        return 0.0
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 10), _LONGEST_DELAY_SECONDS)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options to `command`, and pass them as the ClientSettings `connection`."""

    @click.option(
        "--broker.address",
        "address",
        envvar="BROKER_ADDRESS",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        help="URL of the broker.",
    )
    @click.option(
        "--broker.auth-keys",
        "auth_keys",
        envvar="BROKER_AUTH_KEYS",
        default="",
        show_envvar=True,
        metavar="KEYS",
        help="Base64 keys; the first key signs requests. Other processes can see options.",
    )
    @click.option(
        "--broker.auth-keys-file",
        "auth_keys_file",
        type=click.File(),
        envvar="BROKER_AUTH_KEYS_FILE",
        show_envvar=True,
        help="File of the keys, which other processes can't see.",
    )
    @click.option(
        "--broker.auth-token",
        "auth_token",
        envvar="BROKER_AUTH_TOKEN",
        default="",
        show_envvar=True,
        metavar="TOKEN",
        help="Bearer token to send with requests.",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to retry while no broker answers.",
    )
    @functools.wraps(command)
    def with_connection(
        *args: Any,
        address: str,
        auth_keys: str,
        auth_keys_file: TextIO | None,
        auth_token: str,
        timeout: float,
        **kwargs: Any,
    ) -> Any:
        if auth_keys_file is not None:
            if auth_keys:
                raise InputError("give authorization keys, or a file of them, but not both")
            # An empty file isn't the same as none: it mustn't send requests without a token.
            auth_keys = auth_keys_file.read() or ","
        connection = ClientSettings(address, timeout, auth_keys, auth_token)
        return command(*args, connection=connection, **kwargs)

    return with_connection
