"""Options of a client, and where they come from in the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
"""Largest content of one message sent to a broker, which accepts 4 MiB at most."""

STREAM_BUFFER_BYTES: Final = 1 << 20
"""Bytes of responses held of each stream before reading it pauses."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TLSOptions:
    """Files in PEM format for the TLS of `https` endpoints.

    Args:
        ca_file: Certificates to trust, or None for the built-in ones.
        certificate_file: Certificate which is shown to brokers that ask for one.
        key_file: Private key of that certificate.
        server_name: Name which certificates of brokers are checked for, if it isn't their host.
    """

    ca_file: str | os.PathLike[str] | None = None
    certificate_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise pb.ConfigurationError("certificate_file and key_file must be given together")

    @classmethod
    def from_environment(
        cls, prefix: str = "BROKER", environment: Mapping[str, str] | None = None
    ) -> TLSOptions:
        """Return the options that `<prefix>_CERT_FILE` and its siblings name."""
        environment = os.environ if environment is None else environment
        return cls(
            ca_file=environment.get(f"{prefix}_TRUSTED_CA_FILE") or None,
            certificate_file=environment.get(f"{prefix}_CERT_FILE") or None,
            key_file=environment.get(f"{prefix}_CERT_KEY_FILE") or None,
        )

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of `ca_file`, `key_file`, `certificate_file`.

        Raises:
            ConfigurationError: A file can't be read, or isn't what it should be.
        """
        contents = (_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))
        self._check()
        return contents

    def _check(self) -> None:
        # Wire: of files which it can't parse, gRPC says nothing but that there's no connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # What is too weak is up to gRPC.
        if self.ca_file is not None:
            with _named(self.ca_file):
                context.load_verify_locations(self.ca_file)
        if self.certificate_file is not None:
            with _named(self.certificate_file):
                # Who has encrypted a key isn't asked for its passphrase, as there's no terminal.
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


def address_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """Return `$BROKER_ADDRESS`, or where a broker listens by default."""
    environment = os.environ if environment is None else environment
    return environment.get("BROKER_ADDRESS") or DEFAULT_ADDRESS


def zone_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """Return `$ZONE`, or the default zone."""
    environment = os.environ if environment is None else environment
    return environment.get("ZONE") or DEFAULT_ZONE


def file_root_from_environment(environment: Mapping[str, str] | None = None) -> str | None:
    """Return `$BROKER_FILE_ROOT`, if it's set."""
    environment = os.environ if environment is None else environment
    return environment.get("BROKER_FILE_ROOT") or None


def cache_size_from_environment(environment: Mapping[str, str] | None = None) -> int:
    """Return `$BROKER_CACHE_SIZE`, or the default number of routes to keep.

    Raises:
        ConfigurationError: It isn't a number.
    """
    environment = os.environ if environment is None else environment
    if not (text := environment.get("BROKER_CACHE_SIZE")):
        return CACHE_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
        raise pb.ConfigurationError(f"invalid BROKER_CACHE_SIZE ({text[:_MOST_DIGITS]})")
    return int(text)


def cache_ttl_from_environment(environment: Mapping[str, str] | None = None) -> float:
    """Return the seconds of `$BROKER_CACHE_TTL`, such as `1m30s`, or those by default.

    Raises:
        ConfigurationError: It isn't a duration, or negative.
    """
    environment = os.environ if environment is None else environment
    if not (text := environment.get("BROKER_CACHE_TTL")):
        return CACHE_TTL
    try:
        seconds = pb.parse_duration(text) / 1e9
    except pb.ValidationError as error:
        raise pb.ConfigurationError(f"invalid BROKER_CACHE_TTL: {error}") from None
    if seconds < 0:
        raise pb.ConfigurationError(f"invalid BROKER_CACHE_TTL ({text})")
    return seconds
