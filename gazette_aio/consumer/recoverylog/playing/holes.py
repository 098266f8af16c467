"""Holes of a recovery log that no hints explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class LogHole:
    """Part of a log that was removed, and may have held operations that no hints name."""

    log: str
    """The log."""
    begin: int
    """Offset of its first byte."""
    end: int
    """Offset after its last byte."""
    seq_no: int
    """Number of the operation that was due there."""

    def __str__(self) -> str:
        return f"a hole at {self.begin}-{self.end} of {self.log}"


def loss_of(holes: Sequence[LogHole]) -> str:
    """Return a text that names holes, and what they may have held."""
    named = " and ".join(map(str, holes))
    return (
        f"no operation of {holes[0].log} after {named} continues its history at operation "
        f"{holes[0].seq_no}; possible data loss"
    )
