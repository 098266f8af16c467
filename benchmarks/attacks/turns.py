"""All shards of a member change at once.

Invariant: no turn of the member's event loop is long, in processor time.
"""

from __future__ import annotations

from typing import Final

from benchmarks.measures.consumer_loop import MOST_SECONDS, SHARDS, longest_turn
from benchmarks.soaks.invariant import require

_LONG_SECONDS: Final = 30.0


async def attack(duration: float, seed: int) -> None:  # noqa: ARG001 - Nothing is random.
    """Apply, unassign and delete shards: fewer of them if `duration` is less than 30 s."""
    shards = SHARDS if duration >= _LONG_SECONDS else SHARDS // 10
    longest = await longest_turn(shards)
    require(longest <= MOST_SECONDS, f"a turn with {shards} shards took {longest:.3f} s")
    print(f"turns: with {shards} shards, none was longer than {longest:.3f} s", flush=True)
