"""Targets of HTTP requests: the unescaped path, and the redirect of an unclean path."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from gazette_aio.protocol.go.text import clean_path, quote

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_PATH_SAFE = "/-_.~$&+,:;=@"
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


class TargetError(Exception):
    """A target can't be parsed. The text is the reason."""


class RequestTarget(NamedTuple):
    """Target of a request."""

    path: str
    """Unescaped path, which begins with a slash unless the target isn't a path."""
    query: str
    """Without the question mark, still escaped."""


def parse_target(text: str) -> RequestTarget:
    """Parse the target of a request line.

    Args:
        text: The target as received, with surrogates for bytes that aren't UTF-8.

    Raises:
        TargetError: An escape is invalid.
    """
    path, _, query = text.partition("?")
    if match := _ABSOLUTE.match(path):
        path = path[match.end() :] or "/"
    if bad := _BAD_ESCAPE.search(path):
        raise TargetError(f"invalid URL escape {quote(bad[0])}")
    content = unquote_to_bytes(path.encode("utf-8", "surrogateescape"))
    return RequestTarget(content.decode("utf-8", "replace"), query)


def redirect(target: RequestTarget) -> str | None:
    """Return the location to which an unclean path is redirected; None if the path is clean.

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
    query = quote_from_bytes(
        target.query.encode("utf-8", "surrogateescape"), safe="".join(map(chr, range(33, 127)))
    )
    return escape_path(cleaned) + (f"?{query}" if query else "")


def redirect_page(location: str, reason: str) -> str:
    """Return the page of a redirect, for people."""
    return f'<a href="{location.translate(_HTML)}">{reason}</a>.\n\n'


def escape_path(path: str) -> str:
    """Return a path as it's written within a URL."""
    return quote_from_bytes(path.encode("utf-8", "surrogateescape"), safe=_PATH_SAFE)
