"""Defaults of a client's options, their variables of the environment, and options of TLS."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

DEFAULT_ADDRESS: Final = "http://localhost:8080"
DEFAULT_ZONE: Final = "local"

CACHE_SIZE: Final = 256
"""Journals whose routes are kept."""

CACHE_TTL: Final = 60.0
"""Seconds for which a route is kept."""

_MOST_DIGITS: Final = 10

MAX_RECEIVE_BYTES: Final = 16 << 20
"""Largest message accepted from a broker."""

CHUNK_BYTES: Final = 128 << 10
"""Largest content of one message to a broker.

Wire: a broker ends an append for which no whole message arrives within a second, so that this is
the least rate of a network in bytes per second.
"""

STREAM_BUFFER_BYTES: Final = 1 << 20
"""Bytes of responses that wait in a stream before reading it pauses."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TLSOptions:
    """Files in PEM format for the TLS of `https` endpoints.

    Args:
        ca_file: Trusted certificates; None for the built-in ones.
        certificate_file: Certificate for brokers that ask for one.
        key_file: Private key of that certificate.
        server_name: Name to check certificates of brokers for; None for the host of the endpoint.

    Raises:
        ConfigurationError: Only one of `certificate_file` and `key_file` is given.
    """

    ca_file: str | os.PathLike[str] | None = None
    certificate_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise pb.ConfigurationError("certificate_file and key_file must be given together")

    @classmethod
    def from_environment(cls, prefix: str = "BROKER") -> TLSOptions:
        """Return the options that `$<prefix>_CERT_FILE` and its siblings name."""
        return cls(
            ca_file=variable(f"{prefix}_TRUSTED_CA_FILE") or None,
            certificate_file=variable(f"{prefix}_CERT_FILE") or None,
            key_file=variable(f"{prefix}_CERT_KEY_FILE") or None,
        )

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of `ca_file`, `key_file`, `certificate_file`.

        Raises:
            ConfigurationError: A file can't be read, or doesn't hold a certificate or key.
        """
        contents = (_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))
        self._check()
        return contents

    def _check(self) -> None:
        # Wire: gRPC reports a file that it can't parse only as a failed connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # gRPC judges what is too weak.
        if self.ca_file is not None:
            with _named(self.ca_file):
                context.load_verify_locations(self.ca_file)
        if self.certificate_file is not None:
            with _named(self.certificate_file):
                # An encrypted key must not prompt for its passphrase: there's no terminal.
                context.load_cert_chain(self.certificate_file, self.key_file, password="")


@contextlib.contextmanager
def _named(path: str | os.PathLike[str]) -> Generator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise pb.ConfigurationError(f"reading TLS options: {error}: {path}") from error


def _read(path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise pb.ConfigurationError(f"reading TLS options: {error}") from error


def variable(name: str, default: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Return a variable of the environment, or the default if it's unset or empty."""
    return (os.environ if environment is None else environment).get(name) or default


def address_or_default(address: str | None, name: str) -> str:
    """Return an address, or that of the variable `name` of the environment if it's None.

    Raises:
        ConfigurationError: The address is empty, as the endpoint of a server that doesn't run.
        TypeError: It isn't a text.
    """
    if address is None:
        return variable(name, DEFAULT_ADDRESS)
    given: Any = address
    if not isinstance(given, str):
        text = f"address: expected a str, such as {DEFAULT_ADDRESS} or the endpoint of a broker"
        raise TypeError(f"{text}, not {type(given).__name__}")
    if not address:
        raise pb.ConfigurationError(
            "the address is empty: a server has an endpoint only while it runs, as within "
            f"`async with EmbeddedBroker() as broker`; None is the address of ${name}"
        )
    return address


def cache_size_from_environment(
    prefix: str = "BROKER", environment: Mapping[str, str] | None = None
) -> int:
    """Return `$<prefix>_CACHE_SIZE`, or the default number of routes to keep.

    Raises:
        ConfigurationError: The variable isn't a number.
    """
    if not (text := variable(f"{prefix}_CACHE_SIZE", environment=environment)):
        return CACHE_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
        raise pb.ConfigurationError(f"invalid {prefix}_CACHE_SIZE ({text[:_MOST_DIGITS]})")
    return int(text)


def cache_ttl_from_environment(
    prefix: str = "BROKER", environment: Mapping[str, str] | None = None
) -> float:
    """Return the seconds of `$<prefix>_CACHE_TTL`, such as `1m30s`, or the default.

    Raises:
        ConfigurationError: The variable isn't a duration, or is negative.
    """
    if not (text := variable(f"{prefix}_CACHE_TTL", environment=environment)):
        return CACHE_TTL
    try:
        seconds = pb.parse_duration(text) / 1e9
    except pb.ValidationError as error:
        raise pb.ConfigurationError(f"invalid {prefix}_CACHE_TTL: {error}") from None
    if seconds < 0:
        raise pb.ConfigurationError(f"invalid {prefix}_CACHE_TTL ({text})")
    return seconds
