"""Local fragment: its content file, shared by its writer and its readers, and its complete form."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.log import RecordLog

_SLICE_BYTES = 256 << 10


class ContentFile:
    """Raw content of a local fragment.

    The first user opens the descriptor, and the last user closes it. A file that is removed
    meanwhile stays readable for its users.
    """

    __slots__ = ("_descriptor", "_files", "_users", "path")

    def __init__(self, files: FileOps, path: Path) -> None:
        self.path: Path = path
        self._files = files
        self._descriptor = -1
        self._users = 0

    def __repr__(self) -> str:
        return f"<ContentFile {self.path.name} users={self._users}>"

    def acquire(self, *, create: bool = False) -> int:
        """Begin to use the file, and return its descriptor.

        Args:
            create: Whether to create a missing file.

        Raises:
            OSError: The file can't be opened.
        """
        if self._users == 0:
            flags = os.O_RDWR | (os.O_CREAT if create else 0)
            try:
                self._descriptor = self._files.open(self.path, flags)
            except OSError as error:
                if create or error.errno != errno.EROFS:
                    raise
                # A file that can't be written to can still be read.
                self._descriptor = self._files.open(self.path, os.O_RDONLY)
        self._users += 1
        return self._descriptor

    def release(self) -> None:
        """End one use of the file."""
        self._users -= 1
        if self._users == 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset` of the file, which the caller uses."""
        return self._files.pread(self._descriptor, length, offset)


@dataclass(frozen=True, slots=True)
class LocalFragment:
    """A complete fragment that isn't persisted yet."""

    fragment: pb.Fragment
    content: ContentFile
    log: RecordLog
    registers: pb.LabelSet
    first_append_seconds: float

    @property
    def first_append_time(self) -> dt.datetime:
        """Time of the first append, in UTC."""
        return dt.datetime.fromtimestamp(self.first_append_seconds, dt.UTC)

    def pieces(self) -> Iterator[bytes]:
        """Iterate the compressed content. Blocks.

        Raises:
            OSError: The content can't be read, or is short.
            StoreError: The content was damaged since it was acknowledged.
            FragmentError: The codec isn't supported.
        """
        digest = hashlib.sha1(usedforsecurity=False)
        compressor = pb.compressor(self.fragment.compression_codec)
        length = self.fragment.end - self.fragment.begin
        offset = 0
        while offset < length:
            piece = self.content.read(min(_SLICE_BYTES, length - offset), offset)
            if not piece:
                raise OSError(f"content of {self.content.path} ends at {offset} of {length} bytes")
            offset += len(piece)
            digest.update(piece)
            if compressed := compressor.compress(piece):
                yield compressed
        if pb.sum_from_digest(digest.digest()) != self.fragment.sum:
            raise pb.StoreError(f"content of {self.content.path.name} is damaged")
        if tail := compressor.finish():
            yield tail
