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
from gazette_aio.broker.fragments.commit_log import (
    Begin,
    Commit,
    Entry,
    EntryKind,
    Mark,
    decode_entry,
)
from gazette_aio.broker.fragments.spool import Spool, spool_paths
from gazette_aio.broker.host.files import opened
from gazette_aio.broker.host.records import FoundRecord, scan_records

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredJournal:
    """All that a journal's directory holds."""

    complete: list[Spool] = field(default_factory=list)
    spool: Spool | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """A fragment of the directory."""

    spool: Spool
    is_persisted: bool


def recover_journal(
    files: FileOps, directory: Path, journal: str, *, sync: bool = False
) -> RecoveredJournal:
    """Recover a journal from its directory, and cut off unacknowledged content. Blocks.

    With `sync`, recovered content is made durable: it may be in the page cache only.

    Raises:
        OSError: If the files can't be read, cut, or made durable.
        StoreError: If a log is of a later version.
    """
    recovered = RecoveredJournal()
    fragments = _recover_chain(files, directory, journal, sync=sync)
    if not fragments:
        return recovered
    spool = fragments[-1].spool
    recovered.complete = [
        found.spool
        for found in fragments[:-1]
        if found.spool.end > found.spool.begin and not found.is_persisted
    ]
    if fragments[-1].is_persisted:
        # The fragment after it was lost: the journal continues where this one ended.
        spool = Spool(
            files,
            directory,
            journal=journal,
            begin=spool.end,
            codec=spool.codec,
            registers=spool.registers,
            previous_end=spool.end,
        )
    try:
        if not spool.exists:
            # Invariant: the newest log stays, as it has the head and the registers.
            spool.create()
        if sync:
            spool.open()
            spool.sync()
        kept = {spool.begin, *(complete.begin for complete in recovered.complete)}
        first = min(kept)
        for begin in {found.spool.begin for found in fragments} - kept:
            _remove(files, directory, begin)
        for begin in _begins(directory, "spool"):
            if begin < first:  # Content of a persisted fragment, half removed.
                _remove(files, directory, begin)
    finally:
        spool.close()
    recovered.spool = spool
    return recovered


def _recover_chain(files: FileOps, directory: Path, journal: str, *, sync: bool) -> list[_Found]:
    """Return fragments which continue one another; others are put aside."""
    begins = sorted(_begins(directory, "log"))
    fragments: list[_Found] = []
    for position, begin in enumerate(begins):
        found = _recover_fragment(files, directory, begin, journal, sync=sync)
        if found is None:
            # A log without an opening: the journal was about to roll, or the file is damaged.
            _put_aside(files, directory, begin, reason="no opening record")
            continue
        if fragments and not _continues(found.spool, fragments[-1]):
            if found.spool.end == begin and position + 1 < len(begins):
                # A roll failed after it had made its files, and the fragment before it went on.
                _put_aside(files, directory, begin, reason="a roll which failed")
                continue
            for later in begins[position:]:
                _put_aside(files, directory, later, reason="content before it was lost")
            break
        fragments.append(found)
    return fragments


def _continues(fragment: Spool, found: _Found) -> bool:
    before = found.spool
    if found.is_persisted:
        # Fragments in between may be persisted too, and the disk may remove files in any order.
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
) -> _Found | None:
    content_path, log_path = spool_paths(directory, begin)
    records, log_end = scan_records(files.read_file(log_path))
    entries = _decode(records, log_path)
    if (spool := _persisted_fragment(files, directory, entries)) is not None:
        return _Found(spool, is_persisted=True)
    with opened(files, content_path, os.O_RDWR | os.O_CREAT) as content:
        for record, entry in zip(records, entries, strict=True):
            sound = True
            match entry:
                case Begin() if spool is None or spool.end == spool.begin:
                    sound = entry.begin == begin and entry.journal == journal
                    if sound:
                        spool = _open_fragment(files, directory, entry)
                case Commit() if spool is not None:
                    sound = _adopt_commit(spool, content, entry)
                case Mark():
                    pass
                case _:
                    sound = False
            if not sound:
                log_end = record.offset
                break
        if spool is None:
            return None
        _cut(files, content, spool.end - begin, content_path)
        if sync:
            files.datasync(content)
    with opened(files, log_path, os.O_RDWR) as log:
        _cut(files, log, log_end, log_path)
        if sync:
            files.datasync(log)
    spool.adopt_log(log_end)
    return _Found(spool, is_persisted=False)


def _decode(records: list[FoundRecord], path: Path) -> list[Entry]:
    entries: list[Entry] = []
    for record in records:
        if (entry := decode_entry(record.payload)) is None:
            raise pb.StoreError(f"{path.name}: unknown record at offset {record.offset}")
        entries.append(entry)
    return entries


def _persisted_fragment(files: FileOps, directory: Path, entries: list[Entry]) -> Spool | None:
    """Return the fragment of a log with a PERSISTED record: its content may be removed."""
    if not entries or not isinstance(entries[0], Begin):
        return None
    spool = _open_fragment(files, directory, entries[0])
    for entry in entries[1:]:
        match entry:
            case Commit(registers=bytes(registers)):
                spool.registers = pb.LabelSet.FromString(registers)
            case Mark(kind=EntryKind.PERSISTED):
                spool.end = entry.end
                return spool
            case _:
                pass
    return None


def _open_fragment(files: FileOps, directory: Path, entry: Begin) -> Spool:
    return Spool(
        files,
        directory,
        journal=entry.journal,
        begin=entry.begin,
        codec=entry.codec,
        registers=pb.LabelSet.FromString(entry.registers),
        previous_end=entry.previous_end,
    )


def _adopt_commit(spool: Spool, content: int, entry: Commit) -> bool:
    if entry.end == spool.end and spool.end - entry.length >= spool.begin:
        return True  # The same record twice.
    return entry.end - entry.length == spool.end and spool.adopt(entry, content)


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
