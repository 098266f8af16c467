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
    """A file of a store which is open for reading. All methods block."""

    @property
    def gzipped(self) -> bool:
        """Whether a file of the codec GZIP_OFFLOAD_DECOMPRESSION is read as it's compressed."""
        ...

    @property
    def version(self) -> str:
        """Text which differs once the file is another one; empty if that can't be told."""
        ...

    def seek(self, position: int, /) -> int:
        """Go to a position from the beginning."""
        ...

    def read(self, limit: int, /) -> bytes:
        """Return up to `limit` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class FragmentStore(Protocol):
    """A place for persisted fragments. All methods block.

    Paths are relative to the store, with `/` between their parts. Methods raise StoreError, with
    the text which clients are shown, or OSError.
    """

    url: str
    """URL by which specs name the store. Not changed."""

    def put(self, path: str, pieces: Iterable[bytes], *, gzipped: bool = False) -> None:
        """Write a file as a whole: it's there in full, or not at all.

        Args:
            path: Path of the file.
            pieces: Its content.
            gzipped: Whether clients which fetch the file from the store have to decompress it.
        """
        ...

    def make_durable(self, path: str) -> None:
        """Make a file durable which exists already."""
        ...

    def stat(self, path: str) -> int | None:
        """Return the modification time of a file in Unix seconds.

        None if it doesn't exist, or is empty, which no fragment is.
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
        """Return a URL for clients to fetch the file for some time; empty without a URL."""
        ...
