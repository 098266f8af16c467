"""Findings of `doctor`: the result of a probe, and the remedy."""

from __future__ import annotations

import dataclasses
import ssl
from email.utils import parsedate_to_datetime
from typing import Final, Literal

import gazette_aio.protocol as pb

SKEW_SECONDS: Final = 5.0
"""Difference of clocks, in seconds, that breaks tokens and retention."""

_SOON_SECONDS: Final = 14 * 86_400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    result: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


def resolution_failure(host: str, variable: str) -> Finding:
    """Return the finding of a host name that doesn't resolve."""
    remedy = f"check the spelling of ${variable}, and DNS; containers may need the service's name"
    return Finding("DNS", "failed", f"{host!r} doesn't resolve", remedy)


def connection_failure(host: str, port: int, error: OSError) -> Finding:
    """Return the finding of a port that can't be connected to."""
    match error:
        case ConnectionRefusedError():
            remedy = "nobody listens on this port: check the port, and that the server runs"
        case TimeoutError():
            remedy = "no answer: check firewalls, security groups and the network"
        case _:
            remedy = "check the address and the network"
    detail = f"{host}:{port}: {reason_of(error)}"
    return Finding("connection", "failed", detail, remedy)


def reason_of(error: OSError) -> str:
    """Return why a connection failed."""
    if isinstance(error, ConnectionRefusedError):
        # asyncio's text repeats the address instead.
        return "Connection refused"
    return error.strerror or str(error) or "no answer"


def tls_failure(error: OSError, variable: str) -> Finding:
    """Return the finding of a TLS handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = f"name the authority by ${variable}_TRUSTED_CA_FILE, or fix the certificate's name"
        return Finding("TLS", "failed", error.verify_message or str(error), remedy)
    if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
        return Finding(
            "TLS", "failed", "the server doesn't speak TLS", "use http:// in the address"
        )
    remedy = f"the server may want a client certificate: ${variable}_CERT_FILE"
    return Finding("TLS", "failed", str(error) or type(error).__name__, remedy)


def certificate_finding(not_after: str, now: float) -> Finding:
    """Return the finding of a server's certificate.

    Args:
        not_after: End of the certificate, from `SSLSocket.getpeercert()`.
        now: Unix time.
    """
    remaining = ssl.cert_time_to_seconds(not_after) - now
    if remaining < _SOON_SECONDS:
        return Finding(
            "TLS", "warning", f"the certificate ends {not_after}", "renew the certificate"
        )
    return Finding("TLS", "ok", f"trusted, until {not_after}")


def clock_finding(date: str, now: float) -> Finding:
    """Return the finding of the `Date` header of a server.

    Args:
        date: The header, or an empty text.
        now: Unix time of this machine, when the header arrived.
    """
    try:
        skew = parsedate_to_datetime(date).timestamp() - now
    except (TypeError, ValueError):
        return Finding("clock", "skipped", "the server doesn't tell its time over HTTP")
    if abs(skew) < SKEW_SECONDS:
        return Finding("clock", "ok", f"within {SKEW_SECONDS:g} s of the server's")
    ahead = "behind" if skew > 0 else "ahead of"
    remedy = "synchronize clocks by NTP: tokens are refused, and ages of fragments are wrong"
    detail = f"this machine is {abs(skew):.0f} s {ahead} the server"
    return Finding("clock", "failed", detail, remedy)


def rpc_failure(peer: str, error: pb.GazetteError, *, has_token: bool) -> Finding:
    """Return the finding of an RPC that failed.

    Args:
        peer: `broker` or `consumer`.
        error: Error of the RPC.
        has_token: Whether the request had a token.
    """
    prefix = peer.upper()
    code = error.code if isinstance(error, pb.TransportError) else ""
    detail = " ".join(str(error).split())
    match code:
        case "UNAUTHENTICATED" if "expired" in detail:
            remedy = "the token has expired: ask for a new one, and compare clocks"
        case "UNAUTHENTICATED" if has_token:
            remedy = f"${prefix}_AUTH_KEYS differs from the server's keys, or clocks differ"
        case "UNAUTHENTICATED":
            remedy = f"set ${prefix}_AUTH_KEYS or ${prefix}_AUTH_TOKEN"
        case "PERMISSION_DENIED":
            remedy = "the token doesn't allow to list: ask for one that does"
        case "UNAVAILABLE":
            remedy = "something answers the port, but not gRPC: check proxies, and http or https"
        case _:
            remedy = "see the log of the server"
    return Finding(peer, "failed", detail, remedy)
