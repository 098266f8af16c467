"""Content of a persisted fragment, decompressed piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from gazette_aio.broker.stores import FragmentStore, StoredFile

_INPUT_BYTES = 256 << 10
_SKIPPED_PIECES = 8
"""Most pieces, of up to 1 MiB, which are skipped at a time: a reader may give up in between."""


class StoredContent:
    """Content of [begin, end) of a persisted fragment. All methods block."""

    def __init__(self, store: FragmentStore, fragment: pb.Fragment, begin: int, end: int) -> None:
        self._store = store
        self._fragment = fragment
        self._skip = begin - fragment.begin
        self._remaining = end - begin
        self._decompressor = pb.decompressor(fragment.compression_codec)
        self._file: StoredFile | None = None

    def open(self) -> bool:
        """Open the file; return whether there's content to `skip` first.

        Raises:
            StoreError, OSError: If it can't be opened.
        """
        self._file = self._store.open(pb.content_path(self._fragment))
        codec = self._fragment.compression_codec
        if codec == pb.CompressionCodec.NONE and self._skip:
            self._file.seek(self._skip)
            self._skip = 0
        elif codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            self._decompressor = pb.decompressor(codec, content_encoded=self._file.gzipped)
        return self._skip > 0

    def skip(self) -> bool:
        """Drop some of the content before `begin`; return whether there's more to drop.

        Raises:
            FragmentError, OSError: As `read`.
        """
        for _ in range(_SKIPPED_PIECES):
            if not self._skip:
                break
            self._skip -= len(self._piece(self._skip))
        return self._skip > 0

    def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes of content, none at its end. Skip first.

        Raises:
            FragmentError: If the file is damaged or short.
            OSError: If it can't be read.
        """
        parts: list[bytes] = []
        size = 0
        limit = min(limit, self._remaining)
        while size < limit:
            piece = self._piece(limit - size)
            parts.append(piece)
            size += len(piece)
        self._remaining -= size
        return b"".join(parts)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _piece(self, limit: int) -> bytes:
        if self._file is None:
            raise pb.StoreError("closed")  # By one who has given up on a silent store.
        limit = min(limit, _INPUT_BYTES * 4)
        if piece := self._decompressor.decompress(max_bytes=limit):
            return piece
        while data := self._file.read(_INPUT_BYTES):
            if piece := self._decompressor.decompress(data, max_bytes=limit):
                return piece
        self._decompressor.finish()
        raise pb.FragmentError(
            "unexpected EOF", journal=self._fragment.journal, offset=self._fragment.end
        )
