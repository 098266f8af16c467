"""Statuses and headers of reads and appends over HTTP."""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import gazette_aio.protocol as pb
from gazette_aio.broker.gateway.target import escape_path
from gazette_aio.protocol.go.text import join_path

Pairs = list[tuple[str, str]]
"""Names and values of headers, in the order of sending."""

CLOSE_ERROR: Final = "X-Close-Error"
"""Trailer with the reason why a body ended."""

TEXT: Final = "text/plain; charset=utf-8"

_READ_STATUSES: Final = {
    pb.Status.OK: HTTPStatus.PARTIAL_CONTENT,
    pb.Status.JOURNAL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    pb.Status.INSUFFICIENT_JOURNAL_BROKERS: HTTPStatus.SERVICE_UNAVAILABLE,
    pb.Status.OFFSET_NOT_YET_AVAILABLE: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
}
_CODE_STATUSES: Final = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "FAILED_PRECONDITION": HTTPStatus.BAD_REQUEST,
    "OUT_OF_RANGE": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
}
_END_OF_RANGE: Final = (1 << 63) - 1
_BINARY: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_CONTROL: Final = re.compile(r"[^\x20-\x7e]")
_SNIFFED_BYTES = 512
_ESCAPES: Final = {10: r"\n", 13: r"\r", 9: r"\t", 34: r"\"", 92: r"\\"}


def read_status(status: pb.Status.ValueType) -> HTTPStatus:
    """Return the HTTP status of a read's status."""
    return _READ_STATUSES.get(status, HTTPStatus.INTERNAL_SERVER_ERROR)


def code_status(code: str) -> HTTPStatus:
    """Return the HTTP status of a gRPC code, by its name."""
    return _CODE_STATUSES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


def read_headers(response: pb.ReadResponse, path: str) -> Pairs:
    """Return the headers of a read.

    Args:
        response: The first response of the read.
        path: Path of the request, unescaped.
    """
    headers: Pairs = []
    if response.HasField("header"):
        headers += _route_headers(response.header.route, path)
    if response.HasField("fragment"):
        fragment = response.fragment
        headers.append(("X-Fragment-Name", pb.content_name(fragment)))
        if fragment.mod_time:
            modified = formatdate(fragment.mod_time, usegmt=True)
            headers.append(("X-Fragment-Last-Modified", modified))
        if response.fragment_url:
            headers.append(("X-Fragment-Location", response.fragment_url))
        content_range = f"bytes {response.offset}-{_END_OF_RANGE}/{_END_OF_RANGE}"
        headers.append(("Content-Range", content_range))
    if response.write_head:
        headers.append(("X-Write-Head", str(response.write_head)))
    return headers


def append_headers(response: pb.AppendResponse, path: str) -> Pairs:
    """Return the headers of an append which was committed.

    Args:
        response: Its response.
        path: Path of the request, unescaped.
    """
    commit = response.commit
    return [
        *_route_headers(response.header.route, path),
        ("X-Commit-Begin", str(commit.begin)),
        ("X-Commit-End", str(commit.end)),
        ("X-Write-Head", str(commit.end)),
        ("X-Commit-Sha1-Sum", pb.sum_to_digest(commit.sum).hex()),
    ]


def append_error(response: pb.AppendResponse) -> str:
    """Return the text of an append which was refused."""
    name = pb.Status.Name(response.status)
    if response.store_health_error:
        return f"{response.store_health_error}: {name}"
    return name


def content_type(content: bytes) -> str:
    """Return the content type of a body by its first bytes: text, or bytes.

    No type is returned that a browser would execute: anybody may have written the journal.
    """
    if _BINARY.search(content[:_SNIFFED_BYTES]):
        return "application/octet-stream"
    return TEXT


def header_value(text: str) -> str:
    """Return a text as the value of a header or a trailer: one line of ASCII."""
    return _CONTROL.sub(" ", text)


def compact_route(route: pb.Route) -> str:
    """Return the compact text form of a route."""
    parts = [
        f"members:<{_field('zone', member.zone)}{_field('suffix', member.suffix)}>"
        for member in route.members
    ]
    if route.primary:
        parts.append(f"primary:{route.primary}")
    parts += [_field("endpoints", endpoint).rstrip() for endpoint in route.endpoints]
    return " ".join(parts)


def _route_headers(route: pb.Route, path: str) -> Pairs:
    if not route.members:
        return []
    headers = [("X-Route-Token", compact_route(route))]
    if 0 <= route.primary < len(route.endpoints):
        headers.append(("Location", _location(route.endpoints[route.primary], path)))
    return headers


def _location(endpoint: str, path: str) -> str:
    """Return the URL of a path at an endpoint, which may have a path of its own."""
    base, separator, rest = endpoint.partition("://")
    authority, _, own_path = rest.partition("/")
    return f"{base}{separator}{authority}{escape_path(join_path('/' + own_path, path))}"


def _field(name: str, value: str) -> str:
    return f'{name}:"{_escaped(value)}" ' if value else ""


def _escaped(value: str) -> str:
    return "".join(
        _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
        for byte in value.encode("utf-8", "surrogateescape")
    )
