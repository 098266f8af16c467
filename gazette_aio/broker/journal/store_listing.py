"""Listing of a journal's fragments in a store. Blocks."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_thread_slices, sorted_rows
from gazette_aio.broker.fragments.cover_index import pack
from gazette_aio.broker.host.workers import STOPPING
from gazette_aio.protocol.go.text import clean_path

if TYPE_CHECKING:
    import threading

    from gazette_aio.broker.fragments.cover_index import FragmentCover
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.broker.stores import FragmentStore

_logger = logging.getLogger(__name__)

_MAX_TIME = (1 << 63) - 1

_Row = tuple[int, int, str, int, int, bytes]
"""Begin, end negated, path, end, modification time, and the rest packed."""


def list_fragments(
    store: FragmentStore,
    journal: str,
    nested: list[JournalItem],
    listed: FragmentCover,
    stopping: threading.Event,
) -> int:
    """Add a journal's fragments in a store to `listed`, and return their number.

    Args:
        store: The store.
        journal: Name of the journal.
        nested: Journals whose directories below that of the journal are theirs alone.
        listed: Set of fragments, of all stores.
        stopping: Ends the listing between two files, once it's set.

    Raises:
        OSError, StoreError: The store can't be listed.
    """
    skip = _shared(nested, journal, store.url)
    number = listed.begin_store(store.url)
    rows: list[_Row] = []
    ignored = 0
    for path, mod_time in in_thread_slices(store.list(journal + "/", skip=skip)):
        if stopping.is_set():
            raise pb.StoreError(STOPPING)
        try:
            fragment = pb.parse_fragment(journal, path)
            if f"{fragment.path_postfix}/".startswith("../"):
                raise pb.ValidationError("PathPostfix: leads out of the journal")
        except pb.ValidationError as error:
            if not ignored:
                _logger.warning(
                    "ignored a file which isn't a fragment",
                    extra={"journal": journal, "path": path, "error": str(error)},
                )
            ignored += 1
            continue
        # Plain tuples cost the garbage collector nothing: a journal may have very many fragments.
        packed = pack(fragment, number)
        time = min(max(mod_time, -_MAX_TIME), _MAX_TIME)
        rows.append((fragment.begin, -fragment.end, path, fragment.end, time, packed))
    if ignored > 1:
        _logger.warning(
            "ignored files which aren't fragments", extra={"journal": journal, "count": ignored}
        )
    # Among fragments with one begin, the longest comes first, so that no fragment is added and then
    # dropped. Of equal fragments, the last path remains.
    for begin, _, _, end, time, packed in sorted_rows(rows):
        listed.insert(begin, end, time, packed)
    return len(rows)


def _shared(nested: list[JournalItem], journal: str, url: str) -> frozenset[str]:
    """Return the directories of nested journals in a store, relative to that of `journal`."""
    start = len(journal) + 1
    place = _place(url)
    return frozenset(
        item.name[start:]
        for item in in_thread_slices(nested)
        if any(_place(other) == place for other in item.spec.fragment.stores)
    )


@functools.lru_cache(maxsize=256)
def _place(url: str) -> str:
    """Return the location of a store, which URLs of other arguments or spelling may share."""
    parsed = pb.parse_fragment_store(url)
    if parsed.arguments.get("find"):
        return url
    return f"{parsed.scheme}://{parsed.host}{clean_path(parsed.path)}"
