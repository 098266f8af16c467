"""Listings of the journals of a streaming query, for the plans of batches.

Planning a batch takes a listing and concurrent probes of the heads of journals. Fragments are
listed for journals which weren't read recently, because their first content may be gone; for
journals which a limit can cut at fragments only; and for journals with enough content for several
tasks.

A query survives a restart of its brokers: after the first answer, it waits for brokers to answer
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client.reads.head import head_of
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.planning.batch import check_journals
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.spark.planning.tasks import SMALL_BYTES
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.rows.records import RowLayout
from gazette_aio.spark.streaming.progress import RunTarget, regressed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyarrow import Schema

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.streaming.offsets import BatchRange, Offsets
    from gazette_aio.spark.types import Labels

_logger = logging.getLogger(__name__)

PROBE_SECONDS: Final = 5.0
"""Seconds for which a write head which decreased is probed again."""

PAUSE_SECONDS: Final = 1.0
"""Seconds between attempts to reach brokers."""

FRESH_SECONDS: Final = 60.0
"""Seconds for which content which was read is assumed to exist."""


class StreamListing:
    """Lists the journals of a query, and checks that new journals fit the schema.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.
    """

    def __init__(self, options: SourceOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema
        self._layout: RowLayout | None = None
        self._has_answered = False  # Whether a broker ever answered.
        self._checked: dict[str, tuple[str, Labels]] = {}
        self._read: dict[str, tuple[int, float]] = {}  # Ends of reads, and their times.

    async def initial(self) -> dict[str, JournalInfo]:
        """Return all journals, with the properties which decide the begin of a new query.

        Raises:
            ConfigurationError: A named journal doesn't exist, or a journal doesn't fit the schema.
            GazetteError: An RPC failed.

        Cancellation: safe.
        """
        journals = await self._list(
            # A probe of the head doesn't wait for a broker's first listing of the store: a query
            # which begins at the latest offset would begin at 0.
            fragments=True,
            # Selected journals may be created while the query runs.
            allow_none=not self._options.selection.journals,
            # Journals which the option doesn't name begin at their earliest offset.
            begin_mod_time=self._begin_mod_time(""),
        )
        await self._check(journals)
        return {journal.name: self._since_start(journal) for journal in journals}

    def _begin_mod_time(self, journal: str) -> int:
        starting = self._options.starting_ms(journal) or 0
        return max(int(starting / 1000 - self._options.max_clock_skew), 0)

    def _since_start(self, journal: JournalInfo) -> JournalInfo:
        """Return a journal without fragments which were persisted before the query begins."""
        seconds = self._begin_mod_time(journal.name)
        if not seconds or journal.fragments is None:
            return journal
        recent = [one for one in journal.fragments if not 0 < one.mod_time < seconds]
        return replace(journal, fragments=tuple(recent))

    async def look(
        self, names: Collection[str] | None = None, *, fragments: bool
    ) -> dict[str, JournalInfo]:
        """Return the existing journals of these names, or all journals of the query.

        Raises:
            ConfigurationError: A journal doesn't fit the schema.
            GazetteError: An RPC failed.

        Cancellation: safe.
        """

        def is_wanted(journal: JournalInfo) -> bool:
            return names is None or journal.name in names

        listed = await self._list(fragments=fragments, wanted=is_wanted, allow_none=True)
        await self._check(listed)
        return {journal.name: journal for journal in listed}

    async def ahead_of(self, start: Offsets) -> dict[str, JournalInfo]:
        """Return all journals. Heads before the offsets already read are probed again for a while.

        Raises:
            GazetteError: As `look()`.

        Cancellation: safe.
        """
        journals = await self.look(fragments=False)
        deadline = time.monotonic() + PROBE_SECONDS
        pause = 0.01
        while behind := [
            name
            for name in regressed(start, journals.values())
            if start.revisions.get(name) in (None, journals[name].create_revision)
            and journals[name].fragments is None
        ]:
            # An empty append would return the head, but readers may not be allowed to append. A
            # lagging replica learns the head with the next proposal, or the next append.
            if time.monotonic() >= deadline:
                _logger.warning(
                    "write heads are before offsets already read", extra={"journals": behind}
                )
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            await self._probe(behind, journals)
        return journals

    async def add_fragments(
        self,
        start: Offsets,
        journals: dict[str, JournalInfo],
        targets: Mapping[str, RunTarget] | None,
        *,
        cuts: bool,
    ) -> None:
        """List the fragments of the journals for which planning needs them.

        Args:
            start: Begin of the batch.
            journals: The journals, updated with fragments.
            targets: Targets of an AvailableNow run, if it is one.
            cuts: Whether a limit cuts journals.

        Raises:
            GazetteError: As `look()`.

        Cancellation: safe.
        """
        fresh = time.monotonic() - FRESH_SECONDS
        names: set[str] = set()
        for name, journal in journals.items():
            begin = start.journals.get(name, 0)
            target = None if targets is None else targets.get(name, RunTarget(0))
            lag = (journal.head if target is None else min(journal.head, target.head)) - begin
            if lag <= 0 or journal.fragments is not None:
                continue
            known, when = self._read.get(name, (-1, 0.0))
            is_fresh = known == begin and when >= fresh
            if not is_fresh or lag > SMALL_BYTES or (cuts and not journal.is_divisible):
                names.add(name)
        found = await self.look(names, fragments=True) if names else {}
        for name, journal in found.items():
            # Race: the fragments may be of a replica which doesn't know the last append yet.
            is_same = journal.create_revision == journals[name].create_revision
            head = max(journal.head, journals[name].head) if is_same else journal.head
            journals[name] = replace(journal, head=head)

    def note_read(self, ranges: Iterable[BatchRange]) -> None:
        """Note the ends and the time of reads."""
        now = time.monotonic()
        self._read |= {one.journal: (one.end, now) for one in ranges}

    async def _list(self, **wanted: Any) -> list[JournalInfo]:
        """Call `list_journals()`, and repeat the call while brokers restart."""
        options = self._options
        began = time.monotonic()
        while True:
            try:
                client = await spark_client(options.connection)
                found = await list_journals(client, options, **wanted)
            except (pb.TransportError, pb.BrokerStatusError, pb.OperationTimeoutError) as error:
                waited = time.monotonic() - began
                if not (self._has_answered and error.retryable and waited < options.fetch_timeout):
                    raise
                _logger.warning("waiting for brokers: %s", str(error))
            else:
                self._has_answered = True
                return found
            await asyncio.sleep(PAUSE_SECONDS)

    async def _check(self, journals: Iterable[JournalInfo]) -> None:
        checked = self._checked
        new = [one for one in journals if checked.get(one.name) != (one.content_type, one.labels)]
        if new:
            await in_thread(self._check_new, new)
            checked |= {one.name: (one.content_type, one.labels) for one in new}

    def _check_new(self, journals: Iterable[JournalInfo]) -> None:
        if self._layout is None:
            self._layout = RowLayout(self._options, self._schema)
        check_journals(self._layout, journals)

    async def _probe(self, names: Iterable[str], journals: dict[str, JournalInfo]) -> None:
        client = await spark_client(self._options.connection)

        async def probe(name: str) -> None:
            try:
                head = await head_of(client, name)
            except (pb.JournalNotFoundError, pb.SuspendedError):
                journals.pop(name)  # The next listing decides.
            else:
                journals[name] = replace(journals[name], head=head)

        await map_bounded(probe, names)

    def __repr__(self) -> str:
        return f"<StreamListing, {len(self._checked)} journals seen>"
