"""Listings of a journal's stores, from which its index learns of persisted fragments."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.cover_index import CoverSet
from gazette_aio.broker.files import os_error_text
from gazette_aio.broker.index_entry import IndexEntry

if TYPE_CHECKING:
    from gazette_aio.broker.keyspace import KeySpace
    from gazette_aio.broker.replica import Replica
    from gazette_aio.broker.runtime import Runtime
    from gazette_aio.broker.stores import Store

logger = logging.getLogger(__name__)


async def refresh(runtime: Runtime, space: KeySpace, replica: Replica) -> None:
    """List the stores of a journal, and adopt what they hold into its index.

    A failure is noted in `replica.listing_error`, and leaves the index as it is.

    Cancellation: safe.
    """
    async with replica.listing_lock:  # An older listing must not replace a newer one.
        await _refresh(runtime, space, replica)


async def _refresh(runtime: Runtime, space: KeySpace, replica: Replica) -> None:
    urls = list(replica.item.spec.fragment.stores)
    token = replica.index.begin_listing()
    listed: CoverSet[IndexEntry] = CoverSet()
    try:
        for url in urls:
            health = runtime.stores.get(url)
            if health.store is None:
                raise pb.StoreError(await health.check())
            skip = _nested(runtime, space, replica.name, url)
            # The set is made in the thread as well: a journal may have very many fragments.
            count = await health.workers.run(_list, health.store, replica.name, skip, listed)
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


def _nested(runtime: Runtime, space: KeySpace, name: str, url: str) -> frozenset[str]:
    """Return directories of other journals, relative to that of `name`, which share its store."""
    if runtime.options.nested_journals == "shared":
        return frozenset()
    prefix = name + "/"
    return frozenset(
        item.name[len(prefix) :]
        for item in space.prefixed(prefix)
        if url in item.spec.fragment.stores
    )


def _list(store: Store, journal: str, skip: frozenset[str], listed: CoverSet[IndexEntry]) -> int:
    entries: list[IndexEntry] = []
    for path, mod_time in store.list(journal + "/", skip=skip):
        try:
            fragment = pb.parse_fragment(journal, path)
        except pb.ValidationError as error:
            logger.warning(
                "ignored a file which isn't a fragment",
                extra={"journal": journal, "path": path, "error": str(error)},
            )
            continue
        fragment.mod_time = mod_time
        fragment.backing_store = store.url
        entries.append(IndexEntry(fragment))
    # Longest first among those which begin together, so that none is added only to be dropped.
    entries.sort(key=lambda entry: (entry.begin, -entry.end))
    for entry in entries:
        listed.add(entry)
    return len(entries)
