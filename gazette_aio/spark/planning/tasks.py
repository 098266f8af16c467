"""Tasks of a job, and their partitions.

A listing of journals becomes ranges, ranges are split, and splits are packed into partitions:

    plan_ranges() → plan_tasks() → pack()                    all messages
    plan_ranges() → plan_committed_tasks() → pack()          committed messages, a task per journal
    plan_ranges() → split_range() → plans of the splits
                  → plan_split_tasks() → pack()              committed messages, in splits

All functions are pure, and take time proportional to the numbers of journals, fragments and tasks.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.ranges.committed import RangeState
from gazette_aio.spark.planning.journal_ranges import content_bytes, split_range
from gazette_aio.spark.reading.task import (
    OPEN_BYTES,
    All,
    CommittedFrom,
    CommittedSplitOf,
    Task,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gazette_aio.message.ranges.committed import RangePlan
    from gazette_aio.spark.planning.journal_ranges import JournalRange, Split
    from gazette_aio.spark.reading.task import Kind, Partition

DEFAULT_SPLIT_BYTES = 128 << 20
SMALL_BYTES = 8 << 20
"""Bytes which are read in about the time of starting a task of Spark, some 35 ms."""

MIDDLE_BYTES = 32 << 20
"""Bytes of a partition, as it's unknown how many are executed at once."""

_UNLIMITED = 1 << 63


def plan_tasks(
    ranges: Iterable[JournalRange],
    *,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    labels: Collection[str] | None = None,
) -> list[Task]:
    """Return the tasks which deliver every message of ranges.

    Args:
        ranges: The ranges.
        max_split_bytes: Limit of the bytes of a task, where a journal can be cut.
        labels: Names of the labels which rows need; all by default.
    """
    return [
        _task(split, All(), labels)
        for planned in ranges
        for split in split_range(planned, max_split_bytes, anywhere=planned.journal.is_divisible)
    ]


def plan_committed_tasks(
    ranges: Iterable[JournalRange],
    states: Mapping[str, RangeState] | None = None,
    *,
    acks_ends: Mapping[str, int] | None = None,
    labels: Collection[str] | None = None,
) -> list[Task]:
    """Return one task per range, which delivers the messages committed in the range.

    Args:
        ranges: The ranges, at most one per journal.
        states: States of producers at the begins of ranges, by journal; empty by default.
        acks_ends: Offsets before which messages of the ranges may commit, by journal; by default
            the ends of the ranges.
        labels: Names of the labels which rows need; all by default.
    """
    states, acks_ends = states or {}, acks_ends or {}
    tasks: list[Task] = []
    for planned in ranges:
        state = states.get(planned.journal.name) or RangeState(planned.begin)
        kind = CommittedFrom(_state_json(state))
        acks_end = acks_ends.get(planned.journal.name, 0)
        tasks += [
            _task(split, kind, labels, acks_end) for split in split_range(planned, _UNLIMITED)
        ]
    return tasks


def plan_split_tasks(
    splits: Sequence[Split],
    plan: RangePlan,
    *,
    acks_end: int = 0,
    labels: Collection[str] | None = None,
) -> list[Task]:
    """Return the tasks of the splits of a range, at whose begin no producers are known.

    Args:
        splits: All splits of one range, from `split_range()` without `anywhere`.
        plan: Plan of all splits but the last. It must include enough of the last split to decide
            which pending messages commit.
        acks_end: Offset before which messages of the range may commit, if that's after its end.
        labels: Names of the labels which rows need; all by default.
    """
    kinds: list[Kind] = [CommittedSplitOf(each) for each in plan.splits]
    # Replays begin with a record, as the split does: a torn record before it would swallow it.
    state = replace(plan.state, offset=splits[-1].begin)
    kinds.append(CommittedFrom(_state_json(state), entering=False))
    return [
        _task(split, kind, labels, acks_end if split is splits[-1] else 0)
        for split, kind in zip(splits, kinds, strict=True)
    ]


class PartitionSizes(NamedTuple):
    """Number and size of partitions."""

    least: int
    """Least number of partitions."""
    limit: int
    """Greatest number of bytes of a partition, where possible."""

    @property
    def finer(self) -> int:
        """Size of splits from which partitions of about `limit` bytes are packed."""
        return max(self.limit // 2, min(self.limit, SMALL_BYTES))


def size_partitions(
    ranges: Sequence[JournalRange],
    *,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    min_partitions: int | None = None,
) -> PartitionSizes:
    """Return the number and size of partitions for ranges.

    Args:
        ranges: The ranges.
        max_split_bytes: Limit of the bytes of a partition.
        min_partitions: Least number of partitions of any size; by default they have about
            `MIDDLE_BYTES`.
    """
    total = sum(map(content_bytes, ranges))
    least = min_partitions
    if least is None:
        least = (total + OPEN_BYTES * len(ranges)) // MIDDLE_BYTES
    return PartitionSizes(least, max(min(max_split_bytes, total // max(least, 1)), 1))


def pack(
    tasks: Iterable[Task],
    *,
    max_split_bytes: int = DEFAULT_SPLIT_BYTES,
    min_partitions: int = 0,
) -> list[Partition]:
    """Return partitions of tasks with about equal weights, largest first.

    Args:
        tasks: The tasks.
        max_split_bytes: Limit of the weight of a partition of several tasks.
        min_partitions: Least number of partitions, if there are as many tasks.
    """
    ordered = sorted(tasks, key=lambda task: (-task.weight, task.journal, task.begin))
    limit = max(max_split_bytes, OPEN_BYTES)
    # A larger task has a partition of its own.
    total = sum(min(task.weight, limit) for task in ordered)
    least = max(-(-total // limit), min_partitions)
    bins: list[list[Task]] = [[] for _ in range(min(least, len(ordered)))]
    loads = [(0, at) for at in range(len(bins))]
    for task in ordered:
        load, at = loads[0]
        if load and load + task.weight > limit:
            at = len(bins)
            bins.append([])
            heapq.heappush(loads, (task.weight, at))
        else:
            heapq.heapreplace(loads, (load + task.weight, at))
        bins[at].append(task)
    return [tuple(bins[at]) for _, at in sorted(loads, key=lambda load: (-load[0], load[1]))]


def _state_json(state: RangeState) -> str:
    return json.dumps(state.to_json(), separators=(",", ":"))


def _task(split: Split, kind: Kind, labels: Collection[str] | None, acks_end: int = 0) -> Task:
    journal, begin, end, size, is_aligned = split
    kept = journal.labels
    if labels is not None:
        kept = tuple(label for label in kept if label[0] in labels)
    return Task(
        journal.name,
        begin,
        end,
        journal.content_type,
        kept,
        max(journal.head, end),
        kind,
        size,
        is_aligned,
        acks_end if acks_end > end else 0,
    )
