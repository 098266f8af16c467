"""Rules of the requests that the console answers, and the headers of its answers.

Any site that is open in a browser can send requests to the console. The console answers only
requests of its own page: without tokens, nothing else distinguishes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Headers of all answers: nothing is loaded from elsewhere, framed, guessed or stored."""

LOOPBACK_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names by which a browser of this machine may call the console."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
_JSON_TYPES: Final = frozenset({"application/json", "application/json; charset=utf-8"})


def refusal(
    method: str, headers: Mapping[str, str], hosts: Collection[str], *, is_page: bool
) -> str | None:
    """Return the reason to refuse a request, or None to answer it.

    Args:
        method: Method of the request.
        headers: Headers of the request, by names in any case.
        hosts: Host names by which the console may be called.
        is_page: Whether the request is for a file of the page, which links may lead to.
    """
    host = headers.get("Host", "")
    # A name of somebody's domain that resolves to this machine makes their page one of our origin.
    if _hostname(host) not in hosts:
        return "the console isn't called by this host name: name it by --allow-host"
    origin = headers.get("Origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return "the request is that of another site"
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES and not is_page:
        return "the request is that of another site"
    # Forms of other sites, which browsers send without asking, can't have this type.
    if method == "POST" and headers.get("Content-Type", "").lower() not in _JSON_TYPES:
        return "expected a body of JSON"
    return None


def bearer_token(header: str | None) -> str | None:
    """Return the token of an Authorization header, or None if there is no header.

    Raises:
        ValueError: The header has something else than a token.
    """
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token or not token.isascii() or " " in token:
        raise ValueError("expected `Authorization: Bearer` with a token")
    return token


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
