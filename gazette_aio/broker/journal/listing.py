"""Listings of a journal's stores, from which its index learns of persisted fragments."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_thread_slices, sorted_rows
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.journal.index_entry import FragmentCover, pack

if TYPE_CHECKING:
    from gazette_aio.broker.host.workers import Workers
    from gazette_aio.broker.journal.replica import Replica
    from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace
    from gazette_aio.broker.runtime import Runtime
    from gazette_aio.broker.stores import FragmentStore

logger = logging.getLogger(__name__)

_MAX_TIME = (1 << 63) - 1

_Row = tuple[int, int, str, int, int, bytes]
"""Begin, end negated, path, end, modification time, and the rest packed."""


async def refresh(runtime: Runtime, space: KeySpace, replica: Replica) -> None:
    """List the stores of a journal, and adopt what they hold into its index.

    A failure is noted in `replica.listing_error`, and leaves the index as it is.

    Cancellation: safe.
    """
    async with replica.listing_lock:  # An older listing must not replace a newer one.
        await _refresh(runtime, space, replica)


async def _refresh(runtime: Runtime, space: KeySpace, replica: Replica) -> None:
    urls = list(replica.item.spec.fragment.stores)
    # As of now: the key space isn't looked at by threads.
    nested = (
        space.prefixed(replica.name + "/")
        if urls and runtime.options.nested_journals == "separate"
        else []
    )
    token = replica.index.begin_listing()
    listed = FragmentCover(replica.name)
    try:
        for url in urls:
            handle = runtime.stores.get(url)
            # The set is made in the thread as well: a journal may have very many fragments.
            count = await handle.run(_list, replica.name, nested, listed, handle.workers)
            runtime.metrics.store_list_items += count
    except (OSError, pb.GazetteError) as error:
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        replica.listing_error = text
        logger.warning("unable to list fragments", extra={"journal": replica.name, "error": text})
        return
    replica.index.replace_listed(listed, token)
    replica.listing_error = ""
    replica.listed = True
    replica.wake()  # Readers look again, and find out whether anything has changed.


def _shared(nested: list[JournalItem], journal: str, url: str) -> frozenset[str]:
    """Return directories of other journals, relative to that of `journal`, which share a store."""
    start = len(journal) + 1
    return frozenset(
        item.name[start:] for item in in_thread_slices(nested) if url in item.spec.fragment.stores
    )


def _list(
    store: FragmentStore,
    journal: str,
    nested: list[JournalItem],
    listed: FragmentCover,
    workers: Workers,
) -> int:
    skip = _shared(nested, journal, store.url)
    number = listed.begin_store(store.url)
    rows: list[_Row] = []
    ignored = 0
    for path, mod_time in in_thread_slices(store.list(journal + "/", skip=skip)):
        if workers.stopping.is_set():
            raise pb.StoreError("broker is stopping")
        try:
            fragment = pb.parse_fragment(journal, path)
            if f"{fragment.path_postfix}/".startswith("../"):
                raise pb.ValidationError("PathPostfix: leads out of the journal")
        except pb.ValidationError as error:
            if not ignored:
                logger.warning(
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
        logger.warning(
            "ignored files which aren't fragments", extra={"journal": journal, "count": ignored}
        )
    # Longest first among those which begin together, so that none is added only to be dropped. Of
    # those which are equal, the last one by its path remains.
    for begin, _, _, end, time, packed in sorted_rows(rows):
        listed.add_listed(begin, end, time, packed)
    return len(rows)
