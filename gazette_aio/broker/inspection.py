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
from gazette_aio.broker.fragments.commit_log import TAG, Begin, Commit, Entry, decode_entry
from gazette_aio.broker.fragments.recovery import (
    Survey,
    cut_torn,
    fragment_begins,
    survey_journal,
)
from gazette_aio.broker.fragments.spool import Spool, spool_paths
from gazette_aio.broker.host.files import FileOps, opened
from gazette_aio.broker.host.heads import Head
from gazette_aio.broker.host.log import find_tagged_record, scan_records
from gazette_aio.broker.keyspace.data_directory import (
    IDENTITY_NAME,
    DataDirectory,
    revision_of,
)
from gazette_aio.broker.keyspace.meta_log import MetaLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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
        self._heads = self._data.heads
        self._meta_log = MetaLog(self._files, self._data.meta, self._heads, sync=True)

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        self._data.close()

    @property
    def journals(self) -> int:
        """Number of directories of journals."""
        return len(self._directories())

    def check(self) -> Iterator[Finding]:
        """Check the identity, the heads, the key space, and each journal. No file is changed.

        Raises:
            OSError: A file can't be read.
        """
        yield _check(IDENTITY_NAME, self._data.identity)
        yield _check(self._heads.path.name, self._data.load_heads)
        space, finding = self._check_key_space()
        yield finding
        yield from self._check_journals(space)

    def repair(self) -> Iterator[Finding]:
        """Repair all damaged parts, and yield their findings.

        Raises:
            OSError: A file can't be read or written.
            StoreError: The key space's snapshot and the log before it are damaged or missing, or a
                journal has no file that shows where it ended. All other parts are repaired.
        """
        finding = _check(IDENTITY_NAME, self._data.identity)
        if finding.damage:
            path = self._data.path / finding.path
            self._move([path], self._new_directory(path.parent))
            yield finding
        finding = _check(self._heads.path.name, self._data.load_heads)
        if finding.damage:
            self._repair_heads()
            yield finding
        failures: list[str] = []
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
            directory = self._data.path / finding.path
            if not finding.damage:
                continue
            if not _begins(directory):  # Its head may be out of date.
                lost.append(f"{finding.journal} ({finding.path})")
                continue
            self._repair_journal(directory, finding)
            yield finding
        if lost:
            failures.append(
                "nothing tells where journals ended: restore their directories from a backup, or "
                f"delete them and create them again: {', '.join(lost)}"
            )
        if failures:
            raise pb.StoreError("; ".join(failures))

    def _check_journals(self, space: KeySpace | None) -> Iterator[Finding]:
        names = {self._data.journal(item).name: item.name for item in space or ()}
        lost = {self._data.journals / name for name in self._heads.names & names.keys()}
        for directory in sorted({*self._directories(), *lost}):
            yield self._check_journal(directory, names.get(directory.name))

    def _directories(self) -> list[Path]:
        return sorted(
            path for path in self._data.journals.iterdir() if path.is_dir() and not path.suffix
        )

    def _check_key_space(self) -> tuple[KeySpace | None, Finding]:
        path = self._data.meta.name
        try:
            space, _ = self._meta_log.read()
        except pb.StoreError as error:
            known = [revision_of(directory.name) for directory in self._directories()]
            known.append(self._meta_log.acknowledged)
            return None, Finding(path, acknowledged_end=max(known), damage=str(error))
        return space, Finding(path, sound_end=space.revision, acknowledged_end=space.revision)

    def _check_journal(self, directory: Path, name: str | None) -> Finding:
        path = str(directory.relative_to(self._data.path))
        journal = name or _journal_of(self._files, directory)
        if journal is None:
            damage = "" if not list(directory.iterdir()) else "no log has a sound opening record"
            return Finding(path, directory.name, damage=damage)
        try:
            survey = self._survey(directory, journal)
        except pb.StoreError as error:
            return Finding(path, journal, damage=str(error))
        return Finding(
            path,
            journal,
            survey.fragments[0].spool.begin if survey.fragments else 0,
            survey.end,
            self._acknowledged_end(directory, survey),
            "" if survey.damage is None else str(survey.damage),
        )

    def _survey(self, directory: Path, journal: str) -> Survey:
        return survey_journal(self._files, directory, journal, self._heads.get(directory.name))

    def _acknowledged_end(self, directory: Path, survey: Survey) -> int:
        """Return the greatest offset that any file shows.

        Without a head and a log, the length of content shows an offset.
        """
        head = self._heads.get(directory.name)
        ends = [survey.end, 0 if head is None else head.end]
        if survey.damage is not None:
            for begin in fragment_begins(directory, "log"):
                log = self._files.read_file(spool_paths(directory, begin)[1])
                ends += [
                    begin,
                    *(entry.end for entry in _entries(log) if isinstance(entry, Commit)),
                ]
            ends += [
                begin + spool_paths(directory, begin)[0].stat().st_size
                for begin in fragment_begins(directory, "spool")
            ]
        return max(ends)

    def _repair_heads(self) -> None:
        """Make the heads again: all that is in logs counts as acknowledged."""
        self._copy_aside(self._data.path, [self._heads.path])
        heads: dict[str, Head] = {}
        for directory in self._directories():
            if begins := fragment_begins(directory, "log"):
                begin = max(begins)
                length = spool_paths(directory, begin)[1].stat().st_size
                heads[directory.name] = Head(begin, begin, length)
        self._heads.create(heads, sync=True)

    def _repair_journal(self, directory: Path, finding: Finding) -> None:
        survey = self._survey(directory, finding.journal)
        kept, end = survey.fragments, finding.acknowledged_end
        if kept and kept[-1].spool.begin == end:
            kept.pop()  # Nothing is in it.
        gone = [
            path
            for begin in sorted(_begins(directory) - {found.spool.begin for found in kept})
            for path in spool_paths(directory, begin)
        ]
        fresh = Spool(
            self._files,
            directory,
            journal=finding.journal,
            begin=end,
            codec=kept[-1].spool.codec if kept else pb.CompressionCodec.NONE,
            registers=_registers(self._files, directory, finding.journal),
            previous_end=survey.end,
        )
        torn = [found.spool for found in kept if found.is_torn]
        aside = self._copy_aside(
            directory, [path for spool in torn for path in spool_paths(directory, spool.begin)]
        )
        # Invariant: until the fragment is made, the head shows that it's missing.
        self._heads.restart(directory.name, fresh.head)
        self._heads.sync()
        self._move(gone, aside)
        for spool in torn:
            cut_torn(self._files, directory, spool, sync=True)
        try:
            fresh.create()
            fresh.sync()
        finally:
            fresh.close()
        self._heads.record(directory.name, fresh.head, durable=True)

    def _repair_key_space(self, acknowledged: int) -> KeySpace:
        """Keep the sound transactions, and put aside journals of lost transactions.

        The key space continues after the revision `acknowledged`, so that no revision is used
        twice.
        """
        space = self._meta_log.salvage()
        self._copy_aside(self._data.meta, self._meta_log.paths)
        known = {self._data.journal(item).name for item in space}
        for directory in self._directories():
            if directory.name not in known:
                self._data.put_aside(directory)
        self._files.sync_directory(self._data.journals)
        # Invariant: until then, the head or the snapshot shows that transactions are missing.
        space.revision = max(space.revision, acknowledged)
        self._meta_log.replace(space)
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


def _check(path: str, read: Callable[[], object]) -> Finding:
    """Return the finding of a file, by what its reader raises."""
    try:
        read()
    except (pb.ConfigurationError, pb.StoreError) as error:
        return Finding(path, damage=str(error))
    return Finding(path)


def _begins(directory: Path) -> set[int]:
    """Return the first offsets of all fragments that have files."""
    return {*fragment_begins(directory, "log"), *fragment_begins(directory, "spool")}


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
                case (
                    Begin(begin=offset, registers=registers)
                    | Commit(end=offset, registers=bytes(registers))
                ):
                    pass
                case _:
                    continue
            if offset >= newest:
                newest, encoded = offset, registers
    return pb.LabelSet.FromString(encoded)


def _entries(log: bytes) -> Iterator[Entry]:
    """Yield the entries of all sound records of a log, wherever they are."""
    position = 0
    while True:
        records, end = scan_records(log, position)
        for record in records:
            if (entry := decode_entry(record.payload)) is not None:
                yield entry
        found = find_tagged_record(log, end, TAG)
        if found is None:
            return
        position = found.offset
