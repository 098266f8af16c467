"""Restarts of failed replicas: whether, and after how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Policy of restarts of failed replicas. A restart deletes the replica's own assignment.

    The allocator then assigns the shard anew, perhaps to another member.
    """

    max_attempts: int = 5
    """Restarts of a shard in a row, after which it stays failed."""
    first_seconds: float = 1.0
    """Delay before the first restart. It doubles with each further one."""
    last_seconds: float = 60.0
    """Longest delay."""
    reset_seconds: float = 600.0
    """Time without a failure after which the count begins again."""


class Restarts:
    """Counts the restarts of shards.

    Args:
        policy: When to restart; None for never.
    """

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self._attempts: dict[str, tuple[int, float]] = {}

    def __repr__(self) -> str:
        return f"<Restarts of {len(self._attempts)} shards>"

    def delay_seconds(self, shard: str, now: float) -> float | None:
        """Count a failure, and return the seconds before the restart; None for no restart.

        Args:
            shard: ID of the shard.
            now: Seconds of a monotonic clock.
        """
        policy = self._policy
        if policy is None:
            return None
        attempts, last = self._attempts.get(shard, (0, now))
        if now - last >= policy.reset_seconds:
            attempts = 0
        self._attempts[shard] = (attempts + 1, now)
        if attempts >= policy.max_attempts:
            return None
        return min(policy.first_seconds * 2.0**attempts, policy.last_seconds)

    def forget(self, shard: str) -> None:
        """Forget a shard that no longer exists."""
        self._attempts.pop(shard, None)
