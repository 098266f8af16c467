"""Addresses that servers advertise in routes, and whether they can be reached from here."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

from gazette_aio.cli.tools.diagnosis import Finding, reason_of
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.proxies import proxy_of_endpoint

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping

    import gazette_aio.protocol as pb

PORTS: Final = {"http": 80, "https": 443}
PROBE_SECONDS: Final = 3.0
_CONCURRENT: Final = 32


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
    if proxied := [endpoint for endpoint in members if _has_proxy(endpoint)]:
        direct = {each: name for each, name in members.items() if each not in proxied}
        detail = f"not examined, as a proxy is in effect: {', '.join(proxied)}"
        others = await examine_endpoints(direct, address, context, peer=peer, are_used=are_used)
        return [Finding(check, "skipped", detail), *(others if direct else ())]
    is_same_machine = await _is_same_machine(address)
    limit = asyncio.Semaphore(_CONCURRENT)

    async def problem_of(endpoint: str) -> str:
        async with limit:
            if not is_same_machine and _is_loopback(endpoint):
                return "only the server's own machine reaches this address"
            try:
                (await _connect(endpoint, context)).close()
            except ValueError as error:
                return str(error)
            except OSError as error:
                return reason_of(error)
            return ""

    problems = await asyncio.gather(*map(problem_of, members))
    result: Literal["failed", "warning"] = "failed" if are_used else "warning"
    found = [
        Finding(check, result, f"{member} at {endpoint}: {problem}")
        for (endpoint, member), problem in zip(members.items(), problems, strict=True)
        if problem
    ]
    if not found:
        return [Finding(check, "ok", f"all advertised addresses can be reached ({len(members)})")]
    remedy = (
        f"start the server with a --{peer}.host that resolves here, or open the network; "
        f"with --{peer}.cache.size=0, all requests go to {address} instead"
    )
    return [*found[:-1], dataclasses.replace(found[-1], remedy=remedy)]


def _has_proxy(endpoint: str) -> bool:
    try:
        return proxy_of_endpoint(endpoint) is not None
    except ValidationError:
        return False


async def _is_same_machine(address: str) -> bool:
    if urlsplit(address).scheme == "unix":
        return True
    try:
        writer = await _connect(address, None, with_tls=False)
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


async def _connect(
    endpoint: str, context: ssl.SSLContext | None, *, with_tls: bool = True
) -> asyncio.StreamWriter:
    url = urlsplit(endpoint)
    async with asyncio.timeout(PROBE_SECONDS):
        if url.scheme == "unix":
            _, writer = await asyncio.open_unix_connection(unquote(url.path))
            return writer
        secure = (context or True) if with_tls and url.scheme == "https" else None
        _, writer = await asyncio.open_connection(
            url.hostname, url.port or PORTS.get(url.scheme, 0), ssl=secure
        )
    return writer
