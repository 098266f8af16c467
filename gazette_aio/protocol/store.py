"""URLs of fragment stores, and paths below their roots."""

from __future__ import annotations

import posixpath
from typing import Final
from urllib.parse import unquote_plus

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import clean_path
from gazette_aio.protocol.url import URL, parse_url

_REWRITE: Final = frozenset({"find", "replace"})
_ARGUMENTS: Final = {
    "azure": _REWRITE,
    "azure-ad": _REWRITE,
    "file": _REWRITE,
    "gs": _REWRITE,
    "s3": _REWRITE | {"acl", "endpoint", "profile", "region", "sse", "ssekmskeyid", "storageclass"},
}


class FragmentStoreURL(URL):
    """URL of a fragment store.

    The scheme is one of `azure`, `azure-ad`, `file`, `gs`, `s3`. The host is a bucket, a container
    or a tenant, and empty for `file`. The path is the prefix of all paths within the store; it
    begins and ends with a slash. The query has arguments.
    """

    __slots__ = ()

    @property
    def arguments(self) -> dict[str, str]:
        """Arguments by lower-case name. The first of repeated arguments counts."""
        found: dict[str, str] = {}
        for term in self.query.split("&"):
            name, _, value = term.partition("=")
            if name:
                found.setdefault(unquote_plus(name).lower(), unquote_plus(value))
        return found

    def validate_arguments(self) -> None:
        """Check that stores of this scheme know the arguments. Peers don't check this.

        Raises:
            ValidationError: An argument is unknown.
        """
        for name in self.arguments:
            if name not in _ARGUMENTS[self.scheme]:
                raise ValidationError(f'parsing store URL arguments: schema: invalid path "{name}"')

    def object_key(self, content_path: str) -> str:
        """Return the path of a fragment below the bucket, container, tenant or file root.

        Raises:
            ValidationError: The path leads out of the store, or the store's path out of the root.
        """
        arguments = self.arguments
        if find := arguments.get("find", ""):
            content_path = content_path.replace(find, arguments.get("replace", ""), 1)
        root = self.path.strip("/")
        # Wire: keys of objects begin with the path as written: checked, but not cleaned.
        join_below("", root)
        return join_below(root, content_path)


def parse_fragment_store(text: str) -> FragmentStoreURL:
    """Parse the URL of a fragment store.

    Raises:
        ValidationError: The text isn't the URL of a fragment store.
    """
    url = parse_url(text)
    if not url.scheme:
        raise ValidationError(f"not absolute ({text})")
    match url.scheme:
        case "s3" | "gs" | "azure":
            if not url.host:
                raise ValidationError(f"missing bucket ({text})")
        case "azure-ad":
            if not url.host:
                raise ValidationError(f"missing tenant ID ({text})")
            account, _, container = url.path[1:].partition("/")
            if not account:
                raise ValidationError(f"missing storage account ({text})")
            if not container.partition("/")[0]:
                raise ValidationError(f"missing storage container ({text})")
        case "file":
            if url.host:
                raise ValidationError(f"file scheme cannot have host ({text})")
        case scheme:
            raise ValidationError(f"invalid scheme ({scheme})")
    if url.path[-1:] != "/":
        raise ValidationError(f"path component doesn't end in '/' ({url.path})")
    return FragmentStoreURL(*url)


def join_below(root: str, *parts: str) -> str:
    """Join relative paths to a root directory, and refuse paths that leave it.

    Each part must stay below the parts before it. The check is lexical: the caller must handle
    symbolic links.

    Args:
        root: Directory; may be empty.
        parts: Relative paths with forward slashes.

    Raises:
        ValidationError: A part is absolute, leads above the parts before it, or contains NUL.
    """
    joined = root
    for part in parts:
        cleaned = clean_path(part)
        if cleaned == ".." or cleaned.startswith(("../", "/")) or "\0" in part:
            raise ValidationError(f"path leads out of its root ({part})")
        if cleaned != ".":
            joined = posixpath.join(joined, cleaned)
    return joined
