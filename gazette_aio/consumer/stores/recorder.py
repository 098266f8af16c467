"""Protocols of the recorder of a store's directory, and the recording of a transaction."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Collection, Generator
    from contextlib import AbstractContextManager

    from gazette_aio.client.appends.futures import OpFuture


class FileRecorder(Protocol):
    """Recorder, as far as stores of files use it. Threads may call it."""

    @property
    def directory(self) -> str:
        """Directory of the files."""
        ...

    def atomic(self) -> AbstractContextManager[None]:
        """Have everything that is recorded within the block in one append."""
        ...

    def record_create(self, path: str, /) -> int:
        """Record a file that was created, or made empty, and return its number."""
        ...

    def record_write_at(self, fnode: int, data: bytes, offset: int, /) -> None:
        """Record a write."""
        ...

    def record_rename(self, source: str, target: str, /) -> None:
        """Record that a file was renamed."""
        ...

    def barrier(self, wait_for: Collection[asyncio.Future[Any]] = (), /) -> OpFuture[Any]:
        """Return a future that completes when what was recorded is committed."""
        ...


class DirectoryRecorder(FileRecorder, Protocol):
    """Recorder, as far as stores use it that record all that happens in their directory."""

    before_hints: Callable[[], Awaitable[None]] | None
    """Called before hints are built."""

    def fail(self, error: StoreError, /) -> None:
        """Record nothing further, and drop what isn't appended, open `atomic()` blocks included."""
        ...

    def record_link(self, source: str, target: str, /) -> None:
        """Record a further path of a file."""
        ...

    def record_remove(self, path: str, /) -> None:
        """Record the removal of a path."""
        ...

    def links(self) -> dict[str, int]:
        """Return the numbers of all files by path in the log, such as `/state.json`."""
        ...

    def age_bytes(self, fnode: int, /) -> int:
        """Return the length of the log since the first operation of a file."""
        ...

    def properties(self) -> dict[str, str]:
        """Return the contents of properties by their paths in the log, such as `/IDENTITY`."""
        ...

    def path_of(self, path: str, /) -> str:
        """Return the path in the log of a path below the directory."""
        ...


@contextlib.contextmanager
def recorded_as_a_whole(recorder: DirectoryRecorder) -> Generator[None]:
    """Have everything that is recorded within the block in one append, or nothing of it.

    If the block fails, so does the recorder: files differ from what is recorded of them, and a part
    of a transaction must not be recovered.

    Raises:
        StoreError: Recording has failed before.
    """
    with recorder.atomic():
        try:
            yield
        except BaseException as error:
            recorder.fail(StoreError(f"a change wasn't recorded as a whole: {error}"))
            raise
