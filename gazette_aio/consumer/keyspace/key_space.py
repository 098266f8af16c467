"""Decoded mirror of the keys of a group, which follows the store and calls its observers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from anyio.lowlevel import checkpoint

from gazette_aio.aio.finish import finish
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.task import start_task
from gazette_aio.aio.turns import Turns
from gazette_aio.client.retry import backoff
from gazette_aio.consumer.keyspace.entries import D, Entries, check_responses
from gazette_aio.consumer.keyspace.errors import CompactedError, StoreUnavailableError
from gazette_aio.consumer.keyspace.store import StoreHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_aio.consumer.keyspace.entries import Change
    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.consumer.keyspace.store import Event, KeyValueStore, WatchResponse

_logger = logging.getLogger(__name__)

PAGE_ENTRIES = 1000
"""Entries that are loaded at a time."""
_PART = 128
_LARGE_PART = 512


class KeySpace(Generic[D]):
    """Entries of a prefix as of `header.revision`, the newest revision that changed an entry.

    Reading needs no lock: entries change only while the reader awaits. A step of many changes, such
    as the end of a lease with thousands of keys, is applied in parts, so that the event loop isn't
    held up; all keys that are equal up to the first `#` change in one part, and `header.revision`
    changes with the last part.

    Args:
        store: Store to follow.
        prefix: Begin of the keys.
        decode: Returns what a key means; raises ValidationError if it means nothing.
        apply_delay_seconds: Time for which changes are gathered before they are applied.

    Attributes:
        header: Origin and revision of the entries.
        entries: Meaning of each key that has one.
        observers: Called after each part of changes, in order, with the changes. Observers neither
            block nor raise.
    """

    def __init__(
        self,
        store: KeyValueStore,
        prefix: str,
        decode: Callable[[KeyValue], D],
        *,
        apply_delay_seconds: float = 0.03,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._apply_delay_seconds = apply_delay_seconds
        self._changed = Signal()
        self._awaited: dict[asyncio.Event, int] = {}  # Revision, by the event that it's reached.
        self._loaded = 0  # Revision of the store that the entries were loaded as of.
        self.header: StoreHeader = StoreHeader(0, 0, 0, 0)
        self.entries: Entries[D] = Entries(decode)
        self.observers: list[Callable[[Sequence[Change[D]]], None]] = []

    def __repr__(self) -> str:
        return (
            f"<KeySpace {self._prefix} revision={self.header.revision} entries={len(self.entries)}>"
        )

    async def load(self, revision: int = 0) -> None:
        """Read all entries as of `revision`, 0 for the newest.

        Raises:
            KeyValueStoreError: The store doesn't answer.

        Cancellation: aborts — nothing has changed.
        """
        header, loaded = await self._read(revision)
        await self._replace(header, loaded)
        self._loaded = header.revision

    async def watch(self) -> None:
        """Follow the store. It ends only by an error, or by cancellation.

        Where the store has dropped the revisions that come next, all entries are loaded again.

        Raises:
            KeySpaceError: The store contradicts what is known, as another cluster does.
            KeyValueStoreError: The store refuses the watch for good.

        Cancellation: safe.
        """
        while True:
            try:
                await self._follow()
            except CompactedError as error:
                _logger.warning("key space %s is loaded again: %s", self._prefix, error)
            header, loaded = await self._read_again()
            # The store's revision may be one that no change of this prefix reaches, so that peers
            # would wait for it in vain.
            newest = max((entry.raw.mod_revision for entry in loaded.values()), default=0)
            revision = max(self.header.revision, newest)
            await self._replace(replace(header, revision=revision), loaded)
            self._loaded = header.revision

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until changes up to `revision` are applied.

        Wait only for revisions of transactions that wrote below the prefix: others may never come.

        Cancellation: safe — raised even if the revision is there, so that a caller who is cancelled
        because of a lost lease doesn't act on what it sees.
        """
        await checkpoint()
        if self.header.revision >= revision:
            return
        # Thousands of waiters, each for a revision of its own, aren't woken by the changes before.
        reached = asyncio.Event()
        self._awaited[reached] = revision
        try:
            await reached.wait()
        finally:
            del self._awaited[reached]

    async def next_change(self) -> None:
        """Wait until anything changes.

        Cancellation: safe.
        """
        await self._changed.wait()

    async def _read(self, revision: int) -> tuple[StoreHeader, dict[str, D]]:
        turns = Turns()
        loaded: dict[str, D] = {}
        after = ""
        while True:
            page = await self._store.range(
                self._prefix, revision=revision, after=after, limit=PAGE_ENTRIES
            )
            # All pages are as of the first one's revision.
            revision = revision or page.header.revision
            for raw in page.entries:
                if (entry := self.entries.decoded(raw)) is not None:
                    loaded[raw.key] = entry
                await turns.rest()
            if not page.more:
                return replace(page.header, revision=revision), loaded
            after = page.entries[-1].key

    async def _read_again(self) -> tuple[StoreHeader, dict[str, D]]:
        """Read all entries, and repeat that while the store is unavailable, as a watch does."""
        attempt = 0
        while True:
            try:
                return await self._read(0)
            except (CompactedError, StoreUnavailableError) as error:
                # The newest revision may be dropped, too, between the pages of a large group.
                _logger.warning("key space %s isn't loaded (will retry): %s", self._prefix, error)
            await asyncio.sleep(backoff(attempt))
            attempt += 1

    async def _replace(self, header: StoreHeader, loaded: dict[str, D]) -> None:
        turns = Turns()
        part: list[Change[D]] = []
        group = ""
        # Keys that were loaded are in order, so that sorting merely merges.
        for key in sorted((*loaded, *(key for key in self.entries if key not in loaded))):
            if len(part) >= _PART and _group(key) != group:
                self._observe(part)
                part = []
            if not part:  # Observers have taken all that has changed.
                await turns.rest()
            before, after = self.entries.get(key), loaded.get(key)
            if before is None or after is None or before.raw != after.raw:
                self.entries.replace(key, after)
                part.append((before, after))
                group = _group(key)
        self._publish(header, part)

    async def _follow(self) -> None:
        """Apply changes until the watch fails."""
        arrived: list[WatchResponse] = []
        arrival = asyncio.Event()
        receiver = start_task(self._receive(arrived, arrival), f"watch of {self._prefix}")
        receiver.add_done_callback(lambda _: arrival.set())
        try:
            while True:
                await arrival.wait()
                if not arrived:
                    return receiver.result()  # Raises why the watch ended.
                if self._apply_delay_seconds:
                    await asyncio.sleep(self._apply_delay_seconds)
                if not receiver.done():
                    arrival.clear()
                responses = arrived.copy()
                arrived.clear()
                await self._apply(responses)
        finally:
            receiver.cancel()
            await finish(asyncio.wait((receiver,)))
            if not receiver.cancelled():
                receiver.exception()  # Retrieved: the caller may see a cancellation instead.

    async def _receive(self, arrived: list[WatchResponse], arrival: asyncio.Event) -> None:
        # Invariant: not before the revision that was loaded. The store may have dropped revisions
        # after the newest change, and would refuse each watch from there.
        begin = max(self._loaded, self.header.revision) + 1
        async with aclosing(self._store.watch(self._prefix, begin)) as responses:
            async for response in responses:
                arrived.append(response)
                arrival.set()

    async def _apply(self, responses: Sequence[WatchResponse]) -> None:
        header, events = check_responses(self.header, responses)
        if not events:
            self.header = header
        turns = Turns()
        for revision, part in _parts(events):
            newest = max(self.header.revision, revision)
            self._publish(replace(header, revision=newest), self.entries.apply(part))
            await turns.rest()

    def _observe(self, changes: Sequence[Change[D]]) -> None:
        for observer in self.observers:
            observer(changes)

    def _publish(self, header: StoreHeader, changes: Sequence[Change[D]]) -> None:
        self.header = header
        self._observe(changes)
        self._changed.set()
        for reached, revision in self._awaited.items():
            if revision <= header.revision:
                reached.set()


def _parts(events: Sequence[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Yield events in parts, each with the newest revision that is complete after it.

    Transactions are whole, except for those that are far larger than a request may be.
    """
    part: list[Event] = []
    for index, event in enumerate(events):
        part.append(event)
        following = events[index + 1] if index + 1 < len(events) else None
        if following is None:
            yield event.mod_revision, part
        elif following.mod_revision != event.mod_revision:
            if len(part) >= _PART:
                yield event.mod_revision, part
                part = []
        elif len(part) >= _LARGE_PART and _group(following.key) != _group(event.key):
            yield event.mod_revision - 1, part
            part = []


def _group(key: str) -> str:
    return key.partition("#")[0]
