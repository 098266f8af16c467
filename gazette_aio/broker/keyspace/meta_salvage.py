"""Salvage of a damaged key space: all its sound transactions.

A snapshot replaces all transactions before it. The replaced files are kept until the next snapshot,
and have the same transactions if the snapshot is damaged.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import write_durably
from gazette_aio.broker.host.marks import mark_paths, newest_mark
from gazette_aio.broker.host.records import encode_record, scan_records
from gazette_aio.broker.keyspace.meta_log import (
    MARK_NAME,
    PREVIOUS_NAME,
    decode_transaction,
    encode_snapshot,
    key_space_of_snapshot,
    list_files,
    snapshot_path,
    written_logs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.keyspace.keyspace import KeySpace


class Salvage(NamedTuple):
    """Sound part of a key space."""

    space: KeySpace
    torn: list[tuple[Path, int]]
    """Damaged logs, each with the length of its sound part."""
    snapshots: list[Path]
    """Snapshots, readable or not."""


def acknowledged_revision(files: FileOps, directory: Path) -> int:
    """Return the newest revision of a key space's mark, or 0 without a mark.

    Raises:
        OSError: The mark can't be read.
    """
    mark = newest_mark(files, directory / MARK_NAME)
    return 0 if mark is None else mark.end


def salvage(files: FileOps, directory: Path) -> Salvage:
    """Read the sound transactions of a key space, and change no file. Blocks.

    Raises:
        StoreError: The snapshot and the files that it replaced are damaged or missing.
        OSError: A file can't be read.
    """
    snapshots, logs = list_files(directory)
    try:
        space = key_space_of_snapshot(files, directory)
    except pb.StoreError as error:
        space = _before_snapshot(files, directory, error)
    torn: list[tuple[Path, int]] = []
    for path in written_logs(logs):
        data = files.read_file(path)
        length = _follow(space, data)
        if length < len(data):
            torn.append((path, length))
    return Salvage(space, torn, snapshots)


def replace_key_space(files: FileOps, directory: Path, space: KeySpace) -> None:
    """Replace all present transactions by a snapshot of `space`. Blocks.

    Raises:
        OSError: A file can't be written. The key space is damaged as before, or replaced.
    """
    snapshots, _ = list_files(directory)
    target = snapshot_path(directory, space.revision)
    write_durably(files, target, encode_record(encode_snapshot(space)), sync=True)
    for path in snapshots:
        if path != target:
            files.unlink(path)
    for path in mark_paths(directory / MARK_NAME):
        files.unlink(path)
    files.sync_directory(directory)


def _before_snapshot(files: FileOps, directory: Path, error: pb.StoreError) -> KeySpace:
    """Return the key space of a snapshot that can't be read.

    Raises:
        StoreError: `error`, if the files that the snapshot replaced don't lead to its revision.
    """
    previous = directory / PREVIOUS_NAME
    if not previous.is_dir():
        raise error
    try:
        space = key_space_of_snapshot(files, previous)
    except pb.StoreError:
        raise error from None
    for path in written_logs(list_files(previous)[1]):
        data = files.read_file(path)
        if _follow(space, data) < len(data):
            raise error
    if space.revision < _revision_of_snapshot(files, directory):
        raise error
    return space


def _revision_of_snapshot(files: FileOps, directory: Path) -> int:
    """Return the revision of a snapshot that can't be read, from other files."""
    snapshots, logs = list_files(directory)
    if snapshots:
        return int(snapshots[-1].stem.partition("-")[2], 16)
    for path in written_logs(logs)[:1]:
        for record in scan_records(files.read_file(path))[0][:1]:
            with contextlib.suppress(ValueError):
                return decode_transaction(record.payload).revision - 1
    return acknowledged_revision(files, directory)


def _follow(space: KeySpace, log: bytes) -> int:
    """Apply the sound transactions at the head of a log, and return their length."""
    records, end = scan_records(log)
    for record in records:
        try:
            transaction = decode_transaction(record.payload)
        except ValueError:
            return record.offset
        if transaction.revision > space.revision + 1:
            return record.offset
        if transaction.revision > space.revision:
            space.commit(transaction)
    return end
