"""Journals that are parked after failures, with the times at which they're retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

P = TypeVar("P", bound="Hashable")


class ParkedJournals(Generic[P]):
    """Parked journals, by what reads them. Repeated failures at one offset back off."""

    def __init__(self) -> None:
        self._due: dict[P, float] = {}
        self._attempts: dict[str, tuple[int, int]] = {}  # (offset, failures there) of each journal.

    @property
    def first(self) -> tuple[P, float] | None:
        """The journal to retry first and its time, or None if no journal is parked."""
        return min(self._due.items(), key=lambda parked: parked[1], default=None)

    def add(
        self, parked: P, journal: str, offset: int, now: float, backoff: Callable[[int], float]
    ) -> None:
        """Park a journal after a failure.

        Args:
            parked: What reads the journal.
            journal: Name of the journal.
            offset: Offset of the failure.
            now: Present time, in seconds.
            backoff: Function from the number of a failed attempt, from zero, to seconds of delay.
        """
        at, attempt = self._attempts.get(journal, (offset, 0))
        if at != offset:
            attempt = 0
        self._attempts[journal] = offset, attempt + 1
        self._due[parked] = now + backoff(attempt)

    def discard(self, parked: P) -> None:
        """Remove a journal, if it's parked. It keeps its count of failures."""
        self._due.pop(parked, None)
