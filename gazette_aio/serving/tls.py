"""TLS of a server: its certificate, and the authorities of its clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import grpc

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSFiles:
    """Files in PEM format, by the names of users' options.

    Raises:
        ConfigurationError: Some of the required files are missing.
    """

    server_cert_file: Path | None = None
    """Certificate of the server; None is no TLS."""
    server_cert_key_file: Path | None = None
    """Private key of the certificate."""
    server_ca_file: Path | None = None
    """Authorities of the certificates of clients; None if clients need no certificate."""

    def __post_init__(self) -> None:
        if (self.server_cert_file is None) != (self.server_cert_key_file is None):
            raise pb.ConfigurationError(
                "server_cert_file and server_cert_key_file must be given together"
            )
        if self.server_ca_file is not None and self.server_cert_file is None:
            raise pb.ConfigurationError("server_ca_file needs a server_cert_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """Certificates and keys of gRPC and HTTP servers."""

    certificate: bytes = field(repr=False)
    """Chain of certificates, in PEM format."""
    key: bytes = field(repr=False)
    """Private key, in PEM format."""
    authority: bytes | None = field(repr=False)
    """Authorities of the certificates of clients, or None if clients need no certificate."""
    context: ssl.SSLContext
    """The same for connections over HTTP/1.1."""

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)],
            root_certificates=self.authority,
            require_client_auth=self.authority is not None,
        )


def read_tls(files: TLSFiles) -> ServerTLS | None:
    """Return the TLS of a server, or None if no certificate is named. Blocks.

    Raises:
        ConfigurationError: A file can't be read or is invalid; the text names the file.
    """
    certificate_file = files.server_cert_file
    key_file = files.server_cert_key_file
    if certificate_file is None or key_file is None:
        return None
    certificate = _read("server_cert_file", certificate_file)
    key = _read("server_cert_key_file", key_file)
    _trust(_context(), "server_cert_file", certificate_file)
    context = _context()
    _load_key(context, certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    authority = None
    if files.server_ca_file is not None:
        authority = _read("server_ca_file", files.server_ca_file)
        _trust(context, "server_ca_file", files.server_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return ServerTLS(certificate=certificate, key=key, authority=authority, context=context)


def _context() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise pb.ConfigurationError(f"{option} {path}: {error.strerror}") from error


def _trust(context: ssl.SSLContext, option: str, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise pb.ConfigurationError(f"{option} {path}: not a certificate in PEM format") from error


class _EncryptedKeyError(Exception):
    """The key is protected by a password."""


def _load_key(context: ssl.SSLContext, certificate_file: Path, key_file: Path) -> None:
    def ask() -> NoReturn:
        # Without this, the library would ask at the terminal.
        raise _EncryptedKeyError

    try:
        context.load_cert_chain(certificate_file, key_file, ask)
    except _EncryptedKeyError:
        problem = "encrypted keys can't be used"
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = f"not the key of {certificate_file}"
        else:
            problem = "not a private key in PEM format"
    else:
        return
    raise pb.ConfigurationError(f"server_cert_key_file {key_file}: {problem}")
