"""Planner of streaming batches for Spark before 4.2, which doesn't pass their begins.

There, `latestOffset()` has no argument. Within a run, a batch begins at the end of the last batch.
But the first batch of a run is planned without knowing whether and what the query read before. Its
plan fits both cases: it ends at the write heads, regardless of limits, and its end includes the
begin of a new query, which is ignored if the query isn't new.

States of producers at that end depend on the begin, so this end has no states, and no positions in
deleted journals. When Spark passes the begin to plan the tasks, the process computes and keeps
both, and includes them in further ends. If a run continues from an end without states, because the
previous run had a single batch, the states are computed from the first byte of each journal: the
result is the same, but it takes time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gazette_aio.message.ranges.committed import RangeState
from gazette_aio.spark.streaming.offsets import (
    BatchRange,
    Offsets,
    batch_ranges,
    begin_of,
    is_recreated,
)
from gazette_aio.spark.streaming.planner import StreamPlanner
from gazette_aio.spark.streaming.progress import find_recreated, plan_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.reading.task import Partition


class LegacyStreamPlanner(StreamPlanner):
    """Plans batches of a query without knowing their begins.

    The arguments are those of `StreamPlanner`.
    """

    _last: Mapping[str, Any] | None = None  # End of the last batch.
    _known: tuple[Mapping[str, Any], Offsets] | None = None  # An end, and its complete form.

    async def next_end(
        self, *, max_bytes: int | None = None, max_rows: int | None = None
    ) -> Mapping[str, Any]:
        """Return the end of the next batch.

        Limits are those of `end()`. They're ignored in the first batch of a run.

        Raises:
            GazetteError: As `end()`.

        Cancellation: safe.
        """
        if self._last is None:
            initial = await self.initial()
            journals = await self._listing.ahead_of(Offsets())
            end = plan_batch(initial, journals.values()).offsets
            # Any journal may end inside a line.
            end = await self._end_at_lines(batch_ranges(Offsets(), end), end, journals)
            self._last = replace(end, states=None).to_json()
            self._last_ms = int(self._clock() * 1000)
        else:
            self._last = await self.end(self._last, max_bytes=max_bytes, max_rows=max_rows)
        return self._last

    async def partitions(
        self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]
    ) -> list[Partition]:
        """Return the partitions of a batch; see `StreamPlanner.partitions()`.

        Cancellation: safe.
        """
        if self._last is None:
            self._last = given_end  # The batch failed in another run.
        return await super().partitions(given_start, given_end)

    async def _parse_start(self, given: Mapping[str, Any]) -> Offsets:
        if self._known is not None and self._known[0] == given:
            return self._known[1]
        offsets = Offsets.parse(given)
        if not self._sequences or offsets.is_initial or offsets.states is not None:
            return offsets.sequence(committed=self._sequences)
        self._known = given, await self._recompute(offsets)
        return self._known[1]

    async def _parse_end(self, given: Mapping[str, Any], start: Offsets) -> Offsets:
        end = Offsets.parse(given)
        if end.states is not None:
            return end.sequence(committed=self._sequences)
        self._tell(find_recreated(begin_of(start, end), end))
        moved: dict[str, RangeState] = {}
        if self._sequences:
            end = replace(end, states={})
            ranges = batch_ranges(start, end)
            journals = await self._listing.look({one.journal for one in ranges}, fragments=True)
            moved = await self._states_at(end, ranges, journals)
        self._known = given, _complete(start, end, moved)
        return end

    async def _recompute(self, offsets: Offsets) -> Offsets:
        """Return positions with the states of producers."""
        journals = await self._listing.look(offsets.journals, fragments=True)
        ranges = [
            BatchRange(name, 0, offset, 0, True, RangeState())  # noqa: FBT003
            for name, offset in sorted(offsets.journals.items())
            if name in journals
            and not is_recreated(offsets, name, journals[name].create_revision, journals[name].head)
        ]
        return replace(offsets, states=await self._states_at(offsets, ranges, journals), base=None)

    async def _states_at(
        self,
        offsets: Offsets,
        ranges: Iterable[BatchRange],
        journals: Mapping[str, JournalInfo],
    ) -> dict[str, RangeState]:
        listed = [one for one in ranges if one.journal in journals and one.end > one.begin]
        states = await self._sequence(self._committed(listed, journals), journals)
        return {
            name: replace(state, offset=offsets.journals[name]) for name, state in states.items()
        }


def _complete(start: Offsets, end: Offsets, moved: Mapping[str, RangeState]) -> Offsets:
    """Return an end completed from the begin of its batch.

    The end gets positions in journals which are deleted, or whose write heads seemed to lag, and
    states of journals without new content.
    """
    start = begin_of(start, end)
    kept = {
        name: offset
        for name, offset in start.journals.items()
        if name not in end.journals
        or not is_recreated(start, name, end.revisions.get(name, 0), end.journals[name])
    }
    journals = {name: max(offset, kept.get(name, 0)) for name, offset in end.journals.items()}
    states = {name: state for name, state in (start.states or {}).items() if name in kept}
    return Offsets(
        kept | journals,
        {name: revision for name, revision in start.revisions.items() if name in kept}
        | end.revisions,
        None if end.states is None else {**states, **moved},
    )
