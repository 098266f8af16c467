"""Decides which fragments of a journal are older than its retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gazette_aio.protocol as pb


def is_aged(spec: pb.JournalSpec, fragment: pb.Fragment, now: float) -> bool:
    """Return whether a store has a fragment for longer than the retention of its journal.

    A journal without a retention keeps its fragments, as its specification says; `gazctl` removes
    them all. Fragments that no store has are kept.

    Args:
        spec: Specification of the journal.
        fragment: One of its fragments.
        now: Unix time.
    """
    retention = spec.fragment.retention.seconds + spec.fragment.retention.nanos / 1e9
    is_stored = bool(fragment.backing_store and fragment.mod_time)
    return is_stored and retention > 0 and now - fragment.mod_time >= retention
