"""URLs as brokers parse them, which differs in details from `urllib.parse`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import quote

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+\-.]*):")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
# In a host, only the percent sign and bytes of non-ASCII characters may be escaped.
_BAD_HOST_ESCAPE: Final = re.compile(r"%(?!25)[0-7][0-9A-Fa-f]")
# Unlisted characters are allowed, also outside of ASCII.
_BAD_HOST_CHAR: Final = re.compile(r"[\x00- #/?@\\^`{|}\x7f]")
_BAD_USER_CHAR: Final = re.compile(r"[^A-Za-z0-9\-._:~!$&'()*+,;=%@]")
_USER: Final = re.compile(r"^([^:/?#]*:(?://)?|//)?[^/?#]*@")
_PASSWORD: Final = re.compile(r"(?:[^:/?#]*:(?://)?|//)?[^/?#@]*:[^/?#]*@")
_PORT: Final = re.compile(r"(:[0-9]*)?", re.ASCII)


class URL(NamedTuple):
    """URL, split into its parts."""

    scheme: str
    """In lower case; empty if the URL isn't absolute."""
    opaque: str
    """Text after the scheme, if it doesn't begin with a slash."""
    host: str
    """Host, with its port if the URL has one; unescaped."""
    path: str
    """Unescaped."""
    query: str
    """Without the question mark, still escaped."""

    def __repr__(self) -> str:
        # Signatures are in the query.
        parts = (f"{name}={value!r}" for name, value in self._asdict().items() if name != "query")
        return f"URL({', '.join(parts)}, query={'…' if self.query else '-'})"

    @property
    def port(self) -> str:
        """Port, or empty."""
        at = self.host.rfind(":")
        if at < 0 or not _PORT.fullmatch(self.host[at:]):
            return ""
        return self.host[at + 1 :]


def parse_url(text: str) -> URL:
    """Split a URL or a relative reference into its parts.

    Raises:
        ValidationError: The text isn't a URL.
    """
    try:
        return _parse(text)
    except ValidationError as error:
        # Wire: brokers use the same text, but don't redact it.
        shown = redacted(text) if _PASSWORD.match(text) else _without_query(text)
        raise ValidationError(f"parse {quote(shown)}: {error.text}") from None


def redacted(url: str) -> str:
    """Return a URL without its secrets: the query, and a user with a password."""
    return _USER.sub(r"\1", _without_query(url.partition("#")[0]))


def _without_query(text: str) -> str:
    base, mark, _ = text.partition("?")
    return f"{base}?…" if mark else base


def _parse(text: str) -> URL:
    rest, _, fragment = text.partition("#")
    if _CONTROL.search(text):
        raise ValidationError("net/url: invalid control character in URL")
    _unescape(fragment)
    scheme = ""
    if match := _SCHEME.match(rest):
        scheme = match[1].lower()
        rest = rest[match.end() :]
    elif rest[:1] == ":":
        raise ValidationError("missing protocol scheme")
    rest, _, query = rest.partition("?")
    if rest[:1] != "/":
        if scheme:
            return URL(scheme, opaque=rest, host="", path="", query=query)
        if ":" in rest.partition("/")[0]:
            raise ValidationError("first path segment in URL cannot contain colon")
    host = ""
    if rest[:2] == "//" and (scheme or rest[:3] != "///"):
        authority, slash, path = rest[2:].partition("/")
        host = _parse_authority(authority)
        rest = slash + path
    return URL(scheme, opaque="", host=host, path=_unescape(rest), query=query)


def _parse_authority(authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at:
        if _BAD_USER_CHAR.search(user):
            raise ValidationError("net/url: invalid userinfo")
        _unescape(user)
    if host[:1] == "[":
        end = host.rfind("]")
        if end < 0:
            raise ValidationError("missing ']' in host")
        port = host[end + 1 :]
    else:
        end = host.rfind(":")
        port = host[end:] if end >= 0 else ""
    if not _PORT.fullmatch(port):
        raise ValidationError(f"invalid port {quote(port)} after host")
    if bad := _BAD_ESCAPE.search(host) or _BAD_HOST_ESCAPE.search(host):
        raise ValidationError(f"invalid URL escape {quote(bad[0])}")
    if bad := _BAD_HOST_CHAR.search(host):
        raise ValidationError(f"invalid character {quote(bad[0])} in host name")
    return _unescape(host)


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    if bad := _BAD_ESCAPE.search(text):
        raise ValidationError(f"invalid URL escape {quote(bad[0])}")
    return _ESCAPES.sub(
        lambda match: bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "replace"), text
    )
