"""Decides which fragments of a journal are older than its retention."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import gazette_aio.protocol as pb


@dataclasses.dataclass(slots=True)
class RetentionPlan:
    """Fragments of a journal, and those to remove."""

    journal: str
    fragments: int = 0
    bytes: int = 0
    aged: list[pb.Fragment] = dataclasses.field(default_factory=list)
    """Fragments that a store has for longer than the retention."""


def plan_retention(
    spec: pb.JournalSpec, fragments: Iterable[pb.Fragment], now: float
) -> RetentionPlan:
    """Return which fragments of a journal are older than its retention.

    A journal without a retention keeps its fragments, as its specification says; `gazctl` removes
    them all. Fragments that no store has are kept.

    Args:
        spec: Specification of the journal.
        fragments: Its fragments.
        now: Unix time.
    """
    plan = RetentionPlan(spec.name)
    retention = spec.fragment.retention.seconds + spec.fragment.retention.nanos / 1e9
    for fragment in fragments:
        plan.fragments += 1
        plan.bytes += fragment.end - fragment.begin
        is_stored = fragment.backing_store and fragment.mod_time
        if is_stored and retention > 0 and now - fragment.mod_time >= retention:
            plan.aged.append(fragment)
    return plan
