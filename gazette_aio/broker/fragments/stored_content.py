"""Content of a persisted fragment, decompressed and checked piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.protocol.codecs.content import FragmentContent

if TYPE_CHECKING:
    from gazette_aio.broker.stores import FragmentStore, StoredFile, VerifiedFiles

_BATCH_BYTES = 1 << 20
_MAX_STEPS = 8
"""Most steps of one call, of up to 1 MiB each: a reader may give up between calls."""


class StoredContent:
    """Content of [begin, end) of a persisted fragment. All methods block.

    The last content, of up to 1 MiB, is withheld until the whole fragment is verified: its length,
    the checksums of its compression, and its SHA-1 sum. The rest of the fragment is thus read too,
    unless this version of its file was verified before.

    Args:
        verified: Verified files of the store; None verifies no SHA-1 sums.
    """

    def __init__(
        self,
        store: FragmentStore,
        fragment: pb.Fragment,
        begin: int,
        end: int,
        *,
        verified: VerifiedFiles | None,
    ) -> None:
        self._store = store
        self._fragment = fragment
        self._begin = begin
        self._end = end
        # Without a sum, only the compression is verified.
        self._verified = None if pb.sum_is_zero(fragment.sum) else verified
        self._path = pb.content_path(fragment)
        self._version = ""
        self._verifies = False
        self._file: StoredFile | None = None
        self._content: FragmentContent | None = None
        self._failure: pb.ReadError | None = None

    def next(self) -> bytes | None:
        """Return the next content, None at the end, or no bytes if another call is needed first.

        Raises:
            ReadError: The file is damaged, or doesn't have the length of the fragment.
            ConfigurationError: The compression isn't supported.
            StoreError, OSError: The file can't be read.
        """
        if self._failure is not None:
            raise self._failure
        if self._content is not None and self._content.has_ended:
            return None
        content = self._content or self._open()
        parts: list[bytes] = []
        size = 0
        for _ in range(_MAX_STEPS):
            if (file := self._file) is None:
                raise pb.StoreError("closed")  # By one who has given up on a silent store.
            try:
                piece = content.read_from(file.read)
            except pb.ReadError as error:
                if not size:
                    raise
                self._failure = error  # Content before the damage comes first.
                break
            if piece:
                parts.append(piece)
                size += len(piece)
            if content.has_ended or size > _BATCH_BYTES // 2:
                break
        if content.has_ended and self._verifies and self._verified is not None:
            self._verified.add(self._path, self._version)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _open(self) -> FragmentContent:
        file = self._file = self._store.open(self._path)
        fragment, begin = self._fragment, self._fragment.begin
        codec: int = fragment.compression_codec
        if codec == pb.CompressionCodec.NONE:
            begin = self._begin
            file.seek(begin - fragment.begin)
        elif codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION and file.gzipped:
            codec = pb.CompressionCodec.GZIP
        if self._verified is not None:
            self._version = file.version
            self._verifies = not self._verified.has(self._path, self._version)
            if self._verifies and begin != fragment.begin:
                begin = fragment.begin
                file.seek(0)
        part = self._begin, self._end
        self._content = FragmentContent(fragment, begin, codec, verify=self._verifies, part=part)
        return self._content
