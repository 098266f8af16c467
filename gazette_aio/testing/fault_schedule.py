"""Plans of random network faults: kinds, times and durations.

A `random.Random` is the only source of randomness, so that a seed repeats a plan.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence


class Direction(enum.Enum):
    """Direction of bytes through a proxy."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"
    BOTH = "both"


class FaultKind(enum.Enum):
    """Kinds of faults."""

    CUT = "cut"
    """Connections close without a reset, in the middle of their data."""
    RESET = "reset"
    """Connections are reset."""
    HALF_CLOSE = "half-close"
    """One direction of the connections ends, and the other continues."""
    STALL = "stall"
    """Nothing passes, for a while."""
    TRICKLE = "trickle"
    """Bytes pass one at a time, for a while."""
    DELAY = "delay"
    """Bytes are delayed, for a while."""
    CUT_AFTER = "cut after"
    """Connections end after a number of bytes, which arrive."""
    REFUSE = "refuse"
    """Connections are reset, and new connections are refused, for a while."""


class Fault(NamedTuple):
    """One fault of a plan."""

    kind: FaultKind
    direction: Direction
    calm_seconds: float
    """Seconds without faults before this fault."""
    seconds: float
    """Duration of a lasting fault, in seconds."""
    byte_count: int
    """Number of bytes of `CUT_AFTER`."""

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.direction.value})"


LASTING: Final = frozenset({FaultKind.STALL, FaultKind.TRICKLE, FaultKind.DELAY, FaultKind.REFUSE})
"""Faults that last for a while; other faults happen once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Distribution of random faults.

    Args:
        kinds: Kinds to choose from. A kind that occurs twice is chosen twice as often.
        calm_seconds: Shortest and longest time before each fault.
        fault_seconds: Shortest and longest duration of a lasting fault.
        most_bytes: Most bytes of `CUT_AFTER`.
    """

    kinds: Sequence[FaultKind] = tuple(FaultKind)
    calm_seconds: tuple[float, float] = (0.05, 0.5)
    fault_seconds: tuple[float, float] = (0.02, 0.3)
    most_bytes: int = 100_000

    def draw(self, rng: random.Random) -> Iterator[Fault]:
        """Yield faults without end.

        Args:
            rng: Source of randomness.
        """
        directions = tuple(Direction)
        while True:
            yield Fault(
                kind=rng.choice(self.kinds),
                direction=rng.choice(directions),
                calm_seconds=rng.uniform(*self.calm_seconds),
                seconds=rng.uniform(*self.fault_seconds),
                # Logarithmic, because most events of a stream happen in its first bytes.
                byte_count=int(self.most_bytes ** rng.random()),
            )
