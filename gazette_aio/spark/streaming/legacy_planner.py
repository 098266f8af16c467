"""Plans the batches of a streaming query for Spark before 4.2, which doesn't tell where they begin.

There, `latestOffset()` has no argument. Within a run it's known that a batch begins where the last
one ended. But the first batch of a run is planned without any knowledge of what was read before,
nor whether anything was. So it's planned for both. It ends at the write heads, whatever the limits.
If the query turns out to be new, it begins where a new one does, which its end says. If not, that's
ignored.

States of producers at that end depend on the begin as well, so this end has none; nor has it places
in journals which are gone. When the begin is told, along with the tasks, both are found out and
held on to by the process; all further ends have them. If a run goes on from an end without states,
as its predecessor was of a single batch, states are computed from the first byte of each journal
on: they're the same, but it takes time.
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
    from gazette_aio.spark.planning.tasks import Partition


class LegacyStreamPlanner(StreamPlanner):
    """Plans batches of a query, without being told where they begin.

    The arguments are those of `StreamPlanner`.
    """

    _last: Mapping[str, Any] | None = None  # End of the last batch.
    _known: tuple[Mapping[str, Any], Offsets] | None = None  # An end, and what it lacks.

    async def next_end(
        self, *, max_bytes: int | None = None, max_rows: int | None = None
    ) -> Mapping[str, Any]:
        """Return where the next batch ends.

        Limits are those of `end()`. They're ignored in the first batch of a run.

        Cancellation: safe.

        Raises:
            GazetteError: As `end()`.
        """
        if self._last is None:
            initial = await self.initial()
            journals = await self._listing.ahead_of(Offsets())
            end = plan_batch(initial, journals.values()).offsets
            # Whichever of them are read from where: all may end within a line.
            end = await self._end_at_lines(batch_ranges(Offsets(), end), end, journals)
            self._last = replace(end, states=None).to_json()
        else:
            self._last = await self.end(self._last, max_bytes=max_bytes, max_rows=max_rows)
        return self._last

    async def partitions(
        self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]
    ) -> list[Partition]:
        """Return what the tasks of a batch read. See `StreamPlanner.partitions()`.

        Cancellation: safe.
        """
        if self._last is None:
            self._last = given_end  # It's a batch which failed in another run.
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
        """Return positions with the states there."""
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
    """Return an end with what's known of where its batch begins.

    That's places in journals which are gone, or whose write heads seemed to be behind them, and
    states of journals which had nothing to read.
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
