"""Pruning of recovery logs: which fragments no hints need.

A log may hold operations that several shards need, if they were forked from it. So the hints of all
shards of a consumer count, whichever logs are to be pruned. Hints that are missing could name any
log, which is why those of a shard are complete only if all of them have been stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.consumer.recoverylog.hints import live_log_segments
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES
from gazette_aio.protocol.errors import RecoveryError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gazette_aio.consumer.recoverylog.segments import Segment
    from gazette_aio.protocol.recoverylog import FSMHints


class ShardHints(NamedTuple):
    """Hints of a shard."""

    shard: str
    """ID of the shard."""
    log: str
    """Its recovery log."""
    hints: Sequence[FSMHints | None]
    """The primary's hints and all backups; None where there are none, or none that can be read."""


class PruningPlan(NamedTuple):
    """Parts of logs that hints need."""

    logs: Sequence[str]
    """Logs to prune, in the order of their shards."""
    segments: dict[str, list[Segment]]
    """Segments of each log that hints of shards need. The last one of each hints has no end."""
    incomplete: dict[str, str]
    """Shards whose hints aren't complete, and why."""
    skipped: dict[str, str]
    """Logs that can't be pruned, as a shard whose hints aren't complete may need them, and why."""

    def needs(self, log: str, begin: int, end: int) -> bool:
        """Return whether hints need a part of a log.

        Args:
            log: The log.
            begin: Offset at which the part begins.
            end: Offset at which the part ends, or 0 if that isn't known.
        """
        segments = self.segments.get(log)
        return not segments or any(
            (segment.first_offset < end or not end)
            and (segment.last_offset > begin or not segment.last_offset)
            for segment in segments
        )


def plan_pruning(shards: Iterable[ShardHints], selected: Collection[str]) -> PruningPlan:
    """Return which parts of the logs of some shards are needed.

    Logs of other shards, or of none, aren't to be pruned, even if hints name them: who else needs
    them isn't known.

    Args:
        shards: All shards of the consumer that have recovery logs.
        selected: IDs of the shards whose logs are to be pruned.
    """
    plan = PruningPlan([], {}, {}, {})
    logs: dict[str, None] = {}
    for shard, log, all_hints in shards:
        if shard in selected:
            logs[log] = None
        reason = ""
        named = {log}
        for hints in all_hints:
            if hints is None:
                reason = reason or "hasn't stored all its hints, or has some that can't be read"
                continue
            try:
                _, segments = live_log_segments(hints)
            except (RecoveryError, ValidationError) as error:
                reason = reason or f"has hints that can't be played: {error}"
                continue
            if not segments:
                reason = reason or "has hints without live files"
                continue
            for segment in _played(list(segments)):
                named.add(segment.log)
                plan.segments.setdefault(segment.log, []).append(segment)
        if reason:
            plan.incomplete[shard] = reason
            plan.skipped.update(dict.fromkeys(named, f"shard {shard} {reason}"))
    return plan._replace(logs=list(logs))


def _played(segments: list[Segment]) -> list[Segment]:
    """Return the segments of hints as playback reads them.

    It reads on after the last one. It also reads through short gaps, where brokers would fail as
    long as they list fragments that are gone.
    """
    played = [segments[0]]
    for segment in segments[1:]:
        last = played[-1]
        is_near = segment.log == last.log and last.last_offset + READ_THROUGH_BYTES >= (
            segment.first_offset
        )
        if is_near:
            last_offset = segment.last_offset and max(last.last_offset, segment.last_offset)
            played[-1] = last._replace(last_seq_no=segment.last_seq_no, last_offset=last_offset)
        else:
            played.append(segment)
    return [*played[:-1], played[-1]._replace(last_offset=0)]
