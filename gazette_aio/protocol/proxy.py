"""Proxies that the environment names, and the addresses that are dialled directly.

| client | variables, of which the first one that is set and valid counts |
| --- | --- |
| gRPC | `grpc_proxy`, `https_proxy`, `http_proxy` |
| HTTP, `https` URLs | `https_proxy` |
| HTTP, `http` URLs | `http_proxy` |

Names are in small or capital letters; small ones count first. This machine's loopback addresses,
and what `no_proxy` names, are dialled directly.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from gazette_aio.protocol.url import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VARIABLES: Final = {
    "grpc": ("grpc_proxy", "https_proxy", "http_proxy"),
    "https": ("https_proxy",),
    "http": ("http_proxy",),
}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK: Final = re.compile(r"(.+\.)?localhost(\.localdomain)?|ip6-(localhost|loopback)")
_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_ENTRY: Final = re.compile(r"(?:\*?\.)?(\[[^\[\]]+\]|[\w-][\w.-]*)(?::([0-9]{1,5}))?")


class Proxy(NamedTuple):
    """A proxy of the environment."""

    url: str
    """`http` URL with a port, and perhaps with a user and a password."""
    variable: str
    """Variable that names it."""

    def __str__(self) -> str:
        return f"{redacted(self.url)} (${self.variable})"

    def __repr__(self) -> str:
        return f"<Proxy {self}>"


class ProxyChoice(NamedTuple):
    """How an address is dialled."""

    proxy: Proxy | None
    """The proxy, or None to dial directly."""
    ignored: tuple[str, ...] = ()
    """Problems of entries that are ignored, without secrets."""


def choose_proxy(
    client: Literal["grpc", "https", "http"], address: str, environment: Mapping[str, str]
) -> ProxyChoice:
    """Return how an address is dialled.

    Args:
        client: Client of gRPC, or scheme of a URL.
        address: Host, with or without a port.
        environment: Variables by name.
    """
    host, port = _split(address)
    port = port or _DEFAULT_PORTS.get(client, 0)
    if _is_loopback(host):
        return ProxyChoice(None)
    ignored: list[str] = []
    proxy = next(_proxies(_VARIABLES[client], environment, ignored), None)
    if proxy is not None and _is_direct(host, port, environment, ignored):
        proxy = None
    return ProxyChoice(proxy, tuple(ignored))


def _proxies(
    names: tuple[str, ...], environment: Mapping[str, str], ignored: list[str]
) -> Iterator[Proxy]:
    for variable in (spelled for name in names for spelled in (name, name.upper())):
        if variable == "HTTP_PROXY" and "REQUEST_METHOD" in environment:
            continue  # A client of a CGI program has sent it, as the header `Proxy`.
        if not (text := environment.get(variable, "").strip()):
            continue
        if url := _normal(text):
            yield Proxy(url, variable)
        else:
            ignored.append(f"${variable} isn't the URL of a proxy, such as http://proxy:3128")


def _normal(text: str) -> str:
    """Return the URL of a proxy with its scheme and port, or an empty text if it's invalid."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = 80 if parts.port is None else parts.port
    except ValueError:
        return ""
    rest = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme != "http" or not parts.hostname or rest or _UNPRINTABLE.search(text):
        return ""
    user, at, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{user}{at}{host}:{port}" if port else ""


def _is_direct(host: str, port: int, environment: Mapping[str, str], ignored: list[str]) -> bool:
    found = False
    for variable in ("no_proxy", "NO_PROXY"):
        for entry in re.split(r"[,\s]+", environment.get(variable, "")):
            if entry:
                matches = _matches(entry, host, port)
                found = found or bool(matches)
                if matches is None:
                    ignored.append(
                        f"${variable}: {redacted(entry)!r} isn't a host, domain, address or network"
                    )
    return found


def _matches(entry: str, host: str, port: int) -> bool | None:
    """Return whether an entry names an address, or None if the entry is invalid."""
    if entry == "*":
        return True
    address = _address(host)
    if "/" in entry:
        try:
            network = ip_network(entry, strict=False)
        except ValueError:
            return None
        return address is not None and address in network
    if (whole := _address(entry)) is not None:  # IPv6 without brackets looks like a port.
        return address == whole
    if not (match := _ENTRY.fullmatch(entry)):
        return None
    name, _ = _split(match[1])
    if match[2] and int(match[2]) != port:
        return False
    return (
        host == name
        or host.endswith(f".{name}")
        or (address is not None and address == _address(name))
    )


def _split(address: str) -> tuple[str, int]:
    """Return the host of an address in its normal form, and the port, or 0."""
    host, colon, port = address.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or (":" in host and not host.endswith("]")):
        host, port = address, "0"
    return host.strip("[]").partition("%")[0].rstrip(".").lower(), int(port)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is None:
        return _LOOPBACK.fullmatch(host) is not None
    return address.is_loopback or address.is_unspecified
