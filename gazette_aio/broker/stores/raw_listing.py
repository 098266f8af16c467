"""Listings of S3 buckets without `obstore`, which refuses buckets with keys that it can't parse.

Such a key has an empty part, as in `a//b`, a part of dots, or a control character. Anybody may have
written the key, and it must not hide the fragments of the bucket.
"""

from __future__ import annotations

import datetime as dt
import http.client
import os
import urllib.error
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree as ET

import gazette_aio.protocol as pb
from gazette_aio.broker.stores.direct_http import open_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import S3Store

_URL_LIFETIME = dt.timedelta(minutes=1)
_TIMEOUT_SECONDS = 10.0
MAX_PAGE_BYTES = 16 << 20
PAGE_KEYS = 1000
_PROBE = "x"


def list_keys(client: S3Store, directory: str) -> Iterator[tuple[str, int]]:
    """Iterate all keys below a directory, and their modification times in Unix seconds. Blocks.

    Args:
        client: Client of the bucket, whose credentials are used.
        directory: The directory without a trailing slash; empty for all keys.

    Raises:
        StoreError: The keys can't be listed.
    """
    token = ""
    prefix = directory + "/" if directory else ""
    while True:
        keys, following = parse_page(_fetch(_page_url(client, prefix, token)))
        yield from keys
        if not following:
            return
        if following == token:
            raise pb.StoreError("listing returned the same page again")
        token = following


class _Builder(ET.TreeBuilder):
    def doctype(self, *_: object) -> None:
        """Refuse a document that could declare entities, which make a page as long as they like."""
        raise ValueError("it has a document type")


def parse_page(document: bytes) -> tuple[list[tuple[str, int]], str]:
    """Return keys and times of a page, and the token of the next page, or an empty text.

    Raises:
        StoreError: The document isn't a page.
    """
    try:
        parser = ET.XMLParser(target=_Builder())  # noqa: S314 - It takes no entities.
        parser.feed(document)
        root: ET.Element = parser.close()
        space = root.tag[: root.tag.index("}") + 1] if "}" in root.tag else ""
        if root.tag != f"{space}ListBucketResult":
            raise ValueError(f"unexpected element {root.tag}")
        # Some servers don't support encoded keys, and return plain keys.
        decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
        keys = [
            (
                decode(entry.findtext(f"{space}Key", "")),
                int(dt.datetime.fromisoformat(_text(entry, f"{space}LastModified")).timestamp()),
            )
            for entry in root.iter(f"{space}Contents")
        ]
        is_last = root.findtext(f"{space}IsTruncated", "false") != "true"
        return keys, "" if is_last else _text(root, f"{space}NextContinuationToken")
    except (ET.ParseError, ValueError, OverflowError) as error:
        raise pb.StoreError(f"unexpected answer to a listing: {error}") from None


def _text(element: ET.Element, name: str) -> str:
    if not (text := element.findtext(name)):
        raise ValueError(f"no {name}")
    return text


def _page_url(client: S3Store, prefix: str, token: str) -> str:
    import obstore  # noqa: PLC0415
    from obstore.store import S3Store  # noqa: PLC0415

    # Wire: `obstore` signs only URLs of objects. So the endpoint is the URL of the bucket with a
    # query, at whose end the empty name of an object follows. S3 ignores parameters that begin with
    # `x-`.
    url = urlsplit(obstore.sign(client, "GET", _PROBE, _URL_LIFETIME))
    bucket = f"{url.scheme}://{url.netloc}{url.path.removesuffix('/' + _PROBE)}"
    query = f"list-type=2&encoding-type=url&max-keys={PAGE_KEYS}&prefix={quote(prefix, safe='')}"
    if token:
        query += f"&continuation-token={quote(token, safe='')}"
    config: dict[str, Any] = {**client.config, "virtual_hosted_style_request": True}
    config["endpoint"] = f"{bucket}?{query}&x-end="
    if "aws_endpoint_url_s3" in config or "AWS_ENDPOINT_URL_S3" in os.environ:
        config["aws_endpoint_url_s3"] = config["endpoint"]
    lister = S3Store(config=cast("Any", config))
    return obstore.sign(lister, "GET", "", _URL_LIFETIME)


def _fetch(url: str) -> bytes:
    try:
        with open_url(url, _TIMEOUT_SECONDS) as response:
            document = response.read(MAX_PAGE_BYTES + 1)
    # Texts of these errors must not have the signed URL.
    except urllib.error.HTTPError as error:
        error.close()
        raise pb.StoreError(f"listing returned status {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise pb.StoreError(f"listing failed: {type(error).__name__}") from None
    if len(document) > MAX_PAGE_BYTES:
        raise pb.StoreError("listing returned a page that is too long")
    return document
