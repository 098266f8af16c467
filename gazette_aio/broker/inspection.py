"""Offline check and repair of a data directory.

Repair keeps sound files, and moves all others to a directory `damaged-N` beside them. A repaired
journal continues after the last acknowledged offset: lost content is a gap between offsets, and no
offset is used twice. Nor is a revision of a repaired key space.

After an interruption at any step, each journal is either still damaged or repaired: the step that
lets a broker serve the journal comes last, and sound content stays in place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import TAG, Begin, Commit, Entry, Mark, decode_entry
from gazette_aio.broker.fragments.spool import MARK_NAME, Spool, spool_paths
from gazette_aio.broker.fragments.survey import Survey, fragment_begins, survey_journal
from gazette_aio.broker.host.files import FileOps, opened
from gazette_aio.broker.host.marks import MarkFile, mark_paths
from gazette_aio.broker.host.records import find_tagged_record, scan_records
from gazette_aio.broker.keyspace.data_directory import IDENTITY_NAME, DataDirectory
from gazette_aio.broker.keyspace.meta_log import MARK_NAME as META_MARK_NAME
from gazette_aio.broker.keyspace.meta_log import MetaLog
from gazette_aio.broker.keyspace.meta_salvage import (
    acknowledged_revision,
    replace_key_space,
    salvage,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_aio.broker.host.marks import Mark as Acknowledged
    from gazette_aio.broker.keyspace.keyspace import KeySpace


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the check of one part of a data directory."""

    path: str
    """File or directory, relative to the data directory."""
    journal: str = ""
    """Name of the journal; empty for parts of the key space."""
    begin: int = 0
    """First offset of the journal's local content."""
    sound_end: int = 0
    """Offset up to which the content is sound, or the newest sound revision of the key space."""
    acknowledged_end: int = 0
    """Acknowledged offset or revision, as far as it's known."""
    damage: str = ""
    """The damage and its place; empty if the part is sound."""


class Inspection:
    """A locked data directory. All methods block.

    Args:
        path: The directory. No broker may use it meanwhile.
        files: File operations; None is those of the operating system.

    Raises:
        ConfigurationError: The path isn't a data directory, or a broker uses it.
    """

    def __init__(self, path: Path, files: FileOps | None = None) -> None:
        self._files = files or FileOps()
        self._data = DataDirectory(self._files, path, sync=True)
        if not self._data.journals.is_dir() or not self._data.meta.is_dir():
            raise pb.ConfigurationError(f"{path} isn't the data directory of a broker")
        self._data.lock()
        self._data.beginnings.load()

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        self._data.close()

    @property
    def journals(self) -> int:
        """Number of directories of journals."""
        return len(self._directories())

    def check(self) -> Iterator[Finding]:
        """Check the identity, the key space, and then each journal. No file is changed.

        Raises:
            OSError: A file can't be read.
        """
        yield self._check_identity()
        space, finding = self._check_key_space()
        yield finding
        yield from self._check_journals(space)

    def repair(self) -> Iterator[Finding]:
        """Repair all damaged parts, and yield their findings.

        Raises:
            OSError: A file can't be read or written.
            StoreError: The key space's snapshot and the files that it replaced are damaged or
                missing, or no file shows where a journal ended. All other parts are repaired.
        """
        failures: list[str] = []
        finding = self._check_identity()
        if finding.damage:
            path = self._data.path / finding.path
            self._move([path], self._new_directory(path.parent))
            yield finding
        space, finding = self._check_key_space()
        if finding.damage:
            try:
                space = self._repair_key_space(finding.acknowledged_end)
            except pb.StoreError as error:
                failures.append(
                    f"the key space can't be repaired, restore its directory from a backup: {error}"
                )
            else:
                yield finding
        lost: list[str] = []
        for finding in list(self._check_journals(space)):
            path = self._data.path / finding.path
            if not finding.damage:
                continue
            if self._data.beginnings.has(path) and not finding.acknowledged_end:
                lost.append(f"{finding.journal} ({finding.path})")
                continue
            self._repair_journal(path, finding)
            yield finding
        if lost:
            failures.append(
                "nothing tells where journals ended: restore their directories from a backup, or "
                f"delete them and create them again: {', '.join(lost)}"
            )
        if failures:
            raise pb.StoreError("; ".join(failures))

    def _check_journals(self, space: KeySpace | None) -> Iterator[Finding]:
        names = (
            {} if space is None else {self._data.journal(item).name: item.name for item in space}
        )
        directories = set(self._directories())
        lost = self._data.beginnings.names & names.keys()
        for directory in sorted(directories | {self._data.journals / name for name in lost}):
            yield self._check_journal(directory, names.get(directory.name))

    def _directories(self) -> list[Path]:
        return sorted(
            path for path in self._data.journals.iterdir() if path.is_dir() and not path.suffix
        )

    def _check_identity(self) -> Finding:
        try:
            self._data.identity()
        except pb.ConfigurationError as error:
            return Finding(IDENTITY_NAME, damage=str(error))
        return Finding(IDENTITY_NAME)

    def _check_key_space(self) -> tuple[KeySpace | None, Finding]:
        known = self._data.newest_journal()
        path = self._data.meta.name
        try:
            space, _ = self._meta_log().read(known)
        except pb.StoreError as error:
            known = max(known, acknowledged_revision(self._files, self._data.meta))
            return None, Finding(path, acknowledged_end=known, damage=str(error))
        return space, Finding(path, sound_end=space.revision, acknowledged_end=space.revision)

    def _meta_log(self) -> MetaLog:
        return MetaLog(self._files, self._data.meta, sync=True)

    def _check_journal(self, directory: Path, name: str | None) -> Finding:
        path = str(directory.relative_to(self._data.path))
        has_begun = self._data.beginnings.has(directory)
        journal = name or _journal_of(self._files, directory)
        if journal is None:
            damage = "" if not list(directory.iterdir()) else "no log has a sound opening record"
            return Finding(path, directory.name, damage=damage)
        try:
            survey = survey_journal(self._files, directory, journal, has_begun=has_begun)
        except pb.StoreError as error:
            return Finding(path, journal, damage=str(error))
        sound = survey.fragments
        return Finding(
            path,
            journal,
            sound[0].begin if sound else 0,
            sound[-1].end if sound else 0,
            self._acknowledged_end(directory, survey),
            "" if survey.damage is None else str(survey.damage),
        )

    def _acknowledged_end(self, directory: Path, survey: Survey) -> int:
        """Return the greatest offset that any file shows.

        Without a mark and a log, the length of content shows an offset.
        """
        ends = [found.end for found in survey.fragments]
        if survey.mark is not None:
            ends.append(survey.mark.end)
        if survey.damage is not None:
            for begin in fragment_begins(directory, "log"):
                ends.append(begin)
                ends.extend(_ends(self._files.read_file(spool_paths(directory, begin)[1])))
            ends.extend(
                begin + spool_paths(directory, begin)[0].stat().st_size
                for begin in fragment_begins(directory, "spool")
            )
        return max(ends, default=0)

    def _repair_journal(self, directory: Path, finding: Finding) -> None:
        has_begun = self._data.beginnings.has(directory)
        survey = survey_journal(self._files, directory, finding.journal, has_begun=has_begun)
        if survey.damage is None:
            return
        kept, end = survey.fragments, finding.acknowledged_end
        begins = {*fragment_begins(directory, "log"), *fragment_begins(directory, "spool")}
        gone = [
            path
            for begin in sorted(begins - {found.begin for found in kept})
            for path in spool_paths(directory, begin)
        ]
        codec = 0
        for found in kept:
            if found.spool is not None:
                codec = found.spool.codec
        fresh: Spool | None = None
        if kept and kept[-1].begin == end and kept[-1].spool is not None:
            acknowledged = kept[-1].spool.acknowledged  # Nothing is in it, and it can go on.
        else:
            fresh = Spool(
                self._files,
                directory,
                journal=finding.journal,
                begin=end,
                codec=codec or pb.CompressionCodec.NONE,
                registers=_registers(self._files, directory, finding.journal),
                previous_end=finding.sound_end,
            )
            # Invariant: until the fragment is made, the mark shows that it's missing.
            acknowledged = fresh.acknowledged
        mark = directory / MARK_NAME
        torn = [found for found in kept if found.unsound is not None]
        aside = self._copy_aside(
            directory,
            [
                *mark_paths(mark),
                *(path for found in torn for path in spool_paths(directory, found.begin)),
            ],
        )
        self._replace_mark(mark, acknowledged)
        self._move(gone, aside)
        for found in torn:
            for path, length in zip(
                spool_paths(directory, found.begin),
                (found.end - found.begin, found.log_length),
                strict=True,
            ):
                self._cut(path, length)
        if fresh is not None:
            try:
                fresh.create()
                fresh.sync()
                MarkFile(self._files, mark).write(fresh.acknowledged)
            finally:
                fresh.close()

    def _replace_mark(self, path: Path, acknowledged: Acknowledged) -> None:
        temporary = path.with_name(f"{path.name}.new")
        self._files.unlink(temporary)
        MarkFile(self._files, temporary).write(acknowledged)
        with opened(self._files, temporary, os.O_RDWR) as descriptor:
            self._files.datasync(descriptor)
        self._files.rename(temporary, path)
        for replaced in mark_paths(path)[1:]:
            self._files.unlink(replaced)
        self._files.sync_directory(path.parent)

    def _cut(self, path: Path, length: int) -> None:
        if path.exists():
            with opened(self._files, path, os.O_RDWR) as descriptor:
                if self._files.size(descriptor) > length:
                    self._files.truncate(descriptor, length)
                self._files.datasync(descriptor)

    def _repair_key_space(self, acknowledged: int) -> KeySpace:
        """Keep the sound transactions, and put aside journals of lost transactions.

        The key space continues after the revision `acknowledged`, so that no revision is used
        twice.
        """
        meta = self._data.meta
        space, torn, snapshots = salvage(self._files, meta)
        replaced = [*mark_paths(meta / META_MARK_NAME), *snapshots, *(path for path, _ in torn)]
        self._copy_aside(meta, replaced)
        for path, length in torn:
            self._cut(path, length)
        known = {self._data.journal(item).name for item in space}
        for directory in self._directories():
            if directory.name not in known:
                self._data.put_aside(directory)
        self._files.sync_directory(self._data.journals)
        # Invariant: until then, the mark or the snapshot shows that transactions are missing.
        space.revision = max(space.revision, acknowledged)
        replace_key_space(self._files, meta, space)
        return space

    def _copy_aside(self, directory: Path, paths: list[Path]) -> Path:
        """Copy files into a new directory below `directory`, and return it."""
        aside = self._new_directory(directory)
        for path in paths:
            if path.exists():
                data = self._files.read_file(path)
                with opened(self._files, aside / path.name, os.O_RDWR | os.O_CREAT) as descriptor:
                    self._files.pwrite(descriptor, data, 0)
                    self._files.datasync(descriptor)
        self._files.sync_directory(aside)
        self._files.sync_directory(directory)
        return aside

    def _move(self, paths: list[Path], aside: Path) -> None:
        for path in paths:
            if path.exists():
                self._files.rename(path, aside / path.name)
        self._files.sync_directory(aside)
        self._files.sync_directory(aside.parent)

    def _new_directory(self, directory: Path) -> Path:
        number = 1
        while (aside := directory / f"damaged-{number}").exists():
            number += 1
        self._files.make_directory(aside)
        return aside


def _journal_of(files: FileOps, directory: Path) -> str | None:
    """Return the name of a journal from its own logs."""
    for begin in sorted(fragment_begins(directory, "log")):
        records, _ = scan_records(files.read_file(spool_paths(directory, begin)[1]))
        if records and isinstance(entry := decode_entry(records[0].payload), Begin):
            return entry.journal
    return None


def _registers(files: FileOps, directory: Path, journal: str) -> pb.LabelSet:
    """Return the newest registers of any record, so that no fenced writer can append.

    Logs that an interrupted repair has put aside are searched too.
    """
    newest, encoded = -1, b""
    for path in sorted(directory.rglob("*.log")):
        entries = list(_entries(files.read_file(path)))
        if any(isinstance(entry, Begin) and entry.journal != journal for entry in entries):
            continue
        for entry in entries:
            match entry:
                case Begin(begin=offset, registers=registers):
                    pass
                case Commit(end=offset, registers=bytes(registers)):
                    pass
                case _:
                    continue
            if offset >= newest:
                newest, encoded = offset, registers
    return pb.LabelSet.FromString(encoded)


def _ends(log: bytes) -> Iterator[int]:
    """Yield the ends of commits and fragments of all sound records, wherever they are."""
    for entry in _entries(log):
        if isinstance(entry, Commit | Mark):
            yield entry.end


def _entries(log: bytes) -> Iterator[Entry]:
    """Yield the entries of all sound records of a log, wherever they are."""
    position = 0
    while True:
        records, end = scan_records(memoryview(log)[position:])
        for record in records:
            if (entry := decode_entry(record.payload)) is not None:
                yield entry
        found = find_tagged_record(log, position + end, TAG)
        if found is None:
            return
        position = found.offset
