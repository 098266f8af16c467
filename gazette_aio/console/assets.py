"""Files of the page, which the package brings."""

from __future__ import annotations

from importlib import resources
from typing import Final, NamedTuple

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file of the page."""

    content: bytes
    content_type: str


def read_assets(*, read_only: bool) -> dict[str, Asset]:
    """Return the files of the page, by the path of their URL. Blocks on files.

    Args:
        read_only: Whether the page hides what a console that only reads refuses.
    """
    assets: dict[str, Asset] = {}
    for file in resources.files("gazette_aio.console").joinpath("page").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            content = file.read_bytes()
            if read_only and suffix == ".html":
                content = content.replace(b"<html ", b'<html class="read-only" ', 1)
            assets[path] = Asset(content, _TYPES[suffix])
    return assets
