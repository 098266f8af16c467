"""Connection of a command to a broker or a consumer: options, time-out and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.cli.shell.failures import InputError, UnreachableError, WrongServerError
from gazette_aio.cli.shell.keys import given_keys, keyed_auth
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.quantities import duration
from gazette_aio.client import RetryPolicy, TLSOptions, connect
from gazette_aio.client.options import DEFAULT_ADDRESS
from gazette_aio.client.rpc.errors import AUTH_REMEDY, TRUST_REMEDY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient

C = TypeVar("C", bound=Owner)
T = TypeVar("T")

_SCHEMES = ("http", "https", "unix")
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """Address, credentials and time-out of a command's client.

    Args:
        address: URL of the broker, or of a member of the consumer.
        timeout: Seconds for which an unreachable server is retried.
        auth_keys: Base64 keys that sign requests, or empty.
        auth_token: Bearer token of requests, or empty.
        peer: `broker` or `consumer`.
        zone: Zone of this process, or None for the client's default.
        tls: TLS of `https` addresses, or None for the client's default.
        cache_size: Journals or shards whose routes are kept, or None for the client's default.
        cache_ttl: Seconds to keep a route, or None for the client's default.
    """

    address: str = DEFAULT_ADDRESS
    timeout: float = 10.0
    auth_keys: str = dataclasses.field(default="", repr=False)
    auth_token: str = dataclasses.field(default="", repr=False)
    peer: str = "broker"
    zone: str | None = None
    tls: TLSOptions | None = None
    cache_size: int | None = None
    cache_ttl: float | None = None

    def open(self, *, file_root: str | None = None) -> AbstractAsyncContextManager[JournalClient]:
        """Return a context manager of a client, which dials at its first use.

        Args:
            file_root: Directory of fragment files with `file` URLs, or None for the default.

        Raises:
            InputError: The address or the keys are invalid.
            UnreachableError: No broker answered within `timeout` seconds.
            WrongServerError: The server doesn't know a call.

        Cancellation: aborts — calls are cancelled.
        """
        return self._opened(functools.partial(connect, file_root=file_root))

    def open_shards(self) -> AbstractAsyncContextManager[ShardClient]:
        """Return a context manager of a client of shards, as `open()` does.

        Cancellation: aborts — calls are cancelled.
        """
        # Commands of journals need no consumer.
        from gazette_aio.consumer.api import connect_shards  # noqa: PLC0415

        return self._opened(connect_shards)

    def run(self, call: Callable[[JournalClient], Awaitable[T]]) -> T:
        """Run one call of a client, and return its result. Errors are those of `open()`."""
        return asyncio.run(_result_of(self.open(), call))

    def run_shards(self, call: Callable[[ShardClient], Awaitable[T]]) -> T:
        """Run one call of a client of shards, as `run()` does."""
        return asyncio.run(_result_of(self.open_shards(), call))

    def client(self, connect: Callable[..., C], auth: pb.Authorizer | None) -> C:
        """Return a client for an authorizer, made by `connect()` or `connect_shards()`."""
        return connect(
            self.address,
            auth=auth,
            retry=RetryPolicy(max_elapsed=self.timeout, backoff=_backoff),
            connect_timeout=self.timeout,
            zone=self.zone,
            tls=self.tls,
            cache_size=self.cache_size,
            cache_ttl=self.cache_ttl,
        )

    @asynccontextmanager
    async def _opened(self, connect: Callable[..., C]) -> AsyncGenerator[C, None]:
        if urlsplit(self.address).scheme not in _SCHEMES:
            schemes = ", ".join(_SCHEMES)
            raise InputError(f"{self.peer} address {self.address!r}: expected a URL of {schemes}")
        try:
            client = self.client(connect, self._auth())
        except pb.ValidationError as error:
            raise InputError(f"{self.peer} address {self.address!r}: {error}") from None
        try:
            async with client:
                yield client
        except pb.TransportError as error:
            details = self._with_options(error.details)
            match error.code:
                case "UNIMPLEMENTED":
                    raise WrongServerError(self.address, peer=self.peer) from None
                case "UNAVAILABLE":
                    raise UnreachableError(
                        self.address, self.timeout, details, peer=self.peer
                    ) from None
                case _ if details != error.details:
                    raise pb.TransportError(error.code, details, journal=error.journal) from None
                case _:
                    raise

    def _with_options(self, text: str) -> str:
        """Return a text of the client whose remedies name options, and nothing of Python."""
        keys = f"give --{self.peer}.auth-keys-file or --{self.peer}.auth-token"
        return text.replace(AUTH_REMEDY, keys).replace(
            TRUST_REMEDY, f"--{self.peer}.trusted-ca-file"
        )

    def _auth(self) -> pb.KeyedAuth | pb.BearerAuth | None:
        if self.auth_keys:
            return keyed_auth(self.auth_keys)
        return pb.BearerAuth(self.auth_token) if self.auth_token else None


async def _result_of(
    opening: AbstractAsyncContextManager[C], call: Callable[[C], Awaitable[T]]
) -> T:
    async with opening as client:
        return await call(client)


def _backoff(attempt: int) -> float:
    if attempt < 0:
        return 0.0
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 10), _LONGEST_DELAY_SECONDS)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options to `command`, and pass them as the ClientSettings `connection`."""
    return _with_settings(command, broker="connection")


def consumer_and_broker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options to `command`, and pass them as the ClientSettings `consumer` and `connection`."""
    return _with_settings(command, consumer="consumer", broker="connection")


def _with_settings(command: Callable[..., Any], **peers: str) -> Callable[..., Any]:
    """Add the options of peers, and pass the settings of each by the name of its parameter."""

    @click.option(
        "--zone",
        envvar="ZONE",
        show_envvar=True,
        help="Zone of this process, whose members are preferred. [default: local]",
    )
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to retry while nobody answers.",
    )
    @functools.wraps(command)
    def with_settings(*args: Any, timeout: float, zone: str | None, **kwargs: Any) -> Any:
        for peer, parameter in peers.items():
            kwargs[parameter] = _taken(kwargs, peer, timeout, zone or None)
        return command(*args, **kwargs)

    decorated: Callable[..., Any] = log_options(with_settings)
    for peer in reversed(peers):
        decorated = _peer_options(peer)(decorated)
    return decorated


def _taken(given: dict[str, Any], peer: str, timeout: float, zone: str | None) -> ClientSettings:
    taken = {name: given.pop(f"{peer}_{_variable(name)}") for name in _PEER_OPTIONS}
    size: int | None = taken["cache.size"]
    certificates: dict[str, Any] = {
        "ca_file": taken["trusted-ca-file"] or None,
        "certificate_file": taken["cert-file"] or None,
        "key_file": taken["cert-key-file"] or None,
    }
    return ClientSettings(
        taken["address"],
        timeout,
        given_keys(taken["auth-keys"], taken["auth-keys-file"]),
        taken["auth-token"],
        peer,
        zone=zone,
        tls=TLSOptions(**certificates) if any(certificates.values()) else None,
        cache_size=None if size is None else max(size, 0),
        cache_ttl=taken["cache.ttl"],
    )


_FILE: Final = {"type": click.Path(dir_okay=False)}
_PEER_OPTIONS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "address": ("", {"default": DEFAULT_ADDRESS, "show_default": True, "metavar": "URL"}),
    "auth-keys": (
        "Base64 keys; the first key signs requests. Other processes can see options.",
        {"default": "", "metavar": "KEYS"},
    ),
    "auth-keys-file": (
        "File of the keys, which other processes can't see; a pipe such as /dev/stdin, too.",
        {"type": click.Path(exists=True, dir_okay=False, path_type=Path)},
    ),
    "auth-token": ("Bearer token to send with requests.", {"default": "", "metavar": "TOKEN"}),
    "cert-file": ("Certificate of this client, in PEM format.", _FILE),
    "cert-key-file": ("Private key of that certificate, in PEM format.", _FILE),
    "trusted-ca-file": ("Authorities of servers, in PEM format.", _FILE),
    "cache.size": (
        "Routes to keep; 0 sends all requests to the address. [default: 256]",
        {"type": int},
    ),
    "cache.ttl": (
        "Time for which a route is kept. [default: 1m]",
        {"callback": duration, "metavar": "DURATION"},
    ),
}
"""Help and attributes of the options of each peer."""
_ADDRESS_HELP: Final = {
    "broker": "URL of the broker.",
    "consumer": "URL of a member of the consumer.",
}


def _variable(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


def _peer_options(peer: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, (text, attributes) in reversed(_PEER_OPTIONS.items()):
            variable = f"{peer}_{_variable(name)}"
            command = click.option(
                f"--{peer}.{name}",
                variable,
                envvar=variable.upper(),
                show_envvar=True,
                help=text or _ADDRESS_HELP[peer],
                **attributes,
            )(command)
        return command

    return decorate
