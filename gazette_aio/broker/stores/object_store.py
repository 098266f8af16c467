"""Fragment stores in buckets and containers of object stores, through `obstore`."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.stores import object_config
from gazette_aio.broker.stores.fragment_store import Listed, StoreAccessError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from obstore import ObjectMeta
    from obstore.store import ObjectStore as Client

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
_FIRST_SLICE_BYTES = 1 << 20
_SLICE_BYTES = 4 << 20
_LIST_CHUNK = 1000


class ObjectFragmentStore:
    """A prefix of a bucket or container.

    Args:
        url: URL of the store.
        open_client: Returns a client of the bucket; called once, in a worker thread.

    Raises:
        StoreError: The URL has arguments that can't be satisfied.
    """

    def __init__(self, url: str, open_client: Callable[[pb.FragmentStoreURL], Client]) -> None:
        self.url = url
        self._parsed = pb.parse_fragment_store(url)
        object_config.check_arguments(self._parsed)
        self._container = object_config.container_prefix(self._parsed)
        self._open_client = open_client
        self._opened: Client | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        parsed = self._parsed
        return f"<ObjectFragmentStore {parsed.scheme}://{parsed.host}{parsed.path}>"

    def put(self, path: str, pieces: Iterable[bytes], *, gzipped: bool = False) -> None:
        """Write an object atomically, in parts if it's long."""
        import obstore  # noqa: PLC0415

        key = self._key(path)
        remaining = iter(pieces)
        head: list[bytes] = []
        size = 0
        for piece in remaining:
            head.append(piece)
            size += len(piece)
            if size >= _PART_BYTES:
                break
        attributes = object_config.put_attributes(self._parsed, gzipped=gzipped)
        with self._client() as client:
            if size < _PART_BYTES:
                obstore.put(client, key, b"".join(head), attributes=attributes, use_multipart=False)
            else:
                obstore.put(
                    client,
                    key,
                    itertools.chain(head, remaining),
                    attributes=attributes,
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )

    def make_durable(self, path: str) -> None:
        """Do nothing: existing objects are durable."""

    def stat(self, path: str) -> int | None:
        """Return the modification time of an object, or None if it doesn't exist."""
        import obstore  # noqa: PLC0415

        key = self._key(path)
        with self._client() as client:
            try:
                meta = obstore.head(client, key)
            except FileNotFoundError:
                return None
            return int(meta["last_modified"].timestamp()) if meta["size"] else None

    def open(self, path: str) -> _ObjectFile:
        """Open an object for reading. Reads fetch slices."""
        return _ObjectFile(self, self._key(path))

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        """List all objects below a directory. A key that isn't a path fails the listing."""
        import obstore  # noqa: PLC0415

        directory = self._key(prefix)
        start = len(directory) + 1 if directory else 0
        with self._client() as client:
            # The stubs of the library have a further type of results, of a package that isn't
            # installed.
            chunks = obstore.list(  # pyright: ignore[reportUnknownMemberType]
                client, directory, chunk_size=_LIST_CHUNK
            )
            for meta in itertools.chain.from_iterable(chunks):
                path = meta["path"][start:]
                if path and not _is_skipped(path, skip):
                    yield Listed(path, int(meta["last_modified"].timestamp()))

    def remove(self, path: str) -> None:
        """Remove an object."""
        import obstore  # noqa: PLC0415

        key = self._key(path)
        with self._client() as client:
            obstore.delete(client, key)

    def sign_get(self, path: str, seconds: float = 60.0) -> str:
        """Return a URL by which clients can fetch the object; empty if the store has none."""
        import obstore  # noqa: PLC0415
        from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

        key = self._key(path)
        with self._client() as client:
            if not isinstance(client, S3Store | GCSStore | AzureStore):
                return ""
            return obstore.sign(client, "GET", key, dt.timedelta(seconds=seconds))

    def version(self, key: str) -> str:
        """Return the version of an object. Blocks."""
        import obstore  # noqa: PLC0415

        with self._client() as client:
            return _version(obstore.head(client, key))

    def fetch(self, key: str, begin: int, end: int) -> tuple[bytes, ObjectMeta, bool]:
        """Return bytes of an object, its description, and whether its content encoding is gzip."""
        import obstore  # noqa: PLC0415

        with self._client() as client:
            result = obstore.get(client, key, options={"range": (begin, end)})
            gzipped = result.attributes.get("Content-Encoding", "") == "gzip"
            return bytes(result.bytes()), result.meta, gzipped

    @contextlib.contextmanager
    def _client(self) -> Generator[Client]:
        """Yield the client, and turn its errors into a StoreError."""
        from obstore.exceptions import (  # noqa: PLC0415
            BaseError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open_client(self._parsed)
            yield self._opened
        except (BaseError, ValueError, FileNotFoundError) as error:
            # Invariant: causes aren't chained, because they have responses and signed URLs.
            is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
            kind = StoreAccessError if is_denied else pb.StoreError
            raise kind(object_config.error_text(error)) from None

    def _key(self, path: str) -> str:
        try:
            key = self._parsed.object_key(path)
        except pb.ValidationError as error:
            raise pb.StoreError(str(error)) from None
        return key[len(self._container) :]


class _ObjectFile:
    """An object open for reading. All methods block."""

    def __init__(self, store: ObjectFragmentStore, key: str) -> None:
        self._store = store
        self._key = key
        self._position = 0
        self._begin = 0
        self._slice = b""
        self._size: int | None = None
        self._version = ""
        self._gzipped = False

    @property
    def version(self) -> str:
        """Text that changes when the object is written again."""
        if not self._version:
            if self._position:
                # The object may be shorter, and fetching beyond its end fails.
                self._version = self._store.version(self._key)
            else:
                self._fill()
        return self._version

    @property
    def gzipped(self) -> bool:
        """Whether the content encoding is gzip. Reads return the encoded bytes."""
        if self._size is None:
            self._fill()
        return self._gzipped

    def seek(self, position: int) -> int:
        """Seek to a position from the beginning."""
        self._position = position
        return position

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes, or none at the end.

        Raises:
            StoreError: The bytes can't be fetched.
        """
        if not self._begin <= self._position < self._begin + len(self._slice):
            self._fill()
        start = self._position - self._begin
        data = self._slice[start : start + limit]
        self._position += len(data)
        return data

    def close(self) -> None:
        """Drop the fetched content."""
        self._slice = b""

    def _fill(self) -> None:
        begin = self._begin = self._position
        self._slice = b""
        if self._size is not None and begin >= self._size:
            return
        length = _FIRST_SLICE_BYTES if self._size is None else _SLICE_BYTES
        self._slice, meta, self._gzipped = self._store.fetch(self._key, begin, begin + length)
        self._size = meta["size"]
        self._version = _version(meta)


def _version(meta: ObjectMeta) -> str:
    return f"{meta['e_tag']}-{meta['size']}-{meta['last_modified'].timestamp()}"


def _is_skipped(path: str, skip: frozenset[str]) -> bool:
    if not skip:
        return False
    at = path.find("/")
    while at >= 0:
        if path[:at] in skip:
            return True
        at = path.find("/", at + 1)
    return False
