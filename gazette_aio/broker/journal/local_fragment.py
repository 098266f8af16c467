"""Complete fragment whose content is in the broker's own files."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.journal.content_file import ContentFile
from gazette_aio.broker.journal.spool import Spool, spool_paths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.journal.recovery import RecoveredFragment

_SLICE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class LocalFragment:
    """A complete fragment which is to be persisted."""

    fragment: pb.Fragment
    content: ContentFile
    log_path: Path
    registers: pb.LabelSet
    first_append_seconds: float

    @classmethod
    def of_spool(cls, spool: Spool) -> LocalFragment:
        """Return the fragment of a spool which was just completed."""
        return cls(
            spool.fragment,
            spool.content,
            spool.log_path,
            spool.registers,
            spool.first_append_seconds,
        )

    @classmethod
    def recovered(cls, files: FileOps, directory: Path, found: RecoveredFragment) -> LocalFragment:
        """Return a fragment which was found at start."""
        content_path, log_path = spool_paths(directory, found.begin)
        fragment = pb.Fragment(
            journal=found.journal,
            begin=found.begin,
            end=found.end,
            sum=pb.sum_from_digest(found.digest),
            compression_codec=pb.CompressionCodec.ValueType(found.codec),
        )
        return cls(
            fragment,
            ContentFile(files, content_path),
            log_path,
            found.registers,
            found.first_append_seconds,
        )

    @property
    def first_append_time(self) -> dt.datetime:
        """Time of the first append, in UTC."""
        return dt.datetime.fromtimestamp(self.first_append_seconds, dt.UTC)

    def pieces(self) -> Iterator[bytes]:
        """Iterate the compressed content. Blocks.

        Raises:
            OSError: If the content can't be read, or is short.
            FragmentError: If the codec isn't supported.
        """
        compressor = pb.compressor(self.fragment.compression_codec)
        length = self.fragment.end - self.fragment.begin
        offset = 0
        while offset < length:
            piece = self.content.read(min(_SLICE_BYTES, length - offset), offset)
            if not piece:
                raise OSError(f"content of {self.content.path} ends at {offset} of {length} bytes")
            offset += len(piece)
            if compressed := compressor.compress(piece):
                yield compressed
        if tail := compressor.finish():
            yield tail
