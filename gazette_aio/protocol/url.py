"""URLs, split as RFC 3986 has it, and checked as brokers do.

`urllib.parse` drops blanks and control characters, and its checks of hosts differ by version.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import quote

_URL: Final = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.\-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:\#(.*))?", re.DOTALL
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# In a host, only the percent sign and bytes of non-ASCII characters may be escaped.
_BAD_HOST: Final = re.compile(r"%(?!25)[0-7][0-9A-Fa-f]|[\x00- #/?@\\^`{|}\x7f]")
_HOST: Final = re.compile(r"\[.*\](?::[0-9]*)?|(?!\[)(?:[^:]*|.*:[0-9]*)", re.DOTALL | re.ASCII)
_BAD_USER: Final = re.compile(r"[^A-Za-z0-9\-._:~!$&'()*+,;=%@]")
_USER: Final = re.compile(r"^([^:/?#]*:(?://)?|//)?[^/?#]*@")
_PORT: Final = re.compile(r":([0-9]*)\Z", re.ASCII)


class URL(NamedTuple):
    """URL, split into its parts."""

    scheme: str
    """In lower case; empty if the URL isn't absolute."""
    host: str
    """Host, with its port if the URL has one; unescaped."""
    path: str
    """Unescaped."""
    query: str
    """Without the question mark, still escaped."""

    def __repr__(self) -> str:
        # Signatures and credentials are in the query.
        parts = (f"{name}={value!r}" for name, value in self._asdict().items() if name != "query")
        return f"{type(self).__name__}({', '.join(parts)}, query={'…' if self.query else '-'})"

    @property
    def port(self) -> str:
        """Port, or empty."""
        found = _PORT.search(self.host)
        return found[1] if found else ""


def parse_url(text: str) -> URL:
    """Split a URL or a relative reference into its parts.

    Raises:
        ValidationError: The text isn't a URL.
    """
    found = _URL.fullmatch(text)
    assert found is not None, "any text matches"
    scheme, authority, path, query, fragment = (part or "" for part in found.groups())
    # What follows a scheme without a slash isn't a path.
    if scheme and not authority and path[:1] != "/":
        path = ""
    user, _, host = authority.rpartition("@")
    problem = ""
    if _CONTROL.search(text):
        problem = "it has a control character"
    elif not scheme and ":" in path.partition("/")[0]:
        problem = "its scheme is missing or invalid"
    elif _BAD_ESCAPE.search(f"{authority}\n{path}\n{fragment}"):
        problem = "it has an invalid escape"
    elif _BAD_USER.search(user):
        problem = "its user is invalid"
    elif _BAD_HOST.search(host) or not _HOST.fullmatch(host):
        problem = "its host or port is invalid"
    if problem:
        raise ValidationError(f"parse {quote(redacted(text))}: {problem}")
    return URL(
        scheme.lower(),
        host=unquote(host, errors="replace"),
        path=unquote(path, errors="replace"),
        query=query,
    )


def redacted(url: str) -> str:
    """Return a URL without its secrets: the query, and a user with a password."""
    base, mark, _ = url.partition("#")[0].partition("?")
    return _USER.sub(r"\1", f"{base}?…" if mark else base)
