"""Survey of a journal's files: fragments that are whole, torn, damaged, or missing.

A log is sound up to its first record that isn't whole, or whose content isn't in the content file.
The rest is either *torn* or *damaged*:

- The end of the newest log, and its content, may be torn by a crash: it was never acknowledged.
- Anything else was acknowledged, and is damaged.

The journal's mark says how much was acknowledged. Without one, as in files of earlier versions, the
end of a log counts as torn only if a crash can have left it so.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import (
    TAG,
    Begin,
    Commit,
    Entry,
    EntryKind,
    Mark,
    decode_entry,
)
from gazette_aio.broker.fragments.spool import MARK_NAME, Spool, spool_paths
from gazette_aio.broker.host.marks import newest_mark
from gazette_aio.broker.host.records import (
    HEADER_LENGTH,
    FoundRecord,
    find_tagged_record,
    scan_records,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.host.marks import Mark as HeadMark

_SECTOR_BYTES = 512


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

    begin: int
    spool: Spool | None = None
    """None if the log has no opening record."""
    is_persisted: bool = False
    is_complete: bool = False
    """Whether the log records the begin of a later fragment."""
    log_length: int = 0
    unsound: Damage | None = None
    """First damage or torn part, or None."""
    looks_torn: bool = True
    """Whether a crash can have left the log in its state, judged by the log alone."""

    @property
    def end(self) -> int:
        """End of the sound content."""
        return self.begin if self.spool is None else self.spool.end


@dataclass(slots=True)
class Survey:
    """Content of a journal's directory, which the survey didn't change."""

    mark: HeadMark | None
    fragments: list[FoundFragment] = field(default_factory=list)
    """Consecutive fragments."""
    put_aside: list[tuple[int, str]] = field(default_factory=list)
    """Beginnings of fragments that are no part of the journal, with the reason."""
    damage: Damage | None = None


def survey_journal(
    files: FileOps, directory: Path, journal: str, *, has_begun: bool = False
) -> Survey:
    """Survey all files of a journal, and change none. Blocks.

    Args:
        files: File operations.
        directory: Directory of the journal, which may be missing.
        journal: Name of the journal.
        has_begun: Whether content of the journal is known to have been acknowledged.

    Raises:
        OSError: The files can't be read.
        StoreError: A log is of a later version.
    """
    survey = Survey(newest_mark(files, directory / MARK_NAME))
    begins = sorted(fragment_begins(directory, "log"))
    for position, begin in enumerate(begins):
        found = _Surveyor(files, directory, journal, begin).survey()
        before = survey.fragments[-1] if survey.fragments else None
        is_last = position == len(begins) - 1
        if found.spool is None:
            # The journal was about to roll, or the opening record is damaged.
            if _is_acknowledged(survey.mark, found) or not (is_last and found.looks_torn):
                survey.damage = found.unsound
                return survey
            survey.put_aside.append((begin, "no opening record"))
        elif before is None or _continues(found.spool, before):
            if before is not None:
                before.unsound = None  # Only marks came after its content.
            survey.fragments.append(found)
        elif found.end == begin and not is_last:
            survey.put_aside.append((begin, "a roll which failed"))
        else:
            lost = Damage(found.spool.log_path.name, 0, before.end, "content before it is missing")
            survey.damage = before.unsound or lost
            return survey
    if survey.fragments and (last := survey.fragments[-1]).unsound is not None:
        is_torn = last.looks_torn if survey.mark is None else True
        if _is_acknowledged(survey.mark, last) or not is_torn:
            survey.damage = last.unsound
            return survey
    survey.damage = _without_log(directory, survey, has_begun=has_begun) or _missing(
        directory, survey, has_begun=has_begun
    )
    return survey


class _Surveyor:
    """Surveys one fragment."""

    def __init__(self, files: FileOps, directory: Path, journal: str, begin: int) -> None:
        self._files = files
        self._directory = directory
        self._journal = journal
        self._content_path, self._log_path = spool_paths(directory, begin)
        self._found = FoundFragment(begin)

    def survey(self) -> FoundFragment:
        """Return the fragment."""
        found = self._found
        data = self._files.read_file(self._log_path)
        records, found.log_length = scan_records(data)
        for index, record in enumerate(records):
            if not record.payload.startswith(TAG):
                records, found.log_length = records[:index], record.offset  # Of another file.
                break
        entries = _decode(records, self._log_path)
        spool = _persisted_fragment(self._files, self._directory, entries)
        # A log that belongs elsewhere is refused below.
        if spool is not None and (spool.begin, spool.journal) == (found.begin, self._journal):
            found.spool, found.is_persisted = spool, True
            return found
        reason = "a record isn't whole"
        unsound = self._adopt(records, entries)
        if unsound is not None:
            record, reason, content_end = unsound
            found.log_length = record.offset
            found.looks_torn = record.end == len(data) and self._content_looks_torn(content_end)
        elif found.log_length < len(data):
            found.looks_torn = _looks_torn(data, found.log_length)
        if found.log_length < len(data) or found.spool is None:
            found.unsound = Damage(self._log_path.name, found.log_length, found.end, reason)
        if found.spool is not None:
            found.spool.adopt_log(found.log_length)
        return found

    def _adopt(
        self, records: list[FoundRecord], entries: list[Entry]
    ) -> tuple[FoundRecord, str, int] | None:
        """Adopt entries of the log.

        Returns:
            The first record that isn't sound, the reason, and the content length that it needs.
        """
        found = self._found
        content = -1
        try:
            with contextlib.suppress(FileNotFoundError):
                content = self._files.open(self._content_path, os.O_RDONLY)
            for record, entry in zip(records, entries, strict=True):
                spool = found.spool
                match entry:
                    case Begin() if spool is None or spool.end == spool.begin:
                        if entry.begin != found.begin or entry.journal != self._journal:
                            return record, "the log belongs elsewhere", 0
                        found.spool = _open_fragment(self._files, self._directory, entry)
                    case Commit() if spool is not None:
                        if not _adopt_commit(spool, content, entry):
                            reason = "the content isn't what the log says"
                            return record, reason, entry.end - found.begin
                    case Mark() if spool is not None:
                        found.is_complete = True
                    case _:
                        return record, "a record is out of place", 0
        finally:
            if content >= 0:
                self._files.close(content)
        return None

    def _content_looks_torn(self, wanted: int) -> bool:
        """Return whether a crash can have left the content after the sound part."""
        try:
            data = self._files.read_file(self._content_path)
        except FileNotFoundError:
            return True
        begin = self._found.end - self._found.begin
        sectors = range(begin, wanted, _SECTOR_BYTES)
        return len(data) < wanted or any(
            not any(data[at : min(at + _SECTOR_BYTES, wanted)]) for at in sectors
        )


def _looks_torn(log: bytes, begin: int) -> bool:
    """Return whether a crash can have left a log's bytes from `begin` on.

    If so, no sound record follows. An unsynced write is cut, or is zero from the begin of a sector
    on.
    """
    if find_tagged_record(log, begin, TAG) is not None:
        return False
    length = int.from_bytes(log[begin : begin + 4], "little")
    if begin + HEADER_LENGTH + length > len(log):
        return True
    last_sector = (len(log) - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return not any(log[max(begin, last_sector) :])


def _is_acknowledged(mark: HeadMark | None, found: FoundFragment) -> bool:
    """Return whether the mark shows acknowledged content beyond the sound part of a fragment."""
    if mark is None or found.begin > mark.first:
        return False
    return found.begin < mark.first or found.log_length < mark.length or found.end < mark.end


def _without_log(directory: Path, survey: Survey, *, has_begun: bool) -> Damage | None:
    """Return the first content whose log is missing, and leave out all fragments after it.

    Content is written only after its log is durable, and removed before its log. Only in a journal
    without any acknowledgement can both be missing. Its content is put aside, since a journal that
    lost all its logs and its mark looks the same.
    """
    for begin in sorted(fragment_begins(directory, "spool")):
        content_path, log_path = spool_paths(directory, begin)
        if not log_path.exists() and content_path.stat().st_size:
            if not has_begun and survey.mark is None and not survey.fragments:
                survey.put_aside.append((begin, "content without a log"))
                continue
            survey.fragments = [each for each in survey.fragments if each.begin < begin]
            end = survey.fragments[-1].end if survey.fragments else begin
            return Damage(log_path.name, 0, end, "missing, and its content is there")
    return None


def _missing(directory: Path, survey: Survey, *, has_begun: bool) -> Damage | None:
    """Return the acknowledged content that is missing after the sound fragments, if any."""
    mark, last = survey.mark, survey.fragments[-1] if survey.fragments else None
    end = 0 if last is None else last.end
    if mark is not None:
        if last is None or last.begin < mark.first:
            name = spool_paths(directory, mark.first)[1].name
            return Damage(name, 0, end, f"missing, and content was acknowledged up to {mark.end}")
        if last.begin == mark.first and _is_acknowledged(mark, last) and not last.is_persisted:
            name = spool_paths(directory, mark.first)[1].name
            reason = f"the log ends, and content was acknowledged up to {mark.end}"
            return Damage(name, last.log_length, end, reason)
        return None
    if last is None:
        reason = "missing with all else, and content was acknowledged"
        return Damage(MARK_NAME, 0, 0, reason) if has_begun else None
    if last.is_complete and not last.is_persisted:
        name = spool_paths(directory, last.end)[1].name
        return Damage(name, 0, end, "missing, and the fragment before it is complete")
    return None


def _continues(fragment: Spool, found: FoundFragment) -> bool:
    if found.is_persisted:
        # Fragments in between may be persisted too, and the disk may remove files in any order.
        return fragment.previous_end >= found.end
    if found.end == found.begin and found.spool is not None:
        # The fragment was begun, and abandoned for a later offset before it had content.
        return fragment.previous_end in (found.spool.previous_end, found.end)
    return fragment.previous_end == found.end


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
    if content < 0 or entry.end - entry.length != spool.end:
        return False
    return spool.adopt(entry, content)
