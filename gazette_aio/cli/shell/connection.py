"""Connection of a command to a broker or a consumer: options, time-out and errors."""

from __future__ import annotations

import dataclasses
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TextIO, TypeVar
from urllib.parse import urlsplit

import click

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.cli.shell.failures import InputError, UnreachableError, WrongServerError
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.client import RetryPolicy, TLSOptions, connect
from gazette_aio.consumer.api import connect_shards

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient

C = TypeVar("C", bound=Owner)

DEFAULT_ADDRESS = "http://localhost:8080"
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
        return self._opened(
            lambda auth, retry: connect(
                self.address,
                auth=auth,
                retry=retry,
                connect_timeout=self.timeout,
                zone=self.zone,
                tls=self.tls,
                cache_size=self.cache_size,
                cache_ttl=self.cache_ttl,
                file_root=file_root,
            )
        )

    def open_shards(self) -> AbstractAsyncContextManager[ShardClient]:
        """Return a context manager of a client of shards, as `open()` does.

        Cancellation: aborts — calls are cancelled.
        """
        return self._opened(
            lambda auth, retry: connect_shards(
                self.address,
                auth=auth,
                retry=retry,
                connect_timeout=self.timeout,
                zone=self.zone,
                tls=self.tls,
                cache_size=self.cache_size,
                cache_ttl=self.cache_ttl,
            )
        )

    @asynccontextmanager
    async def _opened(
        self, make: Callable[[pb.Authorizer | None, RetryPolicy], C]
    ) -> AsyncGenerator[C, None]:
        if urlsplit(self.address).scheme not in _SCHEMES:
            schemes = ", ".join(_SCHEMES)
            raise InputError(f"{self.peer} address {self.address!r}: expected a URL of {schemes}")
        policy = RetryPolicy(max_elapsed=self.timeout, backoff=_backoff)
        try:
            client = make(self._auth(), policy)
        except pb.ValidationError as error:
            raise InputError(f"{self.peer} address {self.address!r}: {error}") from None
        try:
            async with client:
                yield client
        except pb.TransportError as error:
            if error.code == "UNIMPLEMENTED":
                raise WrongServerError(self.address, peer=self.peer) from None
            if error.code != "UNAVAILABLE":
                raise
            raise UnreachableError(
                self.address, self.timeout, error.details, peer=self.peer
            ) from None

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
    keys: str = given.pop(f"{peer}_auth_keys")
    file: TextIO | None = given.pop(f"{peer}_auth_keys_file")
    if file is not None:
        if keys:
            raise InputError("give authorization keys, or a file of them, but not both")
        # An empty file isn't the same as no file: requests mustn't be sent without a token.
        keys = file.read() or ","
    address, token = given.pop(f"{peer}_address"), given.pop(f"{peer}_auth_token")
    size: int | None = given.pop(f"{peer}_cache_size")
    certificates: dict[str, Any] = {
        "ca_file": given.pop(f"{peer}_trusted_ca_file") or None,
        "certificate_file": given.pop(f"{peer}_cert_file") or None,
        "key_file": given.pop(f"{peer}_cert_key_file") or None,
    }
    return ClientSettings(
        address,
        timeout,
        keys,
        token,
        peer,
        zone=zone,
        tls=TLSOptions(**certificates) if any(certificates.values()) else None,
        cache_size=None if size is None else max(size, 0),
        cache_ttl=given.pop(f"{peer}_cache_ttl"),
    )


def duration(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of a duration such as `1m30s`, as a callback of options.

    Raises:
        click.BadParameter: The text isn't a duration.
    """
    try:
        return None if not text else pb.parse_duration(text) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _peer_options(peer: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    options = (
        click.option(
            f"--{peer}.address",
            f"{peer}_address",
            envvar=f"{peer.upper()}_ADDRESS",
            default=DEFAULT_ADDRESS,
            show_default=True,
            show_envvar=True,
            metavar="URL",
            help="URL of the broker." if peer == "broker" else "URL of a member of the consumer.",
        ),
        click.option(
            f"--{peer}.auth-keys",
            f"{peer}_auth_keys",
            envvar=f"{peer.upper()}_AUTH_KEYS",
            default="",
            show_envvar=True,
            metavar="KEYS",
            help="Base64 keys; the first key signs requests. Other processes can see options.",
        ),
        click.option(
            f"--{peer}.auth-keys-file",
            f"{peer}_auth_keys_file",
            type=click.File(),
            envvar=f"{peer.upper()}_AUTH_KEYS_FILE",
            show_envvar=True,
            help="File of the keys, which other processes can't see.",
        ),
        click.option(
            f"--{peer}.auth-token",
            f"{peer}_auth_token",
            envvar=f"{peer.upper()}_AUTH_TOKEN",
            default="",
            show_envvar=True,
            metavar="TOKEN",
            help="Bearer token to send with requests.",
        ),
        _file_option(peer, "cert-file", "Certificate of this client, in PEM format."),
        _file_option(peer, "cert-key-file", "Private key of that certificate, in PEM format."),
        _file_option(peer, "trusted-ca-file", "Authorities of servers, in PEM format."),
        click.option(
            f"--{peer}.cache.size",
            f"{peer}_cache_size",
            type=int,
            envvar=f"{peer.upper()}_CACHE_SIZE",
            show_envvar=True,
            help="Routes to keep; 0 sends all requests to the address. [default: 256]",
        ),
        click.option(
            f"--{peer}.cache.ttl",
            f"{peer}_cache_ttl",
            callback=duration,
            envvar=f"{peer.upper()}_CACHE_TTL",
            show_envvar=True,
            metavar="DURATION",
            help="Time for which a route is kept. [default: 1m]",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _file_option(
    peer: str, name: str, text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    variable = name.replace("-", "_")
    return click.option(
        f"--{peer}.{name}",
        f"{peer}_{variable}",
        type=click.Path(dir_okay=False),
        envvar=f"{peer.upper()}_{variable.upper()}",
        show_envvar=True,
        help=text,
    )
