"""Requests for fragment files, and the meaning of the responses of their store.

The bytes that a store sends depend on the codec of the fragment:

| codec                      | requested                 | response with `Content-Encoding: gzip` |
| -------------------------- | ------------------------- | -------------------------------------- |
| NONE                       | plain, from the offset on | decompressed, unless it's a part       |
| GZIP                       | gzip                      | the file itself                        |
| GZIP_OFFLOAD_DECOMPRESSION | plain                     | decompressed: some stores don't        |
| ZSTANDARD, SNAPPY          | plain                     | refused                                |
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.protocol.codecs.content import cut_short
from gazette_aio.protocol.url import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.client.fragments.fetcher import FragmentBody

_CONTENT_RANGE: Final = re.compile(
    r"bytes ([0-9]{1,19})-[0-9]{1,19}/(?:[0-9]{1,19}|\*)", re.ASCII | re.IGNORECASE
)
_GZIP: Final = frozenset({"gzip", "x-gzip"})
# Signed URLs expire, and stores are eventually consistent: the next Read RPC brings a fresh URL.
# Other statuses below 500 are final.
_RETRYABLE_STATUSES: Final = frozenset({400, 401, 403, 404, 408, 409, 425, 429})


class Answer(NamedTuple):
    """Content of the body of a response."""

    begin: int
    """Offset of its first byte of content."""
    codec: int
    """Compression of the body."""
    content_length: int | None
    """Bytes of the body, or None if that's unknown."""


def request_headers(fragment: pb.Fragment, offset: int, *, verify: bool) -> dict[str, str]:
    """Return the headers of a request for content from `offset` on.

    Args:
        fragment: The fragment.
        offset: Offset of the first byte wanted, within the fragment.
        verify: Whether the whole fragment is needed, to verify its sum.
    """
    is_gzip = fragment.compression_codec == pb.CompressionCodec.GZIP
    headers = {"Accept-Encoding": "gzip" if is_gzip else "identity"}
    # No range is empty: at the end of the fragment, its last byte is fetched.
    first = min(offset, fragment.end - 1) - fragment.begin
    if fragment.compression_codec == pb.CompressionCodec.NONE and first > 0 and not verify:
        headers["Range"] = f"bytes={first}-"
    return headers


def check_answer(
    fragment: pb.Fragment,
    requested: Mapping[str, str],
    body: FragmentBody,
    *,
    url: str,
    as_stored: bool = False,
) -> Answer:
    """Return the content of the body of a response.

    Args:
        fragment: The fragment requested.
        requested: Headers of the request.
        body: The response.
        url: URL of the request.
        as_stored: Whether the body is the file itself, which nothing decompresses on the way.

    Raises:
        TransportError: The store refused the request, or the response doesn't fit it.
        UnexpectedEOFError: The file ends before the requested range.
    """
    journal, where, status = fragment.journal, redacted(url), body.status
    wanted = requested.get("Range", "").removeprefix("bytes=").removesuffix("-")
    begin = fragment.begin + int(wanted or 0)
    if status == 416 and wanted:
        raise cut_short(journal, begin)
    if status != 200 and not (status == 206 and wanted):
        raise pb.TransportError(
            "",
            f'!OK fetching ({status} {_phrase(status, body.reason)}, "{where}")',
            http_status=status,
            journal=journal,
            retryable=status >= 500 or status in _RETRYABLE_STATUSES,
        )
    answered = {name.lower(): value.strip() for name, value in body.headers.items()}
    encoding = answered.get("content-encoding", "").lower()

    def refuse(what: str) -> pb.TransportError:
        text = f'{what} answered by "{where}"'
        return pb.TransportError("", text, http_status=status, journal=journal)

    codec: int = fragment.compression_codec
    is_plain = codec in (
        pb.CompressionCodec.NONE,
        pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
    )
    if encoding in _GZIP and is_plain and status == 200:
        codec = pb.CompressionCodec.GZIP
    elif encoding in _GZIP and codec == pb.CompressionCodec.GZIP:
        pass  # The header labels the file itself.
    elif encoding not in ("", "identity"):
        raise refuse(f"Content-Encoding {encoding[:40]!r}")
    elif as_stored and codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
        codec = pb.CompressionCodec.GZIP

    if status == 200:
        begin = fragment.begin
    else:
        content_range = answered.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(content_range)
        if match is None or int(match[1]) != int(wanted):
            raise refuse(f"Content-Range {content_range[:80]!r} in place of {requested['Range']!r}")
    length = answered.get("content-length", "")
    is_number = length.isascii() and length.isdigit() and len(length) < 20
    return Answer(begin, codec, int(length) if is_number else None)


def _phrase(status: int, reason: str) -> str:
    # Only standard phrases are trusted: a server may send anything.
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "".join(filter(str.isprintable, reason))[:80]
