"""Findings of `doctor`: the result of a probe, and the remedy."""

from __future__ import annotations

import dataclasses
import math
import shlex
import ssl
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import gazette_aio.protocol as pb
from gazette_aio.cli.shell.failures import CommandError, WrongServerError
from gazette_aio.cli.shell.messages import MOST_FAILURES, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gazette_aio.protocol import consumer as pc

SKEW_SECONDS: Final = 5.0
"""Difference of clocks, in seconds, that breaks tokens and retention."""

_SOON_SECONDS: Final = 14 * 86_400.0
_INSTALL_NATIVE: Final = (
    "install Rust 1.85 or newer, and then the package again by "
    "`pip install --force-reinstall --no-deps --no-cache-dir gazette-aio`, "
    "or `make core` in a clone"
)
_NOT_ALLOWED: Final = "the token doesn't allow to list: ask for one that does"
_NO_GRPC: Final = "something answers the port, but not gRPC: check proxies, and http or https"
_HTTP_PORT: Final = (
    "name the port of gRPC by ${peer}_ADDRESS: `serve` prints it in `endpoint`, and members log it"
)
_NO_STORE_CHECKS: Final = {
    "UNIMPLEMENTED": "brokers before v0.101 don't check their stores: see their logs",
    "UNAUTHENTICATED": "the token doesn't allow to check stores",
    "PERMISSION_DENIED": "the token doesn't allow to check stores",
}
"""Details of the codes of checks of stores that weren't made."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    result: Literal["ok", "warning", "failed", "skipped"]
    detail: str
    remedy: str = ""


def core_finding(form: str, *, is_chosen: bool, newer: Path | None = None) -> Finding:
    """Return the finding of the core of messages.

    Args:
        form: `native` or `plain`.
        is_chosen: Whether `GAZETTE_AIO_CORE` asks for this form.
        newer: A source of the compiled core that is newer.
    """
    if form == "native" and newer is not None:
        detail = f"native, but older than {newer}"
        return Finding("core", "warning", detail, "build it again by `make core`")
    if form == "native":
        return Finding("core", "ok", "native")
    detail = "plain Python: messages are read and published more slowly"
    return Finding(
        "core", "warning", detail, "unset $GAZETTE_AIO_CORE" if is_chosen else _INSTALL_NATIVE
    )


def newer_source(package: Path) -> Path | None:
    """Return a source of the compiled core that is newer, or None; wheels have no sources.

    Args:
        package: Directory of the package. A clone has the sources beside it.
    """
    module = package / "message/core/_native.abi3.so"
    built = module.stat().st_mtime if module.exists() else math.inf
    sources = sorted((package.parent / "native/src").rglob("*.rs"))
    return next((source for source in sources if source.stat().st_mtime > built), None)


Stage: TypeAlias = Literal["DNS", "connection", "TLS"]

_NETWORK: Final[tuple[tuple[Stage, type[OSError], str], ...]] = (
    (
        "DNS",
        OSError,
        "check the spelling of ${peer}_ADDRESS, and DNS; containers may need the service's name",
    ),
    (
        "connection",
        ConnectionRefusedError,
        "nobody listens on this port: check the port, and that the server runs",
    ),
    ("connection", TimeoutError, "check firewalls, security groups and the network"),
    ("connection", OSError, "check the address and the network"),
    (
        "TLS",
        ssl.SSLCertVerificationError,
        "name the authority by ${peer}_TRUSTED_CA_FILE, or fix the certificate's name",
    ),
    ("TLS", OSError, "the server may want a client certificate: ${peer}_CERT_FILE"),
)
"""Remedies by stages and errors of a connection. The first row that fits counts."""


def network_failure(peer: str, place: str, stage: Stage, error: OSError) -> Finding:
    """Return the finding of a server that can't be connected to.

    Args:
        peer: `broker` or `consumer`.
        place: Host and port.
        stage: What has failed.
        error: Its error.
    """
    rows = (text for of, kind, text in _NETWORK if of == stage and kind in type(error).mro())
    remedy = next(rows).format(peer=peer.upper())
    if "WRONG_VERSION_NUMBER" in str(error):
        remedy = "the server doesn't speak TLS: use http:// in the address"
    return Finding(stage, "failed", f"{place}: {reason_of(error)}", remedy)


def reason_of(error: OSError) -> str:
    """Return why a connection failed."""
    match error:
        case ConnectionRefusedError():
            # asyncio's text repeats the address instead.
            return "Connection refused"
        case ssl.SSLCertVerificationError():
            return error.verify_message or str(error)
        case _:
            return error.strerror or str(error) or "no answer"


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


def age_finding(create_revisions: Sequence[int]) -> Finding:
    """Return the finding of a broker's age, of which only its listings tell anything.

    Args:
        create_revisions: Those of the listed journals.
    """
    if not create_revisions:
        detail = "brokers don't tell their release, and there's no journal to conclude from"
        return Finding("broker version", "skipped", detail)
    since = "v0.100 or newer" if any(create_revisions) else "before v0.100"
    detail = f"{since}, by its listings: brokers don't tell their release"
    return Finding("broker version", "ok", detail)


def store_finding(store: str, problem: str) -> Finding:
    """Return the finding of a fragment store that a broker has checked.

    Args:
        store: URL of the store.
        problem: Result of the check, empty if the store is healthy.
    """
    store = store.partition("?")[0]  # The query may have credentials.
    if not problem:
        return Finding("fragment store", "ok", store)
    if "no space left" in problem.lower():
        remedy = "the disk is full: free some space, and the broker continues by itself"
    else:
        remedy = "check permissions and address of the store; brokers keep fragments until it works"
    return Finding("fragment store", "failed", f"{store}: {problem}", remedy)


def store_check_failure(store: str, error: pb.GazetteError) -> Finding:
    """Return the finding of a fragment store that a broker didn't check."""
    code = error.code if isinstance(error, pb.TransportError) else ""
    if detail := _NO_STORE_CHECKS.get(code):
        return Finding("fragment store", "skipped", detail)
    return store_finding(store, " ".join(str(error).split()))


def shard_findings(shards: Iterable[pc.ListResponse.Shard]) -> list[Finding]:
    """Return the findings of listed shards: of each failed one, up to some."""
    errors = {shard.spec.id: failure_of(shard) for shard in shards}
    failed = {shard: text for shard, text in errors.items() if text}
    if not failed:
        return [Finding("shards", "ok", f"none of {len(errors)} has failed")]
    findings: list[Finding] = []
    for shard, text in list(failed.items())[:MOST_FAILURES]:
        select = shlex.quote(f"id={shard}")
        remedy = f"mend the cause, and run `gazette-aio shards unassign -l {select} --failed`"
        findings.append(Finding(f"shard {shard}", "failed", text, remedy))
    if len(failed) > MOST_FAILURES:
        detail = f"{len(failed)} of {len(errors)} have failed"
        findings.append(Finding("shards", "failed", detail, "see `gazette-aio shards list`"))
    return findings


def wrong_server(peer: str, error: CommandError) -> Finding:
    """Return the finding of a server that answers the port, but no RPC of a `peer`."""
    remedy = _NO_GRPC
    if isinstance(error, WrongServerError):
        remedy = f"set ${peer.upper()}_ADDRESS to that of a {peer}"
    elif "HTTP/1" in str(error):
        remedy = _HTTP_PORT.format(peer=peer.upper())
    return Finding(peer, "failed", str(error), remedy)


def rpc_failure(peer: str, error: pb.GazetteError, *, given: str) -> Finding:
    """Return the finding of an RPC that failed.

    Args:
        peer: `broker` or `consumer`.
        error: Error of the RPC.
        given: `KEYS` or `TOKEN`, as the command has either; or empty.
    """
    prefix = f"${peer.upper()}_AUTH"
    code = error.code if isinstance(error, pb.TransportError) else ""
    detail = " ".join(str(error).split())
    match code:
        case "PERMISSION_DENIED":
            remedy = _NOT_ALLOWED
        case "UNAUTHENTICATED" if "missing required" in detail:
            remedy = _NOT_ALLOWED
        case "UNAUTHENTICATED" if "expired" in detail and given == "TOKEN":
            remedy = f"{prefix}_TOKEN has expired: ask for a new token, or compare clocks"
        case "UNAUTHENTICATED" if given == "TOKEN":
            remedy = f"{prefix}_TOKEN isn't a token of the server's keys: ask for a new token"
        case "UNAUTHENTICATED" if given:
            remedy = (
                f"the server's keys aren't {prefix}_KEYS_FILE or {prefix}_KEYS, or clocks differ"
            )
        case "UNAUTHENTICATED":
            remedy = f"set {prefix}_KEYS_FILE, {prefix}_KEYS or {prefix}_TOKEN"
        case _:
            remedy = "see the log of the server"
    return Finding(peer, "failed", detail, remedy)
