"""Interface of a fragment store, and of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class StoreAccessError(StoreError):
    """A store denies access to a file, or doesn't accept the credentials."""


class Listed(NamedTuple):
    """A file of a store."""

    path: str
    """Path relative to the listed prefix."""
    mod_time: int
    """Modification time in Unix seconds."""


class StoredFile(Protocol):
    """A file of a store, open for reading. All methods block."""

    @property
    def gzipped(self) -> bool:
        """Whether reads of a file of codec GZIP_OFFLOAD_DECOMPRESSION return compressed bytes."""
        ...

    @property
    def version(self) -> str:
        """Text that changes when the file is replaced; empty if the store can't tell."""
        ...

    def seek(self, position: int, /) -> int:
        """Seek to a position from the beginning."""
        ...

    def read(self, limit: int, /) -> bytes:
        """Return up to `limit` bytes, or none at the end."""
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class FragmentStore(Protocol):
    """A place for persisted fragments. All methods block.

    Paths are relative to the store, with `/` between their parts. Methods raise StoreError, whose
    text clients may see, or OSError.
    """

    url: str
    """URL by which specs name the store. Not changed."""

    def put(self, path: str, pieces: Iterable[bytes], *, gzipped: bool = False) -> None:
        """Write a file atomically: it exists in full, or not at all.

        Args:
            path: Path of the file.
            pieces: Content of the file.
            gzipped: Whether clients that fetch the file must decompress it.
        """
        ...

    def make_durable(self, path: str) -> None:
        """Make an existing file durable."""
        ...

    def stat(self, path: str) -> int | None:
        """Return the modification time of a file in Unix seconds.

        The result is None if the file doesn't exist, or is empty, unlike every fragment.
        """
        ...

    def open(self, path: str) -> StoredFile:
        """Open a file for reading."""
        ...

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        """List all files below the directory `prefix`, except in directories of `skip`.

        Args:
            prefix: Path which ends in a slash.
            skip: Directories relative to `prefix`, without a trailing slash.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def sign_get(self, path: str, seconds: float = 60.0) -> str:
        """Return a URL for clients to fetch the file within `seconds`; empty without a URL."""
        ...
