"""Persisting of a local fragment: its place in a store, its file there, and the record of it."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.fragments.commit_log import Persisted, encode_entry
from gazette_aio.broker.fragments.postfix import render_path_postfix
from gazette_aio.broker.fragments.spool import remove_fragment
from gazette_aio.broker.host.log import RecordLog
from gazette_aio.broker.host.workers import STOPPING
from gazette_aio.protocol.fragment import MAX_PATH_POSTFIX_LENGTH
from gazette_aio.protocol.journal import validate_path_component

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from gazette_aio.broker.fragments.local_fragment import LocalFragment
    from gazette_aio.broker.host.files import FileOps
    from gazette_aio.broker.keyspace.keyspace import KeySpace
    from gazette_aio.broker.stores import FragmentStore

_logger = logging.getLogger(__name__)


def placed(
    local: LocalFragment, spec: pb.JournalSpec, separate_from: KeySpace | None
) -> pb.Fragment:
    """Return a fragment with its path postfix.

    Args:
        local: The fragment.
        spec: Spec of its journal.
        separate_from: Key space of the journals whose directories are theirs alone; None lets
            fragments lead there.

    Raises:
        StoreError: The postfix isn't one, or leads elsewhere.
    """
    fragment = deepcopy(local.fragment)
    if template := spec.fragment.path_postfix_template:
        fragment.path_postfix = render_path_postfix(
            template,
            fragment=local.fragment,
            first_append_time=local.first_append_time,
            registers=local.registers,
            spec=spec,
        )
        _check_postfix(fragment.path_postfix)
        if separate_from is not None:
            _check_nested(separate_from, spec.name, fragment.path_postfix)
    return fragment


def _check_postfix(postfix: str) -> None:
    """Raise StoreError unless listings find fragments of a postfix, below their journal."""
    try:
        validate_path_component(postfix, min_length=0, max_length=MAX_PATH_POSTFIX_LENGTH)
    except pb.ValidationError as error:
        raise pb.StoreError(f"rendered path postfix: {error}") from None
    if postfix == ".." or postfix.startswith("../"):
        raise pb.StoreError(f"rendered path postfix leads out of the journal ({postfix})")


def _check_nested(space: KeySpace, journal: str, postfix: str) -> None:
    """Raise StoreError if a postfix leads into the directory of another journal.

    Appends choose registers, and with them a template may render any postfix.
    """
    directory = journal
    for part in postfix.split("/") if postfix else ():
        directory = f"{directory}/{part}"
        if space.get(directory) is not None:
            raise pb.StoreError(f"rendered path postfix leads into journal {directory}")


def write_fragment(
    store: FragmentStore, path: str, local: LocalFragment, stopping: threading.Event
) -> tuple[int, int]:
    """Write a fragment to a store; return its modification time, and how many bytes were written.

    Args:
        store: The store.
        path: Path of the fragment's file.
        local: The fragment.
        stopping: Ends the write between two pieces, once it's set.

    Raises:
        OSError, StoreError: The fragment can't be written.
    """
    # Names have the sum of the content, so an existing file has the content.
    written = 0

    def pieces() -> Iterator[bytes]:
        nonlocal written
        for piece in local.pieces():
            if stopping.is_set():
                raise pb.StoreError(STOPPING)
            written += len(piece)
            yield piece

    mod_time = store.stat(path)
    if mod_time is not None:
        store.make_durable(path)  # A crash may have come between its write and its sync.
    else:
        gzipped = local.fragment.compression_codec == pb.CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
        local.content.acquire()
        try:
            store.put(path, pieces(), gzipped=gzipped)
        finally:
            local.content.release()
        mod_time = store.stat(path)
        if mod_time is None:
            raise pb.StoreError(f"{path} vanished after it was written")
    return mod_time, written


def remove_persisted(files: FileOps, local: LocalFragment, *, sync: bool) -> None:
    """Remove the files of a fragment that is recorded as persisted, as far as possible."""
    try:
        remove_fragment(files, local.log.path.parent, local.fragment.begin, sync=sync)
    except OSError as error:
        # The next start removes the file, because the fragment is recorded as persisted.
        _logger.warning("unable to remove a persisted fragment", exc_info=error)


def record_persisted(files: FileOps, local: LocalFragment, *, sync: bool) -> None:
    """Record that a fragment is persisted.

    Raises:
        OSError: The record can't be written.
    """
    # A record whose write or sync failed is written again: so it's synced anew.
    log = RecordLog(files, local.log.path, local.log.length, sync=sync)
    try:
        log.append(encode_entry(Persisted(local.fragment.end)))
    finally:
        log.close()
