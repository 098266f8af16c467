"""Listings of the journals of a streaming query, with what batches are planned by.

To plan a batch takes a listing, and a probe of the head of each journal, all at once. Fragments are
listed as well where a journal is read which wasn't read a moment ago, as its first content may be
gone; where a limit can cut it at fragments only; or where there's enough to read to be worth
several tasks.

A query outlives a restart of its brokers: once they've answered, it's waited for that they do so
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gazette_aio.protocol as pb
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.planning.batch import check_journals
from gazette_aio.spark.planning.filters import MAX_SKEW_SECONDS
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.spark.planning.tasks import SMALL_BYTES
from gazette_aio.spark.reading.bounded import head_of, map_bounded
from gazette_aio.spark.rows.records import RowLayout
from gazette_aio.spark.streaming.progress import Target, regressed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyarrow import Schema

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, Labels
    from gazette_aio.spark.streaming.offsets import BatchRange, Offsets

_logger = logging.getLogger(__name__)

_PROBE_SECONDS: Final = 5.0
"""Seconds for which a write head which went back is asked for again."""

_PAUSE_SECONDS: Final = 1.0
"""Seconds between attempts to reach brokers which are away."""

_FRESH_SECONDS: Final = 60.0
"""Seconds for which content that was read is taken to be there still."""


class StreamListing:
    """Lists the journals of a query, and checks that rows can be made of those which are new.

    Args:
        options: What's read.
        schema: Exact Arrow schema of the rows.
    """

    def __init__(self, options: SourceOptions, schema: Schema) -> None:
        self._options = options
        self._schema = schema
        self._layout: RowLayout | None = None
        self._has_answered = False  # Whether brokers were there.
        self._checked: dict[str, tuple[str, Labels]] = {}
        self._read: dict[str, tuple[int, float]] = {}  # Offsets read up to, and when.

    async def initial(self) -> dict[str, JournalInfo]:
        """Return all journals, with what it takes to find where a new query begins.

        Cancellation: safe.

        Raises:
            ConfigurationError: A journal which is named isn't there, or rows can't be made of one.
            GazetteError: Brokers can't tell.
        """
        begin_mod_time = 0
        if self._options.starting_timestamp_ms is not None:
            begin_mod_time = self._options.starting_timestamp_ms // 1000 - MAX_SKEW_SECONDS
        journals = await self._list(
            fragments=self._options.starting != "latest",
            # Others may be created while the query runs.
            allow_none=not self._options.selection.journals,
            begin_mod_time=max(begin_mod_time, 0),
        )
        await self._check(journals)
        return {journal.name: journal for journal in journals}

    async def look(
        self, names: Collection[str] | None = None, *, fragments: bool
    ) -> dict[str, JournalInfo]:
        """Return the journals of these names which are there; or all of the query.

        Cancellation: safe.

        Raises:
            ConfigurationError: Rows of the schema can't be made of one.
            GazetteError: Brokers can't tell.
        """

        def is_wanted(journal: JournalInfo) -> bool:
            return names is None or journal.name in names

        listed = await self._list(fragments=fragments, wanted=is_wanted, allow_none=True)
        await self._check(listed)
        return {journal.name: journal for journal in listed}

    async def ahead_of(self, start: Offsets) -> dict[str, JournalInfo]:
        """Return all journals, with heads that aren't behind what was read, but for a warning.

        Cancellation: safe.

        Raises:
            GazetteError: As `look()`.
        """
        journals = await self.look(fragments=False)
        deadline = time.monotonic() + _PROBE_SECONDS
        pause = 0.01
        while behind := [
            name
            for name in regressed(start, journals.values())
            if start.revisions.get(name) in (None, journals[name].create_revision)
            and journals[name].fragments is None
        ]:
            # An empty append would tell, but who reads may not be allowed to append. A replica
            # which is behind learns of it by the next proposal, or within the time of an append.
            if time.monotonic() >= deadline:
                _logger.warning("write heads are behind what was read", extra={"journals": behind})
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
            await self._probe(behind, journals)
        return journals

    async def add_fragments(
        self,
        start: Offsets,
        journals: dict[str, JournalInfo],
        targets: Mapping[str, Target] | None,
        *,
        cuts: bool,
    ) -> None:
        """List the fragments of those journals where it matters.

        Args:
            start: Where a batch begins.
            journals: The journals, which are replaced by those with fragments.
            targets: Where the run ends, if it does.
            cuts: Whether journals are to be cut.

        Cancellation: safe.

        Raises:
            GazetteError: As `look()`.
        """
        fresh = time.monotonic() - _FRESH_SECONDS
        names: set[str] = set()
        for name, journal in journals.items():
            begin = start.journals.get(name, 0)
            target = None if targets is None else targets.get(name, Target(0))
            lag = (journal.head if target is None else min(journal.head, target.head)) - begin
            if lag <= 0 or journal.fragments is not None:
                continue
            known, when = self._read.get(name, (-1, 0.0))
            is_fresh = known == begin and when >= fresh
            if not is_fresh or lag > SMALL_BYTES or (cuts and not journal.is_divisible):
                names.add(name)
        found = await self.look(names, fragments=True) if names else {}
        for name, journal in found.items():
            # Race: fragments may be those of a replica which doesn't know of the last append yet.
            is_same = journal.create_revision == journals[name].create_revision
            head = max(journal.head, journals[name].head) if is_same else journal.head
            journals[name] = replace(journal, head=head)

    def note_read(self, ranges: Iterable[BatchRange]) -> None:
        """Take note of what's read now."""
        now = time.monotonic()
        self._read |= {one.journal: (one.end, now) for one in ranges}

    async def _list(self, **wanted: Any) -> list[JournalInfo]:
        """Return what `list_journals()` does of these arguments, as soon as brokers answer."""
        options = self._options
        began = time.monotonic()
        while True:
            try:
                client = await spark_client(options.connection)
                found = await list_journals(client, options, **wanted)
            except (pb.TransportError, pb.BrokerStatusError) as error:
                waited = time.monotonic() - began
                if not (self._has_answered and error.retryable and waited < options.fetch_timeout):
                    raise
                _logger.warning("brokers are waited for: %s", str(error))
            else:
                self._has_answered = True
                return found
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _check(self, journals: Iterable[JournalInfo]) -> None:
        checked = self._checked
        new = [one for one in journals if checked.get(one.name) != (one.content_type, one.labels)]
        if new:
            await asyncio.to_thread(self._check_new, new)
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
                journals.pop(name)  # The next listing tells.
            else:
                journals[name] = replace(journals[name], head=head)

        await map_bounded(probe, names)

    def __repr__(self) -> str:
        return f"<StreamListing, {len(self._checked)} journals were seen>"
