"""Recovery of a journal from its files, after a restart.

Each log is believed up to its first record which isn't whole, and each of its commits only if the
content file holds what it says. Both files are then cut there, so that what was never acknowledged
can't come back. A fragment which doesn't continue the one before it is put aside. Records which are
whole and yet unknown are of a later version: such a journal isn't touched.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import opened
from gazette_aio.broker.host.records import FoundRecord, scan_records
from gazette_aio.broker.journal.commit_log import (
    Begin,
    Commit,
    Entry,
    EntryKind,
    Mark,
    decode_entry,
)
from gazette_aio.broker.journal.hashing import Hash, new_sha1
from gazette_aio.broker.journal.spool import Spool, spool_paths

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_logger = logging.getLogger(__name__)

_SLICE_BYTES = 1 << 20


@dataclass(slots=True)
class RecoveredFragment:
    """A fragment found in a journal's directory."""

    journal: str
    begin: int
    end: int
    previous_end: int
    codec: int
    digest: bytes
    first_append_seconds: float
    registers: pb.LabelSet
    persisted: bool
    log_length: int
    committed: Hash = field(repr=False)


@dataclass(slots=True)
class RecoveredJournal:
    """All that a journal's directory holds."""

    complete: list[RecoveredFragment] = field(default_factory=list)
    spool: Spool | None = None


def recover_journal(
    files: FileOps, directory: Path, journal: str, *, sync: bool = False
) -> RecoveredJournal:
    """Recover a journal from its directory, cutting off what was never acknowledged. Blocks.

    With `sync`, recovered content is made durable: it may be in the page cache only.

    Raises:
        OSError: If the files can't be read, cut, or made durable.
        StoreError: If a log is of a later version.
    """
    recovered = RecoveredJournal()
    fragments = _recover_chain(files, directory, journal, sync=sync)
    if not fragments:
        return recovered
    last = fragments[-1]
    recovered.complete = [f for f in fragments[:-1] if f.end > f.begin and not f.persisted]
    if last.persisted:
        # The fragment behind it was lost: the journal goes on where this one ended.
        last = _open_fragment(
            Begin(journal, last.end, last.end, last.codec, last.registers.SerializeToString())
        )
    spool = Spool(
        files,
        directory,
        journal=journal,
        begin=last.begin,
        codec=last.codec,
        registers=last.registers,
        previous_end=last.previous_end,
    )
    if last.log_length:
        spool.adopt(
            end=last.end,
            first_append_seconds=last.first_append_seconds,
            committed=last.committed,
            log_length=last.log_length,
        )
    try:
        if not spool.exists:
            # Invariant: the newest log stays, as it has the head and the registers.
            spool.create()
        if sync:
            spool.open()
            spool.sync()
        kept = {last.begin, *(fragment.begin for fragment in recovered.complete)}
        first = min(kept)
        for begin in {fragment.begin for fragment in fragments} - kept:
            _remove(files, directory, begin)
        for begin in _begins(directory, "spool"):
            if begin < first:  # Content of a persisted fragment, half removed.
                _remove(files, directory, begin)
    finally:
        spool.close()
    recovered.spool = spool
    return recovered


def _recover_chain(
    files: FileOps, directory: Path, journal: str, *, sync: bool
) -> list[RecoveredFragment]:
    """Return fragments which continue one another; others are put aside."""
    begins = sorted(_begins(directory, "log"))
    fragments: list[RecoveredFragment] = []
    for position, begin in enumerate(begins):
        fragment = _recover_fragment(files, directory, begin, journal, sync=sync)
        if fragment is None:
            # A log without an opening: the journal was about to roll, or the file is damaged.
            _put_aside(files, directory, begin, reason="no opening record")
            continue
        if fragments and not _continues(fragment, fragments[-1]):
            if fragment.end == begin and position + 1 < len(begins):
                # A roll failed after it had made its files, and the fragment before it went on.
                _put_aside(files, directory, begin, reason="a roll which failed")
                continue
            for later in begins[position:]:
                _put_aside(files, directory, later, reason="content before it was lost")
            break
        fragments.append(fragment)
    return fragments


def _continues(fragment: RecoveredFragment, before: RecoveredFragment) -> bool:
    if before.persisted:
        # Those between may be persisted too, and removed, in any order as far as the disk goes.
        return fragment.previous_end >= before.end
    if before.end == before.begin:
        # It was begun, and left in favour of a further offset before it had content.
        return fragment.previous_end in (before.previous_end, before.end)
    return fragment.previous_end == before.end


def _begins(directory: Path, wanted: str) -> list[int]:
    begins: list[int] = []
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return begins
    for name in names:
        stem, dot, extension = name.rpartition(".")
        if dot and extension == wanted and len(stem) == 16:
            try:
                begins.append(int(stem, 16))
            except ValueError:
                continue
    return begins


def _recover_fragment(
    files: FileOps, directory: Path, begin: int, journal: str, *, sync: bool
) -> RecoveredFragment | None:
    content_path, log_path = spool_paths(directory, begin)
    records, log_end = scan_records(files.read_file(log_path))
    entries = _decode(records, log_path)
    fragment = _persisted_fragment(entries)
    if fragment is not None:
        return fragment
    with opened(files, content_path, os.O_RDWR | os.O_CREAT) as content:
        for record, entry in zip(records, entries, strict=True):
            sound = True
            match entry:
                case Begin() if fragment is None or fragment.end == fragment.begin:
                    if entry.begin != begin or entry.journal != journal:
                        sound = False
                    else:
                        fragment = _open_fragment(entry)
                case Commit() if fragment is not None:
                    sound = _adopt_commit(files, content, fragment, entry)
                case Mark():
                    pass
                case _:
                    sound = False
            if not sound:
                log_end = record.offset
                break
        if fragment is None:
            return None
        _cut(files, content, fragment.end - begin, content_path)
        if sync:
            files.datasync(content)
    with opened(files, log_path, os.O_RDWR) as log:
        _cut(files, log, log_end, log_path)
        if sync:
            files.datasync(log)
    fragment.log_length = log_end
    if fragment.end > begin:
        fragment.digest = fragment.committed.digest()
    return fragment


def _decode(records: list[FoundRecord], path: Path) -> list[Entry]:
    entries: list[Entry] = []
    for record in records:
        if (entry := decode_entry(record.payload)) is None:
            raise pb.StoreError(f"{path}: unknown record at offset {record.offset}")
        entries.append(entry)
    return entries


def _persisted_fragment(entries: list[Entry]) -> RecoveredFragment | None:
    """Return the fragment of a log with a PERSISTED record: its content may be removed."""
    if not entries or not isinstance(entries[0], Begin):
        return None
    fragment = _open_fragment(entries[0])
    for entry in entries[1:]:
        match entry:
            case Commit(registers=bytes(registers)):
                fragment.registers = pb.LabelSet.FromString(registers)
            case Mark(kind=EntryKind.PERSISTED):
                fragment.persisted = True
                fragment.end = entry.end
                return fragment
            case _:
                pass
    return None


def _open_fragment(entry: Begin) -> RecoveredFragment:
    return RecoveredFragment(
        journal=entry.journal,
        begin=entry.begin,
        end=entry.begin,
        previous_end=entry.previous_end,
        codec=entry.codec,
        digest=bytes(20),
        first_append_seconds=0.0,
        registers=pb.LabelSet.FromString(entry.registers),
        persisted=False,
        log_length=0,
        committed=new_sha1(),
    )


def _adopt_commit(files: FileOps, content: int, fragment: RecoveredFragment, entry: Commit) -> bool:
    if entry.end == fragment.end and fragment.end - entry.length >= fragment.begin:
        return True  # The same record twice.
    if entry.end - entry.length != fragment.end:
        return False
    append = new_sha1()
    total = fragment.committed.copy()
    position = fragment.end - fragment.begin
    remaining = entry.length
    while remaining:
        piece = files.pread(content, min(remaining, _SLICE_BYTES), position)
        if not piece:
            return False
        append.update(piece)
        total.update(piece)
        position += len(piece)
        remaining -= len(piece)
    if append.digest() != entry.digest:
        return False
    fragment.end = entry.end
    fragment.committed = total
    fragment.first_append_seconds = fragment.first_append_seconds or entry.first_append_seconds
    if entry.registers is not None:
        fragment.registers = pb.LabelSet.FromString(entry.registers)
    return True


def _cut(files: FileOps, descriptor: int, length: int, path: Path) -> None:
    size = files.size(descriptor)
    if size > length:
        _logger.info(
            "cut off what was never acknowledged",
            extra={"path": str(path), "from_bytes": size, "to_bytes": length},
        )
        files.truncate(descriptor, length)


def _remove(files: FileOps, directory: Path, begin: int) -> None:
    content_path, log_path = spool_paths(directory, begin)
    files.unlink(log_path)
    files.unlink(content_path)


def _put_aside(files: FileOps, directory: Path, begin: int, *, reason: str) -> None:
    for path in spool_paths(directory, begin):
        if path.exists():
            _logger.warning(
                "put aside a local fragment", extra={"path": str(path), "reason": reason}
            )
            files.rename(path, path.with_name(path.name + ".orphan"))
