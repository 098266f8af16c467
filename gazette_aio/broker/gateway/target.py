"""Targets of HTTP requests: the unescaped path, the redirect of an unclean path, and queries."""

from __future__ import annotations

import html
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote_from_bytes, unquote_to_bytes

from gazette_aio.protocol.go.text import clean_path

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_PATH_SAFE = "/-_.~$&+,:;=@"
_PRINTABLE = "".join(map(chr, range(33, 127)))
_INTEGER = re.compile(r"[+-]?[0-9]{1,64}", re.ASCII)
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True", "on"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class QueryError(Exception):
    """A query is invalid. The text is for the client."""


class RequestTarget(NamedTuple):
    """Target of a request."""

    path: str
    """Unescaped path, which begins with a slash unless the target isn't a path."""
    query: str
    """Without the question mark, still escaped."""


def parse_target(text: str) -> RequestTarget:
    """Parse the target of a request line. Invalid escapes stay: no journal has such a name.

    Args:
        text: The target as received, with surrogates for bytes that aren't UTF-8.
    """
    path, _, query = text.partition("?")
    if match := _ABSOLUTE.match(path):
        path = path[match.end() :] or "/"
    content = unquote_to_bytes(path.encode("utf-8", "surrogateescape"))
    return RequestTarget(content.decode("utf-8", "replace"), query)


def redirect(target: RequestTarget) -> tuple[str, str] | None:
    """Return location and page of the redirect of an unclean path; None if the path is clean.

    A slash at the end is kept, for the validation of the journal's name.
    """
    path = target.path
    if path[:1] != "/":
        return None
    cleaned = clean_path(path)
    if path[-1] == "/" and cleaned != "/":
        cleaned += "/"
    if cleaned == path:
        return None
    query = quote_from_bytes(target.query.encode("utf-8", "surrogateescape"), safe=_PRINTABLE)
    location = escape_path(cleaned) + (f"?{query}" if query else "")
    return location, f'<a href="{html.escape(location)}">Temporary Redirect</a>.\n\n'


def escape_path(path: str) -> str:
    """Return a path as it's written within a URL."""
    return quote_from_bytes(path.encode("utf-8", "surrogateescape"), safe=_PATH_SAFE)


def parse_read_query(query: str) -> tuple[int, bool]:
    """Return `offset` and `block` of a query of a read.

    The case of keys is ignored. The last value of a key counts, unless it's empty.

    Raises:
        QueryError: A key isn't known, or a value can't be converted.
    """
    offset, block = 0, False
    for key, value in parse_qsl(query, keep_blank_values=True):
        match key.lower():
            case "offset" if not value or _INTEGER.fullmatch(value):
                offset = int(value) if value else offset
            case "block" if not value or value in _TRUE | _FALSE:
                block = value in _TRUE if value else block
            case "offset" | "block":
                wanted = "an integer" if key.lower() == "offset" else "true or false"
                raise QueryError(f"{key} must be {wanted} (not {value[:64]})")
            case _:
                raise QueryError(f"a read takes offset and block (not {key[:64]})")
    if not -(1 << 63) <= offset < 1 << 63:
        raise QueryError("offset doesn't fit 64 bits")
    return offset, block
