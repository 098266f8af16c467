"""Spool of a journal: the fragment in progress, its commit log, and an uncommitted tail.

    begin ------------------- end ----------- end + delta
      committed content         content of the append in progress

All methods block, and only the holder of the journal calls them: inline if they access a few bytes
of page cache, and otherwise in a worker thread.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import Begin, Commit, encode_entry
from gazette_aio.broker.fragments.local_fragment import ContentFile, LocalFragment
from gazette_aio.broker.host.heads import Head
from gazette_aio.broker.host.log import RecordLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_EMPTY_SHA1 = hashlib.sha1(usedforsecurity=False)
"""SHA-1 identifies content. It doesn't protect against forgery."""
_SLICE_BYTES = 1 << 20


def spool_paths(directory: Path, begin: int) -> tuple[Path, Path]:
    """Return the paths of the content file and the commit log of a fragment."""
    return directory / f"{begin:016x}.spool", directory / f"{begin:016x}.log"


def remove_fragment(files: FileOps, directory: Path, begin: int, *, sync: bool) -> None:
    """Remove the files of a fragment, which is persisted.

    Invariant: the log goes last, so that content without a log is always a sign of damage.

    Raises:
        OSError: A file can't be removed.
    """
    content_path, log_path = spool_paths(directory, begin)
    files.unlink(content_path)
    if sync:
        files.sync_directory(directory)
    files.unlink(log_path)


class Spool:
    """Fragment in progress.

    Args:
        directory: Directory of the journal; made when the first content arrives.
        journal: Name of the journal.
        begin: First offset of the fragment.
        codec: Codec of the persisted fragment.
        registers: Registers of the journal.
        previous_end: End of the fragment before it.
    """

    def __init__(
        self,
        files: FileOps,
        directory: Path,
        *,
        journal: str,
        begin: int,
        codec: int,
        registers: pb.LabelSet,
        previous_end: int = 0,
    ) -> None:
        self.journal = journal
        self.begin = begin
        self.end: int = begin
        self.delta: int = 0
        self.codec: int = codec
        self.registers: pb.LabelSet = registers
        self.first_append_seconds: float = 0.0
        """Unix time of its first commit, if it has content."""
        self.previous_end = previous_end
        self._files = files
        self._directory = directory
        content_path, log_path = spool_paths(directory, begin)
        self.content: ContentFile = ContentFile(files, content_path)
        self.log: RecordLog = RecordLog(files, log_path)
        self._descriptor = -1
        self._names_durable = False
        self._committed = _EMPTY_SHA1.copy()
        self._fragment_hash = self._committed
        self._append_hash = _EMPTY_SHA1.copy()

    def __repr__(self) -> str:
        return f"<Spool {self.journal} {self.begin}-{self.end}+{self.delta}>"

    @property
    def fragment(self) -> pb.Fragment:
        """Committed part of the fragment."""
        return pb.Fragment(
            journal=self.journal,
            begin=self.begin,
            end=self.end,
            sum=pb.sum_from_digest(self.digest),
            compression_codec=pb.CompressionCodec.ValueType(self.codec),
        )

    @property
    def head(self) -> Head:
        """Head of the journal once the committed part is acknowledged."""
        return Head(self.begin, self.end, self.log.length)

    @property
    def exists(self) -> bool:
        """Whether the fragment has files."""
        return self.log.length > 0

    @property
    def is_open(self) -> bool:
        """Whether files are held open."""
        return self._descriptor >= 0

    @property
    def digest(self) -> bytes:
        """SHA-1 of the committed content, zero if there is no content."""
        return self._committed.digest() if self.end > self.begin else bytes(20)

    def restore(self, entry: Commit, content: int) -> bool:
        """Restore a recovered commit if its content is in the file, and return whether it was.

        Args:
            entry: Commit that continues the fragment.
            content: Descriptor of the content file.

        Raises:
            OSError: The content can't be read.
        """
        append, fragment = _EMPTY_SHA1.copy(), self._committed.copy()
        position = self.end - self.begin
        remaining = entry.length
        while remaining:
            piece = self._files.pread(content, min(remaining, _SLICE_BYTES), position)
            if not piece:
                return False
            append.update(piece)
            fragment.update(piece)
            position += len(piece)
            remaining -= len(piece)
        if append.digest() != entry.digest:
            return False
        self.restore_unread(entry)
        self._committed = self._fragment_hash = fragment
        return True

    def restore_unread(self, entry: Commit) -> None:
        """Restore a recovered commit whose content is elsewhere."""
        self.end = entry.end
        self.first_append_seconds = self.first_append_seconds or entry.first_append_seconds
        if entry.registers is not None:
            self.registers = pb.LabelSet.FromString(entry.registers)

    def completed(self) -> LocalFragment:
        """Return the complete fragment."""
        return LocalFragment(
            self.fragment, self.content, self.log, self.registers, self.first_append_seconds
        )

    def recode(self, codec: int) -> None:
        """Change the codec of the fragment, which must be empty.

        Raises:
            OSError: The log can't be written.
        """
        assert self.end == self.begin, "only an empty fragment changes its codec"
        if codec != self.codec:
            previous, self.codec = self.codec, codec
            try:
                if self.exists:
                    self.create()
            except OSError:
                self.codec = previous
                raise

    def create(self) -> None:
        """Create the files, and write the log's opening entry.

        Raises:
            OSError: A file can't be created or written.
        """
        if not self.exists:
            self._files.make_directory(self._directory)
        begin = Begin(
            self.journal,
            self.begin,
            self.previous_end,
            self.codec,
            self.registers.SerializeToString(deterministic=True),
        )
        self._append_log(begin)

    def open(self) -> None:
        """Open the files, unless they're open."""
        if self._descriptor < 0:
            self.log.open()
            self._descriptor = self.content.acquire(create=True)

    def close(self) -> None:
        """Close the files. The next append opens them again."""
        if self._descriptor >= 0:
            self._descriptor = -1
            self.content.release()
        self.log.close()

    def remove(self) -> None:
        """Remove the files of an empty fragment that isn't needed."""
        self.close()
        self._files.unlink(self.content.path)
        self._files.unlink(self.log.path)

    def begin_append(self) -> None:
        """Prepare for the content of an append: open the files, which may have to be created.

        Raises:
            OSError: A file can't be created or opened.
        """
        if not self.exists:
            self.create()
        self.open()
        self.delta = 0
        self._append_hash = _EMPTY_SHA1.copy()
        # The sum of a fragment's first append is also the sum of the fragment: hash it once.
        self._fragment_hash = self._committed.copy() if self.end > self.begin else self._append_hash

    def write(self, chunk: bytes | memoryview) -> None:
        """Write further content of the append. The files must be open.

        Raises:
            OSError: The content can't be written; the append must be rolled back.
        """
        self._files.pwrite(self._descriptor, chunk, self.end - self.begin + self.delta)
        self._append_hash.update(chunk)
        if self._fragment_hash is not self._append_hash:
            self._fragment_hash.update(chunk)
        self.delta += len(chunk)

    def commit(self, registers: pb.LabelSet | None, now_seconds: float) -> bytes:
        """Make the append part of the fragment; return the SHA-1 of its content.

        Args:
            registers: Registers as of this append, or None if they don't change.
            now_seconds: Current Unix time.

        Raises:
            OSError: The log can't be written; the append must be rolled back.
        """
        if self.delta == 0:
            return _EMPTY_SHA1.digest()
        digest = self._append_hash.digest()
        first = self.first_append_seconds or now_seconds
        encoded = None if registers is None else registers.SerializeToString(deterministic=True)
        self._append_log(Commit(self.end + self.delta, self.delta, digest, first, encoded))
        self.first_append_seconds = first
        if registers is not None:
            self.registers = registers
        self.end += self.delta
        self.delta = 0
        self._committed = self._fragment_hash
        return digest

    def rollback(self) -> int:
        """Forget the append in progress; return the number of bytes dropped."""
        dropped, self.delta = self.delta, 0
        self._fragment_hash = self._committed
        return dropped

    def sync(self) -> None:
        """Make content, log and the names of the files durable. The files must be open."""
        self._files.datasync(self._descriptor)
        self.log.sync()
        self.sync_names()

    def sync_duplicates(self, descriptors: Sequence[int]) -> None:
        """Do the same as `sync()`, with duplicates of the descriptors."""
        for descriptor in descriptors:
            self._files.datasync(descriptor)
        self.sync_names()

    def duplicate(self) -> tuple[int, int]:
        """Return duplicates of the descriptors of content and log, for the caller to close.

        Raises:
            OSError: The process has too many descriptors.
        """
        content = self._files.duplicate(self._descriptor)
        try:
            return content, self.log.duplicate()
        except BaseException:
            self._files.close(content)
            raise

    def sync_names(self) -> None:
        """Make the names of the files durable, unless they are."""
        if not self._names_durable:
            self._files.sync_directory(self._directory)
            self._files.sync_directory(self._directory.parent)
            self._names_durable = True

    def _append_log(self, entry: Begin | Commit) -> None:
        self.open()
        self.log.append(encode_entry(entry))
