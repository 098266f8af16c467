"""Recovery of a journal from its files, after a restart.

A log is sound up to its first record that isn't whole, or whose content isn't in the content file.
The rest is damaged if the journal's head shows that it was acknowledged. Otherwise, a crash has
torn it, and it's cut off, so that it can't reappear.

Damage changes no file: the journal can be read up to the damage, and takes no appends. Whole
records of an unknown kind are of a later version: the files of such a journal aren't changed,
either.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import (
    TAG,
    Begin,
    Commit,
    Entry,
    Persisted,
    decode_entry,
)
from gazette_aio.broker.fragments.spool import Spool, remove_fragment, spool_paths
from gazette_aio.broker.host.files import opened
from gazette_aio.broker.host.log import scan_records

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.heads import Head, Heads

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Damage:
    """Acknowledged bytes of a journal that are damaged, or missing."""

    file: str
    """Name of the file in the journal's directory."""
    position: int
    """Position in the file, in bytes."""
    offset: int
    """Offset up to which the journal's content is sound."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at {self.position}: {self.reason}; sound up to offset {self.offset}"


@dataclass(slots=True)
class FoundFragment:
    """Sound part of a fragment of the directory."""

    spool: Spool
    is_persisted: bool = False
    is_torn: bool = False
    """Whether the log has more than its sound part."""


@dataclass(slots=True)
class Survey:
    """Content of a journal's directory, which the survey didn't change."""

    fragments: list[FoundFragment] = field(default_factory=list)
    """Consecutive fragments."""
    put_aside: list[tuple[int, str]] = field(default_factory=list)
    """Beginnings of fragments that are no part of the journal, with the reason."""
    damage: Damage | None = None

    @property
    def end(self) -> int:
        """End of the sound content."""
        return self.fragments[-1].spool.end if self.fragments else 0


@dataclass(slots=True)
class RecoveredJournal:
    """Content of a journal's directory."""

    complete: list[Spool] = field(default_factory=list)
    spool: Spool | None = None
    damage: Damage | None = None
    """The damage, or None. With damage, `spool` is the read-only sound part of the fragment."""


def recover_journal(
    files: FileOps, heads: Heads, directory: Path, journal: str, *, sync: bool = False
) -> RecoveredJournal:
    """Recover a journal from its directory, and cut off unacknowledged content. Blocks.

    Args:
        files: File operations.
        heads: Heads of the journals.
        directory: Directory of the journal, which may be missing.
        journal: Name of the journal.
        sync: Make recovered content durable: it may be in the page cache only.

    Raises:
        OSError: The files can't be read, cut, or made durable.
        StoreError: A log is of a later version.
    """
    survey = survey_journal(files, directory, journal, heads.get(directory.name))
    fragments = survey.fragments
    recovered = RecoveredJournal(damage=survey.damage)
    recovered.complete = [
        found.spool
        for found in fragments[:-1]
        if found.spool.end > found.spool.begin and not found.is_persisted
    ]
    if survey.damage is not None:
        if fragments and not fragments[-1].is_persisted:
            recovered.spool = fragments[-1].spool
        return recovered
    for begin, reason in survey.put_aside:
        _put_aside(files, directory, begin, reason=reason)
    for found in fragments:
        if not found.is_persisted:
            cut_torn(files, directory, found.spool, sync=sync)
    if not fragments:
        return recovered
    spool = fragments[-1].spool
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
            # Invariant: the newest log stays, because it has the head and the registers.
            spool.create()
        if sync:
            spool.open()
            spool.sync()
            heads.record(directory.name, spool.head, durable=True)
        kept = {spool.begin, *(complete.begin for complete in recovered.complete)}
        for begin in {found.spool.begin for found in fragments} - kept:
            remove_fragment(files, directory, begin, sync=sync)
    finally:
        spool.close()
    recovered.spool = spool
    return recovered


def survey_journal(files: FileOps, directory: Path, journal: str, head: Head | None) -> Survey:
    """Survey all files of a journal, and change none. Blocks.

    Args:
        files: File operations.
        directory: Directory of the journal, which may be missing.
        journal: Name of the journal.
        head: What was acknowledged, as far as it's known.

    Raises:
        OSError: The files can't be read.
        StoreError: A log is of a later version.
    """
    survey = Survey()
    unsound: Damage | None = None
    logs = fragment_begins(directory, "log")
    begins = sorted({*logs, *fragment_begins(directory, "spool")})
    for begin in begins:
        content_path, log_path = spool_paths(directory, begin)
        before = survey.fragments[-1] if survey.fragments else None
        is_last = begin == begins[-1]
        if begin not in logs:
            # Content is written after its log, and removed before its log. Only in a journal
            # without any acknowledgement can both be missing.
            if not content_path.stat().st_size:
                continue
            if head is None and not logs:
                survey.put_aside.append((begin, "content without a log"))
                continue
            end = survey.end if before else begin
            survey.damage = Damage(log_path.name, 0, end, "missing, and its content is there")
            return survey
        found, reason = _read_fragment(files, directory, journal, begin)
        at = 0 if found is None else found.spool.log.length
        here = Damage(log_path.name, at, survey.end if found is None else found.spool.end, reason)
        if found is None:
            # The journal was about to roll, or the opening record is damaged.
            if not is_last or (head is not None and head.first >= begin):
                survey.damage = here
                return survey
            survey.put_aside.append((begin, "no opening record"))
        elif before is None or _continues(found.spool, before):
            survey.fragments.append(found)
            unsound = here if reason else None
        elif found.spool.end == begin and (
            not is_last or found.spool.previous_end < before.spool.end
        ):
            survey.put_aside.append((begin, "a roll which failed"))
        else:
            lost = Damage(log_path.name, 0, before.spool.end, "content before it is missing")
            survey.damage = unsound or lost
            return survey
    survey.damage = _missing(directory, survey, head, unsound)
    return survey


def _missing(
    directory: Path, survey: Survey, head: Head | None, unsound: Damage | None
) -> Damage | None:
    """Return what was acknowledged after the sound fragments, if anything was."""
    if head is None:
        return None
    last = survey.fragments[-1] if survey.fragments else None
    reason = f"missing, and content was acknowledged up to {head.end}"
    position = 0
    if last is not None and last.spool.begin >= head.first:
        found = last.spool.head
        is_whole = found.length >= head.length and found.end >= head.end
        if last.is_persisted or found.first > head.first or is_whole:
            return None
        if unsound is not None:
            return unsound
        reason = f"the log ends, and content was acknowledged up to {head.end}"
        position = found.length
    return Damage(spool_paths(directory, head.first)[1].name, position, survey.end, reason)


def _read_fragment(
    files: FileOps, directory: Path, journal: str, begin: int
) -> tuple[FoundFragment | None, str]:
    """Read a fragment; return its sound part, if any, and why the rest of its log isn't sound."""
    content_path, log_path = spool_paths(directory, begin)
    data = files.read_file(log_path)
    records, end = _decode(data, log_path)
    found: FoundFragment | None = None
    reason = "" if end == len(data) else "a record isn't whole"
    # The content of a persisted fragment may be removed.
    is_persisted = any(isinstance(entry, Persisted) for _, entry in records)
    with contextlib.ExitStack() as stack:
        content = -1
        with contextlib.suppress(FileNotFoundError):
            content = stack.enter_context(opened(files, content_path, os.O_RDONLY))
        for record_end, entry in records:
            unsound = ""
            match entry:
                case Begin() if found is None or found.spool.end == begin:
                    if (entry.begin, entry.journal) != (begin, journal):
                        unsound = "the log belongs elsewhere"
                    else:
                        spool = Spool(
                            files,
                            directory,
                            journal=journal,
                            begin=begin,
                            codec=entry.codec,
                            registers=pb.LabelSet.FromString(entry.registers),
                            previous_end=entry.previous_end,
                        )
                        found = FoundFragment(spool, is_persisted)
                case Commit() if found is not None:
                    if is_persisted:
                        found.spool.restore_unread(entry)
                    elif not _restore_commit(found.spool, content, entry):
                        unsound = "the content isn't what the log says"
                case Persisted() if found is not None:
                    found.spool.end = entry.end
                case _:
                    unsound = "a record is out of place"
            if unsound:
                reason = unsound
                break
            if found is not None:
                found.spool.log.length = record_end
    if found is not None:
        found.is_torn = bool(reason)
    elif not reason:
        reason = "the log is empty"
    return found, reason


def _decode(log: bytes, path: Path) -> tuple[list[tuple[int, Entry]], int]:
    """Return the entries of a log, each with its end, and where the whole records end."""
    records, end = scan_records(log)
    entries: list[tuple[int, Entry]] = []
    for record in records:
        if not record.payload.startswith(TAG):
            return entries, record.offset  # Of another file.
        if (entry := decode_entry(record.payload)) is None:
            raise pb.StoreError(f"{path.name}: unknown record at offset {record.offset}")
        entries.append((record.end, entry))
    return entries, end


def cut_torn(files: FileOps, directory: Path, spool: Spool, *, sync: bool) -> None:
    """Cut off content that isn't sound. Blocks.

    Raises:
        OSError: A file can't be cut.
    """
    content_path, log_path = spool_paths(directory, spool.begin)
    for path, length in ((content_path, spool.end - spool.begin), (log_path, spool.log.length)):
        with opened(files, path, os.O_RDWR | os.O_CREAT) as descriptor:
            size = files.size(descriptor)
            if size > length:
                _logger.info(
                    "cut off what was never acknowledged",
                    extra={"path": str(path), "from_bytes": size, "to_bytes": length},
                )
                files.truncate(descriptor, length)
            if sync:
                files.datasync(descriptor)


def _put_aside(files: FileOps, directory: Path, begin: int, *, reason: str) -> None:
    for path in spool_paths(directory, begin):
        if path.exists():
            _logger.warning(
                "put aside a local fragment", extra={"path": str(path), "reason": reason}
            )
            files.rename(path, path.with_name(path.name + ".orphan"))


def _continues(fragment: Spool, found: FoundFragment) -> bool:
    before = found.spool
    if found.is_persisted:
        # Fragments in between may be persisted too, and the disk may remove files in any order.
        return fragment.previous_end >= before.end
    if before.end == before.begin:
        # The fragment was begun, and abandoned for a later offset before it had content.
        return fragment.previous_end in (before.previous_end, before.end)
    return fragment.previous_end == before.end


def fragment_begins(directory: Path, wanted: str) -> list[int]:
    """Return the first offsets of fragments that have a file with the extension `wanted`."""
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


def _restore_commit(spool: Spool, content: int, entry: Commit) -> bool:
    if entry.end == spool.end and spool.end - entry.length >= spool.begin:
        return True  # The same record twice.
    if content < 0 or entry.end - entry.length != spool.end:
        return False
    return spool.restore(entry, content)
