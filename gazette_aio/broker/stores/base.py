"""What the broker asks of a fragment store."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Listed(NamedTuple):
    """A file of a store."""

    path: str
    """Path relative to the listed prefix."""
    mod_time: int
    """Modification time in Unix seconds."""


class Store(Protocol):
    """A place for persisted fragments. All methods block.

    Paths are relative to the store, with `/` between their parts. Methods raise StoreError, with
    the text which clients are shown, or OSError.
    """

    @property
    def url(self) -> str:
        """URL by which specs name the store."""
        ...

    def put(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file as a whole: it's there in full, or not at all."""
        ...

    def stat(self, path: str) -> int | None:
        """Return the modification time of a file in Unix seconds, or None if it doesn't exist."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""
        ...

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        """List all files below the directory `prefix`, but not those in directories of `skip`.

        Args:
            prefix: Path which ends in a slash.
            skip: Directories relative to `prefix`, without a trailing slash.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def sign_get(self, path: str) -> str:
        """Return a URL which clients can fetch the file by."""
        ...
