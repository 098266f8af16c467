"""SHA-1, which names content. It's no protection against forgery, and isn't used as one."""

from __future__ import annotations

import hashlib
from typing import Protocol, Self


class Hash(Protocol):
    """State of a digest in progress."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add content. Other threads run meanwhile if it's longer than 2 KiB."""
        ...

    def digest(self) -> bytes:
        """Return the digest of the content so far."""
        ...

    def copy(self) -> Self:
        """Return a copy, which goes its own way."""
        ...


def new_sha1() -> Hash:
    """Return the state of a SHA-1 of no content."""
    return hashlib.sha1(usedforsecurity=False)
