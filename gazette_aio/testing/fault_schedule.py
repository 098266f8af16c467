"""Random faults of a network, as a plan: which one, when, and for how long.

A plan is drawn from a `random.Random` alone, so that one seed repeats it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence


class Direction(enum.Enum):
    """Which of the bytes that pass through a proxy are meant."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"
    BOTH = "both"


class FaultKind(enum.Enum):
    """What goes wrong."""

    CUT = "cut"
    """Connections end in order, in the middle of whatever they carry."""
    RESET = "reset"
    """Connections are reset."""
    HALF_CLOSE = "half-close"
    """One direction of the connections ends, the other goes on."""
    STALL = "stall"
    """Nothing passes, for a while."""
    TRICKLE = "trickle"
    """Bytes pass one at a time, for a while."""
    DELAY = "delay"
    """All that passes is late, for a while."""
    CUT_AFTER = "cut after"
    """Connections are reset once a number of bytes have passed."""
    REFUSE = "refuse"
    """Connections are reset, and new ones refused for a while."""


class Fault(NamedTuple):
    """One fault of a plan."""

    kind: FaultKind
    direction: Direction
    calm_seconds: float
    """Seconds without faults ahead of it."""
    seconds: float
    """Seconds for which it lasts, if it lasts."""
    byte_count: int
    """Bytes, if it's about a number of them."""

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.direction.value})"


LASTING: Final = frozenset({FaultKind.STALL, FaultKind.TRICKLE, FaultKind.DELAY, FaultKind.REFUSE})
"""Faults which last, rather than to strike once."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What a random plan of faults is drawn from.

    Args:
        kinds: Faults to choose from. One which is named twice is chosen twice as often.
        calm_seconds: Shortest and longest time without faults ahead of each.
        fault_seconds: Shortest and longest time for which a lasting fault lasts.
        most_bytes: Largest number of bytes after which `CUT_AFTER` strikes.
    """

    kinds: Sequence[FaultKind] = tuple(FaultKind)
    calm_seconds: tuple[float, float] = (0.05, 0.5)
    fault_seconds: tuple[float, float] = (0.02, 0.3)
    most_bytes: int = 100_000

    def draw(self, rng: random.Random) -> Iterator[Fault]:
        """Yield faults without end.

        Args:
            rng: Where chance comes from.
        """
        directions = tuple(Direction)
        while True:
            yield Fault(
                kind=rng.choice(self.kinds),
                direction=rng.choice(directions),
                calm_seconds=rng.uniform(*self.calm_seconds),
                seconds=rng.uniform(*self.fault_seconds),
                # Most of what matters about a stream happens among its first bytes.
                byte_count=int(self.most_bytes ** rng.random()),
            )
