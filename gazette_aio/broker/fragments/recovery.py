"""Recovery of a journal from its files, after a restart.

Content that a crash has torn was never acknowledged, and is cut off, so that it can't reappear. If
acknowledged content is damaged, no file is changed: the journal can be read up to the damage, and
takes no appends. Whole records of an unknown kind are of a later version: the files of such a
journal aren't changed, either.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gazette_aio.broker.fragments.spool import MARK_NAME, Spool, remove_fragment, spool_paths
from gazette_aio.broker.fragments.survey import (
    Damage,
    FoundFragment,
    survey_journal,
)
from gazette_aio.broker.host.files import opened
from gazette_aio.broker.host.marks import MarkFile

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredJournal:
    """Content of a journal's directory."""

    complete: list[Spool] = field(default_factory=list)
    spool: Spool | None = None
    damage: Damage | None = None
    """The damage, or None. With damage, `spool` is the read-only sound part of the fragment."""


def recover_journal(
    files: FileOps,
    directory: Path,
    journal: str,
    *,
    sync: bool = False,
    has_begun: bool = False,
) -> RecoveredJournal:
    """Recover a journal from its directory, and cut off unacknowledged content. Blocks.

    Args:
        files: File operations.
        directory: Directory of the journal, which may be missing.
        journal: Name of the journal.
        sync: Make recovered content durable: it may be in the page cache only.
        has_begun: Whether content of the journal is known to have been acknowledged.

    Raises:
        OSError: The files can't be read, cut, or made durable.
        StoreError: A log is of a later version.
    """
    survey = survey_journal(files, directory, journal, has_begun=has_begun)
    recovered = RecoveredJournal(damage=survey.damage)
    spools = [(each, each.spool) for each in survey.fragments if each.spool is not None]
    recovered.complete = [
        spool for found, spool in spools[:-1] if spool.end > spool.begin and not found.is_persisted
    ]
    if survey.damage is not None:
        if spools and not spools[-1][0].is_persisted:
            recovered.spool = spools[-1][1]
        return recovered
    for begin, reason in survey.put_aside:
        _put_aside(files, directory, begin, reason=reason)
    for found, _ in spools:
        if not found.is_persisted:
            _cut_torn(files, directory, found, sync=sync)
    if not spools:
        return recovered
    last, spool = spools[-1]
    if last.is_persisted:
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
            MarkFile(files, directory / MARK_NAME).write(spool.acknowledged)
        kept = {spool.begin, *(complete.begin for complete in recovered.complete)}
        for begin in {found.begin for found, _ in spools} - kept:
            remove_fragment(files, directory, begin, sync=sync)
    finally:
        spool.close()
    recovered.spool = spool
    return recovered


def _cut_torn(files: FileOps, directory: Path, found: FoundFragment, *, sync: bool) -> None:
    """Cut off content that was never acknowledged."""
    content_path, log_path = spool_paths(directory, found.begin)
    for path, length in (
        (content_path, found.end - found.begin),
        (log_path, found.log_length),
    ):
        with opened(files, path, os.O_RDWR | os.O_CREAT) as descriptor:
            _cut(files, descriptor, length, path)
            if sync:
                files.datasync(descriptor)


def _cut(files: FileOps, descriptor: int, length: int, path: Path) -> None:
    size = files.size(descriptor)
    if size > length:
        _logger.info(
            "cut off what was never acknowledged",
            extra={"path": str(path), "from_bytes": size, "to_bytes": length},
        )
        files.truncate(descriptor, length)


def _put_aside(files: FileOps, directory: Path, begin: int, *, reason: str) -> None:
    for path in spool_paths(directory, begin):
        if path.exists():
            _logger.warning(
                "put aside a local fragment", extra={"path": str(path), "reason": reason}
            )
            files.rename(path, path.with_name(path.name + ".orphan"))
