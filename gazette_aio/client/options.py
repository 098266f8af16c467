"""Options of a client, and where they come from in the environment."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ADDRESS: Final = "http://localhost:8080"
DEFAULT_ZONE: Final = "local"

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
            ConfigurationError: A file can't be read.
        """
        return (_read(self.ca_file), _read(self.key_file), _read(self.certificate_file))


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
