"""Journals of a selection, which join and leave as the selection changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio.closing import Closing
from gazette_aio.aio.task import OwnedTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_aio.client import WatchedList
    from gazette_aio.client.listing.changes import ListChanges
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.reading.formats import JournalFormats
    from gazette_aio.message.reading.inputs import Inputs
    from gazette_aio.message.reading.pump import JournalPump
    from gazette_aio.message.reading.sources import SelectedSource

_logger = logging.getLogger(__name__)

_SLICE_JOURNALS = 16
"""Journals that are started or stopped without a pause."""

T = TypeVar("T")


async def for_each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Call `act` with each of `items`, with pauses.

    Cancellation: aborts — the items so far were acted on.
    """
    for number, item in enumerate(items, 1):
        act(item)
        if number % _SLICE_JOURNALS == 0:
            await asyncio.sleep(0)


class SelectedJournals:
    """Has the journals of a selection join and leave.

    A journal that leaves is read until no more content is at hand. If it joins again before that,
    it's added once it has left.

    Args:
        source: The selection.
        formats: Formats of the journals.
        read: The journals that are read.
    """

    def __init__(self, source: SelectedSource, formats: JournalFormats[Any], read: Inputs) -> None:
        self._source = source
        self._formats = formats
        self._read = read
        self._revisions: dict[str, int] = {}  # Creation revisions of journals that ever joined.
        self._recreated: set[str] = set()  # Journals whose old state wasn't dropped yet.
        # Specifications of journals that join after their namesakes have left.
        self._successors: dict[str, pb.JournalSpec] = {}
        self._void = Closing()  # Readers of replays of deleted journals.
        self._following = OwnedTask()
        self._entered: WatchedList | None = None

    @property
    def is_following(self) -> bool:
        """Whether a task follows changes of the selection."""
        return self._following.running

    async def begin(self) -> None:
        """Have the selected journals join, and begin to follow changes if the source blocks.

        Raises:
            GazetteError: Journals can't be listed.

        Cancellation: safe — call again.
        """
        source = self._source
        selection = source.selection
        if isinstance(selection, pb.LabelSelector):
            await self.leave_list()
            if not source.block:
                await self._join_first((await source.client.list(selection)).journals)
                return
            if self._read.is_closed:
                return
            selection = self._entered = source.client.watch(selection)
            await selection.__aenter__()
        elif not selection.is_live:
            self._entered = selection
            await selection.__aenter__()
        if source.block:
            self._following.start(self._follow(selection), f"gazette-read-list {source}")
        else:
            await self._join_first((await selection.ready()).journals)
            await self.leave_list()

    async def _join_first(self, journals: Sequence[pb.ListResponse.Journal]) -> None:
        if not journals:
            # A typing error of a selector is otherwise an iterator that ends, or waits, in silence.
            _logger.warning("no journal matches the selector %s", self._source)
        await for_each(journals, self._join)

    def join_successor(self, name: str) -> None:
        """Have a journal join that waited for a journal of its name, which has left now."""
        spec = self._successors.pop(name, None)
        if spec is not None and not self._read.is_closed:
            self._join_now(spec)

    async def stop(self) -> None:
        """End the task that follows changes. Idempotent.

        Cancellation: safe — call again.
        """
        await self._following.aclose()

    async def leave_list(self) -> None:
        """Close the list if it was entered here. Idempotent.

        Cancellation: safe — call again.
        """
        # Race: the list stays known until it's closed, in case closing is cancelled.
        if self._entered is not None:
            await self._entered.aclose()
            self._entered = None

    async def _follow(self, watched: WatchedList) -> None:
        try:
            is_first = True
            async for changes in watched.changes():
                await self._apply(changes, is_first=is_first)
                is_first = False
        except Exception as error:  # noqa: BLE001 - raised by the next call, which begins anew.
            self._read.report(error, is_lost=True)
        else:
            # A list closed by its owner ends reading of its journals.
            await for_each([*self._read.pumps], self._leave)
        finally:
            self._read.notify()

    async def _apply(self, changes: ListChanges, *, is_first: bool) -> None:
        gone = {journal.spec.name for journal in changes.removed}
        if is_first:
            gone.update(self._read.pumps)
        if gone:
            gone.difference_update(journal.spec.name for journal in changes.added)
        await for_each(gone, self._leave)
        if is_first:
            await self._join_first(changes.added)
        else:
            await for_each(changes.added, self._join)
        # Race: a replay may wait for content that a recreated journal won't have soon.
        await self._void.aclose()
        for change in changes.changed:
            pump = self._read.pumps.get(change.after.spec.name)
            if pump is None:
                self._join(change.after)
            else:
                pump.listed_anew()
                self._adopt(pump, change.after.spec)

    def _leave(self, name: str) -> None:
        self._successors.pop(name, None)
        pump = self._read.pumps.get(name)
        if pump is not None:
            pump.leave()

    def _join(self, journal: pb.ListResponse.Journal) -> None:
        spec, revision = journal.spec, journal.create_revision
        name = spec.name
        known = self._revisions.get(name, 0)
        # Wire: some versions of brokers don't report it.
        recreated = 0 not in {known, revision} and known != revision
        self._revisions[name] = revision or known
        if recreated:
            self._recreated.add(name)
        pump = self._read.pumps.get(name)
        if pump is None:
            self._join_now(spec)
        elif self._source.block:
            # Race: the journal may be about to leave, and then rejoins after the content read.
            self._successors[name] = spec
            if recreated:
                pump.is_void = True
                if pump.replaying is not None:
                    self._void.add(pump.replaying)
                self._read.stop(pump)
            else:
                pump.stay()
                self._adopt(pump, spec)

    def _adopt(self, pump: JournalPump, spec: pb.JournalSpec) -> None:
        """Note the newest specification of a journal that is read."""
        journal_format = self._format_of(spec)
        if journal_format is None:
            self._leave(spec.name)
        elif journal_format is not pump.content.format:
            # The journal rejoins after the content read.
            self._successors[spec.name] = spec
            pump.leave()

    def _join_now(self, spec: pb.JournalSpec) -> None:
        journal_format = self._format_of(spec)
        if journal_format is None:
            return
        reset = spec.name in self._recreated
        self._recreated.discard(spec.name)
        try:
            self._read.add(journal_format, reset=reset)
        except Exception as error:  # noqa: BLE001 - raised by the next call.
            self._read.report(error)

    def _format_of(self, spec: pb.JournalSpec) -> JournalFormat[Any] | None:
        """Return the format of a journal; or None after reporting the error."""
        try:
            return self._formats.of(spec.name, spec)
        except Exception as error:  # noqa: BLE001 - raised by the next call.
            self._read.report(error)
            return None
