"""Probes of `doctor`: connections, requests of HTTP, and the addresses that servers advertise."""

from __future__ import annotations

import asyncio
import dataclasses
import email
import ipaddress
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

from gazette_aio.aio.batches import in_batches
from gazette_aio.cli.tools.diagnosis import Finding, reason_of
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.proxies import proxy_of_endpoint

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    import gazette_aio.protocol as pb

PORTS: Final = {"http": 80, "https": 443}
PROBE_SECONDS: Final = 3.0
_MOST_BYTES: Final = 1 << 14


async def dial(
    endpoint: str, context: ssl.SSLContext | Literal[True] | None = None, *, port: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to an endpoint.

    Args:
        endpoint: URL of the endpoint.
        context: Context of TLS, True for that of the system, or None without TLS.
        port: Default port; 0 is that of the scheme.

    Raises:
        OSError: Nobody answers within PROBE_SECONDS, or TLS fails.
        ValueError: The port isn't valid.

    Cancellation: aborts.
    """
    url = urlsplit(endpoint)
    async with asyncio.timeout(PROBE_SECONDS):
        if url.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(url.path))
        number = url.port or port or PORTS.get(url.scheme, 0)
        return await asyncio.open_connection(url.hostname, number, ssl=context)


async def get(
    endpoint: str, path: str, context: ssl.SSLContext | None, *, port: int = 0
) -> tuple[str, str]:
    """Return the date and the beginning of the body of a response of HTTP.

    Arguments and errors are those of `dial()`.

    Cancellation: aborts.
    """
    async with asyncio.timeout(PROBE_SECONDS):
        reader, writer = await dial(endpoint, context, port=port)
        try:
            host = urlsplit(endpoint).netloc.rpartition("@")[2]
            request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode("latin-1", "replace"))
            text = b""
            while len(text) < _MOST_BYTES and (chunk := await reader.read(_MOST_BYTES)):
                text += chunk
        finally:
            writer.close()
    head, _, body = text.decode("latin-1").partition("\r\n\r\n")
    return email.message_from_string(head.partition("\r\n")[2]).get("date", ""), body


def endpoints_of(routes: Iterable[pb.Route]) -> dict[str, str]:
    """Return the members of routes by the endpoint that they advertise."""
    return {
        endpoint: f"{member.zone}/{member.suffix}"
        for route in routes
        for member, endpoint in zip(route.members, route.endpoints, strict=False)
        if endpoint
    }


async def examine_endpoints(
    members: Mapping[str, str],
    address: str,
    context: ssl.SSLContext | None,
    *,
    peer: str,
    are_used: bool,
) -> list[Finding]:
    """Connect to each advertised endpoint, and return a finding of each that can't be reached.

    Args:
        members: Names of members by endpoint.
        address: Address by which the server was reached.
        context: Context of TLS, or None for that of the system.
        peer: `broker` or `consumer`.
        are_used: Whether this client's requests go to them.

    Cancellation: aborts.
    """
    check = f"{peer} routes"
    if not members:
        what = "journal" if peer == "broker" else "shard"
        return [Finding(check, "skipped", f"no {what} names a member and its address")]
    findings: list[Finding] = []
    if proxied := [endpoint for endpoint in members if _has_proxy(endpoint)]:
        detail = f"not examined, as a proxy is in effect: {', '.join(proxied)}"
        findings.append(Finding(check, "skipped", detail))
    direct = [endpoint for endpoint in members if endpoint not in proxied]
    if not direct:
        return findings
    is_same_machine = await _is_same_machine(address)

    async def problem_of(endpoint: str) -> str:
        if not is_same_machine and _is_loopback(endpoint):
            return "only the server's own machine reaches this address"
        try:
            is_secure = urlsplit(endpoint).scheme == "https"
            (await dial(endpoint, (context or True) if is_secure else None))[1].close()
        except ValueError as error:
            return str(error)
        except OSError as error:
            return reason_of(error)
        return ""

    problems = [problem async for problem in in_batches(problem_of, direct)]
    result: Literal["failed", "warning"] = "failed" if are_used else "warning"
    found = [
        Finding(check, result, f"{members[endpoint]} at {endpoint}: {problem}")
        for endpoint, problem in zip(direct, problems, strict=True)
        if problem
    ]
    if not found:
        detail = f"all advertised addresses can be reached ({len(direct)})"
        return [*findings, Finding(check, "ok", detail)]
    remedy = (
        f"start the server with a --{peer}.host that resolves here, or open the network; "
        f"with --{peer}.cache.size=0, all requests go to {address} instead"
    )
    return [*findings, *found[:-1], dataclasses.replace(found[-1], remedy=remedy)]


def _has_proxy(endpoint: str) -> bool:
    try:
        return proxy_of_endpoint(endpoint) is not None
    except ValidationError:
        return False


async def _is_same_machine(address: str) -> bool:
    if urlsplit(address).scheme == "unix":
        return True
    try:
        _, writer = await dial(address)
    except (OSError, ValueError):
        return False
    ours, theirs = (writer.get_extra_info(name) for name in ("sockname", "peername"))
    writer.close()
    return bool(ours[0] == theirs[0])


def _is_loopback(endpoint: str) -> bool:
    url = urlsplit(endpoint)
    host = url.hostname or ""
    if url.scheme == "unix" or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
